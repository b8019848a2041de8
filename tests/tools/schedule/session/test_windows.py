"""Reservations: who leaves when, what starts meanwhile, and what operators do beside them."""

from typing import Any

import pytest

from benchmarks.parts.windows import window_overruns
from pliant.schemas.cluster import Cluster, NodeReservation
from pliant.schemas.job import Job
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.schedule.predict_start import copy_of, predictions
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.reload import session_on
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, sizes
from tests.effort import examples

BEGIN, END = 500.0, 900.0
CLOSED = BEGIN - 120


def reserved(*nodes: str, gpus: tuple[int, ...] = (2, 2), **more: Any) -> Cluster:
    made = NodeReservation(name="m", nodes=nodes or ("n0",), begin=BEGIN, end=END, **more)
    return cluster(*gpus).model_copy(update={"reservations": (made,)})


def opened(nodes: Cluster, *jobs: Job, policy: str = "fair-share", who: str = "stated") -> Session:
    held = Session(make_policy(policy), nodes, CurveThroughput(), preemptible=who)  # type: ignore[arg-type]
    for each in jobs:
        held.submit(each, 0)
    return held


def story(held: Session, *jobs: Job) -> list[str]:
    engine = Engine(held, jobs)
    engine.run()
    shown = ((each, " ".join(name for name, _ in each.placement or ())) for each in engine.log.events())
    return [
        f"{each.time:.0f} {each.event} {each.job} {on}".rstrip()
        for each, on in shown
        if each.gpus is not None
    ]


RIGID = job("a", gpus=2, gpu_seconds=2000.0)
ELASTIC = job("a", low=1, high=4, gpu_seconds=4000.0)
ENDLESS = job("a", gpus=2, work={"samples": 1e6})


@pytest.mark.parametrize(
    ("nodes", "given", "then"),
    [
        (reserved(), RIGID, ["0 start a n1", "1000 finish a"]),  # it cannot end or save by then
        (reserved(), job("a", gpus=2, gpu_seconds=600.0), ["0 start a n0", "300 finish a"]),
        (reserved(), RIGID.model_copy(update={"preemptible": True}), ["380 move a n1", "1000 finish a"]),
        (reserved(), ELASTIC, ["0 start a n0 n1", "380 shrink a n1", "900 grow a n0 n1", "1260 finish a"]),
        (reserved(users=("ann",)), ELASTIC, ["380 shrink a n1", "900 grow a n0 n1"]),
        (
            reserved(users=("ann",)),
            RIGID.model_copy(update={"user": "ann"}),
            ["0 start a n0", "1000 finish a"],
        ),
        (reserved("n0", "n1"), RIGID, ["900 start a n0", "1900 finish a"]),
        (reserved("n0", "n1", users=("x",)), ELASTIC, ["380 preempt a", "900 resume a n0 n1"]),
        (reserved(), job("a", gpus=0, gpu_seconds=1000.0), ["0 start a n1", "1000 finish a"]),
    ],
)
def test_jobs_end_or_leave_before_it_begins(nodes: Cluster, given: Job, then: list[str]) -> None:
    told = story(opened(nodes), given)
    assert [each for each in then if each not in told] == [], told


def test_one_that_ends_late_stays_until_it_begins() -> None:
    late = opened(reserved(), job("a", gpus=2, gpu_seconds=100.0))
    assert [each.step for each in late.decide(0)] == ["start"]
    assert late.jobs["a"].placement == (("n0", 2),)
    late.jobs["a"].hide_work(1e6)  # it takes longer than it stated
    assert (late.decide(CLOSED), late.decide(BEGIN - 1), sizes(late)) == ([], [], {"a": 2})
    assert [each.step for each in late.decide(BEGIN)] == ["move"]


@pytest.mark.parametrize("drained_first", [True, False])
def test_a_node_that_an_operator_drains_stays_drained(*, drained_first: bool) -> None:
    held = opened(reserved(), job("a", low=1, high=4, work={"samples": 1e6}))
    if drained_first:
        held.maintenance.drain("n0", 10, now=False)
        held.decide(CLOSED)
    else:
        held.decide(CLOSED)
        held.maintenance.undrain("n0", CLOSED + 1)
        assert held.cluster.drained == {"n0": True}, "a window is no drain of theirs"
        held.maintenance.drain("n0", CLOSED + 2, now=False)
    held.decide(END)
    assert set(held.cluster.drained) == {"n0"}
    held.maintenance.undrain("n0", END + 1)
    held.decide(END + 1)
    assert sizes(held) == {"a": 4}


@pytest.mark.parametrize("now_s", [CLOSED, BEGIN + 1])
@pytest.mark.parametrize("users", [(), ("ann",)])
def test_a_cluster_without_it_has_its_nodes_at_once(now_s: float, users: tuple[str, ...]) -> None:
    held = opened(reserved("n0", "n1", users=users), job("a", low=1, high=4, work={"samples": 1e6}))
    held.decide(0)
    assert [each.step for each in held.decide(now_s)] == ["preempt"]
    assert held.explain(now_s) is not None
    assert "m" in held.hidden.reserved["a"] or not users
    new = session_on(held, cluster(2, 2), policy=make_policy("fair-share"))
    new.decide(now_s + 1)
    assert (sizes(new), new.hidden.any, dict(new.cluster.drained)) == ({"a": 4}, False, {})
    back = session_on(new, reserved("n0"), policy=make_policy("fair-share"))
    assert [each.step for each in back.decide(now_s + 2)] == ["shrink"]


def test_predicted_starts_know_of_it() -> None:
    held = opened(reserved("n0", "n1"), RIGID)
    held.decide(0)
    assert predictions(copy_of(held), 0)["a"].start_s == END


def test_what_a_policy_has_seen_of_it_is_not_taken_up() -> None:
    held = opened(reserved())
    assert not held.restore_state(PolicyState(policy="fair-share", version=1, changes_seen=0, state={}))


def test_random_reservations_hold_under_every_policy() -> None:
    assert window_overruns(examples(60)) == 0
