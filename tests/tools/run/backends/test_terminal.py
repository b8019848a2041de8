"""The two ends of a terminal on a node."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from pliant.tools.run.backends import terminal
from tests.tools.run.site import until

PRINTS = "stty raw -echo; echo ready; sleep 1; head -c 3000000 /dev/zero; exit 3"


def test_a_large_paste_while_the_program_prints(tmp_path: Path) -> None:
    file, environment = terminal.__file__, os.environ | {terminal.ENV_JOB_DIR: str(tmp_path)}
    words = (sys.executable, "-I", "-S", file)
    server = subprocess.Popen((*words, "serve", "sh", "-c", PRINTS), env=environment)
    until((tmp_path / terminal.PLACE).exists)
    pid, end = pty.fork()
    if pid == 0:
        os.execv(sys.executable, (*words, "attach", str(tmp_path)))  # noqa: S606 - a client in a terminal
    os.set_blocking(end, False)
    printed, left, until_s = 0, b"p" * 300_000, time.monotonic() + 20
    while printed < 3_000_000 and time.monotonic() < until_s:
        ready, writable, _ = select.select([end], [end] if left and printed else [], [], 0.2)
        printed += len(os.read(end, 65536)) if ready else 0
        left = left[os.write(end, left[:4096]) :] if writable else left
    server.kill()  # its client ends with it
    server.wait()
    os.waitpid(pid, 0)
    assert printed >= 3_000_000
