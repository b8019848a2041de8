"""Processor time of a command and of all that it starts, also of what outlives the process that started it.

``python -m benchmarks.parts.cpu_of_all FILE COMMAND…`` writes seconds of processor and wall time to FILE as
JSON, and ends with the exit code of the command.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
"""Of Linux's prctl: orphans below this process become its children, so that their time counts."""


def measure(command: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Run a command to its end; its exit code, and ``cpu_s`` and ``wall_s``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    child = subprocess.Popen(command)
    code = None
    while code is None:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
    child.returncode = code
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.monotonic() - begun}


def main(words: Sequence[str]) -> int:
    """Measure and write."""
    code, times = measure(words[1:])
    Path(words[0]).write_text(json.dumps(times))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
