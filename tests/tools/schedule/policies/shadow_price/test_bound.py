import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.schemas.metrics import RunMetrics
from pliant.schemas.runinfo import EqualDeals
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.fairness import fairness, promise, why_unpromised
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord, gpu_usage
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.policies.shadow_price.reference import EqualShares
from pliant.tools.schedule.rates import Speeds
from tests.builders import (
    TimedSteps,
    allocated,
    cluster,
    curves,
    decided,
    job,
    mixed_cluster,
    opened,
    session,
)
from tests.effort import examples
from tests.tools.schedule.policies.started import started

COST_S = 30.0
WORLD = SimulatedCluster(start_cost=Cost(COST_S), rescale_cost=Cost(COST_S))
HALF_ACROSS = TimedSteps(lambda model, kind, place, batch: batch * min(len(place), 2) / sum(place))
"""One sample a GPU-second on one node, half of one on several."""
STRICT: dict[str, Any] = {"grace": 0.0, "grace_s": 0.0, "deal_s": 600.0, "lost_s": 90.0}
"""Not a second of grace: the guard has much to do."""


def replayed(
    jobs: Sequence[Job],
    nodes: Cluster | None = None,
    speeds: CurveThroughput | None = None,
    **parameters: float | None,
) -> RunRecord:
    trace = Inputs(tuple(jobs), nodes or cluster(4, 4), None, speeds or CurveThroughput())
    how = Run("shadow-price", {**STRICT, **parameters}, simulated=WORLD)
    return fold(replay(trace, how).log.events(), "run")


def figures(done: RunRecord) -> RunMetrics:
    """Held against the strict promise."""
    promised = {"bounds": ShadowPrice(**STRICT).bounds}
    return run_metrics(replace(done, info=done.info.model_copy(update=promised)))


@st.composite
def some_jobs(draw: st.DrawFn) -> list[Job]:
    """A stream of jobs that keeps the cluster busy, and others, longer or shorter, with any limits.

    Of these many would end later than promised if nothing held the policy to it.
    """
    step_s, samples = draw(st.sampled_from([(250, 1500), (250, 1900), (130, 800)]))
    work = draw(st.integers(0, 3))
    stream = [(step_s * n, samples, 1, 8, work) for n in range(draw(st.integers(2, 12)))]
    sizes_of = st.sampled_from([50, 400, 1000, 2100, 2600, 3000, 9000])
    others = st.tuples(
        st.integers(0, 2000), sizes_of, st.integers(1, 3), st.integers(3, 8), st.integers(0, 4)
    )
    rows = sorted([*stream, *draw(st.lists(others, min_size=1, max_size=6))])
    return [
        job(f"j{n:02}", at=at, gpus=low, low=low, high=high, work={"samples": work}, model=f"m{model}")
        for n, (at, work, low, high, model) in enumerate(rows)
    ]


@settings(max_examples=examples(40))
@given(some_jobs(), st.lists(st.tuples(*[st.just(1.0) | st.floats(0, 1)] * 3), min_size=5, max_size=5))
def test_with_concave_scaling_no_job_ends_later_than_promised(jobs, bends):
    """Each GPU adds at most what the one before it adds, from one GPU to two, to four and to eight."""
    by_model: dict[str, dict[int, float]] = {}
    for number, bend in enumerate(bends):
        slope, curve = 1.0, {1: 1.0}
        for size, part in zip((2, 4, 8), bend, strict=True):
            slope *= part
            curve[size] = curve[size // 2] + slope * (size - size // 2)
        by_model[f"m{number}"] = curve
    result = figures(replayed(jobs, speeds=CurveThroughput(by_model)))
    assert (result.jobs_finished, result.jobs_past_gps_bound) == (len(jobs), 0)


def test_without_the_guard_jobs_are_late_and_with_it_get_a_share() -> None:
    # Whenever a job is done, a shorter one is there: the longer one waits for all of them.
    long = job("long", low=1, high=8, work={"samples": 2100})
    short = [job(f"s{n:02}", at=250 * n, low=1, high=8, work={"samples": 1900}) for n in range(24)]
    assert figures(replayed([long, *short])).jobs_past_gps_bound == 0
    free = figures(replayed([long, *short], grace=None))
    assert free.jobs_past_gps_bound == 1
    assert free.worst_bound_used is not None
    assert free.worst_bound_used > 5
    # A job that has had its grace gets its share and says so.
    jobs = [job(n, low=1, high=4, work={"samples": s}) for n, s in (("long", 1e6), ("short", 1000))]
    held = opened(ShadowPrice(**STRICT), cluster(4), *jobs)
    assert decided(held, 0.0) == {"short": 4}, "a round can be made good"
    assert decided(held, 60.0) == {"long": 2, "short": 2}
    assert "equal shares would give it 2 GPUs now" in held.explain(60.0)["long"].reason

    held = opened(ShadowPrice(grace=None), cluster(4), *jobs)
    assert decided(held, 0.0) == decided(held, 60.0) == {"short": 4}
    assert ShadowPrice(grace=None).bounds is None


@pytest.mark.parametrize(("unstated_grace_s", "served"), [(0.0, True), (900.0, False)])
def test_a_job_of_unknown_work_has_a_grace_of_its_own(unstated_grace_s: float, served: bool) -> None:
    """Beside a shorter job that takes all GPUs, it gets its share once that grace is over."""
    policy = ShadowPrice(grace=100.0, grace_s=1e5, unstated_grace_s=unstated_grace_s)
    held = started(policy, cluster(2), job("unknown", low=1, high=2))
    held.submit(job("short", low=1, high=2, work={"samples": 100}), 600.0)
    assert decided(held, 660.0) == {"short": 2}, "it is ahead of its share"
    assert ("unknown" in decided(held, 900.0)) is served


def test_a_scattered_job_that_is_late_is_gathered() -> None:
    """On two nodes it makes half of what the reference counts with: only as good a place is pinned."""
    held = session(ShadowPrice(**STRICT), cluster(4, 4), HALF_ACROSS)
    places = {"first": (("n0", 3),), "second": (("n1", 3),), "across": (("n0", 1), ("n1", 1))}
    for name, place in places.items():
        held.submit(job(name, gpus=sum(gpus for _, gpus in place), work={"samples": 1e6}), 0.0)
    held.set_allocations([allocated(*each) for each in places.items()], 0.0)
    for time_s in range(0, 300, 60):
        held.decide(float(time_s))
    assert len(held.jobs["across"].placement) == 2, "there is no room on one node"
    held.end("first", 300.0)
    held.decide(300.0)
    assert held.jobs["across"].placement == (("n0", 2),)


@pytest.mark.parametrize(("lost_s", "short"), [(90.0, "43 s more"), (133.0, None)])
def test_a_job_whose_changes_cost_more_than_allowed_is_named(lost_s, short):
    """A change of 73 s and the default interval of 60 s: 133 s are lost."""
    slow = job("slow-to-change", low=1, high=4, work={"samples": 1e4})
    held = started(ShadowPrice(rescale_s=73.0, lost_s=lost_s), cluster(4), slow)
    why = held.explain(0.0)["slow-to-change"].reason
    assert ("bound" in why) == (short is not None)
    assert short is None or short in why


def test_what_is_not_promised_and_what_four_deals_are() -> None:
    # Equal shares would give it every other deal, and end it within 1800 s. It waits for every other job.
    long = job("long", gpus=4, work={"samples": 2000})
    short = [job(f"s{n}", at=450.0 * n, gpus=4, work={"samples": 1900}) for n in range(3)]
    run = replayed([long, *short], mixed_cluster(slow=(1,), fast=(4,)))
    ends_s = {each.id: each.end_s or math.inf for each in run.jobs}
    assert ends_s["long"] > max(1800.0, *(ends_s[each.id] for each in short))
    assert run.info.bounds is not None
    assert run.info.bounds.void == "GPU types differ"
    assert promise(run, fairness(run)["gps"], gpu_usage(run)) is None
    assert why_unpromised(run) == "GPU types differ"

    # A weight of 3 beside 1 is 3 of 4 GPUs: 6300 samples in five deals. The bound is that of any job.
    heavy = job("heavy", low=1, high=4, work={"samples": 6300}, weight=3)
    short = [job(f"s{n:02}", at=230.0 * n, low=1, high=4, work={"samples": 950}) for n in range(20)]
    run = replayed([heavy, *short], cluster(4))
    assert next(each.end_s or 0.0 for each in run.jobs if each.id == "heavy") > 5 * 600
    assert run_metrics(run).jobs_past_gps_bound == 0
    # A job of all four GPUs has had a deal; then every deal one comes that has had none.
    kept = EqualShares(100.0, 20.0)
    kept.enter(job_state(job("wide", gpus=4, work={"samples": 1e6}), FOUR), 0.0)
    served = []
    for deal in range(40):
        if deal:
            kept.enter(job_state(job(f"s{deal:02}", work={"samples": 80}), FOUR), 100.0 * deal)
            kept.end(f"s{deal:02}", 80.0)
        assert len([*kept.advance(100.0 * deal, GPUS, rates_of)]) <= 2
        served.append(kept.share("wide") is not None)
    waits = [len(run) for run in "".join("x" if each else "." for each in served).split("x")]
    assert served.count(True) >= 40 / 4
    assert max(waits) <= 3, "at most two jobs take part at a time"


GPUS = 4
FOUR = Speeds(curves(), node_states(cluster(GPUS)))
TERMS = EqualDeals(grace=0.0, grace_s=50.0, deal_s=100.0, lost_s=20.0)


def rates_of(job: JobState) -> tuple[Ints, Floats]:
    """One sample a GPU-second, within the job's limits."""
    sizes = np.arange(GPUS + 1)
    able = (sizes >= job.spec.min_gpus) & (sizes <= job.max_gpus(GPUS))
    return sizes, np.where(able, sizes, 0).astype(float)


def test_a_job_that_really_goes_on_keeps_its_share() -> None:
    """What it has left is not known here: only the real job says that it is done."""
    kept = EqualShares(TERMS.deal_s, TERMS.lost_s)
    kept.enter(job_state(job("a", low=1, high=4, work={"samples": 100}), FOUR), 0.0)
    assert not [*kept.advance(150.0, GPUS, rates_of)]
    share = kept.share("a")
    assert (share.gpus, share.credit, share.target) == (4, pytest.approx(320.0), pytest.approx(640.0))
    kept.end("a", 400.0)
    assert [*kept.advance(300.0, GPUS, rates_of)] == [(200.0, "a")]
