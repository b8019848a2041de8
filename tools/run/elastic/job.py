"""What a training script sees of the library: :func:`init`, :class:`ElasticJob`, :class:`EarlyStopping`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeVar, cast, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Sampler

from pliant.schemas.errors import UsageError
from pliant.tools.profile.measuring.worker import request_from_env
from pliant.tools.run.elastic.context import Context, WorkerContext, find_context
from pliant.tools.run.elastic.loop.averaging import Averaging
from pliant.tools.run.elastic.loop.batches import BatchSplit, Carried, DataSource
from pliant.tools.run.elastic.loop.gradients import Gradients, NoSync
from pliant.tools.run.elastic.loop.loaders import (
    ElasticLoader,
    ElasticSteps,
    ElasticStream,
    StreamSource,
    is_stream,
)
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.loop.prepared import (
    Closure,
    Prepared,
    checked,
    guard_helper,
    guard_optimizer,
    inner_optimizers,
    watch_others,
)
from pliant.tools.run.elastic.loop.workers import Batching, WorkerGroup
from pliant.tools.run.elastic.measured import MeasuredModels, Measurement
from pliant.tools.run.elastic.membership.instructions import Leave
from pliant.tools.run.elastic.membership.membership import Membership
from pliant.tools.run.elastic.membership.process_group import join_torchrun_group
from pliant.tools.run.elastic.stack_watch import StackWatch
from pliant.tools.run.elastic.state.training import Stateful, Training, seed_everything, seed_scripts
from pliant.tools.run.elastic.trackers import TrackerName, Tracking, checked_names
from pliant.tools.run.statedir.contract.plan import Plan

O = TypeVar("O", bound=Optimizer)  # noqa: E741
T = TypeVar("T")
V = TypeVar("V", float, dict[str, float], list[float])
_UNSEEDED: Final = 1 << 32
"""Bound of the seeds that scripts take; PyTorch's generator begins above where none is given."""


def init(
    batch_size: int | None = None,
    seed: int | None = None,
    backend: str | None = None,
    *,
    micro_batch_size: int | None = None,
    if_workers_differ: Literal["end", "warn"] = "end",
    track: TrackerName | Sequence[TrackerName] = (),
) -> ElasticJob:
    """Find out how this process was started, and return the job that it trains.

    :param batch_size: samples per optimizer step over all workers; a batch of the plan replaces it.
    :param seed: seed of the sample order and, if given here or by the job, of all random generators; the
        job's replaces it.
    :param backend: backend of the process group; by default gloo on CPUs, gloo and NCCL on GPUs.
    :param micro_batch_size: most samples that a worker trains at once; a larger share of the batch is cut
        into micro-steps.
    :param if_workers_differ: what to do if workers differ in weights, settings of an optimizer or data; they
        are compared now and then.
    :param track: experiment trackers that get what the script logs: wandb, mlflow, tensorboard.
    :raises UsageError: the environment contradicts itself.
    :raises ServiceMissingError: the package of a tracker is not installed.
    :raises SystemExit: the job was asked to stop in the meantime.
    """
    trackers = checked_names(track)
    if micro_batch_size is not None and micro_batch_size < 1:
        raise UsageError(f"micro_batch_size is {micro_batch_size}, expected 1 or more samples")
    context = find_context()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    if trackers:
        is_trial = ElasticJob.made_as is not ElasticJob or request_from_env() is not None
        context.tracking = Tracking(context, () if is_trial else trackers)
    membership: Membership | None = None
    if isinstance(context, WorkerContext):
        StackWatch(context.attempt, context.worker).begin()
        membership = Membership(context, backend)
        if context.plan.seed is not None:
            if context.rank == 0 and (other := _other_seed(context.plan.seed, seed)):
                membership.note(other)
            seed = context.plan.seed
        if context.rank == 0 and (other := _other_batch(context.plan, batch_size)):
            membership.note(other)
        if isinstance(answer := membership.check_needed(), Leave):
            raise SystemExit(answer.code)
    else:
        join_torchrun_group(context, backend)
    if seed is not None:
        seed_everything(seed)
    elif isinstance(context, WorkerContext):
        seed_scripts(zlib.crc32(context.plan.job.encode()))
    return ElasticJob.made_as(
        context,
        membership,
        batch_size,
        seed,
        backend,
        micro_batch_size=micro_batch_size,
        ends_on_difference=if_workers_differ == "end",
    )


class ElasticJob:
    """One training job, as the script of each worker sees it. Made by :func:`init`."""

    made_as: ClassVar[type[ElasticJob]]
    """Class that :func:`init` makes; another one in a run of ``pliant verify``."""
    trained_as: ClassVar[type[Training]] = Training

    def __init__(
        self,
        context: Context,
        membership: Membership | None,
        batch_size: int | None,
        seed: int | None,
        backend: str | None = None,
        *,
        micro_batch_size: int | None = None,
        ends_on_difference: bool = True,
    ) -> None:
        self._context, self._ends_on_difference = context, ends_on_difference
        self._membership = membership
        self._batch_size, self._micro_batch_size, self._backend = batch_size, micro_batch_size, backend
        self._seed = seed
        self._helpers: dict[str, Stateful] = {}
        self._loop: TrainingLoop | Measurement | None = None
        self._steps: ElasticSteps | Measurement | None = None
        self._has_loader = False

    @property
    def device(self) -> torch.device:
        """Where the model and the batches are."""
        return self._context.device

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self._context.rank

    @property
    def world_size(self) -> int:
        """Workers of the job at the moment."""
        return self._context.world_size

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop: it saves and leaves at the end of this step, or of this loop.

        A long evaluation may look at it and end early. Workers learn of a stop at different moments, so what
        they do together must not depend on it.
        """
        return self._membership is not None and self._membership.stopping

    @property
    def sync_gradients(self) -> bool:
        """False in a micro-step that does not end its optimizer step."""
        if self._loop is None:
            return True
        if isinstance(self._loop, TrainingLoop):
            self._loop.stepper.checks.consulted = True
        return not self._loop.stepper.quiet()

    @property
    def batch_size(self) -> int:
        """Samples of an optimizer step, over all workers."""
        loop = self._trained()
        return loop.batch_size if isinstance(loop, Measurement) else loop.workers.split.global_batch

    @overload
    def prepare(
        self,
        model: nn.Module,
        optimizer: O,
        dataset: Dataset[Any],
        /,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: Sampler[int] | None = None,
        find_unused_parameters: bool = False,
    ) -> tuple[nn.Module, O, ElasticLoader | Measurement]: ...

    @overload
    def prepare(
        self, model: nn.Module, optimizer: O, /, *, find_unused_parameters: bool = False
    ) -> tuple[nn.Module, O]: ...

    @overload
    def prepare(
        self,
        *objects: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: Sampler[int] | None = None,
        find_unused_parameters: bool = False,
        **named: Any,
    ) -> tuple[Any, ...]: ...

    def prepare(
        self,
        *objects: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: Sampler[int] | None = None,
        find_unused_parameters: bool = False,
        **named: Any,
    ) -> tuple[Any, ...]:
        """Put models on their device and among the workers, and make the loader. Call it once.

        It takes models, their optimizers and at most one dataset, and returns them in the same order::

            model, optimizer, loader = job.prepare(model, optimizer, dataset)
            model, muon, adamw = job.prepare(model, muon, adamw)          # for a loop over job.steps
            painter, critic, *both, loader = job.prepare(
                painter=painter, critic=critic, first=first, second=second, dataset=dataset
            )

        Names are those in checkpoints and messages. Optimizers are the same objects; make schedulers after
        this call.

        :param collate_fn: makes a batch of a list of samples.
        :param num_workers: loading processes per worker.
        :param shuffle: whether each epoch has another order of the samples.
        :param drop_last: whether to leave out the samples that do not fill the last global batch of an epoch.
        :param sampler: draws the samples of each epoch instead of ``shuffle``, under the job's seed.
        :param find_unused_parameters: no effect: parameters that a backward pass does not reach are found
            anyway.
        :raises UsageError: there is no batch size, or one smaller than the number of workers, or the
            dataset has no length.
        """
        given = Prepared.sorted_out(objects, named, self.device)
        request = request_from_env()
        source = self._source(given.dataset, num_workers, collate_fn, sampler if request is None else None)
        if self._loop is not None:
            raise UsageError("job.prepare was called twice: give it all models and optimizers at once")
        self._has_loader = source is not None and source.size > 0
        loader: ElasticLoader | ElasticStream | Measurement | None = None
        del find_unused_parameters
        averaging = Averaging()
        gradients = Gradients(given.models.values() if self._has_hooks else (), averaging)
        if self._membership is None and self.world_size > 1:
            averaging.begin_torchrun(given.models.values())
        if request is not None:
            models = MeasuredModels(given.models, gradients)
            training = Training(given.together, given.optimizers, self._helpers)
            batch = self._batch_size
            split = None if batch is None else BatchSplit(batch, drop_last=drop_last)
            loader = self._loop = Measurement(request, models, source, training, self._backend, split=split)
            for optimizer in given.optimizers.values():
                guard_optimizer(optimizer, ("step", "zero_grad"), self._quiet, checked=self._checked)
            return given.in_order(given.models, loader)
        workers = WorkerGroup(
            self._context,
            self._training(given.together, given.optimizers),
            gradients,
            averaging,
            Batching(self._batch_size, self._micro_batch_size, drop_last),
            membership=self._membership,
            ends_on_difference=self._ends_on_difference,
        )
        size = 0 if source is None else source.size
        loop = TrainingLoop(workers, dataset_size=size, drop_last=drop_last)
        if isinstance(source, DataSource) and not num_workers:
            workers.guard.dataset = source.dataset
        for optimizer in inner_optimizers(given.optimizers.values()):
            guard_optimizer(
                optimizer,
                ("step",),
                loop.stepper.quiet,
                loop.stepper.around_optimizer,
                self._checked,
                called=loop.stepper.optimizer_called,
                zeroed=gradients.zeroed,
            )
        if isinstance(source, StreamSource):
            loader = ElasticStream(source, loop)
            if isinstance(source.dataset, Stateful):
                self._helpers["stream"] = loader.reader
        elif source is not None:
            loader = ElasticLoader(source, loop, shuffle=shuffle)
        self._loop = loop
        if self._has_hooks:
            for model in given.models.values():
                model.no_sync = NoSync(gradients)  # type: ignore[assignment]
            watch_others(
                given.optimizers.values(),
                given.models.values(),
                lambda: loop.training.counters.step,
                workers.warn,
            )
        loop.training.gradients = gradients
        return given.in_order(given.models, loader)

    def register(self, *objects: Stateful | dict[Any, Any], **named: Stateful | dict[Any, Any]) -> None:
        """Save and restore more objects with ``state_dict``: schedulers, ``GradScaler``, averaged models.

        A dictionary (``best = {"loss": inf}``) is filled with what it held. Call it before the first epoch or
        step. Objects of PyTorch's classes then also act once per optimizer step.
        Objects without a name are known by their class and order.

        :raises UsageError: an object has no state, its name is taken, or training has begun.
        """
        if self._loop is not None and self._loop.started:
            raise UsageError("register objects before the first epoch or step: their state is restored there")
        helpers = self._helpers
        for helper in objects:
            named[f"{type(helper).__name__}-{len(helpers) + len(named)}"] = helper
        for name, given in named.items():
            helper = KeptValues(given) if type(given) is dict else given
            if not isinstance(helper, Stateful):
                raise UsageError(f"{name}: {type(helper).__name__} has no state_dict and load_state_dict")
            if name in helpers:
                raise UsageError(f"{name}: an object of this name is registered already")
            helpers[name] = helper
            guard_helper(
                helper,
                self._quiet,
                lambda: self._loop is not None and self._loop.stepper.after_loop(),
                lambda optimizer: (
                    None if self._loop is None else self._loop.stepper.optimizer_called(optimizer)
                ),
            )

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the remaining epochs of ``count``, from 0; iterate the loader inside.

        Here the workers meet. The first epoch goes on from a checkpoint, or from where workers that train
        already are. Leaving the loop early ends the training, too.

        :raises ServiceMissingError: other workers did not come.
        :raises SystemExit: with code 0, out of the loader, where the job was asked to stop, or goes on
            without this worker.
        """
        loop = self._trained()
        if not self._has_loader:
            raise UsageError("job.prepare got no dataset: loop over job.steps, or give it one")
        return loop.epochs(count)

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the remaining optimizer steps of ``count``, from 0, for a training without epochs.

        The loop body takes its own samples: the same ones on any number of workers if it asks
        :meth:`batch_indices` or :meth:`draw` for them. As in a loop over the loader, each pass is one
        micro-step, unless the body takes them itself by :meth:`micro_steps`::

            for step in job.steps(5000):
                x, y = get_batch(job.batch_indices(len(data) - block))
                ...

        :raises ServiceMissingError: other workers did not come.
        :raises SystemExit: with code 0, where the job was asked to stop, or goes on without this worker.
        """
        loop = self._trained()
        if self._has_loader:
            raise UsageError("job.prepare got a dataset: loop over job.epochs, or leave the dataset out")
        if isinstance(loop, Measurement):
            self._steps = loop
            return loop.steps(count)
        self._steps = ElasticSteps(loop, count)
        return iter(self._steps)

    def micro_steps(self) -> Iterator[int]:
        """The micro-steps of the current step, from 0: what accumulates gradients before the optimizer.

        It takes the place of ``for micro_step in range(gradient_accumulation_steps)``. Their number is the
        plan's, or what ``micro_batch_size`` asks for, and their gradients need no division by it. Code before
        and after this loop runs once a step. Where optimizers take turns, each has a loop of its own.

        :raises UsageError: it is called outside of the loop over :meth:`steps`.
        """
        if self._steps is None:
            raise UsageError("loop over job.micro_steps() inside `for step in job.steps(n):`")
        return self._steps.micro_steps()

    def batch_indices(self, below: int | None = None) -> torch.Tensor:
        """Numbers of the samples that this worker takes for the micro-step.

        The workers' numbers together are those of one worker.

        :param below: bound of random numbers from 0, with replacement, as
            ``torch.randint(below, (batch_size,))`` would draw them. Without it they are the samples' numbers
            in the training, from 0, which may index a fixed order or a stream.
        :returns: int64, shape (samples,), on the CPU.
        :raises UsageError: the script is in no loop over batches or steps.
        """
        body = self._trained().body
        if below is None:
            return body.numbers()

        def draw(count: int, generator: torch.Generator) -> torch.Tensor:
            return torch.randint(below, (count,), generator=generator)

        return cast("torch.Tensor", body.draw(draw))

    def draw(self, make: Callable[[int, torch.Generator], Any]) -> Any:
        """Draw for the whole batch, and keep the rows of this worker's samples: noise, for example::

            noise = job.draw(lambda count, generator: torch.randn(count, 64, generator=generator))

        :param make: gets the number of samples and a generator that is the same on every worker and for every
            try of the step. It returns a tensor, or tensors in a tuple, list or dictionary, with a row for
            each sample.
        :returns: the rows of this worker's samples, on the device.
        :raises UsageError: the script is in no loop over batches or steps.
        """
        return self._trained().body.draw(make)

    def carried(self, make: Callable[[int], Any], *, dim: int = 0) -> Carried:
        """What each row of a batch hands on to that of the next one, as the hidden state of a recurrent net.

        Call it before the first epoch or step, then read and set its ``value`` in the loop, before
        ``optimizer.step()``::

            hidden = job.carried(lambda rows: torch.zeros(LAYERS, rows, WIDTH), dim=1)
            ...
                    predicted, hidden.value = model(x, hidden.value)

        It comes back without a history, and is a part of the state: resizes, kills and restarts keep it.

        :param make: gives it for a number of rows at the start of an epoch: a tensor, or tensors in a tuple,
            list or dictionary, with their rows along ``dim``.
        :raises UsageError: training has begun.
        """
        carried = Carried(make, dim, lambda: self._trained().body)
        self.register(**{f"carried-{len(self._helpers)}": carried})
        return carried

    def mean(self, value: T | Callable[[], T]) -> T:
        """The mean of ``value`` over the workers and the micro-steps of a step, weighted by samples.

        For what a script decides by, so that all workers decide alike, as one would::

            if job.mean(loss) < 2.0:
                optimizer.step()

        Numbers or tensors, also in dictionaries, lists and tuples. In a micro-step that does not end its step
        it is the mean so far. All workers call it at the same places; outside of the loop over batches it is
        the mean over the workers.

        :raises UsageError: it is called outside of the loop over ``epochs`` or ``steps``.
        """
        return cast("T", self._trained().body.combine(value, mean=True))

    def sum(self, value: T | Callable[[], T]) -> T:
        """The sum of ``value`` over the workers, as :meth:`mean`: for an evaluation that they share::

            def right():
                mine = range(job.rank, len(held_out), job.world_size)
                return sum(int(predict(held_out[index])) for index in mine)

            accuracy = job.sum(right) / len(held_out)

        A function is called again if the workers change meanwhile.
        """
        return cast("T", self._trained().body.combine(value, mean=False))

    def weigh(self, count: float) -> None:
        """Say that the loss of this micro-batch is a mean over ``count`` of something, not over its samples.

        Workers and micro-steps then count by it, and the gradient is that of the mean over the whole batch::

            job.weigh((labels != -100).sum().item())
            loss = cross_entropy(model(x).flatten(0, 1), labels.flatten(), ignore_index=-100)
            loss.backward()

        :param count: tokens that are not padding, for example, or the sum of class weights.
        :raises UsageError: it comes after the backward pass, or outside of the loop over batches.
        """
        self._trained().body.weigh(count)

    def log(
        self,
        loss: float | torch.Tensor | None = None,
        metric: float | torch.Tensor | None = None,
        **values: float | torch.Tensor,
    ) -> None:
        """Report the loss of a batch, inside the loop, or a validation metric, once per evaluation.

        :param values: others by name, for trackers alone; those of rank 0 count.
        :raises UsageError: there are such values and no tracker.
        """
        self._trained().body.log(loss, metric, values)

    def agree(self, value: V | Callable[[], V]) -> V:
        """Rank 0's ``value`` on every worker: for what only rank 0 knows, or what may differ slightly.

        Every worker calls it, at the same places of the loop over ``epochs`` or ``steps``::

            accuracy = job.agree(lambda: evaluate(model))
            if job.agree(stopping.reached(accuracy)):
                break

        A function is called by rank 0 alone, and once for a step however it is cut or tried again; if rank 0
        is lost meanwhile, by the worker that takes its place. For the same reason a number must be right on
        every worker.

        :param value: a number, or a dictionary or list of numbers, or a function that returns them.
        :raises UsageError: it is called elsewhere.
        """
        return cast("V", self._trained().body.agree(value))

    def _source(
        self,
        dataset: Any,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        sampler: Sampler[int] | None,
    ) -> DataSource | StreamSource | None:
        if dataset is None:
            return None
        if not is_stream(dataset):
            return DataSource(dataset, self.device, num_workers, collate_fn, sampler)
        if sampler is not None:
            raise UsageError(f"{type(dataset).__name__}: a stream has its own order: leave out sampler")
        if num_workers:
            raise UsageError(
                f"{type(dataset).__name__}: a stream is read by the worker itself: leave out num_workers, "
                "or give a StatefulDataLoader with batch_size=None"
            )
        return StreamSource(dataset, self.device, collate_fn)

    def _training(self, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> Training:
        plan = self._context.plan
        lr_scale = 1.0 if plan is None else plan.lr_scale
        return self.trained_as(model, optimizers, self._helpers, lr_scale, seed=self._seed or 0)

    @property
    def _has_hooks(self) -> bool:
        """Whether gradients may ever be weighed, collected or averaged."""
        return self._membership is not None or self.world_size > 1 or self._micro_batch_size is not None

    def _quiet(self) -> bool:
        return self._loop is not None and self._loop.stepper.quiet()

    def _checked(self, closure: Closure) -> Closure:
        stepper = self._trained().stepper
        stepper.has_closure()
        return checked(
            closure,
            accumulates=stepper.accumulates,
            workers=self.world_size,
            failed=lambda: stepper.failed,
            whole=stepper.closure_called,
        )

    def _trained(self) -> TrainingLoop | Measurement:
        if self._loop is None:
            raise UsageError("call job.prepare(model, optimizer, dataset) first")
        return self._loop


ElasticJob.made_as = ElasticJob


def _other_seed(seed: int, given: int | None) -> str:
    """A warning if the script has another seed than its job; empty if it has none, or the same."""
    own = torch.initial_seed() if given is None else given
    if own == seed or (given is None and own >= _UNSEEDED):
        return ""
    where = "torch.manual_seed" if given is None else "elastic.init"
    return f"the job's seed {seed} replaces {own}, which the script gives {where}: plain python uses that one"


def _other_batch(plan: Plan, given: int | None) -> str:
    """A warning if the script has another batch than its job; empty if it has none, or the same."""
    if given is None or plan.global_batch is None:
        return ""
    batch = max(1, round(plan.global_batch / plan.lr_scale))
    if batch == given:
        return ""
    return f"the job's batch of {batch} replaces {given}, which the script gives elastic.init"


class KeptValues:
    """A dictionary of the script, as a registered object."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.update(state_dict["values"])


class EarlyStopping:
    """Says after each epoch whether to end the training; register it, so that a resize keeps its state::

        stopping = elastic.EarlyStopping(target=0.9, patience=5)
        job.register(stopping=stopping)
        for epoch in job.epochs(90):
            …
            job.log(metric=accuracy)
            if stopping.reached(accuracy):
                break

    Every worker must ask with the same value: evaluate on all of the validation data, or reduce the metric.

    :param target: a metric at least this good ends the training.
    :param patience: this number of epochs in a row without a better metric ends it.
    :param least_gain: a smaller improvement does not count.
    :param lower_is_better: the metric is a loss.
    """

    def __init__(
        self,
        target: float | None = None,
        patience: int | None = None,
        *,
        least_gain: float = 0.0,
        lower_is_better: bool = False,
    ) -> None:
        if target is None and patience is None:
            raise UsageError("EarlyStopping needs a target, a patience, or both")
        if patience is not None and patience < 1:
            raise UsageError(f"EarlyStopping: patience is {patience}, expected 1 or more epochs")
        self._sign = -1.0 if lower_is_better else 1.0
        self._target = None if target is None else self._sign * target
        self._patience = patience
        self._least_gain = least_gain
        self._best = -math.inf
        self._waited = 0

    def reached(self, metric: float) -> bool:
        """Whether to end the training after the epoch with this metric; NaN is never better."""
        value = self._sign * float(metric)
        if value > self._best + self._least_gain:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._target is not None and value >= self._target:
            return True
        return self._patience is not None and self._waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._best, self._waited = state_dict["best"], state_dict["waited"]
