"""The model as the author's script holds it while the workers around it come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.tolerant import TolerantGroup
from pliant.tools.run.elastic.membership.vote import world

_not_compiled: Final = torch._disable_dynamo  # that of torch.compiler would import the compiler at once
"""For what ``torch.compile`` is not to look into: it is about workers, which come and go."""
_left_out_of_compiling: Final = torch._disable_dynamo(recursive=False)
"""The same, but what is called in it is compiled: the author's model."""


class Averaging:
    """Gradients averaged over the workers of one generation after the other.

    Where a worker is lost in the middle of a step, the step's gradients are void: ``error`` says so, the
    backward pass ends as if nothing had happened, and the author's loop never sees an exception. On GPUs a
    lost worker is not survived in place, and the exception is the author's to see.
    """

    def __init__(self, gradients: Gradients | None = None, *, find_unused_parameters: bool = False) -> None:
        """:param gradients: of the model, to be weighed; None: all workers have equal shares."""
        self.ddp: DistributedDataParallel | None = None
        self._gradients, self._find_unused = gradients, find_unused_parameters
        self._group: TolerantGroup | None = None
        self._device = torch.device("cpu")
        self.training: Callable[[], None] = lambda: None
        """Called before the model is, where gradients are recorded."""

    @property
    def error(self) -> RuntimeError | None:
        """What made the step's gradients void."""
        return None if self._group is None else self._group.error

    @property
    def failed(self) -> bool:
        """Whether the step's gradients are void."""
        return self._group is not None and self._group.error is not None

    def void(self, error: RuntimeError) -> None:
        """The step's gradients are void: a worker was lost."""
        if self._group is None:
            raise error
        self._group.error = self._group.error or error

    def begin(self, module: nn.Module, device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self._device = device
        self._group = None if device.type == "cuda" else TolerantGroup(world())
        self._wrap(module, init_sync=False)

    def begin_plainly(self, module: nn.Module, device: torch.device) -> None:
        """Average over the process group of torchrun's workers, which get rank 0's weights."""
        self._device = device
        self._wrap(module, init_sync=True)

    def follow_trained(self) -> None:
        """Average what is trained now: the author may have frozen or unfrozen parameters.

        All workers do it at the same place.
        """
        if self._gradients is None or not self._gradients.trained_differ():
            return
        if self.ddp is not None:
            module = self.ddp.module
            self._unwrap()
            self._wrap(module, init_sync=False)
        self._gradients.follow(self.ddp)

    def end(self) -> None:
        """Average no more. All that holds on to the process group is let go of."""
        self._unwrap()
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _wrap(self, module: nn.Module, *, init_sync: bool) -> None:
        self.ddp = _Tolerant(
            module,
            [self._device] if self._device.type == "cuda" else None,
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
        """What a copy of the model gets: it averages nothing."""
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

    @_left_out_of_compiling
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's own."""
        return self._now()(*inputs, **named)

    @_not_compiled
    def _now(self) -> nn.Module:
        """What the model is at the moment, alone or among the other workers."""
        if not torch.is_grad_enabled():
            return self.module
        self.averaging.training()
        self.averaging.follow_trained()
        ddp = self.averaging.ddp
        return self.module if ddp is None or self.averaging.failed else ddp

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

    @_left_out_of_compiling
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    @_not_compiled
    def _post_forward(self, output: Any) -> Any:
        return super()._post_forward(output)  # type: ignore[no-untyped-call]

    @_not_compiled
    def _pre_forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super()._pre_forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError:
            if not self.averaging.failed:
                raise
            return inputs, named
