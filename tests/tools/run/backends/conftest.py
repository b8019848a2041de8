"""A real Slurm, which every test leaves as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands
from pliant.tools.run.statedir.directory import StateDir
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.site import until

Statuses = tuple[UnitStatus, ...]


class BackendUser:
    """A backend with one attempt of a job at a time, as its launcher uses it; units start in ``folder``."""

    backend: Backend
    dirs: StateDir
    folder: Path

    def handle(self, job: str = "a", attempt: int = 1) -> Handle:
        return Handle(job, attempt, self.dirs.job(job).attempt(attempt).path)

    def poll(self, handle: Handle) -> Statuses:
        return self.backend.poll([handle])[handle]

    def until(self, handle: Handle, condition: Callable[[Statuses], object]) -> Statuses:
        seen: list[Statuses] = []
        until(lambda: (seen.append(self.poll(handle)), condition(seen[-1]))[1])
        return seen[-1]

    def until_file(self, name: str, handle: Handle) -> str:
        """Wait until a script has written a line into a file."""
        path = self.folder / name
        until(lambda: (self.poll(handle), path.exists() and path.read_text().endswith("\n"))[1])
        return path.read_text().strip()


def ended(statuses: Statuses) -> bool:
    return all(status.state != "running" for status in statuses)


@pytest.fixture
def live(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The Slurm of the tests is what commands find, and afterwards it is as it was."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setattr(commands, "LOOK_S", 0.1)
    monkeypatch.setattr(commands, "NODES_S", 0.2)
    monkeypatch.setattr(leases, "LEASE_AGAIN_S", 0.5)
    yield slurm
    until(lambda: (slurm.end_jobs(), set(slurm.states().values()) == {"idle"})[1])
