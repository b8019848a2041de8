import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_jobs
from pliant.schemas.job import Job
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.decide import schedule_of
from pliant.tools.schedule.policies.oasis.policy import Oasis
from pliant.tools.schedule.policy import PolicyError, Reserved
from pliant.tools.schedule.predict_start import advance, happen, in_order_of_arrival
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided, job, session, sizes
from tests.tools.schedule.policies.started import joined, started

SLOT_S = 100.0


def policy(**more: Any) -> Oasis:
    """Changes cost nothing here, unless a test says otherwise."""
    return Oasis(**{"slot_seconds": SLOT_S, "horizon_slots": 20, "rescale_s": 0.0, **more})


def bidder(
    name: str, slots: int, *, at: float = 0.0, most: int = 4, value: float = 10.0, **utility: Any
) -> Job:
    """A job of that many worker-slots that is worth its value in time."""
    worth = {"shape": "sigmoid", "value": value, "decay": 0.05, "target": 500.0} | utility
    return job(name, at=at, high=most, low=1, gpu_seconds=slots * SLOT_S, utility=worth)


def bidding(*jobs: Job, nodes: Cluster | None = None, **more: Any) -> Session:
    """All of them have arrived at 0 and have been decided on."""
    return started(policy(**more), nodes or cluster(4), *jobs)


def run_out(held: Session, coming: list[Job] | None = None) -> dict[str, float]:
    time_s, ahead = 0.0, in_order_of_arrival(coming or [])
    happen(held, 0.0, ahead)
    ends: dict[str, float] = {}
    for _ in range(2000):
        held.decide(time_s)
        before = set(held.jobs)
        next_s = advance(held, time_s, ahead)
        if next_s is None:
            break
        time_s = next_s
        ends |= dict.fromkeys(before - set(held.jobs), time_s)
    return ends


def test_a_job_gets_workers_from_the_next_slot_not_planned_full() -> None:
    held = bidding(bidder("a", 8))
    assert sizes(held) == {"a": 4}
    assert run_out(held) == {"a": 200.0}

    held = bidding(bidder("a", 4, at=30.0))
    assert sizes(held) == {}
    assert held.decided.due_s == 100.0
    assert decided(held, 100.0) == {"a": 4}

    assert sizes(bidding(bidder("a", 4, at=9.0))) == {"a": 4}

    # Planned full, each ends 20 s late. Else there is no room for the second, and the first is in time.
    assert ends_in_time(0.0) == set()
    assert ends_in_time(20.0) == {"a"}


def ends_in_time(rescale_s: float) -> set[str]:
    """Of two jobs that would fill three slots exactly, those that end in them where a start costs 20 s."""
    jobs = [bidder("a", 8, shape="step", target=300.0), bidder("b", 4, value=9.0, shape="step", target=300.0)]
    simulated = SimulatedCluster(start_cost=Cost(20.0), rescale_cost=Cost(20.0))
    parameters = {"slot_seconds": SLOT_S, "horizon_slots": 20, "rescale_s": rescale_s}
    done = replay(inputs(jobs, cluster(4)), Run("oasis", parameters, simulated=simulated))
    return {each.job for each in done.log.events() if each.event == "finish" and each.time <= 300.0}


def rich(count: int, value: float = 100.0) -> list[Job]:
    return [bidder(f"rich{index}", 4, value=value) for index in range(count)]


def test_prices_count_slots_in_service_and_rise_with_worth() -> None:
    admissions = []
    for gpus in (4, 5):
        held = session(policy(), cluster(gpus))
        if gpus == 5:
            held.cluster.withdraw("n0/0", 0.0, 1e6)
        joined(held, 0.0, *rich(5))
        joined(held, 1.0, bidder("poor", 16, at=1.0, value=1.0))
        admissions.append(held.decided.admissions["poor"])
    assert admissions[0] == admissions[1]
    assert not admissions[1]["admitted"]
    assert admissions[1]["cost"] > 0

    # What is known of jobs is taken up again while a slot is out of service.
    kept = bidding(*rich(5), nodes=cluster(5)).policy.dump_state()
    again = session(policy(), cluster(5))
    again.cluster.withdraw("n0/0", 1.0, 1e6)
    again.policy.load_state(kept, {})
    again.decide(1.0)
    assert kept["ledger"]["estimate"]
    assert again.policy.dump_state()["ledger"]["estimate"] == kept["ledger"]["estimate"]
    # What is worth more raises the price for later jobs.
    held = bidding(*rich(5), quantile=0.5)
    held.submit(bidder("poor", 16, at=1.0, value=0.5), 1.0)
    [turned_away] = held.decide(1.0)
    assert (turned_away.step, turned_away.job.id) == ("reject", "poor")
    statement = held.decided.admissions["poor"]
    assert not statement["admitted"]
    assert statement["payoff"] == pytest.approx(statement["worth"] - statement["cost"], abs=1e-5)
    assert statement["cost"] > statement["worth"]
    assert f"a value above {statement['least_value']:.4g}" in turned_away.reason
    for name, part in (("less", 0.98), ("more", 1.02)):
        joined(held, 1.0, bidder(name, 16, at=1.0, value=statement["least_value"] * part))
    assert "less" not in held.jobs
    assert "more" in held.jobs


def test_why_a_job_is_rejected_or_waits_for_another_bid() -> None:
    held = bidding(*rich(8, value=30.0))
    terms = {"at": 1.0, "value": 29.0, "decay": 0.5}
    joined(held, 1.0, bidder("late", 4, target=10.0, **terms))
    statement = held.decided.admissions["late"]
    assert not statement["admitted"]
    joined(held, 1.0, bidder("later", 4, target=statement["least_target_s"] + 9, **terms))
    assert "later" in held.jobs
    # A job that may bid again waits until slots are free.
    last = bidder("last", 4, at=1.0, value=80.0, shape="constant")
    held = bidding(*rich(4), horizon_slots=4, requeue=True, rescale_s=30.0)
    joined(held, 1.0, last)
    assert held.explain(1.0)["last"].reason.startswith("bids again: ")
    ends = run_out(held)
    assert ends["last"] == max(ends.values()) == 500.0

    held = bidding(*rich(3), requeue=True)
    run_out(held)
    held.submit(bidder("poor", 60, at=400.0, value=0.01), 400.0)
    assert [each.step for each in held.decide(400.0)] == ["reject"]
    # A job that cannot end within the slots is rejected.
    held = bidding(bidder("a", 81, most=4))
    assert held.book.rejections == {}
    assert held.book.ended["a"].gpus == 0
    assert held.decided.admissions["a"] == {"admitted": False}

    held = bidding(job("plain", low=1, high=4, gpu_seconds=100 * SLOT_S), bidder("a", 4))
    assert held.decided.admissions["plain"]["admitted"]
    assert run_out(held)["plain"] >= 100 * SLOT_S / 4


def test_plans_change_where_jobs_or_nodes_do_not_keep_them():
    held = bidding(bidder("a", 16), nodes=cluster(4, 4))
    [(node, _)] = held.jobs["a"].placement
    held.maintenance.node_down(node, 50.0)
    held.decide(50.0)
    assert decided(held, 100.0) == {"a": 4}
    assert held.jobs["a"].placement[0][0] != node

    held = bidding(bidder("a", 8), bidder("b", 8))
    (first,), (other,) = sizes(held), held.jobs.keys() - sizes(held)
    held.jobs[first].report_progress(50.0, 400.0)
    held.end(first, 230.0)
    assert decided(held, 230.0) == {other: 4}

    held = bidding(bidder("a", 8))
    held.jobs["a"].report_progress(100.0, 10.0)
    held.decide(100.0)
    assert held.policy.explain(held.snapshot(100.0))["a"].reason == "4 workers for 3 min; ends within 3 min"


def test_slots_to_come_are_written_down() -> None:
    held = bidding(bidder("a", 8), bidder("b", 8))
    result = schedule_of(held, [], 0.0, explain=True)
    reserved = [*result.allocations, *result.waiting]
    held_then = Counter[float]()
    for verdict in reserved:
        for span in verdict.reserved:
            for at in np.arange(span.from_, span.until, SLOT_S):
                held_then[at] += span.gpus
    assert sum(held_then.values()) + sum(sizes(held).values()) == 16
    assert max(held_then.values()) <= 4
    assert all("ends within" in verdict.reason for verdict in reserved)

    plain = schedule_of(held, [], 0.0)
    assert any(verdict.reserved for verdict in plain.waiting)
    assert [verdict.reserved for verdict in plain.waiting] == [verdict.reserved for verdict in result.waiting]


def test_plans_that_no_schedule_can_hold_are_left_out(monkeypatch):
    held = bidding(bidder("a", 8), bidder("b", 8))
    endless = {"b": [Reserved(0.0, math.inf, (("n0", 4),))]}
    monkeypatch.setattr(held.policy, "reserved", lambda seen: endless)
    statement: list[Exception] = []
    assert schedule_of(held, [], 0.0, on_error=statement.append).waiting[0].reserved == ()
    assert len(statement) == 1
    with pytest.raises(PolicyError, match="oasis"):
        schedule_of(held, [], 0.0)


def test_true_bounds_come_from_the_trace_itself(tmp_path):
    trace = [bidder("a", 4), bidder("b", 40, value=90.0)]
    named = str(tmp_path / "trace.jsonl")
    write_jobs(trace, named)
    result = make_policy("oasis", {"bounds_from": named, "bounds_by": "paper", "percent": "500"})
    assert result.parameters["percent"] == 500.0
    assert set(bidding(*trace, bounds_from=named, bounds_by="paper").jobs) == {"a", "b"}


def three_jobs(at: float) -> list[Job]:
    """One that ends in time with ease, one that ends within a slot, one that cannot end before it is worth
    nothing: six slots, where its target is two.
    """
    easy = {"most": 1, "decay": 0.5 / SLOT_S, "target": 8 * SLOT_S}
    sharp = {"most": 1, "decay": 5 / SLOT_S, "target": 2 * SLOT_S}
    return [
        bidder("a", 1, value=10.0, **easy),
        bidder("b", 1, at=at, value=9.0, **easy),
        bidder("c", 6, at=at, value=100.0, **sharp),
    ]


def known_from(at: float, kind: str, folder: Path) -> tuple[float, float, dict[str, Any]]:
    """U and L of GPUs where these jobs are known beforehand, and what is said of the first when it comes."""
    named = str(folder / f"trace-{at}.jsonl")
    write_jobs(three_jobs(at), named)
    held = bidding(three_jobs(at)[0], bounds_from=named, bounds_by=kind)
    bounds = held.policy._ledger.market.bounds.workers
    return math.exp(bounds.log_most[0]), math.exp(bounds.log_least), dict(held.decided.admissions["a"])


@pytest.mark.parametrize(("kind", "slot"), [("estimate", 8), ("paper", 40)])
def test_what_known_jobs_are_worth_counts_from_when_each_comes(slot, kind, tmp_path):
    """A job of slot 8 that ends in slot 14 is worth next to nothing then, as one of slot 0 in slot 6."""
    at_once = known_from(0.0, kind, tmp_path)
    later = known_from(slot * SLOT_S, kind, tmp_path)
    assert at_once[0] == pytest.approx(9.707, abs=5e-4)
    assert later == at_once
