"""Processes that compute beside what is measured."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

OTHERS: Final = 4
_SPIN: Final = "while True: pass"


@contextlib.contextmanager
def busy(processes: int = OTHERS) -> Iterator[None]:
    """That many processes that compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
