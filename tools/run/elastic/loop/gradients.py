"""Gradients of uneven and accumulated batches, weighted so that the result is the global batch's mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
