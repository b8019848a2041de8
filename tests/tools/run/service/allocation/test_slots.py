from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import InfeasibleError
from pliant.tools.run.service.allocation import Slot, by_node, counts, filled, kept


def test_a_slot_reads_what_it_writes() -> None:
    assert Slot.parse(str(Slot("n-0.rack", 12))) == Slot("n-0.rack", 12)


def test_a_shrinking_job_keeps_the_first_slots_it_holds() -> None:
    held = (Slot("n0", 3), Slot("n0", 1), Slot("n1", 0))
    assert kept(held, (("n0", 1),)) == (Slot("n0", 3),)


def test_a_growing_job_keeps_its_slots_and_takes_the_lowest_free_ones() -> None:
    held = (Slot("n0", 1),)
    slots = filled(held, (("n0", 2), ("n1", 1)), {"n0": 4, "n1": 4}, taken={Slot("n0", 0), Slot("n0", 1)})
    assert slots == (Slot("n0", 1), Slot("n0", 2), Slot("n1", 0))


def test_more_than_a_node_has_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="node n0 has 1 free slots, 2 more"):
        filled((), (("n0", 2),), {"n0": 2}, taken={Slot("n0", 0)})


def test_a_node_that_is_not_there_has_no_slots() -> None:
    with pytest.raises(InfeasibleError, match="node n9 has 0 free slots"):
        filled((), (("n9", 1),), {"n0": 2}, taken=set())


@given(held=st.sets(st.integers(0, 7)), wanted=st.integers(0, 8))
def test_slots_are_distinct_as_many_as_asked_for_and_survivors_stay(held: set[int], wanted: int) -> None:
    before = tuple(Slot("n0", index) for index in sorted(held))
    placement = (("n0", wanted),) if wanted else ()
    survivors = kept(before, placement)
    after = filled(survivors, placement, {"n0": 8}, taken=set(survivors))
    assert len(set(after)) == len(after) == wanted
    assert len(set(after) & set(before)) == min(wanted, len(held))
    assert after[: len(survivors)] == survivors


def test_grouping_keeps_the_order() -> None:
    slots = [Slot("n1", 2), Slot("n0", 0), Slot("n1", 0)]
    assert by_node(slots) == {"n1": [2, 0], "n0": [0]}
    assert counts(slots) == (("n0", 1), ("n1", 2))
