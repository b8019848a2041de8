"""Everything that is trained or counted, and its way into a checkpoint and back.

The parameters of a model: which there are, which are trained, and in which group of the optimizer.

All workers must have the same ones. Scripts change which are trained and how they are grouped, so that is a
part of the state: a script that has unfrozen layers, or given its optimizer another group, is at its first
line again when it is launched again, and so is a worker that joins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from itertools import zip_longest
from types import MethodType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.checkpoint import check_storable, plain
from pliant.tools.run.elastic.state.state import (
    IN_EPOCH,
    Counters,
    Cursor,
    Mean,
    Stateful,
    generator_states,
    restore_generators,
)

_log = logging.getLogger("pliant")


DOUBLING_STEPS: Final = 10
"""Optimizer steps in which a learning rate that rises may double."""


class Training:
    """Model, optimizer, registered helpers and counters of one job on one worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        helpers: dict[str, Stateful],
        lr_scale: float = 1.0,
        *,
        seed: int = 0,
        former_seed: int = 0,
    ) -> None:
        """:param seed: of the order of the samples.

        :param former_seed: that of a checkpoint that does not say which it has.
        """
        self.model = model
        self.optimizer = optimizer
        self._groups = Groups(self.model, optimizer)
        self.helpers = helpers
        self.seed, self._former_seed = seed, former_seed
        self.counters = Counters()
        self.phase = IN_EPOCH
        self.batch: tuple[int | None, int] = None, 0
        """The global batch of now, and the step that it, or the attempt, begins with."""
        self.own_loss = Mean()
        """Of the epoch, on this worker, as far as the others do not know it yet."""
        self.common_loss = Mean()
        """Of the epoch, of all workers."""
        self.agreed: list[float] = []
        """Values of rank 0 that all workers know, since the last step of the epoch."""
        self._lr_scale = self._wanted_scale = lr_scale

    def capture(self) -> dict[str, Any]:
        """All of the state as tensors and plain values, for ``torch.save``."""
        return {**self.shared(), "generators": generator_states()}

    def shared(self) -> dict[str, Any]:
        """What is the same on all workers."""
        return {
            "model": self.model.state_dict(),
            "trained": trained(self.model),
            "groups": self._groups.names(),
            "optimizer": plain(self.optimizer.state_dict()),
            "helpers": {name: plain(helper.state_dict()) for name, helper in self.helpers.items()},
            "counters": self.counters.as_dict(),
            "lr_scale": self._lr_scale,
            "seed": self.seed,
            "agreed": tuple(self.agreed),
            "epoch_loss": (float(self.common_loss.total), self.common_loss.samples),
        }

    def check_averaged(self) -> None:
        """Refuse to begin a training of which the workers would not average all.

        :raises UsageError: an optimizer has parameters that are not the model's.
        """
        refuse_training(self.helpers, self.model, self.optimizer)
        self._groups.check()

    def check_storable(self) -> None:
        """Refuse to begin a training that could not be saved.

        :raises UsageError: an object's state holds more than tensors and plain values.
        """
        check_storable("the model", self.model.state_dict())
        check_storable("the optimizer", self.optimizer.state_dict())
        for name, helper in self.helpers.items():
            check_storable(f"registered object {name}", helper.state_dict())

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Go on from all of a captured state, that of the random generators included."""
        self.restore(saved)
        restore_generators(saved["generators"])

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what is the same on all workers, the factor on the learning rate included.

        The plan that is followed turns it afterwards, on all workers alike: the plan that this one started
        with may be one that the others never followed.
        """
        self.model.load_state_dict(saved["model"])
        restore_trained(self.model, saved.get("trained", {}))
        groups = saved["optimizer"]["param_groups"]
        self._groups.restore(saved.get("groups"), groups)
        self.optimizer.load_state_dict(saved["optimizer"])
        self._restore_helpers(saved["helpers"])
        # making a scheduler and loading it change learning rates: the saved ones count
        for group, kept in zip(self.optimizer.param_groups, groups, strict=True):
            group.update({name: value for name, value in kept.items() if name != "params"})
        self._lr_scale, self.seed = saved["lr_scale"], saved.get("seed", self._former_seed)
        self.agreed = list(saved["agreed"])
        self.counters = Counters.from_dict(saved["counters"])
        self.common_loss = Mean(*saved["epoch_loss"])

    @property
    def cursor(self) -> Cursor:
        """Where the next collective operation is."""
        return Cursor(self.counters.epoch, self.counters.step, self.phase, len(self.agreed))

    def parcel(self) -> dict[str, Any]:
        """What workers with an older state, or none, get."""
        return {
            "training": self.shared(),
            "model": outline(self.model),
            "phase": self.phase,
            "batch": self.batch,
        }

    def unpack(self, parcel: Mapping[str, Any]) -> None:
        """Take the state of a worker that is further.

        :raises UsageError: this worker's model is not that of the other one.
        """
        check_same(self.model, parcel["model"])
        self.restore(parcel["training"])
        self.phase, (batch, since) = parcel["phase"], parcel["batch"]
        self.batch = batch, since

    def turn_to(self, global_batch: int) -> None:
        """Train with this global batch from now on."""
        if self.batch[0] != global_batch:
            self.batch = global_batch, self.counters.step

    def want_lr_scale(self, scale: float) -> None:
        """Turn to another factor on the author's learning rate: down at once, up step by step.

        A rise takes ``DOUBLING_STEPS`` optimizer steps for each doubling: a sudden one spoils what momentum
        and gradients have become.
        """
        self._wanted_scale = scale
        self._lr_scale = min(scale, self._lr_scale)

    def scaled_lr(self) -> AbstractContextManager[None]:
        """While the optimizer makes its step: the author's learning rates times the factor of now.

        They are the author's again afterwards, so a scheduler of any kind, which sets or reads them between
        two steps, never meets the factor.
        """
        return nullcontext() if self._lr_scale == 1.0 else self._scaled()

    @contextmanager
    def _scaled(self) -> Iterator[None]:
        groups = [group for group in self.optimizer.param_groups if "lr" in group]
        rates = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] = group["lr"] * self._lr_scale
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def gather_loss(self, world_size: int) -> None:
        """Let all workers, which call this together, know the loss of the epoch so far."""
        own = self.own_loss.over_all_workers(world_size)
        self.common_loss.include(own)
        self.own_loss = Mean()

    def agree(self, value: float, world_size: int) -> None:
        """Let all workers, which call this together, know rank 0's value; those of the others are 0."""
        found = torch.tensor([value], dtype=torch.float64)
        if world_size > 1:
            dist.all_reduce(found)
        self.agreed.append(found.item())

    def step_done(self, samples: int, losses: Mean) -> None:
        """Count an optimizer step."""
        self.own_loss.include(losses)
        self.counters.advance(samples)
        if self._lr_scale < self._wanted_scale:
            self._lr_scale = min(self._wanted_scale, self._lr_scale * 2 ** (1 / DOUBLING_STEPS))

    def epoch_done(self) -> None:
        """Count an epoch."""
        self.counters.next_epoch()
        self.own_loss, self.common_loss = Mean(), Mean()
        self.agreed.clear()

    def _restore_helpers(self, saved: Mapping[str, Any]) -> None:
        for name in sorted(saved.keys() ^ self.helpers.keys()):
            where = "the checkpoint only" if name in saved else "the script only"
            _log.warning("registered object %s is in %s: its state is not restored", name, where)
        for name in sorted(saved.keys() & self.helpers.keys()):
            self.helpers[name].load_state_dict(saved[name])


def trained(model: nn.Module) -> dict[str, bool]:
    """Whether each parameter is trained."""
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def restore_trained(model: nn.Module, saved: Mapping[str, bool]) -> None:
    """Train what was trained; parameters that are not known stay as they are."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(saved.get(name, parameter.requires_grad))


class Groups:
    """The parameter groups of an optimizer, by the names that its parameters have in a model.

    Groups that a script has added come back before it adds them again: the second time nothing happens.
    A group of parameters that the model did not have from the beginning is refused.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._averaged = frozenset[Tensor](model.parameters())
        self._ahead: list[set[Tensor]] = []
        """Groups that the script is about to add, as far as one can know."""
        optimizer.add_param_group = MethodType(self._adding(optimizer.add_param_group), optimizer)  # type: ignore[method-assign]

    def check(self) -> None:
        """Refuse an optimizer that trains other parameters than those of the model.

        :raises UsageError: it does.
        """
        groups = self._optimizer.param_groups
        refuse_strangers((one for group in groups for one in group["params"]), self._averaged)

    def names(self) -> list[list[str]] | None:
        """The parameters of each group; None: some are not the model's, and the groups can only be as now."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        groups = [group["params"] for group in self._optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            return None
        return [[names[parameter] for parameter in group] for group in groups]

    def restore(self, saved: Sequence[Sequence[str]] | None, kept: Sequence[Mapping[str, Any]]) -> None:
        """Add the groups that the optimizer does not have yet.

        :param saved: the names of each group.
        :param kept: the settings of each group.
        """
        here = self.names()
        if saved is None or here is None or here != [list(names) for names in saved[: len(here)]]:
            return
        parameters = dict(self._model.named_parameters())
        for names, settings in list(zip(saved, kept, strict=True))[len(here) :]:
            found = [parameters[name] for name in names]
            own = {name: value for name, value in settings.items() if name not in {"params", "param_names"}}
            given = settings.get("param_names")
            self._optimizer.add_param_group(
                {**own, "params": found if given is None else list(zip(given, found, strict=True))}
            )
            self._ahead.append(set(found))

    def _adding(self, inner: Any) -> Any:
        @wraps(inner)
        def add(_: Optimizer, group: dict[str, Any]) -> None:
            given = group["params"]
            listed = [given] if isinstance(given, Tensor) else list(given)
            parameters = {one[1] if isinstance(one, tuple) else one for one in listed}
            if parameters in self._ahead:
                self._ahead.remove(parameters)
            else:
                refuse_strangers(parameters, self._averaged)
                inner({**group, "params": listed})

        return add


def refuse_training(helpers: Mapping[str, object], model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse registered optimizers at once, and modules as soon as a gradient reaches them.

    Only what ``job.prepare`` was given is averaged: elsewhere each worker would train for itself. Averaged
    models and frozen ones get no gradients.

    :raises UsageError: an optimizer is registered that is not the job's own.
    """
    averaged = set[Tensor](model.parameters())
    for name, helper in helpers.items():
        if isinstance(helper, Optimizer) and helper is not optimizer:
            raise UsageError(
                f"registered object {name} is a second optimizer, which would train each worker for itself: "
                "put all networks into one module and all parameters into one optimizer, for job.prepare"
            )
        if isinstance(helper, nn.Module):
            for parameter in helper.parameters():
                if parameter not in averaged:
                    _refuse_gradients(name, parameter)


def refuse_strangers(optimized: Iterable[Tensor], averaged: Set[Tensor]) -> None:
    """Refuse parameters for the optimizer that are not averaged.

    :param averaged: the parameters of the model that ``job.prepare`` was given, at that time.
    :raises UsageError: there are others.
    """
    if strangers := [one for one in optimized if one not in averaged]:
        raise UsageError(
            f"the optimizer has {len(strangers)} parameters that the model for job.prepare did not have: "
            "each worker would train them for itself; "
            "put all that is trained into that model, before job.prepare"
        )


def _refuse_gradients(name: str, parameter: nn.Parameter) -> None:
    was_trained = parameter.requires_grad

    def refuse(_: Tensor) -> None:
        raise UsageError(
            f"registered object {name} gets gradients, which would train each worker for itself: put it into "
            "the module for job.prepare, or call it under torch.no_grad() if it is not trained"
        )

    parameter.requires_grad_()  # hooks are for what is trained; it may be unfrozen later
    parameter.register_post_accumulate_grad_hook(refuse)
    parameter.requires_grad_(was_trained)


def outline(model: nn.Module) -> list[list[Any]]:
    """What workers that average gradients must have in common: name, type and shape of each parameter."""
    return [[name, str(one.dtype), list(one.shape)] for name, one in model.named_parameters()]


def check_same(model: nn.Module, other: list[list[Any]]) -> None:
    """Refuse to train with workers whose model differs: gradients would be mixed up, or PyTorch would abort.

    :param other: the outline of their model.
    :raises UsageError: it is not that of the model.
    """
    for number, (here, there) in enumerate(zip_longest(outline(model), other)):
        if here != there:
            raise UsageError(
                "the model differs from that of the other workers: parameter "
                f"{number} is {_in_words(here)} here, {_in_words(there)} there"
            )


def _in_words(parameter: list[Any] | None) -> str:
    if parameter is None:
        return "missing"
    name, kind, shape = parameter
    return f"{name} ({kind.removeprefix('torch.')}, {' x '.join(map(str, shape)) or 'a number'})"
