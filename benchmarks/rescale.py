"""What a change of workers costs a training job, in place and by checkpoint and relaunch.

A convolutional network of 12.6 million parameters trains on CPU slots under the executor that ``pliant run``
uses, polled as often. Its job goes 1 → 2 → 3 → 2 → 1 again and again; then a worker of three is killed. A
stall is the ``overhead_seconds`` of the first step after the change: all time in which no step was trained,
beyond that of a usual step. By relaunch it is the time from the stop's beginning to the first step. The
figures are medians; those of the parts say where the time goes. ``growth_over_broadcast_and_step`` is the
stall of a growth by the broadcast of the state and one usual step before it: of the kinds of growth, the
worst.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.parts import library_cpu
from benchmarks.parts.figure import Figure
from benchmarks.parts.training_job import TrainingJob, running
from pliant.tools.run.service.allocation import Assignment, SlotUse
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.gang import Gang

MEASURES: Final = ("tools/run/elastic", "tools/run/service")

ROUNDS: Final = 10
BATCH: Final = 12
RELAUNCHES: Final = 3
EPOCHS: Final = 20
KILLS: Final = 10
BETWEEN_KILLS_S: Final = 6.0
"""Longer than a worker must have trained for its slot not to be under suspicion."""
STALL_LIMIT_S: Final = 0.5
KILL_LIMIT_S: Final = 0.6
RATIO_LIMIT: Final = 10.0
OVERHEAD_LIMIT: Final = 0.02
GROWTH_LIMIT: Final = 1.5
LOSS_LIMIT: Final = 1e-5
PATH: Final = (2, 3, 2, 1)
STALL_PARTS: Final = ("leave", "meet", "broadcast", "first_step")

SCRIPT: Final = '''
import json, sys, time
import torch
from torch import nn
from pliant.tools.run import elastic

SMALL, SAMPLES, EPOCHS, COMPARED = json.loads(sys.argv[1])
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
    """As the elastic one, by PyTorch alone and with the same number of samples at a time.

    A worker that is lost in it takes the others along.
    """
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
    if COMPARED and job.world_size > 1:
        began, steps = time.perf_counter(), 0
        for steps, _ in zip(range(1, len(loader) + 1), plain_epoch()):
            pass
        took["plain"].append((time.perf_counter() - began) / steps)
if job.rank == 0:
    with open("took.json", "w") as file:
        json.dump(took, file)
'''
BIG: Final = "[false, 1200, 100000, false]"
SMALL: Final = "[true, 1200, 100000, false]"
"""Words for the script: the small model in steps of 10 ms or the big one; samples; epochs; whether one by
PyTorch alone follows each of them."""


class Relaunching(Executor):
    """Knows only the other way."""

    def switch(self, gang: Gang, target: Assignment | None, use: SlotUse) -> None:
        """Checkpoint, leave, launch."""
        self.stop(gang, "measured")


def figures(
    rounds: int = ROUNDS,
    kills: int = KILLS,
    epochs: int = EPOCHS,
    cpu_epochs: Mapping[str, int] = library_cpu.EPOCHS,
    cpu_samples: Mapping[str, int] = library_cpu.SAMPLES,
) -> list[Figure]:
    """Stalls in place and by relaunch, their parts and ratio, and what the library costs a job at rest.

    :param epochs: of the job that says what the library adds to a step.
    :param cpu_epochs: by model, those of the comparison of processor times.
    :param cpu_samples: by model, those of an epoch.
    """
    with running(Executor, SCRIPT, BIG, BATCH) as training:
        in_place, parts, growths = stalls(training, rounds, PATH)
        killed = kill_stalls(training, kills, max(PATH), PATH[-1])
    with running(Relaunching, SCRIPT, BIG, BATCH) as training:
        relaunched, *_ = stalls(training, min(rounds, RELAUNCHES), PATH)
    ratios = [relaunched[change] / in_place[change] for change in in_place]
    return [
        *(Figure(f"stall_{change}_s", value, "s", STALL_LIMIT_S) for change, value in in_place.items()),
        Figure("stall_kill_s", statistics.median(killed), "s", KILL_LIMIT_S),
        Figure("stall_kill_max_s", max(killed), "s"),
        *(Figure(f"relaunch_{change}_s", value, "s") for change, value in relaunched.items()),
        Figure("stall_ratio_min", min(ratios), "ratio", RATIO_LIMIT, at_least=True),
        *(Figure(f"stall_{name}_s", value, "s") for name, value in parts.items()),
        Figure("growth_over_broadcast_and_step", max(growths.values()), "ratio", GROWTH_LIMIT),
        Figure("library_overhead_ratio", overhead_ratio(epochs), "ratio", OVERHEAD_LIMIT),
        *library_cpu.figures(cpu_epochs, samples=cpu_samples),
        Figure("loss_relative_error", loss_error(), "ratio", LOSS_LIMIT),
    ]


def smallest() -> list[Figure]:
    """A growth, and what the library costs: each worker that is started imports PyTorch."""
    model = "mlp_by_sample"
    with running(Executor, SCRIPT, SMALL, BATCH) as training:
        found, *_ = stalls(training, 1, (2,))
    stalled = [Figure(f"stall_{change}_s", value, "s") for change, value in found.items()]
    return [*stalled, *library_cpu.figures({model: 2}, samples={model: 2560})]


def stalls(
    training: TrainingJob, rounds: int, path: Sequence[int]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Medians of changes, by change ("1_to_2").

    :returns: seconds; seconds of the parts, by change and part ("1_to_2_meet"); and of growths in place,
        the stall by the broadcast and a usual step.
    """
    found: dict[str, list[float]] = {}
    parts: dict[str, list[float]] = {}
    growths: dict[str, list[float]] = {}
    relaunches = isinstance(training.executor, Relaunching)
    training.go_to(1)
    for _ in range(rounds):
        before = 1
        for workers in path:
            name = f"{before}_to_{workers}"
            began_s = time.time()
            event = training.go_to(workers)
            detail = event.detail or {}
            took_s = event.time - began_s if relaunches else event.overhead_seconds or 0.0
            found.setdefault(name, []).append(took_s)
            for part in STALL_PARTS if "parts" in detail else ():
                parts.setdefault(f"{name}_{part}", []).append(detail["parts"].get(part, 0.0))
            if "parts" in detail and workers > before:
                least_s = detail["parts"]["broadcast"] + detail["parts"]["usual_step"]
                growths.setdefault(name, []).append(took_s / least_s)
            before = workers
    return _medians(found), _medians(parts), _medians(growths)


def kill_stalls(training: TrainingJob, count: int, workers: int, before: int) -> list[float]:
    """What the survivors lose when one of the workers is killed: each worker in turn.

    :param before: the workers that the job has now.
    """
    taken = []
    if workers != before:
        training.go_to(workers)
    for number in range(count):
        if number:
            training.train_for(BETWEEN_KILLS_S)
        training.kill(number % workers)
        lost = training.until(lambda event: bool((event.detail or {}).get("lost")))
        taken.append(lost.overhead_seconds or 0.0)
        training.until(lambda event: event.gpus == workers and "parts" in (event.detail or {}))
    return taken


def overhead_ratio(epochs: int) -> float:
    """What the library adds to a step of 10 ms of two workers, as a part of it.

    An epoch by the library and one by PyTorch alone take turns in the same processes; the median of pairs.
    """
    with running(Executor, SCRIPT, f"[true, 2400, {epochs}, true]", BATCH) as training:
        training.go_to(2)
        took = training.finish()
    pairs = list(zip(took["elastic"], took["plain"], strict=True))
    return statistics.median(elastic / plain for elastic, plain in pairs[1:]) - 1.0


def loss_error() -> float:
    """The largest relative difference of an epoch's loss between 1 → 2 → 3 → 2 → 1 and one worker."""
    curves = []
    for path in ((1,), (1, *PATH)):
        with running(Executor, SCRIPT, "[true, 1200, 20, false]", BATCH) as training:
            for workers in path:
                training.go_to(workers)
            training.finish()
            curves.append(training.losses)
    return max(abs(one / other - 1.0) for one, other in zip(*curves, strict=True))


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}
