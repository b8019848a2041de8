from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.read_run import fold
from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers
from pliant.tools.schedule.policies.oasis import offline as offline_policy
from pliant.tools.schedule.policies.oasis.offline import Layout, OasisOffline, solve, variables
from pliant.tools.schedule.policies.oasis.policy import Oasis
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided
from tests.tools.schedule.policies.oasis.test_policy import SLOT_S, bidder, run_out
from tests.tools.schedule.policies.started import joined

ONE_PLACE = Servers(("cpu",), np.array([[1.0]]), np.zeros((0, 1)))


def job(name: str, arrival: int, work: int, worth: list[float]) -> Bid:
    return Bid(name, arrival, work, 1, np.ones(1), np.zeros(1), np.array(worth))


def test_the_best_plan_of_a_few_jobs_in_any_units() -> None:
    # A billionth of what there was, and of what jobs take, holds as many of them.
    bids = [job(name, 0, 1, [1.0]) for name in "ab"]
    tiny = [replace(bid, worker=1e-9 * bid.worker) for bid in bids]
    assert solve(tiny, replace(ONE_PLACE, workers=1e-9 * ONE_PLACE.workers), 1).utility == 1
    cheap = [replace(bid, worth=1e-9 * bid.worth) for bid in bids]
    assert solve(cheap, ONE_PLACE, 1).utility == pytest.approx(1e-9)
    # The best plan of a few jobs.
    # The first job alone would be admitted; with the second to come the slot is kept for it.
    bids = [job("early", 0, 1, [1.0, 0.0]), job("long", 0, 2, [3.0, 3.0]), job("late", 1, 1, [9.0, 9.0])]
    result = solve(bids, ONE_PLACE, 2)
    assert [plan is not None for plan in result.plans] == [True, False, True]
    assert result.utility == 10

    result = solve([job("long", 0, 3, [1.0, 1.0])], ONE_PLACE, 2)
    assert (result.plans, result.utility, result.gap) == ((None,), 0.0, 0.0)

    bids = [job("a", 0, 2, [3.0, 1.0]), job("a", 0, 1, [3.0, 1.0])]
    result = solve(bids, replace(ONE_PLACE, workers=np.array([[9.0]])), 2)
    assert [plan is not None for plan in result.plans] == [False, True]
    assert result.utility == 3

    used = np.array([1.0, 0.0, 0.0])[:, None, None], np.zeros((3, 0, 1))
    [plan] = solve([job("a", 0, 2, [5.0, 4.0, 3.0])], ONE_PLACE, 3, used=used).plans
    assert plan.sizes().tolist() == [0, 1, 1]

    bids = [
        job("a", 0, 1, [3.0, 1.0, 1.0]),
        replace(job("b", 1, 2, [3.0] * 3), least_workers=2, most_workers=2),
    ]
    assert variables(bids, ONE_PLACE, 3) == Layout.of(bids, ONE_PLACE, 3).count == 3 * 2 + 2 * 3


def offline(**more: Any) -> OasisOffline:
    return OasisOffline(**{"slot_seconds": SLOT_S, "horizon_slots": 12} | more)


def opened(policy: Policy, trace: list[Job], nodes: Cluster | None = None) -> Session:
    return Session(policy, nodes or cluster(4), CurveThroughput(), trace=trace)


def early_and_late() -> list[Job]:
    """The first is worth admitting alone; the second needs the same slots, and is worth ten times as much."""
    return [
        bidder("early", 12, value=5.0, shape="step", target=350.0),
        bidder("late", 8, at=100.0, value=50.0, decay=0.1, target=250.0),
    ]


def test_the_optimum_waits_and_is_planned_again_if_small(monkeypatch: pytest.MonkeyPatch):
    held = opened(offline(), trace := early_and_late())
    assert list(held.snapshot(0.0).future) == trace
    held.submit(trace[0], 0.0)
    assert list(held.snapshot(0.0).future) == trace[1:]
    [turned_away] = held.decide(0.0)
    assert held.book.ended["early"].first_start_s is None
    assert turned_away.reason == "the largest total utility is without it"
    assert held.decided.admissions["early"] == {"admitted": False, "gap": 0.0}
    assert list(held.snapshot(0.0).future) == trace[1:]
    joined(held, 100.0, trace[1])
    statement = held.decided.admissions["late"]
    assert statement["admitted"]
    assert statement["end_s"] == 300.0
    assert statement["worth"] == pytest.approx(trace[1].utility.worth(200.0), rel=1e-5)
    assert run_out(held)["late"] == 300.0

    assert joined(opened(offline(), []), 0.0, trace[0]) == {"early": 4}
    assert not opened(Oasis(), trace).snapshot(0.0).future
    # A job that loses its node is planned again.
    trace = [bidder("a", 16, value=20.0), bidder("b", 8, at=200.0, value=30.0)]
    held = opened(offline(), trace, cluster(4, 4))
    joined(held, 0.0, trace[0])
    (node, *_), *_ = held.jobs["a"].placement
    held.maintenance.node_down(node, 50.0)
    held.decide(50.0)
    assert decided(held, 100.0).keys() == {"a"}
    assert node not in dict(held.jobs["a"].placement)
    joined(held, 200.0, trace[1])
    assert "b" in held.jobs
    monkeypatch.setattr(offline_policy, "MOST_VARIABLES", 20)
    problem = r"2 jobs in 12 slots on 1 node are a problem of \d+ variables, and 20"
    with pytest.raises(UsageError, match=problem):
        joined(opened(offline(), early_and_late()), 0.0, early_and_late()[0])


def test_a_replay_is_labelled_as_an_oracle() -> None:
    run = Run("oasis-offline", {"slot_seconds": SLOT_S})
    result = fold(replay(inputs(early_and_late(), cluster(4)), run).log.events())
    assert result.info.oracle
    assert {job.id: job.admission["admitted"] for job in result.jobs} == {"early": False, "late": True}
