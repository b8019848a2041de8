"""The simulator of Pollux written down a second time: slowly, round by round, from its facts alone.

It shares no code with the product, reads the measurement files themselves and steps every job through every
round, so that where it agrees with a replay under ``--compat pollux`` neither of them fits one workload only.
Tiresias and Optimus are in it; both take the placement rule of the simulator.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from scipy.interpolate import LinearNDInterpolator

ROUND_S: Final = 60
RESTART_S: Final = 30
QUEUE_GPU_S: Final = 16 * 3600
EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL: Final = {"yolov3": 8}
OPTIMUS_MOST: Final = {"ncf": 1}

Nodes = list[int]
"""The node of each GPU of a job, GPU by GPU."""


def table(path: Path) -> list[dict[str, float]]:
    with path.open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


class Application:
    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        runs = {int(path.stem.split("-")[1]): table(path) for path in folder.glob("validation-*.csv")}
        self.runs = {batch: runs[batch] for batch in sorted(runs)}
        self.batches = list(self.runs)
        self.epochs = EPOCHS.get(self.name, min(map(len, self.runs.values())))
        self.rings: dict[str, dict[float, tuple[float, float]]] = {}
        means: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
        with (folder / "placements.csv").open() as file:
            for row in csv.DictReader(file):
                ring, local = row["placement"], float(row["local_bsz"])
                times = float(row["step_time"]), float(row["sync_time"])
                self.rings.setdefault(rotated(ring), {})[local] = times
                means.setdefault((len(ring), sum(map(int, ring)), local), []).append(times)
        self.locals = sorted({local for times in self.rings.values() for local in times})
        sizes = table(folder / "scalability.csv")
        points = [*sorted(means), *((r["num_nodes"], r["num_replicas"], r["local_bsz"]) for r in sizes)]
        values = [np.mean(means[point], axis=0) for point in sorted(means)]
        values += [np.array([r["step_time"], r["sync_time"]]) for r in sizes]
        self.between = LinearNDInterpolator(np.array(points), np.array(values))
        self.costs: dict[tuple[tuple[int, ...], int, bool], tuple[float, int]] = {}

    @property
    def most_local(self) -> float:
        return min(self.locals[-1], MOST_LOCAL.get(self.name, math.inf))

    def times(self, ring: Sequence[int], local: int) -> tuple[float, float]:
        known = self.rings.get(rotated("".join(map(str, ring))))
        if known is None:
            step_s, sync_s = self.between(np.array([[min(len(ring), 16), sum(ring), local]]))[0]
            return float(step_s), float(sync_s)
        sizes = sorted(known)
        step_s, sync_s = (np.interp(local, sizes, [known[size][of] for size in sizes]) for of in (0, 1))
        return float(step_s), float(sync_s)

    def cost(self, ring: Sequence[int], batch: int, *, estimated: bool = False) -> tuple[float, int]:
        """Seconds of an optimizer step, and the samples that are really in it."""
        key = tuple(ring), batch, estimated
        if key not in self.costs:
            self.costs[key] = self._cost(ring, batch, estimated=estimated)
        return self.costs[key]

    def _cost(self, ring: Sequence[int], batch: int, *, estimated: bool) -> tuple[float, int]:
        gpus = sum(ring)
        local = -(-batch // gpus)
        more = max(0, math.ceil(local / self.most_local) - 1)
        if gpus == 1 and (estimated or batch > self.batches[0]):
            more = max(1, more)
        micro = min(-(-local // (more + 1)), self.batches[-1] // (gpus * (more + 1)))
        step_s, sync_s = self.times(ring, micro)
        return step_s + more * (step_s - sync_s), gpus * (more + 1) * micro

    def at(self, column: str, batch: float, epoch: int) -> float:
        return float(np.interp(batch, self.batches, [run[epoch][column] for run in self.runs.values()]))

    def gain(self, batch: int, epoch: int) -> float:
        sqr, var = self.at("grad_sqr", batch, epoch), self.at("grad_var", batch, epoch)
        return (var + sqr) / (var / (batch / self.batches[0]) + sqr)

    def progress(self, epoch: int) -> float:
        """Progress that ends an epoch, counted from 0."""
        return min(run[epoch]["progress"] for run in self.runs.values())


def rotated(ring: str) -> str:
    return min(ring[turn:] + ring[:turn] for turn in range(len(ring)))


@dataclass
class Job:
    name: str
    application: Application
    submitted_s: float
    replicas: int
    batch: int
    nodes: Nodes = field(default_factory=list)
    idle_s: float = 0.0
    executed_s: float = 0.0
    epoch: int = 0
    progress: float = 0.0
    ended_s: float | None = None

    @property
    def ring(self) -> list[int]:
        """GPUs by node: runs of the same node."""
        runs: list[tuple[int, int]] = []
        for node in self.nodes:
            if runs and runs[-1][0] == node:
                runs[-1] = node, runs[-1][1] + 1
            else:
                runs.append((node, 1))
        return [count for _, count in runs]

    def advance(self, now_s: float) -> None:
        if not self.nodes:
            return
        self.executed_s += ROUND_S
        passed_s = min(self.idle_s, ROUND_S)
        self.idle_s -= passed_s
        cost_s, batch = self.application.cost(self.ring, self.batch)
        while passed_s < ROUND_S and self.ended_s is None:
            pace, goal = (
                self.application.gain(batch, self.epoch) / cost_s,
                self.application.progress(self.epoch),
            )
            if self.progress + pace * (ROUND_S - passed_s) < goal:
                self.progress += pace * (ROUND_S - passed_s)
                return
            passed_s += round((goal - self.progress) / pace)
            self.progress, self.epoch = goal, self.epoch + 1
            if self.epoch > self.application.epochs - 1:
                self.ended_s = now_s + passed_s


Policy = Callable[[Sequence[Job], Nodes], Mapping[str, Nodes]]
"""Who holds which GPUs, from the jobs in the order of the file and the GPUs of the nodes."""


def take_emptiest(free: Nodes, gpus: int) -> Nodes:
    taken: Nodes = []
    while len(taken) < gpus:
        node = free.index(max(free))
        part = min(free[node], gpus - len(taken))
        taken += [node] * part
        free[node] -= part
    return taken


def left_over(capacity: Nodes, jobs: Iterable[Job]) -> Nodes:
    free = list(capacity)
    for job in jobs:
        for node in job.nodes:
            free[node] -= 1
    return free


class Tiresias:
    def __init__(self) -> None:
        self.queues: tuple[list[str], list[str]] = [], []

    def __call__(self, jobs: Sequence[Job], capacity: Nodes) -> Mapping[str, Nodes]:
        known = {job.name: job for job in jobs}
        first, second = ([name for name in queue if name in known] for queue in self.queues)
        first += [name for name in known if name not in first and name not in second]
        spent = [name for name, job in known.items() if job.executed_s * job.replicas >= QUEUE_GPU_S]
        down = [name for name in spent if name in first]  # of one moment: the order of the file
        self.queues = [name for name in first if name not in down], second + down
        left, served = sum(capacity), []
        for name in (*self.queues[0], *self.queues[1]):
            if known[name].replicas <= left:
                left -= known[name].replicas
                served.append(known[name])
        free = left_over(capacity, served)
        return {job.name: job.nodes or take_emptiest(free, job.replicas) for job in served}


class Optimus:
    def __call__(self, jobs: Sequence[Job], capacity: Nodes) -> Mapping[str, Nodes]:
        left = sum(capacity)
        served = list(jobs[:left])
        left -= len(served)
        sizes = {job.name: 1 for job in served}
        gains = {job.name: self.gain(job, 1) for job in served}
        while left and gains:
            name = max(gains, key=gains.__getitem__)
            if gains[name] <= 0:
                break
            sizes[name] += 1
            left -= 1
            gains[name] = self.gain(next(job for job in served if job.name == name), sizes[name])
        kept = [job for job in served if len(job.nodes) == sizes[job.name]]
        free = left_over(capacity, kept)
        found = {job.name: job.nodes for job in kept}
        for job in sorted(served, key=lambda job: sizes[job.name]):
            if job.name not in found:
                found[job.name] = take_emptiest(free, sizes[job.name])
        return found

    def gain(self, job: Job, gpus: int) -> float:
        app = job.application
        if gpus >= OPTIMUS_MOST.get(app.name, job.batch // app.locals[0]):
            return 0.0
        now_s, then_s = (self.step_seconds(job, size) for size in (gpus, gpus + 1))
        done, whole = (app.at("iteration", job.batch, epoch) for epoch in (job.epoch, app.epochs - 1))
        return (now_s - then_s) * (whole - done if job.epoch < app.epochs - 1 else 1.0)

    def step_seconds(self, job: Job, gpus: int) -> float:
        ring = [4] * (gpus // 4) + [gpus % 4] * (gpus % 4 > 0)
        return job.application.cost(ring, job.batch, estimated=True)[0]


def simulated(
    apps: Mapping[str, Application], workload: Path, capacity: Nodes, policy: Policy
) -> dict[str, float]:
    with workload.open() as file:
        jobs = [
            Job(
                r["name"],
                apps[r["application"]],
                float(r["time"]),
                int(r["num_replicas"]),
                int(r["batch_size"]),
            )
            for r in csv.DictReader(file)
        ]
    now_s = 0.0
    while any(job.ended_s is None for job in jobs):
        active = [job for job in jobs if job.submitted_s <= now_s and job.ended_s is None]
        for job in active:
            job.advance(now_s)
        now_s += ROUND_S
        seen = [job for job in jobs if job.submitted_s <= now_s and job.ended_s is None]
        given = policy(seen, capacity)
        for job in seen:
            nodes = list(given.get(job.name, []))
            if nodes != job.nodes:
                job.nodes, job.idle_s = nodes, RESTART_S
    return {job.name: job.ended_s or 0.0 for job in jobs}
