"""A change of workers in place, rehearsed by those of a measurement: what it takes, without a launcher."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from pliant.tools.run.elastic.context import Orders, Setting
from pliant.tools.run.elastic.loop.data_parallel import Averaging
from pliant.tools.run.elastic.membership.circle import Circle
from pliant.tools.run.elastic.membership.cursor import IN_EPOCH, Position
from pliant.tools.run.elastic.membership.transfer import pass_on
from pliant.tools.run.elastic.membership.vote import PlanWatch
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import Member, Plan
from pliant.tools.run.statedir.layout import JobDir

ROUNDS: Final = 5
_TRAINS: Final = Position(0, 1, IN_EPOCH)


def rehearse(folder: Path, training: Training, device: torch.device, backend: str | None) -> float:
    """Median seconds in which no worker trains when the last one joins the others, until all could go on.

    All workers of the process group call this together, and train no more afterwards. They leave, meet, pass
    the state on and average anew, as in training; the joiner's start, in which the others train on, is not
    in it, nor is what the first step after it takes longer than others.

    :param folder: of these workers alone.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    setting = _setting(folder, rank, workers, device)
    assert setting.orders is not None  # noqa: S101 made just above
    plan, averaging = setting.orders.plan, Averaging()
    setting.orders.attempt.path.mkdir(parents=True, exist_ok=True)
    circle = Circle(setting, backend, PlanWatch(setting.orders.folder, plan), lambda: None)
    took = []
    for generation in range(2, ROUNDS + 2):
        dist.barrier()
        began_s = time.monotonic()
        averaging.end()
        circle.leave()
        joins = rank == workers - 1
        following = plan.model_copy(update={"generation": generation})
        positions = circle.form(following, None if joins else _TRAINS)
        has = [one is not None for one in positions]
        state = pass_on(None if joins else training.shared(), has, rank)
        if joins:
            training.restore(state)
        averaging.begin(training.model, device)
        _meet_on(device)
        took.append(time.monotonic() - began_s)
    return statistics.median(took)


def _setting(folder: Path, rank: int, workers: int, device: torch.device) -> Setting:
    members = tuple(
        Member(slot=f"here/{one}", node="here", address="127.0.0.1", worker=one) for one in range(workers)
    )
    plan = Plan(job="measured", generation=1, attempt=1, members=members)
    return Setting(rank, workers, device, Orders(JobDir(folder), plan, rank), frozenset(plan.workers))


def _meet_on(device: torch.device) -> None:
    """The first exchange on the device, which may have to be set up for it."""
    dist.all_reduce(torch.zeros(1, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
