from __future__ import annotations

from pliant.tools.run.service.allocation import Slot, SlotUse, Target, companions, counts
from pliant.tools.run.statedir.log.fold import Share
from tests.builders import job


def on(*slots: str) -> tuple[Slot, ...]:
    return tuple(map(Slot.parse, slots))


def holds(name: str, *slots: str) -> Target:
    return Target(Share(job(name), counts(on(*slots)), 8), on(*slots))


def test_jobs_with_the_same_slots_in_any_order_are_companions() -> None:
    targets = {
        "a": holds("a", "n0/1", "n0/0"),
        "b": holds("b", "n0/0", "n0/1"),
        "c": holds("c", "n1/0"),
    }
    assert companions(targets) == {"a": "b", "b": "a"}


def test_a_part_of_the_slots_of_a_job_makes_no_companion() -> None:
    assert companions({"a": holds("a", "n0/0", "n0/1"), "b": holds("b", "n0/0")}) == {}


def test_a_slot_is_taken_by_any_other_job_but_the_companion() -> None:
    use = SlotUse(on("n0/0", "n0/1", "n0/2"), {"a": "b", "b": "a"})
    use.add("b", on("n0/0"))
    use.add("c", on("n0/1"))
    assert use.taken_from("a", on("n0/0", "n0/1", "n0/2")) == set(on("n0/1"))
    assert use.taken_from("c", on("n0/0", "n0/1", "n0/2")) == set(on("n0/0"))
    use.add("d", on("n0/0"))
    assert use.taken_from("a", on("n0/0")) == set(on("n0/0"))
