"""A state directory whose cluster is a real Slurm, and what its tests leave there is ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, LaunchRecord, StartedUnit, Unit, write_record
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.statedir.directory import StateDir
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.backends.conftest import BackendUser


def slurm_nodes(*names: str, gpus: int = 4, slots: str = "cpu", **options: Any) -> Cluster:
    nodes = tuple({"name": name, "gpus": gpus} for name in names)
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": "slurm", "slurm": options})


class Launcher(BackendUser):
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.dirs, self.cluster = StateDir(folder / "state"), cluster
        self.folder = self.dirs.path
        self.backend: SlurmBackend = SlurmBackend(cluster, self.dirs)
        self.backend.nodes()

    def again(self) -> Launcher:
        """Another process that takes over from this one, which has died."""
        return Launcher(self.dirs.path.parent, self.cluster)

    def start(self, job: str, *units: tuple[str, str], slots: str = "", attempt: int = 1) -> Handle:
        """Start units, each a node and a shell script."""
        handle = self.handle(job, attempt)
        handle.folder.mkdir(parents=True, exist_ok=True)
        env = {"CUDA_VISIBLE_DEVICES": slots}
        started = [Unit(node, ("sh", "-c", script), str(self.folder), env) for node, script in units]
        self.backend.start(handle, started)
        return handle


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
