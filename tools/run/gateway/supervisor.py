"""Supervisor of the gateway: a process beside the run, started again if it dies."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pliant.schemas.errors import PliantError, ServiceMissingError, UsageError
from pliant.tools.run.backends.slurm.commands import ask, show_config
from pliant.tools.run.backends.slurm.parsing import settings
from pliant.tools.run.gateway.permissions import read_roles
from pliant.tools.run.gateway.readable_install import ADVICE, obstacle
from pliant.tools.run.statedir.directory import StateDir, make_shared

RESTART_DELAY_S: Final = 1.0
MAX_RESTART_DELAY_S: Final = 60.0
_log = logging.getLogger("pliant")


@contextmanager
def supervised_gateway(dirs: StateDir, roles: Path | None = None, *, munge: bool = False) -> Iterator[None]:
    """Let other accounts ask for something there; call it while this process holds the directory's lock.

    :param munge: serve the other hosts of a Slurm cluster, too.
    :raises UsageError: the directory is not root's, or others could replace it or the file of roles.
    :raises PliantError: the gateway cannot be opened.
    """
    make_shared(dirs)
    if (why := obstacle()) is not None:
        _log.warning("%s: %s", why, ADVICE)
    if roles is not None:
        roles = roles.resolve()
        read_roles(roles)
    supervisor = _Supervisor(dirs, roles, munge_socket() if munge else None)
    supervisor.start()
    try:
        yield
    finally:
        supervisor.close()


class _Supervisor:
    def __init__(self, dirs: StateDir, roles: Path | None, socket: str | None) -> None:
        self._argv = [
            *(sys.executable, "-P", "-m", "pliant.tools.run.gateway.server"),
            *(str(dirs.path), "" if roles is None else str(roles), *([] if socket is None else [socket])),
        ]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="gateway", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """:raises PliantError: it does not open."""
        self._process = self._begin(stderr=subprocess.PIPE)
        if not self._is_open(self._process):
            said = b"" if self._process.stderr is None else self._process.stderr.read()
            code = self._process.wait()
            self._process.communicate()
            text = said.decode(errors="replace").strip() or f"it ended with code {code}"
            kind: type[PliantError] = UsageError if code == UsageError.exit_code else ServiceMissingError
            raise kind(f"the gateway cannot be started: {text}")
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._thread.join()

    def _begin(self, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """The process ends when its stdin does, so also when this process is killed."""
        return subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd="/",
            start_new_session=True,
        )

    @staticmethod
    def _is_open(process: subprocess.Popen[bytes]) -> bool:
        return process.stdout is not None and bool(process.stdout.read(1))

    def _keep(self) -> None:
        """Log what the gateway prints, and start it again whenever it dies."""
        pause_s, process = RESTART_DELAY_S, self._process
        while process is not None:
            _pass_on(process.stderr)
            code = process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            if self._closing.is_set():
                return
            _log.warning("the gateway ended with code %d: it is started again in %g s", code, pause_s)
            if self._closing.wait(pause_s):
                return
            pause_s = min(MAX_RESTART_DELAY_S, 2 * pause_s)
            process = self._process = self._begin(stderr=subprocess.PIPE)
            if self._closing.is_set() and process.stdin is not None:
                process.stdin.close()
            elif self._is_open(process):
                pause_s = RESTART_DELAY_S


def munge_socket() -> str:
    """The socket of the munged that Slurm uses; empty for the usual one."""
    try:
        options = settings(ask(show_config())).get("AuthInfo", "")
    except ServiceMissingError:
        return ""
    parts = dict(part.partition("=")[::2] for part in options.split(","))
    return parts.get("socket", "")


def _pass_on(said: IO[bytes] | None) -> None:
    """Log the lines of the gateway."""
    for line in said or ():
        _log.warning("%s", line.decode(errors="replace").rstrip("\n"))
