"""The model as the author's script holds it while the workers around it come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from pliant.tools.run.elastic.failure import lost_peer
from pliant.tools.run.elastic.watch import world


class Averaging:
    """Gradients averaged over the workers of one generation after the other.

    Where a worker is lost in the middle of a step, the step's gradients are void: ``failed`` says so, the
    backward pass ends as if nothing had happened, and the author's loop never sees an exception. On GPUs a
    lost worker is not survived in place, and the exception is the author's to see.
    """

    def __init__(self, *, find_unused_parameters: bool = False) -> None:
        self.failed = False
        self.ddp: DistributedDataParallel | None = None
        self._find_unused = find_unused_parameters

    def begin(self, module: nn.Module, device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self.failed = False
        devices = [device] if device.type == "cuda" else None
        self.ddp = _Tolerant(module, devices, find_unused_parameters=self._find_unused, init_sync=False)
        self.ddp.averaging = self
        if devices is None:
            self.ddp.register_comm_hook(self, _HOOK)

    def end(self) -> None:
        """Average no more. All that holds on to the process group is let go of."""
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


class Replica(nn.Module):
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
        ddp = self.averaging.ddp
        if ddp is None or self.averaging.failed or not torch.is_grad_enabled():
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


class _Tolerant(DistributedDataParallel):
    """Survives the loss of a worker in what it exchanges before the forward pass."""

    averaging: Averaging

    def _pre_forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super()._pre_forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if self.device_ids or not lost_peer(error):
                raise
            self.averaging.failed = True
            return inputs, named


def _average(averaging: Averaging, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Average one bucket of gradients."""
    gradients = bucket.buffer()
    if not averaging.failed:
        try:
            group = world()
            work = group.allreduce([gradients.div_(group.size())])
        except RuntimeError:
            averaging.failed = True
        else:
            taken: Future[torch.Tensor] = work.get_future().then(
                lambda done: _taken(averaging, done, gradients)
            )
            return taken
    void: Future[torch.Tensor] = Future()
    void.set_result(gradients)
    return void


def _taken(averaging: Averaging, done: Future[Any], gradients: torch.Tensor) -> torch.Tensor:
    try:
        done.value()
    except RuntimeError:
        averaging.failed = True
    return gradients


def _unannotated(function: Callable[..., Future[torch.Tensor]]) -> Callable[..., Any]:
    """PyTorch compares a hook's annotations with its own classes, and ours are text."""
    function.__annotations__.clear()
    return function


_HOOK: Final = _unannotated(_average)
