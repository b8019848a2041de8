"""What a training script sees of the library: :func:`init`, :class:`ElasticJob`, :class:`EarlyStopping`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Dataset

from pliant.schemas.errors import UsageError
from pliant.tools.profile.measuring.worker import request_from_env
from pliant.tools.run.elastic.context import Context, WorkerContext, find_context
from pliant.tools.run.elastic.loop.batches import DataSource
from pliant.tools.run.elastic.loop.gradients import (
    Averaging,
    Closure,
    ElasticDataParallel,
    Gradients,
    checked,
    guard_helper,
    guard_optimizer,
)
from pliant.tools.run.elastic.loop.loop import ElasticLoader, TrainingLoop
from pliant.tools.run.elastic.measured import Measurement
from pliant.tools.run.elastic.membership.membership import Leave, Membership
from pliant.tools.run.elastic.membership.process_group import join_plainly
from pliant.tools.run.elastic.state.training import Stateful, Training, seed_everything

O = TypeVar("O", bound=Optimizer)  # noqa: E741
_UNSEEDED: Final = 67280421310721
"""Where PyTorch's generator begins in a script that does not seed it."""


def init(batch_size: int | None = None, seed: int | None = None, backend: str | None = None) -> ElasticJob:
    """Find out how this process was started.

    ``batch_size``: samples per optimizer step over all workers; a batch of the plan replaces it. ``seed``: of
    the sample order and, if given here or by the job, of all random generators; the job's replaces it.
    ``backend``: of the process group; by default gloo on CPUs, gloo and NCCL on GPUs.

    :raises UsageError: the environment contradicts itself.
    :raises SystemExit: the job was asked to stop in the meantime.
    """
    context = find_context()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    membership: Membership | None = None
    if isinstance(context, WorkerContext):
        membership = Membership(context, backend)
        if context.plan.seed is not None:
            if context.rank == 0 and (other := _other_seed(context.plan.seed, seed)):
                membership.note(other)
            seed = context.plan.seed
        if isinstance(answer := membership.check_needed(), Leave):
            raise SystemExit(answer.code)
    else:
        join_plainly(context, backend)
    if seed is not None:
        seed_everything(seed)
    return ElasticJob(context, membership, batch_size, seed, backend)


class ElasticJob:
    """One training job, as the script of each worker sees it. Made by :func:`init`."""

    def __init__(
        self,
        context: Context,
        membership: Membership | None,
        batch_size: int | None,
        seed: int | None,
        backend: str | None = None,
    ) -> None:
        self._context = context
        self._membership = membership
        self._batch_size, self._backend = batch_size, backend
        self._seed = seed
        self._helpers: dict[str, Stateful] = {}
        self._loop: TrainingLoop | Measurement | None = None

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
        return self._loop is None or not self._loop.quiet()

    def prepare(
        self,
        model: nn.Module,
        optimizer: O,
        dataset: Dataset[Any],
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        find_unused_parameters: bool = False,
    ) -> tuple[nn.Module, O, ElasticLoader | Measurement]:
        """Put the model on its device and among its workers, and make the loader. Call it once.

        The optimizer is the same object; make schedulers after this call. ``num_workers`` are loading
        processes per worker. ``drop_last`` leaves out the samples that do not fill the last global batch of
        an epoch. ``find_unused_parameters``: as in DistributedDataParallel.

        :raises UsageError: there is no batch size, or one smaller than the number of workers, or the
            dataset has no length.
        """
        if self._loop is not None:
            raise UsageError("job.prepare was called twice: a job trains one model")
        inner = model.to(self.device)
        source = DataSource(dataset, self.device, num_workers, collate_fn)
        if (request := request_from_env()) is not None:
            model = self._measured(inner, find_unused_parameters=find_unused_parameters)
            training = Training(inner, optimizer, self._helpers)
            self._loop = measurement = Measurement(request, model, source, training, self._backend)
            guard_optimizer(optimizer, ("step", "zero_grad"), self._quiet, checked=self._checked)
            return model, optimizer, measurement
        gradients = Gradients(inner)
        averaging = Averaging(gradients, find_unused_parameters=find_unused_parameters)
        model = self._among_workers(inner, averaging)
        loop = TrainingLoop(
            self._context,
            self._training(inner, optimizer),
            gradients,
            averaging,
            batch_size=self._batch_size,
            drop_last=drop_last,
            membership=self._membership,
            dataset_size=source.size,
        )
        averaging.training = loop.train
        guard_optimizer(optimizer, ("step",), loop.quiet, loop.whole_step, self._checked)
        loader = ElasticLoader(source, loop, shuffle=shuffle)
        self._loop = loop
        if self.rank > 0 and (self._seed is not None or self._membership is not None):
            # the same weights everywhere, but different dropout
            seed_everything(self._seed or 0, 0, self.rank)
        return model, optimizer, loader

    def register(self, *objects: Stateful, **named: Stateful) -> None:
        """Save and restore more objects with ``state_dict``: schedulers, ``GradScaler``, averaged models.

        Call it before the first epoch. Objects of PyTorch's classes then also act once per optimizer step.
        Objects without a name are known by their class and order.

        :raises UsageError: an object has no state, its name is taken, or training has begun.
        """
        if self._loop is not None and self._loop.started:
            raise UsageError("register objects before the first epoch: their state is restored there")
        helpers = self._helpers
        for helper in objects:
            named[f"{type(helper).__name__}-{len(helpers) + len(named)}"] = helper
        for name, helper in named.items():
            if not isinstance(helper, Stateful):
                raise UsageError(f"{name}: {type(helper).__name__} has no state_dict and load_state_dict")
            if name in helpers:
                raise UsageError(f"{name}: an object of this name is registered already")
            helpers[name] = helper
            guard_helper(helper, self._quiet, lambda: self._loop is not None and self._loop.after_loop())

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the remaining epochs of ``count``, from 0; iterate the loader inside.

        Here the workers meet. The first epoch goes on from a checkpoint, or from where workers that train
        already are. Leaving the loop early ends the training, too.

        :raises ServiceMissingError: other workers did not come.
        :raises SystemExit: with code 0, out of the loader, where the job was asked to stop, or goes on
            without this worker.
        """
        return self._trained().epochs(count)

    def log(
        self, loss: float | torch.Tensor | None = None, metric: float | torch.Tensor | None = None
    ) -> None:
        """Report the loss of a batch, inside the loop, or a validation metric, once per epoch."""
        self._trained().log(loss, metric)

    def agree(self, value: float | Callable[[], float]) -> float:
        """Rank 0's ``value`` on every worker: for what only rank 0 knows, or what may differ slightly.

        Every worker calls it, after the loader's loop and inside that of ``epochs``::

            accuracy = job.agree(lambda: evaluate(model))
            if job.agree(stopping.reached(accuracy)):
                break

        A function is called by rank 0 alone; if rank 0 is lost meanwhile, by the worker that takes its place.
        For the same reason a number must be right on every worker.

        :raises UsageError: it is called elsewhere.
        """
        return self._trained().agree(value)

    def _training(self, model: nn.Module, optimizer: Optimizer) -> Training:
        plan = self._context.plan
        lr_scale = 1.0 if plan is None else plan.lr_scale
        return Training(model, optimizer, self._helpers, lr_scale, seed=self._seed or 0)

    def _among_workers(self, model: nn.Module, averaging: Averaging) -> nn.Module:
        if self._membership is None and self.world_size == 1:
            return model
        if self._membership is None:
            averaging.begin_plainly(model, self.device)
        return ElasticDataParallel(model, averaging)

    def _measured(self, model: nn.Module, *, find_unused_parameters: bool) -> nn.Module:
        if self.world_size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, devices, find_unused_parameters=find_unused_parameters)

    def _quiet(self) -> bool:
        return not self.sync_gradients

    def _checked(self, closure: Closure) -> Closure:
        loop = self._trained()
        return checked(
            closure,
            accumulates=loop.accumulates,
            workers=self.world_size,
            failed=lambda: loop.failed,
        )

    def _trained(self) -> TrainingLoop | Measurement:
        if self._loop is None:
            raise UsageError("call job.prepare(model, optimizer, dataset) first")
        return self._loop


def _other_seed(seed: int, given: int | None) -> str:
    """A warning if the script has another seed than its job; empty if it has none, or the same."""
    own = torch.initial_seed() if given is None else given
    if own == seed or (given is None and own == _UNSEEDED):
        return ""
    where = "torch.manual_seed" if given is None else "elastic.init"
    return f"the job's seed {seed} replaces {own}, which the script gives {where}: plain python uses that one"


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
