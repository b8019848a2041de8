"""Checks that every backend passes, also those of other packages: call :func:`check_backend` in a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pliant.tools.run.backends.protocol import Backend, Handle, StopLevel, Unit, UnitStatus
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_WORKER
from pliant.tools.schedule.testing.harness import require

_TIMEOUT_S = 60.0
_POLL_S = 0.05


def check_backend(open_backend: Callable[[], Backend], jobs: Path) -> None:
    """Run small commands on the first node of a backend.

    :param open_backend: makes a backend for the folder of jobs, a new one at each call.
    :param jobs: the empty folder of jobs of a state directory.
    :raises AssertionError: it breaks a rule of docs/plugins.md.
    """
    backend = open_backend()
    nodes = backend.nodes()
    require(len(nodes) > 0, "there is no node")
    require(len({node.name for node in nodes}) == len(nodes), "two nodes have one name")
    require(backend.held_nodes >= 0, "held_nodes is below 0")
    check = _Check(open_backend, jobs, nodes[0].name)
    check.exit_codes()
    check.stops()
    check.another_process()
    require(open_backend().release() >= 0, "release gave back fewer than no nodes")


class _Check:
    def __init__(self, open_backend: Callable[[], Backend], jobs: Path, node: str) -> None:
        self._open, self._jobs, self._node = open_backend, jobs, node

    def exit_codes(self) -> None:
        """Units leave their exit codes, in the order of their start."""
        backend, handle = self._open(), self._handle("exits")
        units = self._units(handle, "exit 3", "exit 0")
        require(len(backend.shown(handle, units)) > 0, "shown names no command line")
        backend.start(handle, units)
        ended = _ended(backend, handle)
        require([status.code for status in ended] == [3, 0], f"exit codes 3 and 0 became {ended}")
        backend.stop(handle, "term")  # harmless

    def stops(self) -> None:
        """Both levels end what runs."""
        levels: tuple[StopLevel, ...] = ("term", "kill")
        for level in levels:
            backend, handle = self._open(), self._handle(f"stops-{level}")
            backend.start(handle, self._units(handle, "exec sleep 600"))
            _running(backend, handle)
            backend.stop(handle, level)
            _ended(backend, handle)

    def another_process(self) -> None:
        """What one launcher has started, another finds, sees and ends."""
        handle = self._handle("adopted")
        started = self._open()
        started.start(handle, self._units(handle, "exec sleep 600"))
        _running(started, handle)
        other = self._open()
        adopted = other.adopt()
        require(handle in adopted, f"adopt does not find the attempt: {adopted}")
        require(handle not in other.adopt(over={handle.job}), "adopt finds a job that is over")
        require(
            other.poll([handle])[handle][0].state == "running", "an adopted unit does not count as running"
        )
        other.stop(handle, "kill")
        _ended(other, handle)

    def _handle(self, job: str) -> Handle:
        return Handle.of(JobDir(self._jobs / job), 1)

    def _units(self, handle: Handle, *commands: str) -> list[Unit]:
        job = {ENV_JOB_DIR: str(handle.job_files.path)}
        return [
            Unit(self._node, ("sh", "-c", command), "/", job | {ENV_WORKER: str(number)}, slots=1)
            for number, command in enumerate(commands)
        ]


def _running(backend: Backend, handle: Handle) -> None:
    def run() -> bool:
        statuses = backend.poll([handle])[handle]
        require(all(status.state == "running" for status in statuses), f"a unit does not run: {statuses}")
        return not any(status.queued or status.starting for status in statuses)

    _wait(run)


def _ended(backend: Backend, handle: Handle) -> tuple[UnitStatus, ...]:
    _wait(lambda: all(status.state != "running" for status in backend.poll([handle])[handle]))
    return backend.poll([handle])[handle]


def _wait(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _TIMEOUT_S
    while not holds():
        require(time.monotonic() < until_s, f"a unit did not start or end within {_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
