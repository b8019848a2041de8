"""What a change of workers costs a training job, in place and by checkpoint and relaunch.

A convolutional network of 12.6 million parameters trains on CPU slots under the executor that ``pliant run``
uses, polled as often. Its job goes 1 → 2 → 3 → 2 → 1 again and again; then a worker of three is killed. A
stall is the ``overhead_seconds`` of the first step after the change: all time in which no step was trained,
beyond that of a usual step. By relaunch it is the time from the stop's beginning to the first step. The
figures are medians; those of the parts say where the time goes.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.clock import Clock
from pliant.tools.run.executor import Executor
from pliant.tools.run.gang import Gang
from pliant.tools.run.layout import StateDir
from pliant.tools.run.plan import ENV_WORKER
from pliant.tools.run.reports import Said
from pliant.tools.run.runner import POLL_S
from pliant.tools.run.steps import Share, Target

ROUNDS: Final = 10
RELAUNCHES: Final = 3
EPOCHS: Final = 20
KILLS: Final = 10
BETWEEN_KILLS_S: Final = 6.0
"""Longer than a worker must have trained for its slot not to be under suspicion."""
PATIENCE_S: Final = 120.0
STALL_LIMIT_S: Final = 0.5
KILL_LIMIT_S: Final = 0.6
RATIO_LIMIT: Final = 10.0
OVERHEAD_LIMIT: Final = 0.02
LOSS_LIMIT: Final = 1e-5
SLOTS: Final = 3
SCRIPT_NAME: Final = "train.py"
PATH: Final = (2, 3, 2, 1)
PARTS: Final = ("leave", "meet", "broadcast", "first_step")

SCRIPT: Final = '''
import json, sys, time
import torch
from torch import nn
from pliant.tools.run import elastic

SMALL, SAMPLES, EPOCHS = json.loads(sys.argv[1])
job = elastic.init(batch_size=12, seed=1)
model = nn.Linear(3072, 10) if SMALL else nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(),
    nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 10),
)
model = nn.Sequential(nn.Flatten(), model) if SMALL else model
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 3, 32, 32), torch.randint(10, (SAMPLES,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
model, optimizer, loader = job.prepare(model, optimizer, data)


def train(model, optimizer, x, y):
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if SMALL:
        time.sleep(max(0.0, 0.01 - (time.perf_counter() - began)))
    return loss


def plain_epoch():
    """As the elastic one, by PyTorch alone and with the same number of samples at a time."""
    other = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    replica = nn.parallel.DistributedDataParallel(other)
    beside = torch.optim.SGD(other.parameters(), lr=0.001, momentum=0.9)
    for x, y in torch.utils.data.DataLoader(data, batch_size=12 // job.world_size):
        yield train(replica, beside, x, y).item()


took = {"elastic": [], "plain": []}
for epoch in job.epochs(EPOCHS):
    began = time.perf_counter()
    for x, y in loader:
        job.log(loss=train(model, optimizer, x, y))
    took["elastic"].append((time.perf_counter() - began) / len(loader))
    if SMALL and job.world_size > 1:
        began, steps = time.perf_counter(), 0
        for steps, _ in zip(range(1, len(loader) + 1), plain_epoch()):
            pass
        took["plain"].append((time.perf_counter() - began) / steps)
if job.rank == 0:
    with open("took.json", "w") as file:
        json.dump(took, file)
'''
BIG: Final = "[false, 1200, 100000]"
"""Words for the script: the small model in steps of 10 ms or the big one; samples; epochs."""


class Relaunching(Executor):
    """Knows only the other way."""

    def switch(self, gang: Gang, target: Target | None) -> None:
        """Checkpoint, leave, launch."""
        gang.request_stop(self._dirs.job(gang.handle.job), self._clock(), "measured")


def figures(rounds: int = ROUNDS, kills: int = KILLS, epochs: int = EPOCHS) -> list[Figure]:
    """Stalls in place and by relaunch, their parts and ratio, and what the library costs a job at rest."""
    in_place, parts = stalls(Executor, rounds)
    relaunched, _ = stalls(Relaunching, min(rounds, RELAUNCHES))
    killed = kill_stalls(kills)
    ratios = [relaunched[change] / in_place[change] for change in in_place]
    return [
        *(Figure(f"stall_{change}_s", value, "s", STALL_LIMIT_S) for change, value in in_place.items()),
        Figure("stall_kill_s", statistics.median(killed), "s", KILL_LIMIT_S),
        Figure("stall_kill_max_s", max(killed), "s"),
        *(Figure(f"relaunch_{change}_s", value, "s") for change, value in relaunched.items()),
        Figure("stall_ratio_min", min(ratios), "ratio", RATIO_LIMIT, at_least=True),
        *(Figure(f"stall_{name}_s", value, "s") for name, value in parts.items()),
        Figure("library_overhead_ratio", overhead_ratio(epochs), "ratio", OVERHEAD_LIMIT),
        Figure("loss_relative_error", loss_error(), "ratio", LOSS_LIMIT),
    ]


def stalls(kind: type[Executor], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds by change ("1_to_2"), and those of the parts by change and part ("1_to_2_meet")."""
    found: dict[str, list[float]] = {}
    parts: dict[str, list[float]] = {}
    with running(kind, BIG) as site:
        site.go_to(1)
        for _ in range(rounds):
            before = 1
            for workers in PATH:
                name = f"{before}_to_{workers}"
                began_s = time.time()
                event = site.go_to(workers)
                detail = event.detail or {}
                took_s = event.time - began_s if kind is Relaunching else event.overhead_seconds or 0.0
                found.setdefault(name, []).append(took_s)
                for part in PARTS if "parts" in detail else ():
                    parts.setdefault(f"{name}_{part}", []).append(detail["parts"].get(part, 0.0))
                before = workers
    return _medians(found), _medians(parts)


def kill_stalls(count: int) -> list[float]:
    """What the survivors lose when one of three workers is killed: each worker in turn."""
    taken = []
    with running(Executor, BIG) as site:
        site.go_to(3)
        for number in range(count):
            site.kill(number % SLOTS)
            lost = site.until(lambda event: bool((event.detail or {}).get("lost")))
            taken.append(lost.overhead_seconds or 0.0)
            site.until(lambda event: event.gpus == SLOTS and "parts" in (event.detail or {}))
            site.train_for(BETWEEN_KILLS_S)
    return taken


def overhead_ratio(epochs: int) -> float:
    """What the library adds to a step of 10 ms of two workers, as a part of it.

    An epoch by the library and one by PyTorch alone take turns in the same processes; the median of pairs.
    """
    with running(Executor, f"[true, 2400, {epochs}]") as site:
        site.go_to(2)
        took = site.finish()
    pairs = list(zip(took["elastic"], took["plain"], strict=True))
    return statistics.median(elastic / plain for elastic, plain in pairs[1:]) - 1.0


def loss_error() -> float:
    """The largest relative difference of an epoch's loss between 1 → 2 → 3 → 2 → 1 and one worker."""
    curves = []
    for path in ((1,), (1, *PATH)):
        with running(Executor, "[true, 1200, 20]") as site:
            for workers in path:
                site.go_to(workers)
            site.finish()
            curves.append(site.losses)
    return max(abs(one / other - 1.0) for one, other in zip(*curves, strict=True))


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


class Site:
    """One job under an executor."""

    def __init__(self, executor: Executor, job: Job) -> None:
        self.losses: list[float] = []
        """Of the epochs so far."""
        self._executor, self._job = executor, job
        self._events: list[Event] = []

    def go_to(self, workers: int) -> Event:
        """Give the job so many slots; the event of its first step there, once it trains well."""
        share = Share(self._job, (("n0", workers),), 12)
        self._executor.apply(self._executor.steps_to({"a": share}))
        event = self.until(lambda event: event.gpus == workers and "generation" in (event.detail or {}))
        self.train_for(1.0)
        return event

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """The first such event of the job from now on."""
        deadline = time.monotonic() + PATIENCE_S
        self._events.clear()
        while time.monotonic() < deadline:
            self._turn()
            found = [event for event in self._events if event.event == "progress" and wanted(event)]
            if found:
                return found[0]
        raise TimeoutError("the job did not get there")

    def train_for(self, seconds: float) -> None:
        """Let it train."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def finish(self) -> dict[str, list[float]]:
        """Let it train to its end; what the script has measured."""
        while self._executor.gangs:
            self._turn()
        took: dict[str, list[float]] = json.loads((Path(self._job.workdir or "") / "took.json").read_text())
        return took

    def kill(self, rank: int) -> None:
        """Kill the worker of that rank."""
        mark = {ENV_WORKER: str(self._executor.gangs["a"].plan.workers[rank])}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    SCRIPT_NAME in "".join(process.cmdline()[1:3])
                    and mark.items() <= process.environ().items()
                ):
                    process.kill()

    def _turn(self) -> None:
        for report in self._executor.tick():
            if isinstance(report, Said):
                self._events += report.events
                self.losses += [event.loss or 0.0 for event in report.events if event.event == "epoch"]
            elif report.verdict.end == "failed":
                raise RuntimeError(report.verdict.message)
        time.sleep(POLL_S)


@contextlib.contextmanager
def running(kind: type[Executor], words: str) -> Iterator[Site]:
    """A job that can be given slots; nothing is left of it afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        script = root / SCRIPT_NAME
        script.write_text(SCRIPT)
        shape: dict[str, Any] = {"slots": "cpu", "nodes": ({"name": "n0", "gpus": SLOTS},)}
        dirs = StateDir(root / "state")
        executor = kind(LocalBackend(Cluster.model_validate(shape), dirs.jobs), dirs, Clock())
        spec = {
            "id": "a",
            "submit_time": 0.0,
            "model": "cnn",
            "gpus": {"requested": 1, "max": SLOTS},
            "elastic": "size",
            "command": (str(script), words),
            "workdir": str(root),
            "batch": {"size": 12},
        }
        try:
            yield Site(executor, Job.model_validate(spec))
        finally:
            while executor.gangs:
                executor.targets.clear()
                executor.kill_all()
                executor.look()
                time.sleep(POLL_S)
