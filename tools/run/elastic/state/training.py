"""Everything that is trained or counted, and its way into a checkpoint and back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pliant.tools.run.elastic.state.cursor import IN_EPOCH, Cursor
from pliant.tools.run.elastic.state.parameters import (
    Groups,
    check_same,
    outline,
    refuse_training,
    restore_trained,
    trained,
)
from pliant.tools.run.elastic.state.state import (
    Counters,
    Mean,
    Stateful,
    generator_states,
    restore_generators,
)
from pliant.tools.run.elastic.state.storable import check_storable, plain

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
