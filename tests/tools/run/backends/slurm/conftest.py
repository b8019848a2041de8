"""State directories whose cluster is a real Slurm, which every test leaves as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends import protocol
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.site import until

Statuses = tuple[protocol.UnitStatus, ...]


def slurm_nodes(
    *names: str,
    gpus: int = 4,
    slots: str = "cpu",
    backend: str = "slurm",
    node: Mapping[str, Any] | None = None,
    **options: Any,
) -> Cluster:
    nodes = tuple({"name": name, "gpus": gpus, **(node or {})} for name in names)
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": backend, "slurm": options})


def ended(statuses: Statuses) -> bool:
    return all(status.state != "running" for status in statuses)


class BackendUser:
    """A backend with one attempt of a job at a time, as its launcher uses it; units start in ``folder``."""

    backend: protocol.Backend

    def __init__(self, folder: Path) -> None:
        self.dirs = StateDir(folder / "state")
        self.folder = self.dirs.path

    def handle(self, job: str = "a", attempt: int = 1) -> protocol.Handle:
        handle = protocol.Handle(job, attempt, self.dirs.job(job).attempt(attempt).path)
        handle.folder.mkdir(parents=True, exist_ok=True)
        return handle

    def poll(self, handle: protocol.Handle) -> Statuses:
        return self.backend.poll([handle])[handle]

    def until(self, handle: protocol.Handle, condition: Callable[[Statuses], object]) -> Statuses:
        seen: list[Statuses] = []
        until(lambda: (seen.append(self.poll(handle)), condition(seen[-1]))[1])
        return seen[-1]

    def until_file(self, name: str, handle: protocol.Handle) -> str:
        path = self.folder / name
        until(lambda: (self.poll(handle), path.exists() and path.read_text().endswith("\n"))[1])
        return path.read_text().strip()


class Launcher(BackendUser):
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.backend: SlurmBackend = SlurmBackend(cluster, self.dirs)
        self.backend.nodes()

    def again(self) -> Launcher:
        """Another process that takes over from this one, which has died."""
        return Launcher(self.folder.parent, self.cluster)

    def start(self, job: str, *units: tuple[str, str], slots: str = "", attempt: int = 1) -> protocol.Handle:
        handle = self.handle(job, attempt)
        env = {"CUDA_VISIBLE_DEVICES": slots}
        started = [protocol.Unit(node, ("sh", "-c", script), str(self.folder), env) for node, script in units]
        self.backend.start(handle, started)
        return handle


class JobLauncher(BackendUser):
    def __init__(self, slurm: SlurmCluster, folder: Path, slots: str = "cpu") -> None:
        super().__init__(folder)
        self.slurm, self.slots = slurm, slots
        cluster = slurm_nodes(*slurm.gpus, slots=slots, backend="slurm-jobs")
        self.backend: SlurmJobsBackend = SlurmJobsBackend(cluster, self.dirs)
        self.backend.nodes()

    def again(self) -> JobLauncher:
        return JobLauncher(self.slurm, self.folder.parent, self.slots)

    def start(self, *scripts: str, gpus: int = 0) -> protocol.Handle:
        """Start an elastic job: a unit for each shell script, all planned on one node."""
        handle = self.handle()
        devices = ",".join(map(str, range(gpus)))
        env = {ENV_JOB_DIR: str(handle.job_files.path), "CUDA_VISIBLE_DEVICES": devices}
        units = [
            protocol.Unit("n0", ("sh", "-c", script), str(self.folder), {**env, ENV_WORKER: str(number)})
            for number, script in enumerate(scripts)
        ]
        self.backend.start(handle, units)
        return handle

    def queue(self) -> dict[str, str]:
        lines = self.slurm.command("squeue", "-h", "-o", "%j|%T").splitlines()
        return dict(line.rsplit("|", 1) for line in lines)


def kept_attempt(dirs: StateDir, job: str, node: str) -> protocol.Handle:
    """An attempt with one unit that a supervisor has taken over."""
    handle = protocol.Handle(job, 1, dirs.job(job).attempt(1).path)
    handle.files.logs.mkdir(parents=True)
    unit = protocol.StartedUnit(node=node, argv=("true",), cwd="/", env={})
    protocol.write_record(handle, protocol.LaunchRecord(job=job, attempt=1, backend="slurm", units=(unit,)))
    handle.files.orders(0).touch()
    handle.files.supervisor(0).touch()
    return handle


@pytest.fixture
def live(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The Slurm of the tests is what commands find, and afterwards it is as it was."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setattr(commands, "POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr(commands, "NODES_S", 0.2)
    monkeypatch.setattr(leases, "LEASE_AGAIN_S", 0.5)
    yield slurm
    until(lambda: (slurm.end_jobs(), set(slurm.states().values()) == {"idle"})[1])


@pytest.fixture
def launcher(live: SlurmCluster, tmp_path: Path) -> Launcher:
    return Launcher(tmp_path, slurm_nodes("n0", "n1"))


@pytest.fixture
def jobs(live: SlurmCluster, tmp_path: Path) -> JobLauncher:
    return JobLauncher(live, tmp_path.resolve())
