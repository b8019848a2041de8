"""Slots for counts, steps from what is held to what is wanted, the way of a gang: cases by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import InfeasibleError
from pliant.schemas.schedule import Allocation, PolicyUse, Schedule
from pliant.tools.run.service.allocation import (
    Assignment,
    InPlace,
    Relaunch,
    Slot,
    SlotUse,
    Way,
    by_node,
    changed_slots,
    companions,
    counts,
    filled,
    kept,
    startable,
    way_to,
)
from pliant.tools.run.service.reports import change_event
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.fold import Drain, JobLog, RunLog, allocation_of
from tests.builders import cluster, job

NODES = {"n0": 2, "n1": 2}


def on(*slots: str) -> tuple[Slot, ...]:
    return tuple(map(Slot.parse, slots))


def given_to(job_id: str, *, batch: int = 8, beside: str | None = None, **nodes: int) -> Allocation:
    return allocation_of(job_id, tuple(sorted(nodes.items())), (batch, 1, 1.0), beside)


def holds(job_id: str, *slots: str) -> Assignment:
    return Assignment.of(job(job_id, gpus=1, high=4), on(*slots), (8, 1, 1.0))


def test_slots_are_read_as_written_and_grouped_in_their_order() -> None:
    assert Slot.parse(str(Slot("n-0.rack", 12))) == Slot("n-0.rack", 12)
    assert by_node(on("n1/2", "n0/0", "n1/0")) == {"n1": [2, 0], "n0": [0]}
    assert counts(on("n1/2", "n0/0", "n1/0")) == (("n0", 1), ("n1", 2))


def test_a_job_keeps_its_first_slots_and_adds_the_lowest_free() -> None:
    assert kept(on("n0/3", "n0/1", "n1/0"), (("n0", 1),)) == on("n0/3")
    taken = set(on("n0/0", "n0/1"))
    found = filled(on("n0/1"), (("n0", 2), ("n1", 1)), {"n0": 4, "n1": 4}, taken)
    assert found == on("n0/1", "n0/2", "n1/0")


@pytest.mark.parametrize(
    ("place", "message"),
    [(("n0", 2), "node n0 has 1 free slots, 2 more"), (("n9", 1), "node n9 has 0 free slots")],
)
def test_more_than_a_node_has_is_refused(place: tuple[str, int], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        filled((), (place,), {"n0": 2}, taken={Slot("n0", 0)})


def test_jobs_with_the_same_slots_in_any_order_are_companions() -> None:
    targets = {"a": holds("a", "n0/1", "n0/0"), "b": holds("b", "n0/0", "n0/1"), "c": holds("c", "n1/0")}
    assert companions(targets) == {"a": "b", "b": "a"}
    assert companions({"a": targets["a"], "b": holds("b", "n0/0")}) == {}, "a part of them is not enough"


def test_a_slot_is_taken_by_any_other_job_but_the_companion() -> None:
    use = SlotUse(on("n0/0", "n0/1", "n0/2"), {"a": "b", "b": "a"})
    use.add("b", on("n0/0"))
    use.add("c", on("n0/1"))
    assert use.taken_from("a", on("n0/0", "n0/1", "n0/2")) == set(on("n0/1"))
    assert use.taken_from("c", on("n0/0", "n0/1", "n0/2")) == set(on("n0/0"))
    use.add("d", on("n0/0"))
    assert use.taken_from("a", on("n0/0")) == set(on("n0/0"))


def planned(
    held: dict[str, Assignment], wanted: dict[str, Allocation], **more: Any
) -> dict[str, Assignment | None]:
    jobs = {job_id: job(job_id, gpus=1, high=4) for job_id in wanted}
    return changed_slots(held, wanted, jobs, NODES, **more)


def changes(held: dict[str, Assignment], *wanted: Allocation, **more: Any) -> list[tuple[str, str, str]]:
    """(event, job, slots after it); a job "c" has run before."""
    log, found = RunLog(), planned(held, {each.job: each for each in wanted}, **more)
    log.active["c"] = JobLog(job("c"), 0.0, started_s=0.0)
    return [
        (change_event(job_id, held.get(job_id), after, log, 0.0).event, job_id, slots_of(after))
        for job_id, after in found.items()
    ]


def slots_of(held: Assignment | None) -> str:
    return "" if held is None else " ".join(map(str, held.slots))


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
def test_one_job_keeps_its_slots_in_their_order(
    held: tuple[str, ...], wanted: dict[str, int], step: tuple[str, str] | None
) -> None:
    before = {"a": holds("a", *held)} if held else {}
    expected = [] if step is None else [(step[0], "a", step[1])]
    assert changes(before, given_to("a", **wanted)) == expected  # type: ignore[arg-type]


def test_stops_come_before_resizes_before_starts() -> None:
    """Slots go from one job to the other; one that ran before resumes."""
    held = {"z": holds("z", "n0/0", "n0/1"), "b": holds("b", "n1/0", "n1/1")}
    wanted = given_to("a", n0=1), given_to("c", n0=1), given_to("b", n1=1)
    assert changes(held, *wanted) == [
        *(("preempt", "z", ""), ("shrink", "b", "n1/0")),
        *(("start", "a", "n0/0"), ("resume", "c", "n0/1")),
    ]


PLACES = st.dictionaries(st.sampled_from(["n0", "n1"]), st.integers(1, 2), max_size=2)


@given(first=st.lists(PLACES, max_size=3), second=st.lists(PLACES, max_size=3))
def test_after_the_steps_no_slot_is_held_twice(first: list[dict[str, int]], second: list[dict[str, int]]):
    held: dict[str, Assignment] = {}
    for round_ in (fitting(first), fitting(second)):
        held = {job_id: each for job_id, each in (held | planned(held, round_)).items() if each is not None}
        assert {job_id: target.allocation for job_id, target in held.items()} == round_
        slots = [slot for target in held.values() for slot in target.slots]
        assert len(slots) == len(set(slots))
        assert planned(held, round_) == {}


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


PAIR = {"a": ("n0/1", "n0/0"), "b": ("n0/0", "n0/1")}
SWAP = [("move", "a", "n1/0 n1/1"), ("move", "b", "n0/0 n0/1")]
BOTH_START = [("start", "a", "n0/0 n1/0"), ("start", "b", "n0/0 n1/0")]
THIRD_APART = [("start", "a", "n0/0"), ("resume", "c", "n0/1"), ("start", "b", "n0/0")]
PARTED = (given_to("a", n0=1), given_to("b", n0=1))
ALONE = (given_to("b", beside="a", n0=1), given_to("c", n0=1))  # the other one is not to run


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        ({}, two(n0=1, n1=1), BOTH_START),
        ({"a": ["n0/1"]}, two(n0=1), [("start", "b", "n0/1")]),
        ({"b": ["n0/1"]}, two(n0=1), [("start", "a", "n0/1")]),
        (PAIR, two(n0=2), []),
        ({"a": ["n0/0", "n0/1"], "b": ["n1/0", "n1/1"]}, (given_to("a", n1=2), given_to("b", n0=2)), SWAP),
        ({}, (*two(n0=1), given_to("c", n0=1)), THIRD_APART),
        ({"a": ["n0/0"], "b": ["n0/0"]}, PARTED, [("move", "b", "n0/1")]),
        ({}, ALONE, [("start", "b", "n0/0"), ("resume", "c", "n0/1")]),
    ],
)
def test_two_jobs_swap_nodes_or_share_all_slots_or_none(
    held: dict[str, Sequence[str]], wanted: Sequence[Allocation], expected: list[tuple[str, str, str]]
) -> None:
    assert changes({name: holds(name, *slots) for name, slots in held.items()}, *wanted) == expected


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


def shown(way: Way) -> tuple[Sequence[int | None], Sequence[int]]:
    """Numbers of the members that stay, indices of the slots that are added."""
    assert isinstance(way, InPlace)
    return [member.worker for member in way.members], [slot.index for slot in way.joining]


TWO = plan(3, (0, 0), (1, 1))
STARTING = (TWO, None)
SETTLED = (TWO, TWO)  # the newest plan, and the one that trains


PENDING = plan(4, (0, 0), (1, 1), (2, 2))  # worker 2 gets ready
SWAPPED = plan(4, (2, 2), (1, 1))


@pytest.mark.parametrize(
    ("wanted", "plan", "busy", "stay", "joining"),
    [
        pytest.param((0, 1, 2, 3), TWO, (), [0, 1], [2, 3], id="a growth starts workers on the new slots"),
        pytest.param((1,), TWO, (), [1], [], id="a shrink keeps who sits on the slots that stay"),
        pytest.param((1, 2), TWO, (), [1], [2], id="a move is a shrink and a growth at once"),
        pytest.param((0, 1), TWO, (), [0, 1], [], id="another batch changes no worker"),
        pytest.param((1, 2), TWO, (2,), [1], [], id="slots are left before a busy one has to be free"),
        pytest.param((0, 1, 2, 3), PENDING, (), [0, 1, 2], [3], id="workers that get ready are taken along"),
        pytest.param((0, 1), PENDING, (), [0, 1], [], id="workers that get ready are not needed any more"),
        pytest.param((1, 2), SWAPPED, (), [1, 2], [], id="workers that train come first"),
    ],
)
def test_a_gang_that_trains_changes_in_place(
    wanted: Sequence[int], plan: Plan, busy: Sequence[int], stay: list[int], joining: list[int]
) -> None:
    assert shown(way_to(target(*wanted), plan, TWO, slots(*busy))) == (stay, joining)


def test_what_a_change_in_place_waits_for() -> None:
    assert way_to(target(0, 1, 2), *SETTLED, slots(2)) is None
    assert way_to(target(0, 1, 2), plan(4, (0, 0)), TWO, ()) is None
    assert way_to(target(0, 1), plan(4, (0, 0), (1, 1)), TWO, ()) is None, "another batch is on its way"
    assert way_to(target(0), *STARTING, (), reports=False) is None


@pytest.mark.parametrize(
    ("wanted", "plans", "reason"),
    [
        (target(2, 3), SETTLED, "it keeps none of its slots"),
        (target(2), (PENDING, TWO), "it keeps none of its slots"),  # that worker has no state yet
        (target(0, 1, elastic=False), SETTLED, "the job is not elastic"),
        (target(0), STARTING, "its script does not change its workers while it trains"),
    ],
)
def test_a_relaunch_says_why(wanted: Assignment, plans: tuple[Plan, Plan | None], reason: str) -> None:
    assert way_to(wanted, *plans, ()) == Relaunch(reason)


@pytest.mark.parametrize("protocol", [None, PROTOCOL - 1, PROTOCOL + 1])
def test_new_workers_do_not_join_those_of_another_version(protocol: int | None) -> None:
    former = TWO.model_copy(update={"protocol": protocol})
    reason = "its workers are of another version than new ones"
    assert way_to(target(0, 1, 2), former, former, ()) == Relaunch(reason)
    assert way_to(target(1, 2), former, former, ()) == Relaunch(reason), "a move needs new ones, too"
    assert way_to(target(0, 1, 2), former, former, slots(2)) is None, "it trains until the slot is free"
    assert shown(way_to(target(1), former, former, ())) == ([1], []), "a worker that leaves needs no new one"
    assert shown(way_to(target(0, 1), former, former, ())) == ([0, 1], []), "nor does another batch"


@pytest.mark.parametrize("wanted", [target(0, 1, 2), target(1), target(2, 3)])
@pytest.mark.parametrize("trains", [TWO, None])
def test_a_backend_of_whole_attempts_relaunches(wanted: Assignment, trains: Plan | None) -> None:
    reason = "its backend starts and ends an attempt as a whole"
    assert way_to(wanted, TWO, trains, (), in_place=False) == Relaunch(reason)
    assert shown(way_to(target(1, 0), *SETTLED, (), in_place=False)) == ([0, 1], []), "but for a batch"


def older_schedule(*names: str, **more: Any) -> tuple[RunLog, Schedule]:
    """Jobs that wait, and a schedule that gives each of them these GPUs."""
    specs = tuple(job(name, **more) for name in names)
    log = RunLog(jobs={spec.id: JobLog(spec, 0.0) for spec in specs})
    log.active.update(log.jobs)
    allocations = tuple(given_to(name, n0=1) for name in names)
    use = PolicyUse(name="fifo")
    return log, Schedule(time=0.0, policy=use, cluster=cluster(4, 4), jobs=specs, allocations=allocations)


@pytest.mark.parametrize("closed", ["down", "drained"])
@pytest.mark.parametrize(
    ("held", "wanted", "gets"),
    [
        pytest.param({"n0": 2}, {"n0": 2, "n1": 2}, {"n0": 2}, id="grows there"),
        pytest.param({"n0": 2}, {"n1": 2}, None, id="moves there"),
        pytest.param({"n0": 2}, {"n0": 1, "n1": 2}, None, id="moves there in part"),
        pytest.param({}, {"n0": 1, "n1": 1}, None, id="starts there"),
        pytest.param({"n0": 1}, {"n0": 2}, {"n0": 2}, id="grows elsewhere"),
    ],
)
def test_a_job_keeps_what_it_holds_where_its_growth_is_closed(
    closed: str, held: dict[str, int], wanted: dict[str, int], gets: dict[str, int] | None
) -> None:
    """What another job may have been given of it is not its own any more."""
    log, schedule = older_schedule("a", low=1, high=4, gpus=4)
    log.jobs["a"].gpus, log.jobs["a"].placement = sum(held.values()), tuple(held.items())
    log.down, log.drained = ({"n1": "no answer"}, {}) if closed == "down" else ({}, {"n1": Drain("ada", 1.0)})
    schedule = schedule.model_copy(update={"allocations": (given_to("a", **wanted),)})
    shares = {name: dict(share.placement) for name, share in startable(log, schedule, 5.0).items()}
    assert shares == ({} if gets is None else {"a": gets})


def test_an_older_schedule_starts_what_is_still_to_start() -> None:
    """No job that has ended, is held, or waits after a failure."""
    log, schedule = older_schedule("ends", "free", "holds", "waits")
    log.jobs["holds"].held, log.jobs["waits"].retry.retry_s = ("ada", 1.0), 5.0
    del log.active["ends"]
    assert startable(log, schedule, 4.9).keys() == {"free"}
    assert startable(log, schedule, 5.0).keys() == {"free", "waits"}
