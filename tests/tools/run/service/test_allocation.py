"""Slots for counts, steps from what is held to what is wanted, the way of a gang: cases by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import InfeasibleError
from pliant.schemas.schedule import Allocation
from pliant.tools.run.service.allocation import (
    Assignment,
    ChangeStep,
    InPlace,
    Relaunch,
    Slot,
    SlotUse,
    Way,
    by_node,
    companions,
    counts,
    filled,
    kept,
    plan_steps,
    way_to,
)
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.fold import allocation_of
from tests.builders import job

NODES = {"n0": 2, "n1": 2}


def on(*slots: str) -> tuple[Slot, ...]:
    return tuple(map(Slot.parse, slots))


def given_to(job_id: str, *, batch: int = 8, beside: str | None = None, **nodes: int) -> Allocation:
    return allocation_of(job_id, tuple(sorted(nodes.items())), (batch, 1, 1.0), beside)


def holds(job_id: str, *slots: str) -> Assignment:
    return Assignment.of(job(job_id, gpus=1, high=4), on(*slots), (8, 1, 1.0))


# Slots.


def test_a_slot_reads_what_it_writes() -> None:
    assert Slot.parse(str(Slot("n-0.rack", 12))) == Slot("n-0.rack", 12)


def test_a_shrinking_job_keeps_the_first_slots_it_holds() -> None:
    held = (Slot("n0", 3), Slot("n0", 1), Slot("n1", 0))
    assert kept(held, (("n0", 1),)) == (Slot("n0", 3),)


def test_a_growing_job_keeps_its_slots_and_takes_the_lowest_free_ones() -> None:
    held = (Slot("n0", 1),)
    slots = filled(held, (("n0", 2), ("n1", 1)), {"n0": 4, "n1": 4}, taken={Slot("n0", 0), Slot("n0", 1)})
    assert slots == (Slot("n0", 1), Slot("n0", 2), Slot("n1", 0))


@pytest.mark.parametrize(
    ("place", "message"),
    [(("n0", 2), "node n0 has 1 free slots, 2 more"), (("n9", 1), "node n9 has 0 free slots")],
)
def test_more_than_a_node_has_is_refused(place: tuple[str, int], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        filled((), (place,), {"n0": 2}, taken={Slot("n0", 0)})


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


# Steps.


def planned(held: dict[str, Assignment], wanted: dict[str, Allocation], **more: Any) -> list[ChangeStep]:
    jobs = {job_id: job(job_id, gpus=1, high=4) for job_id in wanted}
    return plan_steps(held, wanted, jobs, NODES, **more)


def steps(held: dict[str, Assignment], *wanted: Allocation, **more: Any) -> list[tuple[str, str, str]]:
    """(event, job, slots after it)."""
    found = planned(held, {each.job: each for each in wanted}, **more)
    return [(s.event, s.job_id, " ".join(map(str, s.after.slots)) if s.after else "") for s in found]


@pytest.mark.parametrize(
    ("held", "wanted", "step"),
    [
        ((), {"n0": 2}, ("start", "n0/0 n0/1")),
        (("n0/0",), {}, ("preempt", "")),
        (("n0/1",), {"n0": 1}, None),
        (("n0/1",), {"n0": 2}, ("grow", "n0/1 n0/0")),
        (("n0/1", "n0/0"), {"n0": 1}, ("shrink", "n0/1")),
        (("n0/0",), {"n1": 1}, ("move", "n1/0")),
        (("n0/0",), {"n0": 1, "batch": 16}, ("move", "n0/0")),
    ],
)
def test_one_job_keeps_its_slots_and_their_order_as_far_as_it_can(
    held: tuple[str, ...], wanted: dict[str, int], step: tuple[str, str] | None
) -> None:
    before = {"a": holds("a", *held)} if held else {}
    expected = [] if step is None else [(step[0], "a", step[1])]
    assert steps(before, given_to("a", **wanted)) == expected  # type: ignore[arg-type]


def test_a_job_that_ran_before_resumes() -> None:
    assert steps({}, given_to("a", n0=1), started={"a"}) == [("resume", "a", "n0/0")]


def test_a_job_that_no_schedule_names_is_preempted() -> None:
    assert steps({"a": holds("a", "n0/0")}) == [("preempt", "a", "")]


def test_stops_come_before_resizes_before_starts_and_slots_go_from_one_to_the_other() -> None:
    held = {"z": holds("z", "n0/0", "n0/1"), "b": holds("b", "n1/0", "n1/1")}
    assert steps(held, given_to("a", n0=1), given_to("c", n0=1), given_to("b", n1=1)) == [
        ("preempt", "z", ""),
        ("shrink", "b", "n1/0"),
        ("start", "a", "n0/0"),
        ("start", "c", "n0/1"),
    ]


def test_two_jobs_that_swap_nodes_both_move() -> None:
    held = {"a": holds("a", "n0/0", "n0/1"), "b": holds("b", "n1/0", "n1/1")}
    assert steps(held, given_to("a", n1=2), given_to("b", n0=2)) == [
        ("move", "a", "n1/0 n1/1"),
        ("move", "b", "n0/0 n0/1"),
    ]


PLACES = st.dictionaries(st.sampled_from(["n0", "n1"]), st.integers(1, 2), max_size=2)


@given(first=st.lists(PLACES, max_size=3), second=st.lists(PLACES, max_size=3))
def test_after_the_steps_every_job_holds_what_it_shall_and_no_slot_twice(
    first: list[dict[str, int]], second: list[dict[str, int]]
) -> None:
    held: dict[str, Assignment] = {}
    for round_ in (fitting(first), fitting(second)):
        for step in planned(held, round_):
            if step.after is None:
                del held[step.job_id]
            else:
                held[step.job_id] = step.after
        assert {job_id: target.allocation for job_id, target in held.items()} == round_
        slots = [slot for target in held.values() for slot in target.slots]
        assert len(slots) == len(set(slots))
        assert planned(held, round_) == []


def fitting(places: list[dict[str, int]]) -> dict[str, Allocation]:
    """As many of the places, in order, as fit the nodes together."""
    left, shares = dict(NODES), dict[str, Allocation]()
    for name, place in zip("abc", places, strict=False):
        if place and all(left[node] >= count for node, count in place.items()):
            for node, count in place.items():
                left[node] -= count
            shares[name] = given_to(name, **place)
    return shares


def two(**nodes: int) -> tuple[Allocation, Allocation]:
    """Two jobs on the same slots."""
    return given_to("a", beside="b", **nodes), given_to("b", beside="a", **nodes)


def test_two_jobs_that_share_start_on_the_same_slots() -> None:
    assert steps({}, *two(n0=1, n1=1)) == [("start", "a", "n0/0 n1/0"), ("start", "b", "n0/0 n1/0")]


@pytest.mark.parametrize("runs", ["a", "b"])
def test_a_job_comes_to_the_slots_of_the_one_that_runs(runs: str) -> None:
    held = {runs: holds(runs, "n0/1")}
    other = "b" if runs == "a" else "a"
    assert steps(held, *two(n0=1)) == [("start", other, "n0/1")]


def test_jobs_that_share_already_are_not_touched() -> None:
    held = {"a": holds("a", "n0/1", "n0/0"), "b": holds("b", "n0/0", "n0/1")}
    assert steps(held, *two(n0=2)) == []


def test_a_third_job_gets_other_slots() -> None:
    assert steps({}, *two(n0=1), given_to("c", n0=1)) == [
        ("start", "a", "n0/0"),
        ("start", "c", "n0/1"),
        ("start", "b", "n0/0"),
    ]


def test_jobs_that_are_parted_on_one_node_get_slots_of_their_own() -> None:
    held = {"a": holds("a", "n0/0"), "b": holds("b", "n0/0")}
    assert steps(held, given_to("a", n0=1), given_to("b", n0=1)) == [("move", "b", "n0/1")]


def test_a_job_whose_company_is_not_to_run_has_its_slots_alone() -> None:
    assert steps({}, given_to("b", beside="a", n0=1), given_to("c", n0=1)) == [
        ("start", "b", "n0/0"),
        ("start", "c", "n0/1"),
    ]


# The way of a running gang.


def slots(*indices: int) -> tuple[Slot, ...]:
    return tuple(Slot("n0", index) for index in indices)


def plan(generation: int, *workers: tuple[int, int]) -> Plan:
    """Workers as (number, index of its slot)."""
    members = tuple(
        Member(slot=f"n0/{index}", node="n0", address="n0", worker=number) for number, index in workers
    )
    return Plan(job="a", generation=generation, attempt=1, members=members, protocol=PROTOCOL)


def target(*indices: int, elastic: bool = True) -> Assignment:
    spec = job("a", gpus=1, high=4) if elastic else job("a", gpus=len(indices))
    return Assignment.of(spec, slots(*indices), (8, 1, 1.0))


def told(way: Way) -> tuple[Sequence[int | None], Sequence[int]]:
    """Numbers of the members that stay, indices of the slots that are added."""
    assert isinstance(way, InPlace)
    return [member.worker for member in way.members], [slot.index for slot in way.joining]


TWO = plan(3, (0, 0), (1, 1))
STARTING = (TWO, None)
SETTLED = (TWO, TWO)
"""The newest plan, and the one that trains."""


def test_growing_starts_workers_on_the_new_slots() -> None:
    assert told(way_to(target(0, 1, 2, 3), *SETTLED, ())) == ([0, 1], [2, 3])


def test_shrinking_keeps_who_sits_on_the_slots_that_stay() -> None:
    assert told(way_to(target(1), *SETTLED, ())) == ([1], [])


def test_a_move_that_keeps_a_slot_is_a_shrink_and_a_growth_at_once() -> None:
    assert told(way_to(target(1, 2), *SETTLED, ())) == ([1], [2])


def test_another_batch_on_the_same_slots_changes_nobody() -> None:
    assert told(way_to(target(0, 1), *SETTLED, ())) == ([0, 1], [])


def test_slots_are_left_before_those_that_others_still_use_have_to_be_free() -> None:
    assert told(way_to(target(1, 2), *SETTLED, slots(2))) == ([1], [])
    assert way_to(target(0, 1, 2), *SETTLED, slots(2)) is None


def test_a_change_of_mind_takes_along_workers_that_are_getting_ready() -> None:
    pending = (plan(4, (0, 0), (1, 1), (2, 2)), TWO)
    assert told(way_to(target(0, 1, 2, 3), *pending, ())) == ([0, 1, 2], [3])
    assert told(way_to(target(0, 1), *pending, ())) == ([0, 1], [])


def test_workers_that_train_come_before_those_that_do_not() -> None:
    pending = (plan(4, (2, 2), (1, 1)), TWO)
    assert told(way_to(target(1, 2), *pending, ())) == ([1, 2], [])


def test_a_change_that_needs_nobody_new_is_waited_for() -> None:
    assert way_to(target(0, 1, 2), plan(4, (0, 0)), TWO, ()) is None


def test_state_is_never_left_to_workers_that_have_none() -> None:
    pending = (plan(4, (0, 0), (1, 1), (2, 2)), TWO)
    assert way_to(target(2), *pending, ()) == Relaunch("it keeps none of its slots")


def test_a_gang_that_does_not_train_yet_is_waited_for() -> None:
    assert way_to(target(0), *STARTING, (), reports=False) is None


@pytest.mark.parametrize(
    ("wanted", "plans", "reason"),
    [
        (target(2, 3), SETTLED, "it keeps none of its slots"),
        (target(0, 1, elastic=False), SETTLED, "the job is not elastic"),
        (target(0), STARTING, "its script does not change its workers while it trains"),
    ],
)
def test_what_cannot_be_done_in_place_is_a_relaunch_that_says_why(
    wanted: Assignment, plans: tuple[Plan, Plan | None], reason: str
) -> None:
    assert way_to(wanted, *plans, ()) == Relaunch(reason)


@pytest.mark.parametrize("protocol", [None, PROTOCOL - 1, PROTOCOL + 1])
def test_new_workers_do_not_join_those_of_another_version(protocol: int | None) -> None:
    former = TWO.model_copy(update={"protocol": protocol})
    reason = "its workers are of another version than new ones"
    assert way_to(target(0, 1, 2), former, former, ()) == Relaunch(reason)
    assert way_to(target(1, 2), former, former, ()) == Relaunch(reason), "a move needs new ones, too"
    assert way_to(target(0, 1, 2), former, former, slots(2)) is None, "it trains until the slot is free"
    assert told(way_to(target(1), former, former, ())) == ([1], []), "a worker that leaves needs no new one"
    assert told(way_to(target(0, 1), former, former, ())) == ([0, 1], []), "nor does another batch"


@pytest.mark.parametrize("wanted", [target(0, 1, 2), target(1), target(2, 3)])
@pytest.mark.parametrize("trains", [TWO, None])
def test_what_starts_and_ends_as_a_whole_is_launched_again(wanted: Assignment, trains: Plan | None) -> None:
    reason = "its backend starts and ends an attempt as a whole"
    assert way_to(wanted, TWO, trains, (), in_place=False) == Relaunch(reason)


def test_a_batch_changes_in_place_wherever_the_job_runs() -> None:
    assert told(way_to(target(1, 0), *SETTLED, (), in_place=False)) == ([0, 1], [])
