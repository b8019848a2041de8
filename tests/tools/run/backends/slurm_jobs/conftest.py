"""A state directory whose attempts are jobs of a real Slurm, which is idle again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, Unit, UnitStatus
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.site import until

Statuses = tuple[UnitStatus, ...]


class Launcher:
    """A backend with one attempt at a time, as its launcher uses it."""

    def __init__(self, slurm: SlurmCluster, folder: Path, slots: str = "cpu", **options: str) -> None:
        self.slurm, self.folder, self.slots = slurm, folder, slots
        self.dirs = StateDir(folder / "state")
        nodes = tuple({"name": name, "gpus": 4} for name in slurm.gpus)
        cluster = Cluster.model_validate(
            {"nodes": nodes, "slots": slots, "backend": "slurm-jobs", "slurm": options}
        )
        self.backend = SlurmJobsBackend(cluster, self.dirs)
        self.backend.nodes()

    def again(self) -> Launcher:
        """Another process that takes over where this one has died."""
        return Launcher(self.slurm, self.folder, self.slots)

    def handle(self, job: str = "a", attempt: int = 1) -> Handle:
        return Handle(job, attempt, self.dirs.job(job).attempt(attempt).path)

    def start(self, *scripts: str, job: str = "a", gpus: int = 0) -> Handle:
        """Start an elastic job: a unit of the shell for each script, all planned on one node."""
        handle = self.handle(job)
        handle.folder.mkdir(parents=True)
        visible = ",".join(map(str, range(gpus)))
        self.backend.start(
            handle,
            [
                Unit(
                    "n0",
                    ("sh", "-c", script),
                    str(self.folder),
                    {
                        ENV_WORKER: str(number),
                        ENV_JOB_DIR: str(handle.job_files.path),
                        "CUDA_VISIBLE_DEVICES": visible,
                    },
                )
                for number, script in enumerate(scripts)
            ],
        )
        return handle

    def poll(self, handle: Handle) -> Statuses:
        return self.backend.poll([handle])[handle]

    def until(self, handle: Handle, condition: Callable[[Statuses], object]) -> Statuses:
        """Wait until the units of an attempt are as expected."""
        found: list[Statuses] = []
        until(lambda: (found.append(self.poll(handle)), condition(found[-1]))[1])
        return found[-1]

    def until_file(self, handle: Handle, name: str) -> str:
        """Wait until a script has written a line into the folder, which is where units start."""
        path = self.folder / name
        until(lambda: (self.poll(handle), path.exists() and path.read_text().endswith("\n"))[1])
        return path.read_text().strip()

    def queue(self) -> dict[str, str]:
        """The states of the Slurm jobs that are listed, by name."""
        lines = self.slurm.command("squeue", "-h", "-o", "%j|%T").splitlines()
        return dict(line.rsplit("|", 1) for line in lines)


def ended(statuses: Statuses) -> bool:
    return all(status.state != "running" for status in statuses)


@pytest.fixture
def launcher(live: SlurmCluster, tmp_path: Path) -> Launcher:
    return Launcher(live, tmp_path.resolve())
