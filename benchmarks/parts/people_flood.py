"""Disk space of an output that a job floods, while it runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.tools.run.backends.local import SUPERVISOR

SECONDS: Final = 6.0
MB_PER_S: Final = 90.0
LIMIT_MIB: Final = 70.0
LOOK_S: Final = 0.01
_FLOOD: Final = """
import sys, time
line, began, written = b"x" * 9_999 + b"\\n", time.monotonic(), 0
while (passed := time.monotonic() - began) < float(sys.argv[1]):
    while written < passed * float(sys.argv[2]) * 1e6:
        written += sys.stdout.buffer.write(line)
    time.sleep(0.005)
"""


def figures(seconds: float = SECONDS, mb_per_s: float = MB_PER_S) -> list[Figure]:
    """The most that is on disk of what one worker prints."""
    with tempfile.TemporaryDirectory(prefix="pliant-flood-") as name:
        attempt = Path(name).resolve() / "job" / "attempts" / "1"
        log = attempt / "logs" / "launcher-0.log"
        log.parent.mkdir(parents=True)
        argv = [sys.executable, "-I", "-S", SUPERVISOR, str(attempt / "exit-0"), "/"]
        flood = [sys.executable, "-c", _FLOOD, str(seconds), str(mb_per_s)]
        most = 0
        with log.open("ab") as output, subprocess.Popen([*argv, *flood], stdout=output) as supervisor:
            while supervisor.poll() is None:
                most = max(most, 512 * log.stat().st_blocks)
                time.sleep(LOOK_S)
    return [Figure("log_mib_while_flooded", round(most / 2**20, 1), "MiB", LIMIT_MIB)]
