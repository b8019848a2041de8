"""The weights that passes of a step find, and those that they must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.weights import StepWeights

pytestmark = pytest.mark.torch


def test_a_pass_for_a_later_part_finds_the_weights_of_each_part() -> None:
    model = nn.Linear(1, 1, bias=False)
    weights = StepWeights(lambda: [model], takes_turns=False)
    groups = [{"params": [model.weight]}]

    def write(value: float) -> None:
        with torch.no_grad():
            model.weight.fill_(value)

    def finds(turn: int) -> list[float]:
        """In each part of a pass that goes through them again."""
        weights.begin_pass(turn, watched=False)
        values = [model.weight.item()]
        for part in range(1, turn + 1):
            weights.go_to(part)
            values.append(model.weight.item())
        return values

    weights.begin_step()
    write(0.0)
    weights.note(0, groups)
    write(1.0)
    assert [finds(1), finds(1)] == [[0.0, 1.0]] * 2, "for each micro-step"
    weights.note(1, groups)
    write(2.0)
    assert finds(2) == [0.0, 1.0, 2.0]
    weights.begin_pass(2, watched=False)
    assert model.weight.item() == 0.0
    weights.return_to_present()
    assert model.weight.item() == 2.0


def test_weights_may_be_written_by_what_ends_a_step_only() -> None:
    model = nn.Linear(2, 2)
    weights = StepWeights(lambda: [model], takes_turns=False)

    def writes(value: float) -> None:
        weights.begin_pass(0, watched=True)
        with torch.no_grad():
            model.weight.clamp_(-value, value)
        weights.check_untouched()

    writes(9.0)  # the same values again
    with pytest.raises(UsageError, match="changed in a micro-step"):
        writes(1e-3)
    for _ in range(9):  # later, the first write only makes it look
        weights.begin_pass(0, watched=True)
        weights.check_untouched()
    with pytest.raises(UsageError, match="changed in a micro-step"):
        writes(1e-4)
