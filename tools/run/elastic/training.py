"""Everything that is trained or counted, and its way into a checkpoint and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.tools.run.elastic.state import (
    Counters,
    Mean,
    Stateful,
    generator_states,
    hyperparameters,
    restore_generators,
    seed_everything,
)

_log = logging.getLogger("pliant")


class Training:
    """Model, optimizer, registered helpers and counters of one job on one worker."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, helpers: dict[str, Stateful], lr_scale: float = 1.0
    ) -> None:
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimizer = optimizer
        self.helpers = helpers
        self.counters = Counters()
        self.epoch_loss = Mean()
        self._lr_scale = 1.0
        self.scale_lr(lr_scale)

    def capture(self) -> dict[str, Any]:
        """The state as tensors and plain values, for ``torch.save``."""
        loss = self.epoch_loss
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "helpers": {name: helper.state_dict() for name, helper in self.helpers.items()},
            "counters": self.counters.as_dict(),
            "epoch_loss": (float(loss.total), loss.samples),
            "lr_scale": self._lr_scale,
            "generators": generator_states(),
        }

    def restore(self, saved: Mapping[str, Any], rank: int, seed: int) -> None:
        """Go on from a captured state, under the learning rate scale of now.

        Rank 0 gets the generators' states back; the others, whose number may have changed, get new ones
        that depend on seed, step and rank only.
        """
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self._restore_helpers(saved["helpers"])
        # making a scheduler and loading it change learning rates: the saved ones count
        for group, kept in zip(
            self.optimizer.param_groups, hyperparameters(saved["optimizer"]["param_groups"]), strict=True
        ):
            group.update(kept)
        scale, self._lr_scale = self._lr_scale, saved["lr_scale"]
        self.scale_lr(scale)
        self.counters = Counters(**saved["counters"])
        if rank == 0:
            self.epoch_loss = Mean(*saved["epoch_loss"])
            restore_generators(saved["generators"])
        else:
            seed_everything(seed, self.counters.step, rank)

    def scale_lr(self, scale: float) -> None:
        """Set the factor on the author's learning rate, schedulers included."""
        ratio = scale / self._lr_scale
        self._lr_scale = scale
        if ratio == 1.0:
            return
        for group in self.optimizer.param_groups:
            for name in group.keys() & {"lr", "initial_lr"}:
                group[name] = group[name] * ratio
        for helper in self.helpers.values():
            if hasattr(helper, "base_lrs"):
                helper.base_lrs = [rate * ratio for rate in helper.base_lrs]

    def _restore_helpers(self, saved: Mapping[str, Any]) -> None:
        for name in sorted(saved.keys() ^ self.helpers.keys()):
            where = "the checkpoint only" if name in saved else "the script only"
            _log.warning("registered object %s is in %s: its state is not restored", name, where)
        for name in sorted(saved.keys() & self.helpers.keys()):
            self.helpers[name].load_state_dict(saved[name])
