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
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.averaging import Averaging, is_marked, mark, unmark
from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.loop.micro_step_sums import MicroStepSums
from pliant.tools.run.elastic.torch_internals import at_end_of_backward


class Gradients:
    """Weighs and collects the gradients of a job's models, and has them averaged.

    The weight of a micro-batch multiplies every gradient as it arrives at its parameter. Those of micro-steps
    are added up in :class:`MicroStepSums`.

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
        self._sums = MicroStepSums()
        # Identity of the step under way.
        self._step = object()
        self._steps = 0
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
        self._sums.hide()
        self.forget()
        self._takes_buffers, self._step = True, object()
        self._steps += 1

    def begin(self, micro: MicroBatch) -> None:
        """A pass of the loop body begins."""
        self._reached.clear()
        self._sums.begin_pass()
        self.weigh(micro.weight, last=micro.last)

    def weigh(self, weight: float, *, last: bool) -> None:
        """:param weight: of the gradients that arrive from now on; ``last``: whether they end a step."""
        self._weight, self._last = weight, last
        if (weight != 1.0 or self._accumulates) != bool(self._hooks):
            self._weigh_if_needed()

    def own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader: all workers train the same."""
        self._sums.own_step()
        self.forget()
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
        self._sums.stepped()

    def scale_sum(self, factor: float) -> None:
        """Multiply what the micro-steps before have brought."""
        self._sums.scale(factor)

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
            self._sums.collect(parameter, self._weight)

    def before_optimizer(self) -> None:
        """An optimizer makes its step: average what no backward pass has brought."""
        if not (self._averaging.begun or self._accumulates):
            return
        late: list[nn.Parameter] = []
        for parameter in self._parameters:
            gradient, waits = parameter.grad, self._sums.waits(parameter)
            deferred = parameter in self._deferred
            known = (
                deferred or self._sums.is_shown(parameter) or (gradient is not None and is_marked(gradient))
            )
            by_hand = gradient is not None and not known
            if by_hand and gradient is not None:
                # one that was made of an averaged gradient has its weight
                weight = 1.0 if parameter in self._averaged else self._weight
                parameter.grad = gradient.detach() * weight
            if waits:
                self._sums.join(parameter)
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
        self._sums.forget()
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
            if parameter in self._sums:
                self._sums.join(parameter)  # type: ignore[arg-type]
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
                if self.selected:
                    self._sums.keep(parameter)
                self._sums.show(parameter)
            return
        if self._deferred:
            reached = list(dict.fromkeys((*self._deferred, *reached)))
            self._deferred.clear()
        # what only earlier micro-steps have reached comes last
        if missing := self._sums.join_all(self._parameters):
            known = set(reached)
            reached += [parameter for parameter in missing if parameter not in known]
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
                self._sums.arrives(parameter, selected=self.selected)
            (gradient,) = gradients
            if self._weight == 1.0:
                return None
            # zero times infinity is not zero
            return (gradient * self._weight if self._weight else torch.zeros_like(gradient),)

        return arrives


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
