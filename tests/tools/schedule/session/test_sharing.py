from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Owner, Shares, Sharing, Team
from pliant.schemas.job import Job
from pliant.tools.schedule.policy import PolicyError, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import as_held
from tests.builders import allocated, cluster, job
from tests.tools.schedule.session.test_session import Says, steps
from tests.tools.schedule.session.test_session import opened as everyone

TOGETHER = Sharing(unmeasured="together", speed=0.75)


class Packs(Says):
    packs = True


def shared(*node_gpus: int, sharing: Sharing = TOGETHER, **more: Any) -> Cluster:
    return cluster(*node_gpus).model_copy(update={"sharing": sharing, **more})


def opened(nodes: Cluster, *jobs: Job, policy: type[Says] = Packs) -> Session:
    return everyone(nodes, *jobs, policy=policy)


def beside(other: str, gpus: int = 2) -> Target:
    return Target(gpus, beside=other)


def pair(nodes: Cluster | None = None, **more: Any) -> Session:
    held = opened(nodes or shared(2), job("a", gpus=2, **more), job("b", gpus=2, **more))
    steps(held, 0, a=2, b=beside("a"))
    return held


def test_two_jobs_share_gpus_and_one_that_stays_has_full_speed() -> None:
    held = opened(shared(4), job("a", gpus=2, gpu_seconds=100), job("b", gpus=2, gpu_seconds=100))
    assert steps(held, 0, b=beside("a"), a=2) == [("a", "start"), ("b", "start")]
    a, b = held.jobs["a"], held.jobs["b"]
    assert a.placement == b.placement == (("n0", 2),)
    assert (a.beside, b.beside) == ("b", "a")
    assert held.cluster.free.by_type == {"gpu": 2}
    assert a.samples_per_second == b.samples_per_second == 0.75 * 2
    assert a.samples_done(10) == 15
    # A job that stays alone goes on at full speed.
    held = pair(gpu_seconds=100)
    held.end("b", 10)
    a = held.jobs["a"]
    assert held.book.ended["b"].attained_service_s(99) == 10, "shared GPUs count one half for each"
    assert a.attained_service_s(20) == 10 + 2 * 10
    assert a.beside is None
    assert held.allocator.slowed["a"] == a.samples_per_second == 2
    assert a.samples_done(10) == 15
    assert a.finish_time_s() == 10 + 85 / 2
    assert held.cluster.free.by_type == {"gpu": 0}
    held.end("a", 20)
    assert held.cluster.free.by_type == {"gpu": 2}


def test_one_of_two_may_leave_or_both_leave_a_node() -> None:
    held = pair()
    held.submit(job("c", gpus=2), 5.0)
    before = [as_held(each, 0.0) for each in held.jobs.values()]
    assert steps(held, 5, a=0, c=beside("b")) == [("a", "preempt"), ("c", "start")]
    held.rollback(before, 5)  # the decision came to nothing
    assert {each.id: each.beside for each in held.jobs.values()} == {"a": "b", "b": "a", "c": None}
    assert held.cluster.free.by_type == {"gpu": 0}
    assert steps(held, 5, a=0, c=beside("b")) == [("a", "preempt"), ("c", "resume")]
    assert (held.jobs["b"].beside, held.jobs["a"].beside) == ("c", None)
    assert steps(held, 6, b=0, c=0) == [("b", "preempt"), ("c", "preempt")]
    assert held.cluster.free.by_type == {"gpu": 2}
    # A job moves away from its company and back.
    held = pair(shared(2, 2))
    assert steps(held, 5, b=2) == [("b", "move")]
    assert held.jobs["b"].placement == (("n1", 2),)
    assert held.jobs["a"].samples_per_second == 2
    assert steps(held, 9, b=beside("a")) == [("b", "move")]
    assert held.cluster.free.by_type == {"gpu": 2}
    # Of a pair one that is held stops alone.
    held = pair()
    held.admission.hold("a", 2, "its owner")
    assert steps(held, 2) == [("a", "preempt")]
    assert held.jobs["b"].samples_per_second == 2
    # Pair leaves a node that is drained or vanishes together.
    held = pair(shared(2, 4))
    held.maintenance.drain("n0", 1, now=True)
    assert steps(held, 1, a=2, b=beside("a")) == [("a", "move"), ("b", "move")]
    assert held.jobs["b"].placement == (("n1", 2),)
    assert [lost.id for lost in held.maintenance.node_down("n1", 3)] == ["a", "b"]
    assert all(state.beside is None and not state.gpus for state in held.jobs.values())
    held.maintenance.node_up("n1", 4)
    assert held.cluster.free.by_type == {"gpu": 4}


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_drained_node_that_two_share_is_free_after_both(first: str) -> None:
    held = opened(shared(2, 2), job("a", gpus=4), job("b", gpus=4))
    steps(held, 0, a=4, b=beside("a", 4))
    held.maintenance.drain("n0", 1, now=False)
    assert (held.cluster.free.by_type["gpu"], held.cluster.up_gpus) == (0, 0)
    held.maintenance.undrain("n0", 1)
    assert (held.cluster.free.by_type["gpu"], held.cluster.up_gpus) == (0, 4), "shared GPUs are taken once"
    held.maintenance.drain("n0", 1, now=False)
    held.end(first, 2)
    assert (held.cluster.free.by_type["gpu"], held.cluster.up_gpus) == (0, 0)
    held.end("b" if first == "a" else "a", 3)
    assert (held.cluster.free.by_type["gpu"], held.cluster.up_gpus) == (2, 2)
    held.maintenance.undrain("n0", 4)
    assert (held.cluster.free.by_type["gpu"], held.cluster.up_gpus) == (4, 4)


@pytest.mark.parametrize(
    ("targets", "wrong"),
    [
        ({"c": beside("x")}, "expected another active job"),
        ({"c": beside("c")}, "expected another active job"),
        ({"c": beside("a")}, "shares its GPUs with another job"),
        ({"c": beside("d"), "d": 2, "e": beside("d")}, "shares its GPUs with another job"),
        ({"c": beside("d"), "d": beside("c")}, "shares its GPUs with another job"),
        ({"f": beside("d", 1), "d": 2}, "expected all 2 of that job"),
        ({"c": beside("d")}, "expected all 0 of that job"),
        ({"c": beside("g"), "g": 2}, "one of them shares no GPUs"),
    ],
)
def test_what_cannot_be_shared_is_refused(targets: dict[str, Target | int], wrong: str) -> None:
    held = pair(shared(2, 4))
    for each in "cde":
        held.submit(job(each, gpus=2), 0)
    held.submit(job("f"), 0)
    held.submit(job("g", gpus=2, shares_gpus=False), 0)
    with pytest.raises(PolicyError, match=wrong):
        steps(held, 1, **targets)


def test_jobs_of_unknown_memory_or_of_other_policies_stay_alone() -> None:
    held = opened(shared(2, sharing=Sharing()), job("a", gpus=2), job("b", gpus=2))
    steps(held, 0, a=2)
    with pytest.raises(PolicyError, match="do not fit one GPU together"):
        steps(held, 1, b=beside("a"))
    assert steps(held, 2, a=0) == [("a", "preempt")]
    assert steps(held, 3, a=2, b=beside("a")) == [("a", "resume")], "b has no place, and waits on"
    # A policy that declares not to pack may not.
    held = opened(shared(2), job("a", gpus=2), job("b", gpus=2), policy=Says)
    held.set_allocations([allocated("a", (("n0", 2),))], 0)
    held.set_allocations([allocated("b", (("n0", 2),), beside="a")], 1)
    assert held.jobs["a"].beside == "b"
    assert steps(held, 2) == [("b", "preempt")]
    assert held.jobs["a"].samples_per_second == 2
    with pytest.raises(PolicyError, match="declares not to pack"):
        steps(held, 3, b=beside("a"))


def test_pairs_in_log_are_taken_up_in_any_order_and_swap_places() -> None:
    place = (("n0", 2),)
    for order in (("a", "b"), ("b", "a")):
        held = opened(shared(2), job("a", gpus=2), job("b", gpus=2))
        other = {"a": "b", "b": "a"}
        held.set_allocations([allocated(each, place, beside=other[each]) for each in order], 0)
        assert [state.beside for state in held.jobs.values()] == ["b", "a"]
        assert held.cluster.free.by_type == {"gpu": 0}
    # A job that joins one that leaves is alone and pairs swap places.
    held = opened(shared(2, 2), job("a", gpus=2), job("b", gpus=2))
    steps(held, 0, a=2)
    held.set_allocations([allocated("b", (("n0", 2),), beside="a"), allocated("a", (("n1", 2),))], 1)
    assert [each.beside for each in held.jobs.values()] == [None, None]
    assert [each.placement for each in held.jobs.values()] == [(("n1", 2),), (("n0", 2),)]
    held = opened(shared(2, 2), *(job(name, gpus=2) for name in "abc"))
    steps(held, 0, a=2, b=beside("a"), c=2)
    places = {"a": (("n1", 2),), "b": (("n1", 2),), "c": (("n0", 2),)}
    company = {"b": "a"}
    held.set_allocations(
        [allocated(name, place, beside=company.get(name)) for name, place in places.items()], 1
    )
    found = {each.id: (each.placement, each.beside) for each in held.jobs.values()}
    assert found == {"a": (places["a"], "b"), "b": (places["b"], "a"), "c": (places["c"], None)}
    assert held.cluster.free.by_type == {"gpu": 0}


def stands(held: Session) -> tuple[object, ...]:
    """All that a change of GPUs would change."""
    jobs = [
        (each.id, each.placement, each.beside, each.samples_per_second, each.gpus, each.rescales)
        for each in held.jobs.values()
    ]
    nodes = [(node.gpus, node.up) for node in held.cluster.nodes]
    return (
        jobs,
        nodes,
        dict(held.cluster.free.by_type),
        held.cluster.up_gpus,
        len(held.changes.entries),
        dict(held.hidden.bound),
    )


@pytest.mark.parametrize("drained", [False, True])
def test_where_one_job_cannot_hold_what_log_says_nothing_changes(drained: bool) -> None:
    held = opened(shared(2, 2), job("a", gpus=2), job("b", gpus=2), job("c", gpus=2))
    steps(held, 0, a=2, b=beside("a"), c=2)
    if drained:
        held.maintenance.drain("n0", 1, now=False)
    before = stands(held)
    wrong = [
        [allocated("a", (("n0", 1),))],
        [allocated("c"), allocated("a", (("n1", 3),))],
        [allocated("c"), allocated("a", (("n9", 1),))],
        [allocated("c", (("n0", 2),)), allocated("a", (("n0", 2),))],  # not beside each other
        [
            allocated("c", (("n0", 2),), beside="a"),
            allocated("b", (("n1", 2),)),
            allocated("a", (("n1", 2),)),
        ],
    ]
    for updates in wrong:
        with pytest.raises(ValueError, match="cannot hold"):
            held.set_allocations(updates, 2)
        assert stands(held) == before
    with pytest.raises(KeyError):
        held.set_allocations([allocated("c"), allocated("z")], 2)
    with pytest.raises(ValueError, match="unpack"):
        held.set_allocations([allocated("c"), allocated("a", (("n1", 2),), servers=(("n1",),))], 2)
    assert stands(held) == before


def test_teams_use_half_of_the_gpus_that_their_jobs_share() -> None:
    teams = Shares(teams={"x": Team(), "y": Team()}, half_life_hours=1e4)
    held = opened(shared(2, shares=teams), job("a", gpus=2, team="x"), job("b", gpus=2, team="y"))
    both = (("n0", 2),)
    held.set_allocations([allocated("a", both), allocated("b", both, beside="a")], 0.0)
    assert held.usage is not None
    assert dict(held.usage.until(10.0)) == pytest.approx({Owner("x"): 10.0, Owner("y"): 10.0})
    held.end("b", 10.0)
    assert dict(held.usage.until(20.0)) == pytest.approx({Owner("x"): 30.0, Owner("y"): 10.0})
    held.set_allocations([allocated("a")], 20.0)
    assert dict(held.usage.until(30.0)) == pytest.approx({Owner("x"): 30.0, Owner("y"): 10.0})
    assert held.usage.held == {}
