"""How a gang gets to its target: cases by hand, on plans that nothing runs under."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pliant.tools.run.service.allocation import Crew, InPlace, Relaunch, Slot, Target, Way, counts, way_to
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.fold import Share
from tests.builders import job


def slots(*indices: int) -> tuple[Slot, ...]:
    return tuple(Slot("n0", index) for index in indices)


def plan(generation: int, *workers: tuple[int, int]) -> Plan:
    """Workers as (number, index of its slot)."""
    members = tuple(
        Member(slot=f"n0/{index}", node="n0", address="n0", worker=number) for number, index in workers
    )
    return Plan(job="a", generation=generation, attempt=1, members=members, protocol=PROTOCOL)


def target(*indices: int, elastic: bool = True) -> Target:
    spec = job("a", gpus=1, high=4) if elastic else job("a", gpus=len(indices))
    return Target(Share(spec, counts(slots(*indices)), 8), slots(*indices))


def told(way: Way) -> tuple[Sequence[int | None], Sequence[int]]:
    """Numbers of the members that stay, indices of the slots that are added."""
    assert isinstance(way, InPlace)
    return [member.worker for member in way.members], [slot.index for slot in way.joining]


TWO = plan(3, (0, 0), (1, 1))
SETTLED = Crew(TWO, TWO, reports=True)


def test_growing_starts_workers_on_the_new_slots() -> None:
    assert told(way_to(target(0, 1, 2, 3), SETTLED, ())) == ([0, 1], [2, 3])


def test_shrinking_keeps_who_sits_on_the_slots_that_stay() -> None:
    assert told(way_to(target(1), SETTLED, ())) == ([1], [])


def test_a_move_that_keeps_a_slot_is_a_shrink_and_a_growth_at_once() -> None:
    assert told(way_to(target(1, 2), SETTLED, ())) == ([1], [2])


def test_another_batch_on_the_same_slots_changes_nobody() -> None:
    assert told(way_to(target(0, 1), SETTLED, ())) == ([0, 1], [])


def test_slots_are_left_before_those_that_others_still_use_have_to_be_free() -> None:
    assert told(way_to(target(1, 2), SETTLED, slots(2))) == ([1], [])
    assert way_to(target(0, 1, 2), SETTLED, slots(2)) is None


def test_a_change_of_mind_takes_along_workers_that_are_getting_ready() -> None:
    pending = Crew(plan(4, (0, 0), (1, 1), (2, 2)), TWO, reports=True)
    assert told(way_to(target(0, 1, 2, 3), pending, ())) == ([0, 1, 2], [3])
    assert told(way_to(target(0, 1), pending, ())) == ([0, 1], [])


def test_workers_that_train_come_before_those_that_do_not() -> None:
    pending = Crew(plan(4, (2, 2), (1, 1)), TWO, reports=True)
    assert told(way_to(target(1, 2), pending, ())) == ([1, 2], [])


def test_a_change_that_needs_nobody_new_is_waited_for() -> None:
    assert way_to(target(0, 1, 2), Crew(plan(4, (0, 0)), TWO, reports=True), ()) is None


def test_state_is_never_left_to_workers_that_have_none() -> None:
    pending = Crew(plan(4, (0, 0), (1, 1), (2, 2)), TWO, reports=True)
    assert way_to(target(2), pending, ()) == Relaunch("it keeps none of its slots")


def test_a_gang_that_does_not_train_yet_is_waited_for() -> None:
    assert way_to(target(0), Crew(TWO, None, reports=False), ()) is None


@pytest.mark.parametrize(
    ("wanted", "crew", "reason"),
    [
        (target(2, 3), SETTLED, "it keeps none of its slots"),
        (target(0, 1, elastic=False), SETTLED, "the job is not elastic"),
        (target(0), Crew(TWO, None, reports=True), "its script does not change its workers while it trains"),
    ],
)
def test_what_cannot_be_done_in_place_is_a_relaunch_that_says_why(
    wanted: Target, crew: Crew, reason: str
) -> None:
    assert way_to(wanted, crew, ()) == Relaunch(reason)


@pytest.mark.parametrize("protocol", [None, PROTOCOL - 1, PROTOCOL + 1])
def test_new_workers_do_not_join_those_of_another_version(protocol: int | None) -> None:
    former = TWO.model_copy(update={"protocol": protocol})
    crew = Crew(former, former, reports=True)
    reason = "its workers are of another version than new ones"
    assert way_to(target(0, 1, 2), crew, ()) == Relaunch(reason)
    assert way_to(target(1, 2), crew, ()) == Relaunch(reason), "a move needs new ones, too"
    assert way_to(target(0, 1, 2), crew, slots(2)) is None, "it trains until the slot is free"
    assert told(way_to(target(1), crew, ())) == ([1], []), "a worker that leaves needs no new one"
    assert told(way_to(target(0, 1), crew, ())) == ([0, 1], []), "nor does another batch"


@pytest.mark.parametrize("wanted", [target(0, 1, 2), target(1), target(2, 3)])
@pytest.mark.parametrize("crew", [SETTLED, Crew(TWO, None, reports=False)])
def test_what_starts_and_ends_as_a_whole_is_launched_again(wanted: Target, crew: Crew) -> None:
    reason = "its backend starts and ends an attempt as a whole"
    assert way_to(wanted, crew, (), in_place=False) == Relaunch(reason)


def test_a_batch_changes_in_place_wherever_the_job_runs() -> None:
    assert told(way_to(target(1, 0), SETTLED, (), in_place=False)) == ([0, 1], [])
