"""The weights between the parts and micro-steps of a step.

Where optimizers take turns, the loop body runs again for each turn, from its start. What it hands on from one
part to a later one (a picture that is painted before the painter's step, chances before a policy's first step)
must be the same again. So such a pass finds the weights that each of its parts had when it was trained.

A pass that ends no step must leave the weights as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.replicas import bits_of

_LOOKS: Final = 8
"""Passes whose weights are read in any case."""


class StepWeights:
    """Remembers the weights of the parts of a step."""

    def __init__(self) -> None:
        self._parts: list[dict[torch.Tensor, torch.Tensor]] = []
        """By part, what the weights were in it that its optimizers have changed."""
        self._is_back = False
        """Earlier weights are in force."""
        self._later: dict[torch.Tensor, torch.Tensor] = {}

    def begin_step(self) -> None:
        self._parts.clear()

    def note(self, part: int, groups: Iterable[dict[str, Any]]) -> None:
        """An optimizer is about to change its parameters."""
        self._parts += [{} for _ in range(part + 1 - len(self._parts))]
        values = self._parts[part]
        for group in groups:
            for parameter in group["params"]:
                if parameter not in values:
                    values[parameter] = parameter.detach().clone()

    def go_back(self, turn: int) -> None:
        """A pass begins that trains a later part of the step: go back to the weights of the first."""
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
            one.data.copy_(value)  # not a write of the script, so not counted as one
        self._is_back = part < len(self._parts) - 1

    def return_to_present(self) -> None:
        self.go_to(len(self._parts) - 1)


class UntouchedWeights:
    """Checks that passes which end no step leave the weights alone: else their effect comes several times."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._writes = -1
        self._bits: int | None = None
        """Of all weights at the start of the pass; read in the first ones, and once a pass has written any."""
        self._reads: float = _LOOKS

    def begin(self) -> None:
        self._writes = sum(one._version for one in self._weights())
        self._bits = self._read() if self._reads > 0 else None
        self._reads -= 1

    def check(self) -> None:
        """:raises UsageError: they have changed since the pass began."""
        if self._writes == sum(one._version for one in self._weights()):
            return
        self._reads = math.inf
        if self._bits is not None and self._bits != self._read():
            raise UsageError(
                "the weights were changed in a micro-step that does not end its step, so it would be done "
                "several times a step: leave it to an optimizer, or do it once (if job.sync_gradients: ...)"
            )

    def _weights(self) -> Iterable[torch.Tensor]:
        return (one for model in self._models for one in model.parameters())

    def _read(self) -> int:
        return hash(tuple(int(bits_of(one.detach())) for one in self._weights()))
