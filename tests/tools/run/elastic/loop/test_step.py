"""The table of what becomes of a step, row by row as :class:`Step` states it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.loop.step import PassMode, Step, StepOutcome

pytestmark = pytest.mark.torch
WHOLE = MicroBatch(start=0, samples=4, weight=1.0, last=True, step_samples=4, steps_left=1)


@dataclass(frozen=True)
class State:
    """A step in one of the states of the table."""

    step: dict[str, Any] = field(default_factory=dict)
    micro: MicroBatch = WHOLE
    parts: int = 0
    is_past: bool = False
    is_lost: bool = False


STATES = {
    "its turn": State(),
    "stepped": State({"stepped": True, "part_over": True}, parts=1),
    "micro-step": State(micro=WHOLE._replace(last=False)),
    "earlier part": State({"turn": 1}, parts=1),
    "later part": State({"part": 1}),
    "joined": State({"mode": PassMode.JOINED}),
    "replays": State({"mode": PassMode.REPLAYS}),
    "made": State({"mode": PassMode.MADE}, parts=1),
    "made elsewhere": State({"mode": PassMode.VOID}, parts=1, is_past=True),
    "void": State({"mode": PassMode.VOID}),
    "worker lost": State(is_lost=True),
}


def table() -> list[tuple[str, str, str]]:
    """State, event and consequence of each row of the table in the docstring."""
    lines = (Step.__doc__ or "").splitlines()
    first, second, third = (number for number, line in enumerate(lines) if line.lstrip().startswith("==="))
    ends = [len(word) for word in lines[first].split("  ") if word]
    assert second == first + 2, "one line of headings"
    rows = []
    for line in lines[second + 1 : third]:
        cells, text = [], line[lines[first].index("=") :]
        for width in ends[:3]:
            cells.append(text[:width].strip())
            text = text[width + 2 :]
        rows.append((cells[0], cells[1], cells[2]))
    return rows


def in_state(name: str) -> tuple[Step, State]:
    state = STATES[name]
    step = Step(micro=state.micro, under_way=True)
    return replace(step, **state.step), state


@pytest.mark.parametrize(("name", "event", "expected"), table())
def test_each_row_of_the_table_holds(name: str, event: str, expected: str) -> None:
    step, state = in_state(name)
    if event == "optimizer":
        assert step.acts(is_lost=state.is_lost) is (expected == "acts")
        return
    left = event == "left"
    assert left or event == "end"
    outcome = step.outcome(state.parts, is_past=state.is_past, is_lost=state.is_lost, left=left)
    assert outcome is StepOutcome(expected)


def test_the_table_names_every_state_and_outcome() -> None:
    rows = table()
    assert {name for name, _, _ in rows} == STATES.keys()
    assert {text for _, _, text in rows} == {"acts", "quiet", *(each.value for each in StepOutcome)}


def test_parts_take_turns_in_passes_of_micro_steps() -> None:
    """The first pass trains the first part, and the next one the second."""
    step = Step()
    step.begin(0.0, 0)
    for turn, outcome in ((0, StepOutcome.TURN), (1, StepOutcome.COUNTED)):
        step.begin_pass(turn, 7)
        step.micro = WHOLE
        acts = [step.acts()]
        step.begin_part(turn, whole=False)
        acts.append(step.acts())
        assert acts == [turn == 0, turn == 1]
        assert step.outcome(turn + 1, is_past=False, is_lost=False) is outcome


@pytest.mark.parametrize(("parts", "mode"), [(0, PassMode.VOID), (1, PassMode.MADE)])
def test_a_worker_that_reaches_the_others_acts_as_they_do(parts: int, mode: PassMode) -> None:
    step = Step(awaited=2)
    step.begin_pass(parts, 7)
    assert (step.mode, step.acts()) == (PassMode.JOINED, False)
    step.reach_others(parts)
    assert (step.mode, step.acts()) == (mode, mode is PassMode.MADE)
    step.begin_part(parts, whole=True)
    assert step.mode is PassMode.VOID, "the next part is trained in the next pass"
