"""The environment of a program that is installed: its byte code is cached."""

from __future__ import annotations

import os
from pathlib import Path


def as_installed(cache: str | Path) -> dict[str, str]:
    """The environment with a folder that keeps byte code; only the first process compiles it."""
    return os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache)}
