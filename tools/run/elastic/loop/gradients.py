"""The gradients of a step on one worker: weighted, collected over micro-steps, handed to the exchange.

The gradient that an optimizer uses is the mean over the global batch, however it is divided. What counts is
what each parameter's ``grad`` would hold on one worker, so nothing depends on how a script calls its model: a
hook at each parameter learns of what a backward pass brings, and when the pass ends these gradients are
averaged over the workers, so that clipping and logging see the mean. The mean is linear: a second backward
pass adds to a gradient that was averaged, and the sum is averaged again. A gradient that the script has set
by hand is averaged at the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.averaging import Averaging, is_marked, mark, unmark
from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.torch_internals import at_end_of_backward, writes_of

_NO_EFFECT: Final = "so with micro-steps its effect would be another one"


class Gradients:
    """Weighs and collects the gradients of a job's models, and has them averaged.

    The weight of a micro-batch multiplies every gradient as it arrives at its parameter. Where micro-steps
    are accumulated, each pass of the loop body adds what its gradients held when the optimizer was asked for
    its step, and the last one adds the sum of the passes before. So zeroing between two backward passes,
    clipping and logging in every pass do what they do without micro-steps, or no harm.

    Where several optimizers take turns in a step, only the gradients of the part that is ``selected`` are
    collected: the others are of a pass that is repeated for them.
    """

    def __init__(self, models: Iterable[nn.Module], averaging: Averaging | None = None) -> None:
        every = (one for model in models for one in model.parameters())
        self._parameters = [
            one for one in dict.fromkeys(every) if one.is_floating_point() or one.is_complex()
        ]
        self._averaging = Averaging() if averaging is None else averaging
        # Called when the first gradient of a backward pass arrives.
        self.on_backward: Callable[[], None] = lambda: None
        self.selected = True
        # Whether gradients of a step are added to in the next one; None if not known yet.
        self.outlive: bool | None = None
        self._accumulates = False
        self._weight, self._last = 1.0, True
        # Parameters that the backward pass under way has reached.
        self._reached: list[nn.Parameter] = []
        self._overlaps = False
        # Blocks under way whose gradients are exchanged with later ones.
        self._deferring = 0
        self._deferred: dict[nn.Parameter, None] = {}
        # Parameters whose gradients were averaged in the step.
        self._averaged: set[nn.Parameter] = set()
        # Whether the step's first exchange is still to come.
        self._takes_buffers = True
        # The script has zeroed gradients since the last step ended.
        self._zeroed = False
        # Gradients of the micro-steps before.
        self._sum: dict[torch.Tensor, torch.Tensor] = {}
        # Identity of the step under way.
        self._step = object()
        self._steps = 0
        # Parameters whose gradient holds that sum already.
        self._joined: set[torch.Tensor] = set()
        # Gradients of the pass under way as its last backward pass left them.
        self._of_pass: dict[torch.Tensor, torch.Tensor] = {}
        # Gradients that the script may look at and change in a pass, and PyTorch's count of their writes.
        self._shown: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}
        # PyTorch's count of the writes to a parameter when a pass under way first reached it.
        self._weights_written: dict[torch.Tensor, int] = {}
        self._hooks: list[RemovableHandle] = []
        # The nodes of the graph that add gradients to the parameters': PyTorch forgets them else.
        self._nodes: dict[nn.Parameter, Any] = {}
        for parameter in self._parameters:
            was_trained = parameter.requires_grad
            parameter.requires_grad_()  # hooks are for what is trained; it may be unfrozen later
            parameter.register_post_accumulate_grad_hook(self._arrived)
            self._nodes[parameter] = _accumulator(parameter)
            parameter.requires_grad_(was_trained)

    @property
    def exchanges(self) -> bool:
        """Whether the next backward pass ends a step."""
        return self._last

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Exchange what backward passes bring in this block with what the next one after it brings."""
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1

    def bind(self, *, accumulates: bool) -> None:
        """The work is divided anew: over the workers that average now, in one micro-step or several."""
        self.forget()
        self._renew_nodes()
        self._accumulates = accumulates
        self._overlaps = self._averaging.overlaps
        self._weigh_if_needed()

    def begin_step(self) -> None:
        """Nothing of the step is trained yet."""
        self._clear_shown()
        self.forget()
        self._takes_buffers, self._step = True, object()
        self._steps += 1

    def begin(self, micro: MicroBatch) -> None:
        """A pass of the loop body begins."""
        self._reached.clear()
        self._clear_shown()
        self._of_pass.clear()
        self._joined.clear()
        self._weights_written.clear()
        self.weigh(micro.weight, last=micro.last)

    def weigh(self, weight: float, *, last: bool) -> None:
        """:param weight: of the gradients that arrive from now on; ``last``: whether they end a step."""
        self._weight, self._last = weight, last
        if (weight != 1.0 or self._accumulates) != bool(self._hooks):
            self._weigh_if_needed()

    def own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader: all workers train the same."""
        self._clear_shown()
        self.forget()
        self._weights_written.clear()
        self.selected = True
        self.weigh(1.0, last=True)

    def refuse_within_backward(self) -> None:
        """:raises UsageError: a backward pass is under way, whose gradients are not averaged yet."""
        if self._reached:
            raise UsageError(
                "an optimizer steps within a backward pass (in a hook of a parameter): the gradients are "
                "those of all workers when it has ended, so step after it"
            )

    def stepped(self) -> None:
        """An optimizer has made its step: what other parameters have collected is in their gradients."""
        self._weights_written.clear()
        self._sum.clear()

    def scale_sum(self, factor: float) -> None:
        """Multiply what the micro-steps before have brought."""
        for gradient in self._sum.values():
            gradient.mul_(factor)

    def zeroed(self, parameters: Iterable[torch.Tensor]) -> None:
        """The script zeroes gradients: what it writes into them then is its own."""
        self._zeroed = True
        self._reached.clear()
        for parameter in parameters if self._averaging.begun or self._accumulates else ():
            if parameter.grad is not None:
                unmark(parameter.grad)

    def commit(self) -> None:
        """The optimizer was asked for its step, or the pass ends, before the step's last micro-step.

        :raises UsageError: gradients were set by hand from those of backward passes.
        """
        if not (self._accumulates and self.selected) or self._last:
            return
        for parameter in self._parameters:
            gradient = parameter.grad
            shown, writes = self._shown.get(parameter, (None, 0))
            collected = self._of_pass.pop(parameter, None)
            if gradient is None:
                continue
            if gradient is shown:
                zeroed = writes_of(gradient) != writes and not gradient.any()
                collected = None if zeroed else collected
            elif is_marked(gradient):
                continue  # of an earlier step: its turn to be zeroed may come later in the pass
            else:
                if collected is not None:
                    raise UsageError(
                        "gradients were computed from those of a backward pass and set by hand, "
                        f"{_NO_EFFECT}: {_WHOLE_SHARE}"
                    )
                collected = gradient.detach() * self._weight
            self._show(parameter)
            if collected is not None:
                before = self._sum.get(parameter)
                self._sum[parameter] = collected if before is None else before.add_(collected)

    def before_optimizer(self) -> None:
        """An optimizer makes its step: average what no backward pass has brought."""
        if not (self._averaging.begun or self._accumulates):
            return
        late: list[nn.Parameter] = []
        for parameter in self._parameters:
            gradient, total = parameter.grad, self._sum.get(parameter)
            waits = total is not None and parameter not in self._joined
            shown, _ = self._shown.get(parameter, (None, 0))
            deferred = parameter in self._deferred
            known = deferred or gradient is shown or (gradient is not None and is_marked(gradient))
            by_hand = gradient is not None and not known
            if by_hand and gradient is not None:
                # one that was made of an averaged gradient has its weight
                weight = 1.0 if parameter in self._averaged else self._weight
                parameter.grad = gradient.detach() * weight
            if waits:
                self._join(parameter)
            if by_hand or waits or deferred:
                late.append(parameter)
        self._deferred.clear()
        if late and not self._averaging.idle:
            self._exchanged(late, lambda some: self._averaging.exchange_now(some, self._parameters))

    def settle(self) -> None:
        """The loop body is through with its batch: exchange what was deferred in it."""
        if self._deferred and self._counts():
            deferred = list(self._deferred)
            self._deferred.clear()
            self._exchanged(deferred, self._exchange)

    def kept(self) -> dict[str, torch.Tensor]:
        """Gradients that the next step adds to, by the place of their parameters; all if it is not known."""
        if self.outlive is False:
            return {}
        return {
            str(place): one.grad.detach()  # without what is noted about it
            for place, one in enumerate(self._parameters)
            if one.grad is not None
        }

    def restore(self, kept: Mapping[str, torch.Tensor]) -> None:
        for place, parameter in enumerate(self._parameters):
            gradient = kept.get(str(place))
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    def forget(self) -> None:
        self._sum.clear()
        self._of_pass.clear()
        self._shown.clear()
        self._joined.clear()
        self._reached.clear()
        self._deferred.clear()
        self._averaged.clear()

    def release(self) -> None:
        """Free the gradients, unless the next step adds to them."""
        if self.outlive is False:
            for parameter in self._parameters:
                parameter.grad = None

    # In a backward pass

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self._reached:
            self._backward_begins(parameter)
        self._reached.append(parameter)  # type: ignore[arg-type]
        if self._overlaps and self._counts():
            if parameter in self._sum:
                self._join(parameter)  # type: ignore[arg-type]
            self._averaging.arrived(parameter)  # type: ignore[arg-type]

    def _backward_begins(self, parameter: torch.Tensor) -> None:
        self.on_backward()
        if parameter.grad is not None and self.outlive is not True:
            self._look_back(parameter.grad)
        self._zeroed = False
        at_end_of_backward(self._backward_ended)

    def _look_back(self, gradient: torch.Tensor) -> None:
        """Notice whether the gradient was added to that of an earlier step."""
        step = getattr(gradient, "arrived_in", self._step)
        if step is not self._step and not self._zeroed:
            self.outlive = True
        elif self.outlive is None and self._steps > 1:
            self.outlive = False
        gradient.arrived_in = self._step  # type: ignore[attr-defined]

    def _counts(self) -> bool:
        """Whether what arrives is exchanged when the backward pass ends."""
        return self.selected and self._last and not (self._averaging.idle or self._deferring)

    def _backward_ended(self) -> None:
        reached = list(dict.fromkeys(self._reached))
        self._reached.clear()
        if self._deferring and self._last:
            self._deferred.update(dict.fromkeys(reached))
        if not self._counts():
            kept = self.selected and (self._last or not self._accumulates)
            for parameter in () if kept else reached:
                if self.selected and parameter.grad is not None:
                    self._of_pass[parameter] = parameter.grad.detach().clone()
                self._show(parameter)
            return
        if self._deferred:
            reached = list(dict.fromkeys((*self._deferred, *reached)))
            self._deferred.clear()
        for parameter in reached:
            if parameter in self._sum:
                self._join(parameter)
        if self._sum:
            # what only earlier micro-steps have reached
            rest = [one for one in self._parameters if one in self._sum and one not in self._joined]
            for parameter in rest:
                self._join(parameter)
            reached += rest
        self._exchanged(reached, self._exchange)

    def _exchange(self, reached: Sequence[nn.Parameter]) -> None:
        self._averaging.exchange(reached, buffers=self._takes_buffers)
        self._takes_buffers = False

    def _exchanged(
        self, changed: Sequence[nn.Parameter], exchange: Callable[[Sequence[nn.Parameter]], None]
    ) -> None:
        self._averaged.update(changed)
        if self._averaging.begun:
            exchange(changed)
        elif self._accumulates:
            for parameter in changed:
                if parameter.grad is not None:
                    mark(parameter.grad)

    @torch.no_grad()
    def _join(self, parameter: nn.Parameter) -> None:
        if parameter not in self._joined:
            self._joined.add(parameter)
            total = self._sum[parameter]
            if parameter.grad is None:
                parameter.grad = total.clone()
            else:
                parameter.grad.add_(total)

    def _show(self, parameter: torch.Tensor) -> None:
        """The script sees the gradient of the pass, and the next pass begins without it."""
        if parameter.grad is not None:
            self._shown[parameter] = parameter.grad, writes_of(parameter.grad)

    def _clear_shown(self) -> None:
        for parameter, (gradient, _) in self._shown.items():
            if parameter.grad is gradient:
                parameter.grad = None
        self._shown.clear()

    # As a gradient arrives

    def _renew_nodes(self) -> None:
        """PyTorch makes other nodes where a parameter has got another type since."""
        for parameter, node in self._nodes.items():
            was_trained = parameter.requires_grad
            parameter.requires_grad_()
            if (newest := _accumulator(parameter)) is not node:
                self._nodes[parameter] = newest
            parameter.requires_grad_(was_trained)

    def _weigh_if_needed(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        if self._weight != 1.0 or self._accumulates:
            self._hooks = [
                node.register_prehook(self._before(parameter)) for parameter, node in self._nodes.items()
            ]

    def _before(
        self, parameter: nn.Parameter
    ) -> Callable[[tuple[torch.Tensor, ...]], tuple[Any, ...] | None]:
        """What is called before a gradient is added to the parameter's."""

        def arrives(gradients: tuple[torch.Tensor, ...]) -> tuple[Any, ...] | None:
            if self._accumulates:
                self._look(parameter)
            (gradient,) = gradients
            if self._weight == 1.0:
                return None
            # zero times infinity is not zero
            return (gradient * self._weight if self._weight else torch.zeros_like(gradient),)

        return arrives

    def _look(self, parameter: nn.Parameter) -> None:
        """Notice what the script has done since the last backward pass of this pass of the loop body.

        :raises UsageError: it has changed the weights between two of them.
        """
        gradient = parameter.grad
        if parameter in self._joined and (gradient is None or not gradient.any()):
            self._joined.discard(parameter)  # the script has zeroed it
        if not self.selected:
            return
        now = writes_of(parameter)
        if self._weights_written.setdefault(parameter, now) != now:
            raise UsageError(
                "the weights were changed between two backward passes of one step (as SAM does), "
                f"{_NO_EFFECT}: {_WHOLE_SHARE}"
            )


_WHOLE_SHARE: Final = (
    "give each worker its whole share at once (a larger batch.per_gpu_max of the job, or no micro_batch_size)"
)


class NoSync:
    """The ``no_sync`` of a model among workers, as in DistributedDataParallel; a copy of it does nothing."""

    def __init__(self, gradients: Gradients | None = None) -> None:
        self._gradients = gradients

    def __call__(self) -> AbstractContextManager[None]:
        return nullcontext() if self._gradients is None else self._gradients.no_sync()

    def __reduce__(self) -> tuple[Any, ...]:
        return NoSync, ()


def _accumulator(parameter: nn.Parameter) -> Any:
    """The node of the graph that adds a gradient to the parameter's."""
    with torch.enable_grad():
        node = parameter.view_as(parameter).grad_fn
    assert node is not None  # noqa: S101 the parameter is trained
    return node.next_functions[0][0]
