from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import InfeasibleError
from pliant.tools.run.service.allocation import Slot, Step, Target, plan_steps
from pliant.tools.run.statedir.log.fold import Share
from tests.builders import job

NODES = {"n0": 2, "n1": 2}


def share(job_id: str, *, batch: int = 8, **nodes: int) -> Share:
    return Share(job(job_id, gpus=1, high=4), tuple(sorted(nodes.items())), batch)


def holds(job_id: str, *slots: str, batch: int = 8) -> Target:
    found = tuple(map(Slot.parse, slots))
    placement = tuple((node, sum(slot.node == node for slot in found)) for node in sorted(NODES))
    return Target(share(job_id, batch=batch, **{node: n for node, n in placement if n}), found)


def told(steps: list[Step]) -> list[tuple[str, str, str]]:
    """(event, job, slots after it)."""
    return [(s.event, s.job_id, " ".join(map(str, s.after.slots)) if s.after else "") for s in steps]


def steps(held: dict[str, Target], *wanted: Share, **more: Any) -> list[tuple[str, str, str]]:
    return told(plan_steps(held, {w.job.id: w for w in wanted}, NODES, **more))


def test_a_job_that_holds_nothing_starts() -> None:
    assert steps({}, share("a", n0=2)) == [("start", "a", "n0/0 n0/1")]


def test_a_job_that_ran_before_resumes() -> None:
    assert steps({}, share("a", n0=1), started={"a"}) == [("resume", "a", "n0/0")]


def test_a_job_that_is_wanted_no_more_is_preempted() -> None:
    assert steps({"a": holds("a", "n0/0")}) == [("preempt", "a", "")]


def test_a_share_of_no_gpu_is_a_preemption_too() -> None:
    assert steps({"a": holds("a", "n0/0")}, share("a")) == [("preempt", "a", "")]


def test_a_job_whose_share_stays_is_not_touched() -> None:
    assert steps({"a": holds("a", "n0/1")}, share("a", n0=1)) == []


def test_survivors_keep_their_slots_and_their_rank() -> None:
    assert steps({"a": holds("a", "n0/1")}, share("a", n0=2)) == [("grow", "a", "n0/1 n0/0")]
    assert steps({"a": holds("a", "n0/1", "n0/0")}, share("a", n0=1)) == [("shrink", "a", "n0/1")]


def test_another_node_is_a_move() -> None:
    assert steps({"a": holds("a", "n0/0")}, share("a", n1=1)) == [("move", "a", "n1/0")]


def test_another_batch_on_the_same_slots_is_a_move_to_the_same_place() -> None:
    assert steps({"a": holds("a", "n0/0")}, share("a", n0=1, batch=16)) == [("move", "a", "n0/0")]


def test_stops_come_before_resizes_before_starts_and_slots_go_from_one_to_the_other() -> None:
    held = {"z": holds("z", "n0/0", "n0/1"), "b": holds("b", "n1/0", "n1/1")}
    assert steps(held, share("a", n0=1), share("c", n0=1), share("b", n1=1)) == [
        ("preempt", "z", ""),
        ("shrink", "b", "n1/0"),
        ("start", "a", "n0/0"),
        ("start", "c", "n0/1"),
    ]


def test_two_jobs_that_swap_nodes_both_move() -> None:
    held = {"a": holds("a", "n0/0", "n0/1"), "b": holds("b", "n1/0", "n1/1")}
    assert steps(held, share("a", n1=2), share("b", n0=2)) == [
        ("move", "a", "n1/0 n1/1"),
        ("move", "b", "n0/0 n0/1"),
    ]


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="node n0"):
        plan_steps({}, {"a": share("a", n0=3)}, NODES)


PLACES = st.dictionaries(st.sampled_from(["n0", "n1"]), st.integers(1, 2), max_size=2)


@given(first=st.lists(PLACES, max_size=3), second=st.lists(PLACES, max_size=3))
def test_after_the_steps_every_job_holds_what_it_shall_and_no_slot_twice(
    first: list[dict[str, int]], second: list[dict[str, int]]
) -> None:
    held: dict[str, Target] = {}
    for round_ in (fitting(first), fitting(second)):
        for step in plan_steps(held, round_, NODES):
            if step.after is None:
                del held[step.job_id]
            else:
                held[step.job_id] = step.after
        assert {job_id: target.share for job_id, target in held.items()} == round_
        slots = [slot for target in held.values() for slot in target.slots]
        assert len(slots) == len(set(slots))
        assert plan_steps(held, round_, NODES) == []


def fitting(places: list[dict[str, int]]) -> dict[str, Share]:
    """As many of the places, in order, as fit the nodes together."""
    left, shares = dict(NODES), dict[str, Share]()
    for name, place in zip("abc", places, strict=False):
        if place and all(left[node] >= count for node, count in place.items()):
            for node, count in place.items():
                left[node] -= count
            shares[name] = share(name, **place)
    return shares


def beside(wanted: Share, other: str) -> Share:
    return replace(wanted, beside=other)


def two(**nodes: int) -> tuple[Share, Share]:
    """The shares of two jobs on the same slots."""
    return beside(share("a", **nodes), "b"), beside(share("b", **nodes), "a")


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
    assert steps({}, *two(n0=1), share("c", n0=1)) == [
        ("start", "a", "n0/0"),
        ("start", "c", "n0/1"),
        ("start", "b", "n0/0"),
    ]


def test_jobs_that_are_parted_on_one_node_get_slots_of_their_own() -> None:
    held = {"a": holds("a", "n0/0"), "b": holds("b", "n0/0")}
    assert steps(held, share("a", n0=1), share("b", n0=1)) == [("move", "b", "n0/1")]


def test_a_job_whose_company_is_not_to_run_has_its_slots_alone() -> None:
    assert steps({}, beside(share("b", n0=1), "a"), share("c", n0=1)) == [
        ("start", "b", "n0/0"),
        ("start", "c", "n0/1"),
    ]
