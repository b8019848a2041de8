"""The gradients that the micro-steps of a step add up to, on one worker, and what the script sees of them.

Each pass of the loop body adds what its gradients held when the optimizer was asked for its step, and the
last one adds the sum of the passes before. So zeroing between two backward passes, clipping and logging in
every pass do what they do without micro-steps, or no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.averaging import is_marked
from pliant.tools.run.elastic.torch_internals import writes_of

_NO_EFFECT: Final = "so with micro-steps its effect would be another one"
_WHOLE_SHARE: Final = (
    "give each worker its whole share at once (a larger batch.per_gpu_max of the job, or no micro_batch_size)"
)


class MicroStepSums:
    """Sums of the gradients of the micro-steps of a step, by parameter."""

    def __init__(self) -> None:
        # Sums of the micro-steps before.
        self._sums: dict[torch.Tensor, torch.Tensor] = {}
        # Parameters whose gradient holds that sum already.
        self._joined: set[torch.Tensor] = set()
        # Gradients of the pass under way as its last backward pass left them.
        self._of_pass: dict[torch.Tensor, torch.Tensor] = {}
        # Gradients that the script may look at and change in a pass, and the count of their writes.
        self._shown: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}
        # The count of the writes to a parameter when a pass under way first reached it.
        self._weights_written: dict[torch.Tensor, int] = {}

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self._sums

    def begin_pass(self) -> None:
        """A pass of the loop body begins."""
        self.hide()
        self._of_pass.clear()
        self._joined.clear()
        self._weights_written.clear()

    def stepped(self) -> None:
        """An optimizer has made its step: what other parameters have collected is in their gradients."""
        self._weights_written.clear()
        self._sums.clear()

    def forget(self) -> None:
        """Nothing of the step is kept."""
        for held in (self._sums, self._of_pass, self._shown, self._joined):
            held.clear()

    def scale(self, factor: float) -> None:
        """Multiply what the micro-steps before have brought."""
        for gradient in self._sums.values():
            gradient.mul_(factor)

    def waits(self, parameter: torch.Tensor) -> bool:
        """Whether the sum of a parameter is not in its gradient yet."""
        return parameter in self._sums and parameter not in self._joined

    @torch.no_grad()
    def join(self, parameter: nn.Parameter) -> None:
        """Add the sum of a parameter to its gradient, once in a pass."""
        if self.waits(parameter):
            self._joined.add(parameter)
            total = self._sums[parameter]
            if parameter.grad is None:
                parameter.grad = total.clone()
            else:
                parameter.grad.add_(total)

    def join_all(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Add the sums of the parameters that still wait; returns these parameters."""
        waiting = [parameter for parameter in parameters if self.waits(parameter)] if self._sums else []
        for parameter in waiting:
            self.join(parameter)
        return waiting

    def keep(self, parameter: torch.Tensor) -> None:
        """Note the gradient as the backward pass left it: the script may change it before it is collected."""
        if parameter.grad is not None:
            self._of_pass[parameter] = parameter.grad.detach().clone()

    def collect(self, parameter: torch.Tensor, weight: float) -> None:
        """Add the gradient of the pass to the sum of its parameter.

        :param weight: weight of the micro-batch, for a gradient that the script has set by hand.
        :raises UsageError: the script has computed it from that of a backward pass.
        """
        gradient, collected = parameter.grad, self._of_pass.pop(parameter, None)
        if gradient is None:
            return
        shown, writes = self._shown.get(parameter, (None, 0))
        if gradient is shown:
            zeroed = writes_of(gradient) != writes and not gradient.any()
            collected = None if zeroed else collected
        elif is_marked(gradient):
            return  # of an earlier step: its turn to be zeroed may come later in the pass
        else:
            if collected is not None:
                raise UsageError(
                    "gradients were computed from those of a backward pass and set by hand, "
                    f"{_NO_EFFECT}: {_WHOLE_SHARE}"
                )
            collected = gradient.detach() * weight
        self.show(parameter)
        if collected is not None:
            before = self._sums.get(parameter)
            self._sums[parameter] = collected if before is None else before.add_(collected)

    def show(self, parameter: torch.Tensor) -> None:
        """The script sees the gradient of the pass, and the next pass begins without it."""
        if parameter.grad is not None:
            self._shown[parameter] = parameter.grad, writes_of(parameter.grad)

    def is_shown(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient is that of the pass, as the script sees it."""
        return parameter.grad is self._shown.get(parameter, (None, 0))[0]

    def hide(self) -> None:
        """Take away the gradients that the script has seen."""
        for parameter, (gradient, _) in self._shown.items():
            if parameter.grad is gradient:
                parameter.grad = None
        self._shown.clear()

    def own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader."""
        self.hide()
        self.forget()
        self._weights_written.clear()

    def arrives(self, parameter: nn.Parameter, *, selected: bool) -> None:
        """Notice what the script has done since the last backward pass of this pass of the loop body.

        :param selected: whether gradients of this part of the step are collected.
        :raises UsageError: it has changed the weights between two of them.
        """
        gradient = parameter.grad
        if parameter in self._joined and (gradient is None or not gradient.any()):
            self._joined.discard(parameter)  # the script has zeroed it
        if not selected:
            return
        now = writes_of(parameter)
        if self._weights_written.setdefault(parameter, now) != now:
            raise UsageError(
                "the weights were changed between two backward passes of one step (as SAM does), "
                f"{_NO_EFFECT}: {_WHOLE_SHARE}"
            )
