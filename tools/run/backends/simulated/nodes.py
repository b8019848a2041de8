"""A backend in memory: nodes whose units are simulated, and which outlives the loops that use it.

It is what a cluster is for a launcher: units go on while no launcher lives, nodes are lost and come back,
starts fail, and what is killed may take its time. It refuses what must never happen: two units on one slot,
and two attempts of one job at a time.
"""

import copy
import errno
import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, NodeInfo, StopLevel, Unit, UnitStatus
from pliant.tools.run.backends.simulated.clock import SimulatedClock
from pliant.tools.run.backends.simulated.workers import SimulatedJob, SimulatedUnit, SimulatedWorkers
from pliant.tools.run.statedir.contract.folders import JobDir

SAMPLES: Final = "--samples"


class SimulatedNodes:
    """The nodes of a cluster, and all that runs on them.

    :param jobs: the folder of the jobs in the state directory.
    """

    name = "simulated"
    in_place = True
    shares_slots = True
    held_nodes = 0

    def __init__(self, cluster: Cluster, clock: SimulatedClock, jobs: Path) -> None:
        self.clock = clock
        self.lost: set[str] = set()  # nodes that do not answer
        self.next_starts: list[OSError] = []  # what the next starts fail with
        self.next_polls: list[Exception] = []  # what the next polls fail with
        # called when a launcher starts or stops something, before and after that is done
        self.before_each: Callable[[], None] = lambda: None
        self.disk_is_full = False
        self.attempts: dict[Handle, SimulatedWorkers] = {}  # all that were ever started
        self.trained: dict[str, SimulatedJob] = {}  # by job
        self.violations: list[str] = []  # what must never happen, and did
        self._cluster = cluster
        self._jobs = jobs
        self._of_jobs: dict[str, list[SimulatedWorkers]] = {}
        self._busy: dict[str, dict[str, SimulatedUnit]] = {}  # by slot and job
        self.most = 2 if cluster.sharing.unmeasured == "together" else 1  # jobs that may be on one slot

    # The protocol of a backend.

    def nodes(self) -> Sequence[NodeInfo]:
        on_cpus = self._cluster.slots == "cpu"
        return [
            NodeInfo(
                *(node.name, node.gpus, node.name not in self.lost),
                devices=None if on_cpus else tuple(map(str, range(node.gpus))),
            )
            for node in self._cluster.expanded()
        ]

    def on(self, cluster: Cluster) -> "SimulatedNodes":
        """The same nodes, as another launcher sees them by another cluster."""
        nodes = copy.copy(self)
        nodes.change_cluster(cluster)
        return nodes

    def change_cluster(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        self.before_each()
        self._start(handle, units)
        self.before_each()

    def _start(self, handle: Handle, units: Sequence[Unit]) -> None:
        if self.next_starts:
            raise self.next_starts.pop()
        if away := sorted({unit.node for unit in units} & self.lost):
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH), away[0])
        workers = self.attempts.get(handle)
        if workers is None:
            attempt = f"{handle.job}: attempt {handle.attempt}"
            before = self._of_jobs.setdefault(handle.job, [])
            self.violations += [f"{attempt} beside {one.handle}" for one in before if one.runs]
            words = units[0].argv
            samples = float(words[words.index(SAMPLES) + 1])
            training = self.trained.setdefault(handle.job, SimulatedJob(samples))
            if training.ends:
                self.violations.append(f"{attempt} after its end")
            workers = self.attempts[handle] = SimulatedWorkers(handle, training)
            before.append(workers)
        first = len(workers.units)
        workers.start(units, self.clock.steady())
        for one in workers.units[first:]:
            self._take(handle, one)

    def _take(self, handle: Handle, unit: SimulatedUnit) -> None:
        for slot in unit.slots:
            there = {job: one for job, one in self._busy.get(slot, {}).items() if one.runs}
            if handle.job in there or len(there) >= self.most:
                self.violations.append(f"{handle.job}: slot {slot} is in use")
            self._busy[slot] = {**there, handle.job: unit}

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """A signal; a kill of all of an attempt reaches whatever belongs to the job."""
        self.before_each()
        of_job = self._of_jobs.get(handle.job, [])
        meant = [one for one in of_job if one.handle == handle or (level == "kill" and only is None)]
        for workers in meant:
            workers.stop(level, only, self.clock.steady())

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        if self.next_polls:
            raise self.next_polls.pop()
        return {
            handle: self.attempts[handle].statuses if handle in self.attempts else () for handle in handles
        }

    def release(self, over: Container[str] = ()) -> int:
        return 0

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        handles = []
        for name in sorted(os.listdir(self._jobs)) if self._jobs.exists() else ():
            job = JobDir(self._jobs / name)
            if name not in over and (number := job.newest_attempt()):
                handles.append(Handle(name, number, job.attempt(number).path))
        return handles

    # Time, and what it brings.

    def go_on(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now_s, wall_s = self.clock.steady(), self.clock.wall()
        for workers in self.attempts.values():
            if workers.runs:
                workers.go_on(now_s, wall_s, seconds, room=not self.disk_is_full)

    def running(self) -> list[SimulatedUnit]:
        return [unit for workers in self.training() for unit in workers.units if unit.runs]

    def training(self) -> list[SimulatedWorkers]:
        by_name = sorted(self.attempts, key=lambda handle: (handle.job, handle.attempt))
        return [self.attempts[handle] for handle in by_name if self.attempts[handle].runs]

    def lose(self, node: str) -> None:
        """A node does not answer any more, and all that ran on it is gone."""
        self.lost.add(node)
        for unit in self.running():
            if unit.unit.node == node:
                unit.end(None)

    def close(self) -> None:
        for unit in self.running():
            unit.end(-9)
