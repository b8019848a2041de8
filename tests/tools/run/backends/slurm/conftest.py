"""A state directory whose cluster is a real Slurm, and what its tests leave there is ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import (
    Handle,
    LaunchRecord,
    StartedUnit,
    Unit,
    UnitStatus,
    write_record,
)
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.statedir.directory import StateDir
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.site import until

Statuses = tuple[UnitStatus, ...]


def slurm_nodes(*names: str, gpus: int = 4, slots: str = "cpu", **options: Any) -> Cluster:
    """A cluster file for some nodes of the tests' Slurm."""
    nodes = tuple({"name": name, "gpus": gpus} for name in names)
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": "slurm", "slurm": options})


class Launcher:
    """A backend with one job of one attempt at a time, as its launcher uses it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.dirs, self.cluster = StateDir(folder / "state"), cluster
        self.backend = SlurmBackend(cluster, self.dirs)
        self.backend.nodes()

    def again(self) -> Launcher:
        """Another process that takes over where this one has died."""
        return Launcher(self.dirs.path.parent, self.cluster)

    def start(self, job: str, *units: tuple[str, str], slots: str = "", attempt: int = 1) -> Handle:
        """Start units, each a node and a script of the shell."""
        handle = self.handle(job, attempt)
        handle.folder.mkdir(parents=True, exist_ok=True)
        env = {"CUDA_VISIBLE_DEVICES": slots}
        self.backend.start(
            handle, [Unit(node, ("sh", "-c", script), str(self.dirs.path), env) for node, script in units]
        )
        return handle

    def handle(self, job: str, attempt: int = 1) -> Handle:
        return Handle(job, attempt, self.dirs.job(job).attempt(attempt).path)

    def poll(self, handle: Handle) -> Statuses:
        return self.backend.poll([handle])[handle]

    def until(self, handle: Handle, condition: Callable[[Statuses], object]) -> Statuses:
        """Wait until the units of an attempt are as expected."""
        seen: list[Statuses] = []

        def comes_true() -> object:
            seen[:] = [self.poll(handle)]
            return condition(seen[0])

        until(comes_true)
        return seen[0]

    def until_file(self, name: str, handle: Handle) -> str:
        """Wait until a script has written a file into the state directory."""
        until(lambda: (self.poll(handle), (self.dirs.path / name).exists())[1])
        return (self.dirs.path / name).read_text()

    def until_pid(self, name: str, handle: Handle) -> int:
        """Wait until a script has written a whole line with a number into a file, which it makes first."""
        until(lambda: self.until_file(name, handle).endswith("\n"))
        return int(self.until_file(name, handle))


def ended(statuses: Statuses) -> bool:
    return all(status.state != "running" for status in statuses)


def kept_attempt(dirs: StateDir, job: str, node: str) -> Handle:
    """An attempt with one unit that a keeper has taken over."""
    handle = Handle(job, 1, dirs.job(job).attempt(1).path)
    handle.files.logs.mkdir(parents=True)
    unit = StartedUnit(node=node, argv=("true",), cwd="/", env={})
    write_record(handle, LaunchRecord(job=job, attempt=1, backend="slurm", units=(unit,)))
    handle.files.orders(0).touch()
    handle.files.keeper(0).touch()
    return handle


@pytest.fixture
def launcher(live: SlurmCluster, tmp_path: Path) -> Launcher:
    return Launcher(tmp_path, slurm_nodes("n0", "n1"))
