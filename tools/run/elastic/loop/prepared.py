"""What a script gives ``job.prepare``: models, optimizers and a dataset, in any order, by name or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import nn
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.training import Models, Stateful

_WHOLE: Final = "; every worker has a whole copy of the model"
_WRAPPERS: Final = (
    ("torch.nn.parallel.distributed.", "DistributedDataParallel: job.prepare makes it"),
    ("torch.nn.parallel.data_parallel.", "DataParallel: each worker has one device"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", f"FullyShardedDataParallel{_WHOLE}"),
    ("torch.distributed.fsdp.FSDPModule", f"fully_shard{_WHOLE}"),
    ("accelerate.", "Accelerator: job.prepare takes the place of its prepare"),
    ("deepspeed.", f"deepspeed.initialize{_WHOLE}"),
)
"""By module and name of a class: what to leave out."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The objects by kind and name; a name is "model", "optimizer", "optimizer-2" … if none was given."""

    order: tuple[tuple[str, str], ...]
    """Kind and name of each, as they were given."""
    models: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    dataset: Any = None

    @classmethod
    def sorted_out(cls, objects: Sequence[Any], named: Mapping[str, Any], device: torch.device) -> Self:
        """:raises UsageError: there is no model or no optimizer, or an object of another kind."""
        order: list[tuple[str, str]] = []
        found: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "dataset": {}}
        seen = Counter[str]()
        for own, one in [*(("", one) for one in objects), *named.items()]:
            kind = _kind(own, one)
            seen[kind] += not own
            name = own or (kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
            found[kind][name] = one.to(device) if kind == "model" else one
            order.append((kind, name))
        for kind in ("model", "optimizer"):
            if not found[kind]:
                raise UsageError(f"job.prepare got no {kind}: call job.prepare(model, optimizer, dataset)")
        if len(found["dataset"]) > 1:
            raise UsageError("job.prepare got several datasets: evaluate with a DataLoader")
        return cls(
            tuple(order), found["model"], found["optimizer"], next(iter(found["dataset"].values()), None)
        )

    @property
    def together(self) -> nn.Module:
        """The only model itself, or all of them."""
        return next(iter(self.models.values())) if len(self.models) == 1 else Models(self.models)

    def in_order(self, models: Mapping[str, nn.Module], loader: object) -> tuple[Any, ...]:
        """What ``job.prepare`` returns."""
        made = {"model": models, "optimizer": self.optimizers}
        return tuple(made[kind][name] if kind in made else loader for kind, name in self.order)


def _kind(name: str, one: object) -> str:
    if wrapper := _wrapper(one):
        raise UsageError(f"the elastic library connects the workers: leave out {wrapper}")
    if isinstance(one, nn.Module):
        return "model"
    if isinstance(one, Optimizer):
        return "optimizer"
    if isinstance(one, Stateful) and not hasattr(one, "__iter__") and not hasattr(one, "__getitem__"):
        raise UsageError(f"{name or type(one).__name__}: register this object (job.register)")
    return "dataset"


def _wrapper(one: object) -> str:
    """What else has connected an object to other workers, and what to do instead; empty if nothing has."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(one).__mro__]
    return next((text for sign, text in _WRAPPERS if any(kind.startswith(sign) for kind in kinds)), "")
