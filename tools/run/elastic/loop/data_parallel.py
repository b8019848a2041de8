"""The model as the author's script holds it while the workers around it come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.tolerant import TolerantGroup
from pliant.tools.run.elastic.membership.vote import world


class Averaging:
    """Gradients averaged over the workers of one generation after the other.

    Where a worker is lost in the middle of a step, the step's gradients are void: ``error`` says so, the
    backward pass ends as if nothing had happened, and the author's loop never sees an exception. On GPUs a
    lost worker is not survived in place, and the exception is the author's to see.
    """

    def __init__(self, *, find_unused_parameters: bool = False) -> None:
        self.ddp: DistributedDataParallel | None = None
        self._group: TolerantGroup | None = None
        self._find_unused = find_unused_parameters
        self.before_forward: Callable[[], None] = lambda: None
        """Called before each forward pass that records gradients."""

    @property
    def error(self) -> RuntimeError | None:
        """What made the step's gradients void."""
        return None if self._group is None else self._group.error

    @property
    def failed(self) -> bool:
        """Whether the step's gradients are void."""
        return self._group is not None and self._group.error is not None

    def begin(self, module: nn.Module, device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self._group = None if device.type == "cuda" else TolerantGroup(world())
        self._wrap(module, device, init_sync=False)

    def begin_plainly(self, module: nn.Module, device: torch.device) -> None:
        """Average over the process group of torchrun's workers, which get rank 0's weights."""
        self._wrap(module, device, init_sync=True)

    def renew(self, device: torch.device) -> None:
        """Average what is trained now: the author has frozen or unfrozen parameters."""
        if self.ddp is not None:
            module = self.ddp.module
            self._unwrap()
            self._wrap(module, device, init_sync=False)

    def end(self) -> None:
        """Average no more. All that holds on to the process group is let go of."""
        self._unwrap()
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _wrap(self, module: nn.Module, device: torch.device, *, init_sync: bool) -> None:
        self.ddp = _Tolerant(
            module,
            [device] if device.type == "cuda" else None,
            process_group=self._group,
            find_unused_parameters=self._find_unused,
            init_sync=init_sync,
        )
        self.ddp.averaging = self

    def _unwrap(self) -> None:
        if self.ddp is not None:
            # at once, without waiting for the garbage collector: sockets hang on it
            del self.ddp.reducer, self.ddp.logger
            self.ddp = None

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Averaging:
        """What a copy of the model gets: it is nobody's replica."""
        return Averaging(find_unused_parameters=self._find_unused)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled model leaves its workers behind, too."""
        return Averaging, ()


class ElasticDataParallel(nn.Module):
    """One worker's copy of the author's model; ``module`` is the model itself.

    Attributes that it does not have are the model's. Where gradients are not recorded (validation), it takes
    part in no collective operation.
    """

    def __init__(self, module: nn.Module, averaging: Averaging) -> None:
        super().__init__()
        self.module = module
        self.averaging = averaging

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's own."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **named)
        self.averaging.before_forward()
        ddp = self.averaging.ddp
        if ddp is None or self.averaging.failed:
            return self.module(*inputs, **named)
        return ddp(*inputs, **named)

    def no_sync(self) -> AbstractContextManager[None]:
        """As that of DistributedDataParallel."""
        ddp = self.averaging.ddp
        return contextlib.nullcontext() if ddp is None else ddp.no_sync()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def outline(model: nn.Module) -> list[list[Any]]:
    """What workers that average gradients must have in common: name, type and shape of each parameter."""
    inner = getattr(model, "module", model)
    return [[name, str(one.dtype), list(one.shape)] for name, one in inner.named_parameters()]


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


class _Tolerant(DistributedDataParallel):
    """Survives the loss of a worker in what it exchanges before the forward pass."""

    averaging: Averaging

    def _pre_forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super()._pre_forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError:
            if not self.averaging.failed:
                raise
            return inputs, named
