"""``pliant shell`` on a real run: sessions in a terminal, and what is left once their clients are killed."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import psutil

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster

KILLS: Final = 20
PROMPT: Final = "ready> "
_PATIENCE_S: Final = 60.0
_ENDS_S: Final = 15.0
_PLIANT: Final = (sys.executable, "-m", "pliant.cli")


class ShellClient:
    """``pliant shell`` in a terminal of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._seen = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ |= {"PS1": PROMPT, "TERM": "dumb"}
            shell = ("/usr/bin/env", f"PS1={PROMPT}", "/bin/bash", "--norc", "--noediting")
            words = (*_PLIANT, "shell", "--state", "live", *options, "--", *shell)
            os.execv(words[0], words)  # noqa: S606 - it is this process from here on

    def expect(self, text: str) -> str:
        """What was printed before a text; waits for it.

        :raises TimeoutError: it does not come.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while text not in self._seen:
            if time.monotonic() > until_s or not self._read():
                raise TimeoutError(f"expected {text!r} after {self._seen!r}")
        before, _, self._seen = self._seen.partition(text)
        return before

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self._seen += data.decode(errors="replace")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait(self) -> int:
        """Its exit code, once it has ended; what it prints meanwhile is read.

        :raises TimeoutError: it does not end.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._read()
            if time.monotonic() > until_s:
                raise TimeoutError(f"it goes on after {self._seen!r}")
        while self._read() and select.select([self._terminal], [], [], 0)[0]:
            pass
        self.pid = 0
        return os.waitstatus_to_exitcode(ended[1])

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._terminal)


@contextmanager
def live_run(folder: Path, cluster: Cluster | None = None) -> Iterator[Path]:
    """A run of this folder, by default with two CPU slots; its state directory is ``live``."""
    slots = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 2},), "slots": "cpu"})
    write_cluster(cluster or slots, folder / "cluster.json")
    words = (*_PLIANT, "run", "--follow", "--policy", "fifo", "--cluster", "cluster.json", "--state", "live")
    with (folder / "loop.log").open("wb") as log:
        loop = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + _PATIENCE_S
        while not (folder / "live/cluster.json").exists() and time.monotonic() < until_s:
            time.sleep(0.1)
        yield folder / "live"
    finally:
        loop.terminate()
        loop.wait()


def figures(kills: int = KILLS) -> list[Figure]:
    """Shells, or what they started, that go on after their clients were killed at any moment."""
    chance, left = random.Random(8), 0  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="pliant-shells-") as name, live_run(Path(name)) as state:
        for number in range(kills):
            mark = f"{40_000 + number}.5"
            with ShellClient(Path(name), "--name", f"shell-{number}") as client:
                if number % 4:
                    client.expect(PROMPT)
                    client.type(f"setsid nohup sleep {mark} & sleep {mark}\n")
                time.sleep(chance.random())
                client.kill()
            until_s = time.monotonic() + _ENDS_S
            while (there := _sessions(state, mark)) and time.monotonic() < until_s:
                time.sleep(0.2)
            left += bool(there)
            for process in there:
                with suppress(psutil.Error):
                    process.kill()
    return [Figure("shell_sessions_left", float(left), "sessions", 0.0)]


def _sessions(state: Path, mark: str) -> list[psutil.Process]:
    """Processes of a session, or of any that the run still has."""
    there = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            own = process.environ().get("PLIANT_JOB_DIR", "").startswith(str(state.resolve()))
            if words[-2:] == ["sleep", mark] or (own and "serve" in words):
                there.append(process)
    return there
