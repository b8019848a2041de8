"""What a turn of the loop costs with thousands of jobs: the real loop on simulated nodes.

All jobs train; in each turn that counts, some end, as many are submitted, and the policy decides. Files are
in memory where the system has such a folder, so that the disk is not what is measured; what nodes and workers
do is not counted.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.parts.chaos.world import MEMORY
from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.limits import spared_by_garbage_collection
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Batch, Gpus, Job, SampleWork
from pliant.tools.run.backends.simulated.clock import SimulatedClock
from pliant.tools.run.backends.simulated.nodes import SAMPLES, SimulatedNodes
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import Loop, RunOptions
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import Clock
from pliant.tools.schedule.decide import Question

NODES: Final = 1000
GPUS: Final = 8
JOBS: Final = 5000
SIZES: Final = (1, 1, 2, 2, 1, 2, 1, 1)
POLICY: Final = "fifo"
TURNS: Final = 20
ENDS: Final = 20
"""Jobs that end in a turn, and that come."""
STEP_S: Final = 0.5
WORK: Final = 1e9
LIMIT_S: Final = 1.0
MOST_TURNS: Final = 200


def figures(nodes: int = NODES, jobs: int = JOBS, turns: int = TURNS) -> list[Figure]:
    """The median of the turns' processor times."""
    found = statistics.median(measure(nodes, jobs, turns).turns_s)
    return [Figure(f"reconcile_{jobs}_jobs_s", found, "s", LIMIT_S)]


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor times, in seconds."""

    submission_s: float
    """Of the turn in which all jobs come, and the policy decides on them."""
    starts_s: tuple[float, ...]
    """Of the turns from then on until all jobs train."""
    rest_s: tuple[float, ...]
    """Of turns in which nothing changes."""
    turns_s: tuple[float, ...]
    """Of turns in which jobs end and come."""


def measure(nodes: int, jobs: int, turns: int) -> Costs:
    """A cluster in use, from its first job on."""
    with (
        tempfile.TemporaryDirectory(prefix="pliant-reconcile-", dir=MEMORY) as name,
        loop_on(Path(name).resolve(), nodes) as (loop, simulated),
    ):
        site = _Site(loop, simulated)
        site.submit(jobs)
        submission_s = site.turn()
        starts_s = []
        while len(simulated.training()) < jobs or not all(one.trains for one in simulated.training()):
            starts_s.append(site.turn())
            if len(starts_s) > MOST_TURNS:
                raise TimeoutError(f"{len(simulated.training())} of {jobs} jobs have started")
        rest_s = [site.turn() for _ in range(turns)]
        return Costs(submission_s, tuple(starts_s), tuple(rest_s), tuple(site.change(turns)))


class _Site:
    """A loop, and the nodes under it."""

    def __init__(self, loop: Loop, nodes: SimulatedNodes) -> None:
        self._loop, self._nodes = loop, nodes
        self._spool = Spool(loop.state.dirs)
        self._ids = 0

    def submit(self, count: int) -> None:
        """More jobs."""
        with self._spool.locked():
            self._spool.request_run(self._job() for _ in range(count))

    def _job(self) -> Job:
        self._ids += 1
        size = SIZES[self._ids % len(SIZES)]
        return Job(
            id=f"job-{self._ids}",
            submit_time=self._nodes.clock.wall(),
            model="m",
            gpus=Gpus(requested=size, min=1, max=GPUS),
            command=("train.py", SAMPLES, str(WORK)),
            workdir="/",
            batch=Batch(size=64),
            elastic="size",
            work=SampleWork(samples=WORK),
        )

    def turn(self) -> float:
        """One turn; its processor time."""
        self._nodes.go_on(STEP_S)
        began_s = time.process_time()
        self._loop.step()
        took_s = time.process_time() - began_s
        if self._nodes.violations:
            raise RuntimeError(self._nodes.violations[0])
        return took_s

    def change(self, turns: int) -> Iterator[float]:
        """Turns in which jobs end and come."""
        for _ in range(turns):
            for workers in [one for one in self._nodes.training() if one.trains][:ENDS]:
                workers.training.samples = workers.done
            self.submit(ENDS)
            yield self.turn()


@contextmanager
def loop_on(folder: Path, nodes: int) -> Iterator[tuple[Loop, SimulatedNodes]]:
    """A live loop that has no job yet."""
    _need_descriptors(2 * nodes * GPUS + 1000)
    shape = tuple({"name": f"n{number}", "gpus": GPUS} for number in range(nodes))
    cluster = Cluster.model_validate({"nodes": shape, "slots": "cpu"})
    write_cluster(cluster, folder / "cluster.json")
    options = RunOptions(folder / "state", question=Question(POLICY), cluster=str(folder / "cluster.json"))
    clock = SimulatedClock(time.time(), runs=True)
    simulated = SimulatedNodes(cluster, clock, folder / "state" / "jobs")
    own = Clock(clock.wall, clock.steady)
    prepared = PreparedRun.read(options, lambda *_: simulated, resume=True, clock=own)
    with prepared.open() as state, spared_by_garbage_collection():  # as in pliant run
        try:
            yield prepared.loop(state, follow=True), simulated
        finally:
            simulated.close()


def _need_descriptors(count: int) -> None:
    """Simulated workers hold locks as real ones do, each on a file that is open.

    :raises RuntimeError: the system allows fewer open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise RuntimeError(f"{count} open files are needed, the system allows {hard}: raise ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
