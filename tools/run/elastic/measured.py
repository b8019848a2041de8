"""A script under ``pliant profile``: its loop gets a measurement instead of epochs or steps, then ends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pliant.tools.profile.measuring.request import MeasurementRequest
from pliant.tools.profile.measuring.worker import Changes, Sweep
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.loop.averaging import Averaging
from pliant.tools.run.elastic.loop.batches import BatchSplit, DataSource, Rows, to_device
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.loaders import ANY_SIZE, SampleOrder, StreamSource
from pliant.tools.run.elastic.loop.tally import numbers_of
from pliant.tools.run.elastic.membership.process_group import ProcessGroup
from pliant.tools.run.elastic.membership.rendezvous import Rendezvous
from pliant.tools.run.elastic.membership.switch_step import PlanWatch
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.elastic.state.training import Cursor, EpochPhase, Training, each_model
from pliant.tools.run.elastic.state.transfer import broadcast_state
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Member, Plan


class Measurement:
    """Loop and loader of a script that is measured; nothing is counted, saved or reported."""

    started = False

    def __init__(
        self,
        request: MeasurementRequest,
        models: MeasuredModels,
        source: DataSource | StreamSource | None,
        training: Training,
        backend: str | None,
        *,
        split: BatchSplit | None = None,
    ) -> None:
        """:param source: None where the script takes its own samples.
        :param split: that of the script's batch.
        """
        self._source, self._backend, self._split = source, backend, split
        self._training = training
        changes = Changes(self._checkpoint, self._rescale)
        self._sweep = Sweep(request, models, ANY_SIZE if source is None else source.size, self._read, changes)
        self.stepper = MeasuredStepper(self._sweep)
        self.body = MeasuredBody(self._sweep, next(training.model.parameters()).device)

    def epochs(self, count: int) -> Iterator[int]:
        """One epoch, which the loader does not let end."""
        del count
        yield 0

    def steps(self, count: int) -> Iterator[int]:
        """Always step 1: a script evaluates and writes at round numbers, and at 0."""
        del count
        for indices in self._sweep:
            self.body.indices = indices
            yield 1

    def micro_steps(self) -> Iterator[int]:
        """One: each pass of the loop body is a micro-step here."""
        yield 0

    @property
    def batch_size(self) -> int:
        """Samples of a step of this process."""
        return self._sweep.local_batch

    @property
    def steps_done(self) -> int:
        """None, as at the start of an epoch."""
        return 0

    def __len__(self) -> int:
        """Steps of an epoch of the script, for its schedulers."""
        size = 0 if self._source is None else self._source.size
        return size if self._split is None else self._split.steps_per_epoch(size)

    @property
    def dataset(self) -> Any:
        """The dataset of the script, or None."""
        return None if self._source is None else self._source.dataset

    @property
    def sampler(self) -> SampleOrder:
        """What scripts ask a ``DistributedSampler``."""
        return SampleOrder(0 if self._source is None else self._source.size)

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
        return rehearse(folder, self._training, self.body.device, self._backend)

    def _read(self, indices: Iterable[list[int]]) -> Iterable[Any]:
        if self._source is None:
            return indices
        return self._source.on_device(self._source.loader(indices, torch.Generator()))


class MeasuredStepper:
    """What optimizers and helpers ask at their steps: only the last micro-step of a visit counts."""

    failed = False

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep

    def quiet(self) -> bool:
        """Whether the micro-step ends no step."""
        return not self._sweep.boundary

    @property
    def accumulates(self) -> bool:
        """Whether the step has several micro-steps."""
        return self.quiet()

    def after_loop(self) -> bool:
        """Never: the measurement ends the script."""
        return False

    def has_closure(self) -> None:
        """Nothing."""

    def closure_called(self) -> None:
        """Nothing."""

    def optimizer_called(self, optimizer: Optimizer) -> None:
        """Nothing: micro-steps are not repeated for optimizers that take turns."""


class MeasuredBody:
    """What the script asks for in its loop: each worker is alone, and decides nothing."""

    def __init__(self, sweep: Sweep, device: torch.device) -> None:
        self.device, self._sweep = device, sweep
        # Numbers of the samples of the step.
        self.indices: list[int] = []
        self._looks = 0

    def numbers(self) -> torch.Tensor:
        """Numbers of the samples: int64."""
        return torch.tensor(self.indices)

    def rows(self) -> Rows:
        """All rows, as of one worker, and each time of a step of its own."""
        self._looks += 1
        count = self._sweep.local_batch
        return Rows(0, count, count, count, self._looks, 0, 0, last=True, counts=True, after_optimizer=False)

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Make the sums over the workers that are measured together, in place."""
        for tensor in tensors if dist.is_initialized() else ():
            dist.all_reduce(tensor)
        return True

    def draw(self, make: Callable[[int, torch.Generator], Any]) -> Any:
        """What ``make`` draws for the samples, on the device."""
        return to_device(make(self._sweep.local_batch, torch.default_generator), self.device)

    def combine(self, value: Any, *, mean: bool) -> Any:
        """The value itself: a measurement decides nothing."""
        del mean
        return value() if callable(value) else value

    def agree(self, value: Any) -> Any:
        """The value itself: every worker measures the same."""
        return numbers_of(value() if callable(value) else value)

    def weigh(self, count: float) -> None:
        """Nothing: a measurement trains for no result."""

    def log(self, loss: object, metric: object, values: object) -> None:
        """Nothing: a measurement trains for no result."""


class MeasuredModels(nn.ModuleDict):
    """The models of a job, as the measurement turns their averaging on and off."""

    def __init__(self, models: Mapping[str, nn.Module], gradients: Gradients) -> None:
        super().__init__(models)
        self._gradients = gradients

    @property
    def require_backward_grad_sync(self) -> bool:
        """As DistributedDataParallel calls it."""
        return self._gradients.exchanges

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        self._gradients.weigh(1.0, last=wanted)


ROUNDS: Final = 5
_TRAINS: Final = Cursor(0, 1, EpochPhase.STEPS)


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
        state = broadcast_state(None if joins else training.shared(), has, rank, device)
        if joins:
            training.restore(state)
        averaging.begin(each_model(training.model), device)
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
