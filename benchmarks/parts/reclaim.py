"""Lent GPUs that come back, live on CPU slots: by shrinking an elastic job, and by stopping a rigid one.

A job of one team trains on both slots, then another team submits a job for one. Of the elastic borrower, what
counts is the time from the decision until its remaining workers train under the new plan. The GPU time that
is lost is what slots are held without training: around the change, or while the rigid job starts again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil

from benchmarks.parts.figure import Figure
from benchmarks.parts.first_step import following, until
from pliant.schemas.cluster import USER, Cluster, Shares
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.schemas.job import Job
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.state import read_log
from tests.builders import cluster, job

ROUNDS: Final = 3
LIMIT_S: Final = 1.0
LOST_LIMIT: Final = 0.1
SCRIPT: Final = """
import sys, time
import torch
from pliant.tools.run import elastic
count = int(sys.argv[2])
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(count, 4), torch.randn(count, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job = elastic.init(batch_size=8)
model, optimizer, loader = job.prepare(model, optimizer, data)
for epoch in job.epochs(1):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        time.sleep(0.02)
        if job.rank == 0:
            with open(sys.argv[1], "a") as file:
                file.write(f"{time.time()}\\n")
"""
_WARM_STEPS: Final = 30
_LONG_STEP: Final = 1.5
"""Times the median step: a change takes longer than that."""
_LONG: Final = 1_000_000
_SHORT: Final = 160
"""Samples of the borrower, which never ends by itself, and of the owner's job."""


class Reclaimed(NamedTuple):
    """One loan that came back, in seconds and GPU-seconds."""

    seconds: float
    """From the decision until the borrower trains on, or has stopped."""
    lost_gpu_s: float


def figures(rounds: int = ROUNDS) -> Sequence[Figure]:
    """Medians over some loans of each kind."""
    shrunk = [reclaimed("shrink") for _ in range(rounds)]
    stopped = [reclaimed("preempt") for _ in range(rounds)]
    lost = [statistics.median(each.lost_gpu_s for each in kind) for kind in (shrunk, stopped)]
    return [
        Figure("reclaim_s_elastic", statistics.median(each.seconds for each in shrunk), "s", LIMIT_S),
        Figure("reclaim_lost_gpu_s_elastic_over_preempt", lost[0] / lost[1], "ratio", LOST_LIMIT),
        Figure("reclaim_lost_gpu_s_elastic", lost[0], "GPU-s"),
        Figure("reclaim_lost_gpu_s_preempt", lost[1], "GPU-s"),
    ]


def reclaimed(how: Literal["shrink", "preempt"]) -> Reclaimed:
    """Lend both slots to one team, and let the other one want its own."""
    shares = Shares(label=USER, half_life_hours=0.0)
    slots = cluster(2, slots="cpu").model_copy(update={"shares": shares})
    with tempfile.TemporaryDirectory(prefix="pliant-reclaim-") as name:
        return _in_folder(Path(name), how, slots)


def _in_folder(folder: Path, how: Literal["shrink", "preempt"], slots: Cluster) -> Reclaimed:
    (folder / "train.py").write_text(SCRIPT)
    steps = folder / "steps.txt"
    limits: dict[str, int] = {"low": 1, "high": 2} if how == "shrink" else {}
    lent = _job(folder, "borrower", steps, _LONG, gpus=2, user="ann", **limits)
    own = _job(folder, "owner", folder / "owner.txt", _SHORT, gpus=1, user="bob")
    with following(folder, slots, "fair-share") as dirs:
        submit(dirs.path, [lent], "measured", folder=folder, now_s=time.time())
        until(lambda: len(_times(steps)) >= _WARM_STEPS)
        submit(dirs.path, [own], "measured", folder=folder, now_s=time.time())
        until(partial(_has_ended, dirs, "owner"))
        resumed = len(_times(steps))
        until(lambda: len(_times(steps)) >= resumed + _WARM_STEPS)
        events, trained = read_events(dirs.events), _times(steps)
        cancel(dirs.path, ["borrower"])
        until(lambda: not _trains(folder / "train.py"))  # a run that leaves lets jobs train on
    return _shrunk(events, trained) if how == "shrink" else _stopped(events, trained)


def _shrunk(events: Sequence[Event], steps: Sequence[float]) -> Reclaimed:
    """Both workers lose the gap around the change, the first long one after the decision."""
    decided_s, step_s = _time_of(events, "shrink", "borrower"), _step_s(steps)
    later = [(before, after) for before, after in pairwise(steps) if after > decided_s]
    before_s, after_s = next(pair for pair in later if pair[1] - pair[0] > _LONG_STEP * step_s)
    return Reclaimed(after_s - decided_s, 2 * (after_s - before_s - step_s))


def _stopped(events: Sequence[Event], steps: Sequence[float]) -> Reclaimed:
    """Both workers lose the time from the resume to the first step."""
    decided_s, resumed_s = (_time_of(events, name, "borrower") for name in ("preempt", "resume"))
    last_s = max(each for each in steps if each < resumed_s)
    first_s = min(each for each in steps if each > resumed_s)
    stopped_s = max(last_s, decided_s) + _step_s(steps)
    return Reclaimed(stopped_s - decided_s, 2 * (first_s - resumed_s))


def _time_of(events: Sequence[Event], name: str, job_id: str) -> float:
    return next(event.time for event in events if (event.event, event.job) == (name, job_id))


def _step_s(steps: Sequence[float]) -> float:
    return statistics.median(later - earlier for earlier, later in pairwise(steps))


def _job(folder: Path, name: str, steps: Path, samples: int, **more: object) -> Job:
    limits = {"elastic": "none"} if "low" not in more else {}
    command = (str(folder / "train.py"), str(steps), str(samples))
    work = {"samples": float(samples)}
    return job(name, batch=8, command=command, workdir=str(folder), work=work, **limits, **more)  # type: ignore[arg-type]


def _times(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def _trains(script: Path) -> bool:
    found = psutil.process_iter(["cmdline"])
    return any(str(script) in (each.info["cmdline"] or ()) for each in found)


def _has_ended(dirs: StateDir, job_id: str) -> bool:
    known = read_log(dirs.path).jobs.get(job_id)
    return known is not None and known.ended is not None and bool(known.ended)
