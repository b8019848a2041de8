"""The environment of a program that is installed: its byte code is kept."""

from __future__ import annotations

import os


def as_installed() -> dict[str, str]:
    """The environment in which byte code is kept beside the modules; only the first process compiles it."""
    return os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
