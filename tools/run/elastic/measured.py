"""A script under ``pliant profile``: the loader serves a measurement instead of epochs, then ends it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from pliant.tools.profile.measuring.request import MeasurementRequest
from pliant.tools.profile.measuring.worker import Changes, Sweep
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.loop.batches import DataSource
from pliant.tools.run.elastic.loop.gradients import Averaging
from pliant.tools.run.elastic.membership.agreement import PlanWatch
from pliant.tools.run.elastic.membership.process_group import ProcessGroup
from pliant.tools.run.elastic.membership.rendezvous import Rendezvous
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.elastic.state.training import IN_EPOCH, Cursor, Training
from pliant.tools.run.elastic.state.transfer import pass_on
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Member, Plan


class Measurement:
    """Loop and loader of a script that is measured; nothing is counted, saved or reported."""

    started = False
    failed = False

    def __init__(
        self,
        request: MeasurementRequest,
        model: nn.Module,
        source: DataSource,
        training: Training,
        backend: str | None,
    ) -> None:
        self._source, self._backend = source, backend
        self._device = next(model.parameters()).device
        self._training = training
        changes = Changes(self._checkpoint, self._rescale)
        self._sweep = Sweep(request, model, source.size, self._read, changes)

    def epochs(self, count: int) -> Iterator[int]:
        """One epoch, which the loader does not let end."""
        del count
        yield 0

    def after_loop(self) -> bool:
        return False

    def quiet(self) -> bool:
        return not self._sweep.boundary

    @property
    def accumulates(self) -> bool:
        return self.quiet()

    def agree(self, value: float | Callable[[], float]) -> float:
        """The value itself: no measurement reaches the end of an epoch."""
        return float(value() if callable(value) else value)

    def log(self, loss: object, metric: object) -> None:
        """Nothing: a measurement trains for no result."""

    @property
    def steps_done(self) -> int:
        return 0

    def __len__(self) -> int:
        return self._source.size

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sweep)

    def _checkpoint(self, folder: Path) -> None:
        """Save the whole state and go on from it, as a relaunched job does."""
        checkpoints = Checkpoints(folder)
        checkpoints.save(self._training.capture(), 0)
        state = checkpoints.load().state
        if state is not None:
            self._training.resume(state)

    def _rescale(self, folder: Path) -> float:
        return rehearse(folder, self._training, self._device, self._backend)

    def _read(self, indices: Iterable[list[int]]) -> Iterable[Any]:
        return self._source.on_device(self._source.loader(indices, torch.Generator()))


ROUNDS: Final = 5
_TRAINS: Final = Cursor(0, 1, IN_EPOCH)


def rehearse(folder: Path, training: Training, device: torch.device, backend: str | None) -> float:
    """Median seconds in which no worker trains when the last one joins the others.

    All workers of the process group call this together, and do not train afterwards. They leave, meet, pass
    the state on and average again, as in training. The joiner's start is not included, because the others
    train meanwhile, nor is the extra time of the first step after it.

    :param folder: for these workers alone.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    context, averaging = _context(folder, rank, workers, device), Averaging()
    context.attempt.path.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup(context, backend)
    rendezvous = Rendezvous(context, group, PlanWatch(context))
    took = []
    for generation in range(2, ROUNDS + 2):
        dist.barrier()
        began_s = time.monotonic()
        averaging.end()
        group.leave()
        joins = rank == workers - 1
        context.follow(context.plan.model_copy(update={"generation": generation}))
        cursors = rendezvous.meet(None if joins else _TRAINS)
        has = [one is not None for one in cursors]
        state = pass_on(None if joins else training.shared(), has, rank, device)
        if joins:
            training.restore(state)
        averaging.begin(training.model, device)
        dist.all_reduce(torch.zeros(1, device=device))  # the first exchange may have to set up the device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.monotonic() - began_s)
    return statistics.median(took)


def _context(folder: Path, rank: int, workers: int, device: torch.device) -> WorkerContext:
    members = tuple(
        Member(slot=f"here/{one}", node="here", address="127.0.0.1", worker=one) for one in range(workers)
    )
    plan = Plan(job="measured", generation=1, attempt=1, members=members)
    context = WorkerContext(JobDir(folder), plan, rank, device)
    context.settle()
    return context
