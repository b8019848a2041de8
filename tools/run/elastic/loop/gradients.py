"""Gradients of uneven and accumulated batches, weighted so that the result is the global batch's mean.

What a forward pass moves, put back where its step turns out to be void.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch


class Gradients:
    """Weighs and collects the gradients of one model.

    The weight of a micro-batch multiplies every gradient as it arrives at its parameter. Where all shares
    are equal the weights are 1 and there are no hooks at all. With accumulation, what earlier micro-steps
    gave is kept aside and joined in the last one before it is reduced: the loop body never sees a partial
    sum, so zeroing and clipping in every pass do no harm. Batches that are skipped count as zero.
    """

    def __init__(self, model: nn.Module, *, accumulates: bool = False) -> None:
        self._all = list(model.parameters())
        self._trained: list[bool] = []
        """Of each, whether it is trained."""
        self._accumulates = False
        self._ddp: DistributedDataParallel | None = None
        self._weight = 1.0
        self._last = True
        self._joining = False
        self._aside: dict[torch.Tensor, torch.Tensor] = {}
        self._weighing: list[RemovableHandle] = []
        self._collecting: list[RemovableHandle] = []
        self.bind(None, accumulates=accumulates)

    def bind(self, ddp: DistributedDataParallel | None, *, accumulates: bool) -> None:
        """From now on the workers' gradients are averaged by ``ddp``; None: there is one worker."""
        self.forget()
        self._accumulates = accumulates
        self.follow(ddp)

    def trained_differ(self) -> bool:
        """Whether the author has frozen or unfrozen parameters since they were looked at."""
        return self._trained != [parameter.requires_grad for parameter in self._all]

    def follow(self, ddp: DistributedDataParallel | None) -> None:
        """Weigh and collect the gradients of what is trained now, by ``ddp``; a step may be under way."""
        self._ddp = ddp
        self._trained = [parameter.requires_grad for parameter in self._all]
        if ddp is not None:
            ddp.require_backward_grad_sync = self._last
        for handle in self._collecting:
            handle.remove()
        self._collecting = [
            parameter.register_post_accumulate_grad_hook(self._collect)
            for parameter in self._parameters()
            if self._accumulates
        ]
        self._hook(self._weigh if self._weighing else None)

    def begin(self, micro: MicroBatch) -> None:
        """Prepare for the backward pass of a micro-batch."""
        self._weight, self._last = micro.weight, micro.last
        self._joining = False
        # setting an attribute of a module takes as long as a small layer
        if self._ddp is not None and self._ddp.require_backward_grad_sync != micro.last:
            self._ddp.require_backward_grad_sync = micro.last
        if (micro.weight != 1.0) != bool(self._weighing):
            self._hook(self._weigh if micro.weight != 1.0 else None)

    def join_rest(self) -> None:
        """Give parameters that the last micro-batch did not reach what earlier ones gave them.

        :raises UsageError: several workers would need to reduce it.
        """
        if self._aside and self._ddp is not None:
            raise UsageError(
                f"{len(self._aside)} parameters had gradients in earlier micro-steps but not in the last: "
                "with several workers and accumulation every micro-batch must reach the same parameters"
            )
        if self._aside:
            self._join()

    def _join(self) -> None:
        self._joining = False
        for parameter, gradient in self._aside.items():
            parameter.grad = gradient
        self._aside.clear()

    def forget(self) -> None:
        """Drop what an unfinished step has collected."""
        self._aside.clear()

    def _hook(self, hook: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        for handle in self._weighing:
            handle.remove()
        self._weighing = (
            [] if hook is None else [parameter.register_hook(hook) for parameter in self._parameters()]
        )

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._all if parameter.requires_grad]

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor:
        # zero times infinity is not zero
        return gradient * self._weight if self._weight else torch.zeros_like(gradient)

    def _collect(self, parameter: torch.Tensor) -> None:
        before = self._aside.pop(parameter, None)
        if before is not None and parameter.grad is not None:
            parameter.grad.add_(before)
        if not self._last and parameter.grad is not None:
            self._aside[parameter] = parameter.grad
            parameter.grad = None
        if self._last and self._ddp is None and not self._joining:
            # before the loop body goes on to unscale or clip
            self._joining = True
            at_end_of_backward(self._join)


def at_end_of_backward(action: Callable[[], None]) -> None:
    """Call it when the backward pass that is under way has reached every parameter."""
    engine: Any = torch.autograd.Variable._execution_engine  # no public way
    engine.queue_callback(action)


_LARGE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Held:
    """A buffer of a module, and what it held.

    A large buffer that no step writes (a causal mask) is copied once. PyTorch counts the writes to a tensor,
    those under ``no_grad`` included, but not those through ``.data`` or NumPy, nor those of its own batch
    normalization. So the count alone is believed only where the first step that left it as it was left the
    values, too; a buffer that fails that is copied at every step. Small buffers always are.
    """

    owner: nn.Module
    name: str
    buffer: torch.Tensor
    values: torch.Tensor
    writes: int
    constant: bool | None = None
    """Whether steps leave the values as they are where they leave the count; None: not known yet."""

    def is_current(self, buffer: torch.Tensor) -> bool:
        """Whether the values are those of the buffer that the module has now, as far as one can know."""
        if self.buffer is not buffer or not self._looks_untouched():
            return False
        if self.constant is None:
            self.constant = torch.equal(buffer, self.values)
        return self.constant

    @torch.no_grad()
    def put_back(self) -> None:
        """Have the module hold the values again; one that none has written is left alone."""
        owned = self.owner._buffers.get(self.name) is self.buffer
        if owned and self.constant and self._looks_untouched():
            return
        whole = self.buffer.shape == self.values.shape
        self.owner._buffers[self.name] = self.buffer.copy_(self.values) if whole else self.values

    def _looks_untouched(self) -> bool:
        return self.writes >= 0 and self.writes == _writes(self.buffer)


class StepStart:
    """The buffers of a model (running statistics) and PyTorch's generator, as they were when a step began.

    The generators of NumPy and Python are left where they are: reading their states takes too long for small
    steps, and forward passes seldom draw from them.
    """

    def __init__(self) -> None:
        self._watches = False
        self._owners: list[nn.Module] = []
        self._held: dict[tuple[nn.Module, str], _Held] = {}
        self._generator: torch.Tensor | None = None

    def watch(self, model: nn.Module | None) -> None:
        """Note the steps of this model from now on; None: none of them can be void."""
        self._watches = model is not None
        self._owners = [] if model is None else [module for module in model.modules() if module._buffers]
        self._held = {}

    def note(self) -> None:
        """A step begins."""
        if self._watches:
            # what torch.get_rng_state does, without its wrapper, which takes longer
            self._generator = torch.default_generator.get_state()
            self._held = {
                (owner, name): self._noted(owner, name, buffer)
                for owner in self._owners
                for name, buffer in owner._buffers.items()
                if buffer is not None
            }

    def put_back_buffers(self) -> None:
        """The step is void, and its workers may hand on their state next."""
        for held in self._held.values():
            held.put_back()

    def put_back_generator(self) -> None:
        """The step is trained again here."""
        if self._generator is not None:
            torch.default_generator.set_state(self._generator)

    def _noted(self, owner: nn.Module, name: str, buffer: torch.Tensor) -> _Held:
        held = self._held.get((owner, name))
        if held is not None and held.is_current(buffer):
            return held
        values = buffer.detach().clone()
        known = held.constant if held is not None and held.buffer is buffer else None
        return _Held(owner, name, buffer, values, _writes(buffer), known)


def _writes(buffer: torch.Tensor) -> int:
    """PyTorch's count of the writes to a large buffer; -1: it is small, or nothing is counted."""
    size = buffer.numel() * buffer.itemsize
    if size < _LARGE_BYTES or buffer.is_inference() or buffer.layout != torch.strided:
        return -1
    return buffer._version
