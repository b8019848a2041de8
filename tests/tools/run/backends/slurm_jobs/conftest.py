"""A state directory whose attempts are jobs of a real Slurm, which is idle again afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, Unit
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.backends.conftest import BackendUser


class Launcher(BackendUser):
    def __init__(self, slurm: SlurmCluster, folder: Path, slots: str = "cpu", **options: str) -> None:
        self.slurm, self.folder, self.slots = slurm, folder, slots
        self.dirs = StateDir(folder / "state")
        nodes = tuple({"name": name, "gpus": 4} for name in slurm.gpus)
        cluster = {"nodes": nodes, "slots": slots, "backend": "slurm-jobs", "slurm": options}
        self.backend: SlurmJobsBackend = SlurmJobsBackend(Cluster.model_validate(cluster), self.dirs)
        self.backend.nodes()

    def again(self) -> Launcher:
        """Another process that takes over from this one, which has died."""
        return Launcher(self.slurm, self.folder, self.slots)

    def start(self, *scripts: str, gpus: int = 0) -> Handle:
        """Start an elastic job: a unit for each shell script, all planned on one node."""
        handle = self.handle()
        handle.folder.mkdir(parents=True)
        env = {
            ENV_JOB_DIR: str(handle.job_files.path),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        }
        units = [
            Unit("n0", ("sh", "-c", script), str(self.folder), {**env, ENV_WORKER: str(number)})
            for number, script in enumerate(scripts)
        ]
        self.backend.start(handle, units)
        return handle

    def queue(self) -> dict[str, str]:
        lines = self.slurm.command("squeue", "-h", "-o", "%j|%T").splitlines()
        return dict(line.rsplit("|", 1) for line in lines)


@pytest.fixture
def launcher(live: SlurmCluster, tmp_path: Path) -> Launcher:
    return Launcher(live, tmp_path.resolve())
