"""The environment of a program that is installed: its byte code is kept, and numpy starts no threads."""

from __future__ import annotations

import os


def as_installed() -> dict[str, str]:
    """The environment in which byte code is kept beside the modules; only the first process compiles it.

    Commands that calculate keep numpy from starting threads; what is measured beside them does so, too.
    """
    return os.environ | {"PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1"}
