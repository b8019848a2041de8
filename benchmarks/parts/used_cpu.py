"""Processor time of a program that is run to its end."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

PLIANT: Final = (sys.executable, "-m", "pliant.cli")


def cpu_s(*command: str, env: Mapping[str, str] | None = None) -> float:
    """User and system time of it and its children, seconds.

    :raises subprocess.CalledProcessError: it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
