"""The weights between the parts and micro-steps of a step.

Where optimizers take turns, the loop body runs again for each turn, from its start. What it hands on from one
part to a later one (a picture that is painted before the painter's step, chances before a policy's first
step) must be the same again. So such a pass finds the weights that each of its parts had when it was trained.

A pass that ends no step must leave the weights as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.replicas import bits_of
from pliant.tools.run.elastic.torch_internals import writes_of

_EARLY_STEPS: Final = 4
"""Steps of a process in which an optimizer that is alone, too, might take turns with itself."""
_LOOKS: Final = 8
"""Passes whose weights are read in any case."""


class StepWeights:
    """Remembers the weights of the parts of a step, and checks who writes them."""

    def __init__(self, modules: Callable[[], Iterable[nn.Module]], *, takes_turns: bool) -> None:
        """:param modules: what passes must leave alone; ``takes_turns``: steps may have several parts."""
        self._modules, self._takes_turns, self._early = modules, takes_turns, _EARLY_STEPS
        # By part, what the weights were in it that optimizers have changed.
        self._parts: list[dict[torch.Tensor, torch.Tensor]] = []
        # Earlier weights are in force.
        self._is_back = False
        # PyTorch's count of the writes to all weights when the pass began.
        self._writes: int | None = None
        # Of all weights then: read for the first passes, and for all once one has written weights.
        self._bits: int | None = None
        self._looks: float = _LOOKS

    def begin_step(self) -> None:
        self._parts.clear()
        self._early -= 1

    def note(self, part: int, groups: Iterable[dict[str, Any]]) -> None:
        """An optimizer is about to change its parameters."""
        if not (self._takes_turns or self._early >= 0):
            return
        self._parts += [{} for _ in range(part + 1 - len(self._parts))]
        values = self._parts[part]
        for group in groups:
            for parameter in group["params"]:
                if parameter not in values:
                    values[parameter] = parameter.detach().clone()

    def begin_pass(self, turn: int, *, watched: bool) -> None:
        """Where it trains a later part of the step, go back to the weights of the first.

        :param watched: whether it might not end its step.
        """
        if turn:
            self._takes_turns = True
            self._go_back(turn)
        if watched:
            self._writes = self._count()
            self._bits = self._read() if self._looks > 0 else None
            self._looks -= 1

    def _go_back(self, turn: int) -> None:
        if len(self._parts) == turn:
            changed = {one for part in self._parts for one in part}
            self._parts.append({one: one.detach().clone() for one in changed})
        if len(self._parts) == turn + 1:
            self._is_back = True
            self.go_to(0)

    def go_to(self, part: int) -> None:
        """The pass comes to another part of the step."""
        if not self._is_back:
            return
        values = {one: value for held in reversed(self._parts[part:]) for one, value in held.items()}
        for one, value in values.items():
            one.data.copy_(value)  # not counted as a write, which would be one of the script
        self._is_back = part < len(self._parts) - 1

    def return_to_present(self) -> None:
        self.go_to(len(self._parts) - 1)

    def check_untouched(self) -> None:
        """The pass has ended no step.

        :raises UsageError: it has written other values into weights.
        """
        if self._writes == self._count():
            return
        self._looks = math.inf  # to see whether the next such pass writes other values
        if self._bits is not None and self._bits != self._read():
            raise UsageError(
                "the weights of a model, or of a registered one, were changed in a micro-step that does not "
                "end its step, so it would be done several times a step: leave it to an optimizer, or do it "
                "once (if job.sync_gradients: ...)"
            )

    def _weights(self) -> Iterable[torch.Tensor]:
        return (one for module in self._modules() for one in module.parameters())

    def _count(self) -> int:
        return sum(writes_of(one) for one in self._weights())

    def _read(self) -> int:
        return hash(tuple(int(bits_of(one.detach())) for one in self._weights()))
