from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.runinfo import EqualDeals, RunInfo
from pliant.tools.report import equal_shares, isolated
from pliant.tools.report.equal_shares import DealtJob, dealt_jobs, entry_times_s, equal_deal_ends
from pliant.tools.report.fairness import allowed_ends_s
from pliant.tools.report.isolated import rate_at, reference_jobs, usable_curve
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.sections import guarantee_section
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import by_id, first_come, one_by_one, ran, shared, story, submit

FOUR = ((0.0, 4),)


class entry(NamedTuple):  # noqa: N801
    id: str
    arrival_s: float
    samples: float
    curve: tuple[tuple[float, float], ...] = ((16.0, 16.0),)
    demand: float | None = None


def in_columns(jobs):
    curves = sorted({each.curve for each in jobs})
    return isolated.ReferenceJobs(
        np.arange(len(jobs)),
        np.array([each.arrival_s for each in jobs], np.float64),
        np.array([each.samples for each in jobs], np.float64),
        curves,
        np.array([curves.index(each.curve) for each in jobs], np.int64),
        np.array([each.samples if each.demand is None else each.demand for each in jobs], np.float64),
    )


def ends_by_id(jobs, finishes):
    return {each.id: end for each, end in zip(jobs, finishes.tolist(), strict=True) if end == end}


def fluid_finishes(jobs, capacity):
    return ends_by_id(jobs, equal_shares.fluid_finishes(in_columns(jobs), capacity))


def gps_finishes(jobs, capacity):
    shared = equal_shares.gps_jobs(in_columns(jobs))
    return ends_by_id(jobs, equal_shares.fluid_finishes(shared, capacity))


# Figure 1 of Ares: equal sharing of 2, 2 and 4 whole-cluster hours from time 0 ends at 6, 6 and 8.
def test_fluid_and_gps_shares_by_hand() -> None:
    jobs = [entry("a", 0, 8.0), entry("b", 0, 8.0), entry("c", 0, 16.0)]
    for system in (fluid_finishes, gps_finishes):
        assert system(jobs, FOUR) == pytest.approx({"a": 6.0, "b": 6.0, "c": 8.0})
    # Two GPUs each at first: a does 3 a second, b 2. At 2 a is done with its 6; b has 8 of 12 left and does
    # 4 a second alone on four GPUs: two more seconds.
    jobs = [entry("a", 0, 6.0, ((1, 2.0), (2, 3.0))), entry("b", 0, 12.0)]
    assert fluid_finishes(jobs, FOUR) == pytest.approx({"a": 2.0, "b": 4.0})
    # Eight jobs on four GPUs hold half of one each: 5 samples a second where one GPU does 10.
    jobs = [entry(f"j{n}", 0, 10.0, ((1, 10.0), (4, 20.0))) for n in range(8)]
    assert list(fluid_finishes(jobs, FOUR).values()) == pytest.approx([2.0] * 8)

    # Alone on four GPUs: a runs on one, b is 1.5 times as fast on all as on one, c scales linearly.
    curves = {"a": ((1, 1.0),), "b": ((1, 1.0), (4, 1.5)), "c": ((1, 1.0), (4, 4.0))}
    for name, ends_s in {"a": 12.0, "b": 8.0, "c": 3.0}.items():
        assert gps_finishes([entry(name, 0, 12.0, curves[name])], FOUR) == pytest.approx({name: ends_s})
    # On its two GPUs a does 3 a second, so its demand is 8 GPU-seconds; on one it would do 2, and gets
    # 1.5. It shares two GPUs with b until b is done with its 2 GPU-seconds at 2, and then has both.
    jobs = [entry("a", 0, 12.0, ((1, 2.0), (2, 3.0)), demand=8.0), entry("b", 0, 2.0)]
    assert gps_finishes(jobs, ((0.0, 2),)) == pytest.approx({"b": 2.0, "a": 5.0})

    # Three GPUs are slower than two: from two on the curve is flat until it is back at 18, at 3.5 GPUs.
    curve = ((1, 10.0), (2, 18.0), (3, 14.0), (4, 22.0), (8, 20.0))
    assert usable_curve(curve, 8) == ((1, 10.0), (2, 18.0), (3.5, 18.0), (4, 22.0))
    assert usable_curve(curve, 3) == ((1, 10.0), (2, 18.0))
    assert usable_curve(curve[:2], 3) == curve[:2]
    assert usable_curve(curve[::3], 2) == ((1, 10.0), (2, 14.0))
    assert usable_curve(curve[3:], 2) == ((2, 11.0),)
    for gpus, rate in ((0.5, 5.0), (1, 10.0), (1.5, 14.0), (3, 24.0), (9, 30.0)):
        assert rate_at(((1, 10.0), (2, 18.0), (4, 30.0)), gpus) == pytest.approx(rate)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8), st.floats(0.1, 10.0))
def test_a_usable_curve_is_the_running_maximum(rates, share):
    curve = tuple(enumerate(rates, start=1))
    usable = usable_curve(curve, len(rates))
    fine = [min(share, step * share / 2000) for step in range(1, 2001)]
    best = max(rate_at(curve, gpus) for gpus in fine)
    assert rate_at(usable, share) == pytest.approx(best, rel=0.05, abs=0.2)
    assert all(rate_at(usable, low) <= rate_at(usable, high) for low, high in pairwise(fine))


@given(
    st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6),
    st.integers(1, 3),
    st.floats(0.1, 50.0),
    st.floats(0.01, 20.0),
)
def test_gps_gives_the_smaller_of_a_curve_and_a_line(rates, apart, per_gpu, share):
    curve = usable_curve(
        tuple((apart * size, rate) for size, rate in enumerate(rates, 1)), apart * len(rates)
    )
    found = rate_at(isolated.at_most_linear(curve, per_gpu), share)
    assert found == pytest.approx(min(rate_at(curve, share), per_gpu * share))


def test_demand_is_at_the_requested_size_or_the_best_below():
    curve = ((1, 4.0), (2, 6.0), (4, 3.0))
    for spec, demand in ((job("a", gpus=4), 4 * 12 / 3.0), (job("a", gpus=4, low=1), 4 * 12 / 6.0)):
        assert reference_jobs(story(submit(spec, 12.0, curve))).demand_gpu_s[0] == demand
    run = story(submit(job("a", gpus=2), 12.0, ((1, 2.0), (2, 3.0))))
    assert reference_jobs(run).demand_gpu_s[0] == 2 * 12.0 / 3.0


@pytest.mark.parametrize("system", [fluid_finishes, gps_finishes])
def test_lost_nodes_slow_jobs_and_without_gpus_none_ends(system):
    jobs = [entry("a", 0, 8.0)]
    assert system(jobs, ((0.0, 4), (1.0, 0), (2.0, 2))) == pytest.approx({"a": 4.0})
    assert system(jobs, ((0.0, 4), (1.0, 0))) == system([], FOUR) == {}


def test_a_cancelled_job_shared_with_the_work_it_did():
    known = submit(job("a"), 100.0), submit(job("b"), 100.0)
    cancelled = Event(3, "cancel", "a", 0, samples_done=3.0)
    run = story(*known, submit(job("c")), submit(job("d"), 5.0, ()), cancelled)
    found = reference_jobs(run)
    assert (found.job.tolist(), found.samples.tolist()) == ([0, 1], [3.0, 100.0])


@pytest.mark.parametrize("stated", [12.0, None])
def test_a_demand_that_the_log_states_is_taken(stated):
    detail = {"demand_gpu_s": stated} if stated else {}
    arrival = submit(job("a", gpus=2), 8.0, ((1, 1.0),))
    arrival = replace(arrival, detail={**arrival.detail, **detail})
    assert reference_jobs(story(arrival)).demand_gpu_s[0] == (stated or 16.0)
    run = story(arrival, Event(3, "cancel", "a", 0, samples_done=2.0))
    assert reference_jobs(run).demand_gpu_s[0] == (stated or 16.0) / 4


@pytest.mark.parametrize("outcome", [[], [Event(0, "reject", "big")]])
def test_a_job_that_no_policy_can_run_shares_with_no_other(outcome):
    """Two types of two GPUs: a gang of three never runs, one of two that is rejected could have."""
    nodes = Cluster(nodes=(Node(name="x", gpus=2, gpu_type="x"), Node(name="y", gpus=2, gpu_type="y")))
    jobs = [submit(job("a", gpus=2), 4.0), submit(job("big", gpus=3), 9.0), submit(job("c", gpus=2), 6.0)]
    run = story(*jobs, Event(0, "reject", "c"), *outcome, nodes=nodes)
    assert [run.jobs.id(row) for row in reference_jobs(run).job] == ["a", "c"]


quarters = st.integers(0, 40).map(lambda n: n / 4)
works = st.integers(1, 40).map(float)
linear_jobs = st.lists(st.tuples(quarters, works), min_size=1, max_size=12).map(
    lambda rows: [entry(f"j{n:02}", at, work) for n, (at, work) in enumerate(sorted(rows))]
)


def test_few_curves_and_many_end_at_the_same_times(monkeypatch):
    jobs = [entry(f"j{n}", n % 7, 5.0 + n % 11, ((1.0, 1.0), (2.0 + n % 3, 2.0))) for n in range(40)]
    few = fluid_finishes(jobs := sorted(jobs, key=lambda each: each.arrival_s), FOUR)
    monkeypatch.setattr(equal_shares, "_FEW", 0)
    assert fluid_finishes(jobs, FOUR) == few


@given(linear_jobs, st.integers(1, 16))
def test_with_linear_curves_both_keep_every_gpu_busy(jobs, gpus):
    """The last finish is that of one server of speed M that serves the jobs in any order."""
    fluid, gps = fluid_finishes(jobs, ((0.0, gpus),)), gps_finishes(jobs, ((0.0, gpus),))
    assert fluid == pytest.approx(gps)
    assert set(fluid) == {each.id for each in jobs}
    free = 0.0
    for each in jobs:
        free = max(free, each.arrival_s) + each.samples / gpus
    assert max(gps.values()) == pytest.approx(free)


def isolated_jcts(*events, **info):
    run = story(*events, **info)
    jobs = reference_jobs(run)
    jcts_s = (isolated.isolated_finishes(run, jobs) - jobs.arrival_s).tolist()
    return {run.jobs.id(row): jct_s for row, jct_s in zip(jobs.job, jcts_s, strict=True) if jct_s == jct_s}


def test_isolated_times_of_a_share_of_the_cluster() -> None:
    # Alone in the cluster, v is 4: the two GPUs it asked for are its own, 10 samples take 5 s.
    alone = isolated_jcts(submit(job("a", gpus=2), 10.0), *ran("a", 7, 12, 2))
    assert alone == {"a": 5.0}
    # Of four GPUs a and b, one after the other, asked for two each.
    ends = [*ran("a", 0, 5, 2), *ran("b", 5, 10, 2)]
    kept = [submit(job("a", gpus=2, low=1), 10.0), submit(job("b", at=5, gpus=2), 10.0)]
    assert isolated_jcts(*kept, *ends) == {"a": 5.0, "b": 5.0}
    ends[2] = replace(ends[2], gpus=1)
    assert isolated_jcts(*kept, *ends) == {"a": 2.5, "b": 5.0}
    # Three jobs from 0 to 12 on 4 GPUs: v = 4/3. a asked for 4: 12 s alone, times 4 / (4/3) = 36 s.
    jobs = [submit(job("a", gpus=4), 48.0), submit(job("b"), 12.0), submit(job("c"), 12.0)]
    ends = [*ran("a", 0, 12, 4), *ran("b", 0, 12), *ran("c", 0, 12)]
    assert isolated_jcts(*jobs, *ends) == pytest.approx({"a": 36.0, "b": 12.0, "c": 12.0})
    found = isolated_jcts(submit(job("a"), 4.0), submit(job("b")), *ran("b", 0, 3))
    assert found == {}

    # a lives from 0 to 30, c with it to 10, b from 10 to 20: 5/3 active, v = 4 / (5/3) = 2.4.
    # It asked for 3 GPUs: 8 s alone, times 3 / 2.4 = 10 s.
    curve = ((1, 1.0), (2, 2.0), (3, 3.0))
    others = [submit(job("c"), 5.0), submit(job("b", at=10), 5.0)]
    ends = [*ran("c", 5, 10), *ran("b", 15, 20), *ran("a", 20, 30, 3)]
    rigid, elastic = (submit(each, 24.0, curve) for each in (job("a", gpus=3), job("a", gpus=1, low=1)))
    assert isolated_jcts(rigid, *others, *ends)["a"] == pytest.approx(10.0)
    # Of its own choice: on 2 GPUs a takes 24 / 2 = 12 s, on 3 it takes 24 / 3 = 8 s: 12 - 0.4 · 4 = 10.4 s.
    assert isolated_jcts(elastic, *others, *ends)["a"] == pytest.approx(10.4)

    # Two GPUs are its best; alone on all four it would still take 10 / 2 s.
    curve = ((1, 1.0), (2, 2.0), (4, 1.5))
    alone = isolated_jcts(submit(job("a", gpus=1, low=1), 10.0, curve), *ran("a", 0, 5, 2))
    assert alone == {"a": 5.0}
    # Two jobs on one GPU from 0 to 9: v = 1/2 for a: 3 s alone are 6 s. b is there to 12: (9·2 + 3)/12.
    jobs = [submit(job("a", gpus=1, low=1), 3.0), submit(job("b", gpus=1, low=1), 3.0)]
    resized = Event(9, "grow", "b", 2)  # so that the policy counts as one that sizes jobs
    ends = [*ran("a", 6, 9), Event(0, "start", "b", 1), resized, Event(12, "finish", "b", 0)]
    assert isolated_jcts(*jobs, *ends, nodes=cluster(1)) == pytest.approx(
        {"a": 6.0, "b": 3.0 * (9 * 2 + 3) / 12}
    )
    # Only isolated times depend on the policy.
    with patch("pliant.tools.report.fairness.fluid_finishes", wraps=equal_shares.fluid_finishes) as computed:
        one, other = (made.fair for made in make_report([fold(first_come()), fold(shared())]).runs)
    assert computed.call_count == 1, "one for both runs"
    alike = {
        name: by_id(one[name].run, one[name].finish_s) == by_id(other[name].run, other[name].finish_s)
        for name in one
    }
    assert alike == {"fair-share": True, "gps": True, "isolated": False}


TERMS = EqualDeals(grace=0.0, grace_s=0.0, deal_s=100.0, lost_s=20.0)


def linear(
    name: str, samples: float, *, at: float = 0.0, least: int = 1, most: int = 4, **more: Any
) -> DealtJob:
    """One sample a GPU-second; it enters at a time."""
    return DealtJob(name, at, samples, tuple((size, float(size)) for size in range(least, most + 1)), **more)


def deal_ends(jobs: Iterable[DealtJob], *more: Any) -> dict[str, float]:
    ordered = sorted(jobs, key=lambda job: job.enters_s)
    return {job.id: end_s for job, end_s in equal_deal_ends(ordered, *more)}


def test_equal_deals_and_the_grace_before_them() -> None:
    # Two GPUs each for 80 of 100 s: 160 samples a deal; b then has all four, 320.
    found = deal_ends([linear("a", 160), linear("b", 480)], [(0.0, 4)], TERMS)
    assert found == {"a": 100.0, "b": 200.0}
    # Three jobs of at least two GPUs on four: two have a deal, then the third comes first.
    jobs = [linear(name, 160, least=2, most=2) for name in "abc"]
    assert deal_ends(jobs, [(0.0, 4)], TERMS) == {"a": 100.0, "b": 100.0, "c": 200.0}
    # At 50 s all are gone, after 30 s of training on four: 40 of 160 samples are left for 200 s on.
    found = deal_ends([linear("a", 160)], [(0.0, 4), (50.0, 0), (200.0, 4)], TERMS)
    assert found == {"a": 300.0}
    jobs = [linear("a", 320), linear("stopped", 1e6, stopped_s=90.0)]
    assert deal_ends(jobs, [(0.0, 4)], TERMS)["a"] == 200.0
    assert deal_ends([jobs[0]], [(0.0, 0)], TERMS) == {}
    # From 100 s on one GPU is there: too few for the job that needs two, while the other goes on alone.
    jobs = [linear("wide", 1000, least=2), linear("later", 80, at=250.0)]
    assert deal_ends(jobs, [(0.0, 4), (100.0, 1)], TERMS) == {"later": 400.0}

    # 50 s and twice the 10 s that it takes alone: at 70 s, when the cluster is empty.
    only = story(submit(job("a", gpus=1, low=1, high=4), 10.0))
    terms = TERMS.model_copy(update={"grace": 2.0, "grace_s": 50.0})
    assert deal_ends(dealt_jobs(only, terms), [(0.0, 4)], terms) == {"a": 170.0}
    jobs = [linear("first", 500), linear("a", 10, at=20.0)]
    assert deal_ends(jobs, [(0.0, 4)], TERMS)["a"] == 200.0
    assert terms.grace_of(10.0) == 70.0
    assert terms.grace_of(0.0) == 50.0, "as in files that do not say it"
    own = terms.model_copy(update={"unstated_grace_s": 30.0})
    assert (own.grace_of(0.0), own.grace_of(10.0)) == (30.0, 70.0)


def test_jobs_without_time_and_jobs_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # A file may state deals without time; the policy refuses it. A later job changes nothing.
    jobs = [linear("a", 10), linear("later", 10, at=950.0)]
    for lost_s in (100.0, 250.0):
        assert deal_ends(jobs, [(0.0, 4)], TERMS.model_copy(update={"lost_s": lost_s})) == {}
    monkeypatch.setattr(equal_shares, "_MOST_DEALS", 10)
    endless = [linear("a", 160), linear("endless", 1e18)]
    assert deal_ends(endless, [(0.0, 4)], TERMS) == {"a": 100.0}
    # Each job is held against its own bound.
    for end_s, past in ((90.0, 0), (100.0, 0), (110.0, 1)):
        found = run_metrics(late(end_s))
        assert (found.gps_bound_s, found.worst_bound_used) == pytest.approx((80.0, end_s / 100.0))
        assert found.jobs_past_gps_bound == past
    section = guarantee_section(make_report([late(110.0)]))
    assert section.rows == (("mine", "1.333 min", "1.5 min", "110.0", "1", "1", "only 1.5 min"),)


def late(end_s: float) -> RunRecord:
    """A job of 80 s alone that the reference ends at 100 s, and GPS at 20 s."""
    only: Job = job("only", gpus=1, low=1, high=4)
    bounds = {"equal_deals": TERMS.model_dump()}
    return story(submit(only, 80.0), *ran("only", 0.0, end_s, 4), policy="mine", bounds=bounds)


SLOW = {"equal_deals": TERMS.model_copy(update={"rescale_s": 5.0}).model_dump()}
COOL = {"nodes": ({"name": "n0", "gpus": 4},), "cooldown_seconds": 60}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"interval_s": 15.0}, "a change and the wait for it take 25 s, and lost_s is 20"),
        ({"cluster": COOL}, "keeps jobs where they are"),
        ({"bounds": {"equal_deals": TERMS.model_dump(), "void": "it is Monday"}}, "it is Monday"),
        ({"bounds": SLOW}, "a change takes 10 s, and rescale_s is 5"),
        ({"bounds": SLOW, "start_cost_s": 1.0}, "a change takes 10 s, and rescale_s is 5"),
    ],
)
def test_void_promises_are_explained_and_no_job_is_late(more: dict[str, Any], why: str):
    run = late(110.0)
    stated = RunInfo.model_validate(run.info.model_dump(by_alias=True) | {"rescale_cost_s": 10.0} | more)
    found = replace(run, info=stated)
    metrics = run_metrics(found)
    assert (metrics.jobs_past_gps_bound, metrics.worst_bound_used) == (None, None)
    (row,) = guarantee_section(make_report([found])).rows
    assert why in row[-1]


def test_jobs_enter_as_limits_arrays_and_other_jobs_allow() -> None:
    nodes = {"nodes": ({"name": "n0", "gpus": 4},), "user_limits": {"ann": {"jobs": 1}}}
    jobs = [
        job("a", user="ann"),
        job("b", at=1.0, user="ann"),
        job("c", at=2.0, user="ann", priority=1),
        job("d", at=1.0, after={"a": "ok"}),
        job("e", at=3.0, array={"name": "x", "index": 0, "limit": 1}),
        job("f", at=4.0, array={"name": "x", "index": 1, "limit": 1}),
    ]
    events = [submit(each, 40.0) for each in jobs]
    ends = {"a": 50.0, "c": 70.0, "e": 60.0}
    for name, end_s in ends.items():
        events += ran(name, end_s - 10, end_s, 4)
    run = story(*sorted(events, key=lambda event: event.time))
    run = replace(run, info=run.info.model_copy(update={"cluster": Cluster.model_validate(nodes)}))
    assert by_id(run, entry_times_s(run)) == {"a": 0.0, "c": 50.0, "b": 70.0, "d": 50.0, "e": 3.0, "f": 60.0}
    # a finishes at 40; b fails at 20, and with it the job that needs it to finish.
    waits = {"x": {"a": "ok"}, "y": {"b": "ok"}, "z": {"b": "any"}, "both": {"a": "any", "b": "any"}}
    run = story(
        *(submit(job(name), 40.0) for name in "ab"),
        *(submit(job(name, after=after), 40.0) for name, after in waits.items()),
        *(Event(0.0, "start", name, 1) for name in "ab"),
        Event(20.0, "fail", "b", 0),
        Event(20.0, "cancel", "y", 0),
        Event(40.0, "finish", "a", 0),
    )
    assert by_id(run, entry_times_s(run)) == {"a": 0.0, "b": 0.0, "x": 40.0, "z": 20.0, "both": 40.0}


def test_the_bound_of_a_run_and_what_its_guarantee_names() -> None:
    # On two GPUs each a ends in the first deal, of which 80 s train, and b has 480 samples left: two more
    # deals on four. In GPS they end at 40 and 180: 60 and 120 s before.
    jobs = {"a": 80.0, "b": 640.0}
    arrivals = [submit(job(name, gpus=1, low=1, high=4), samples) for name, samples in jobs.items()]
    bounds = {"equal_deals": TERMS.model_dump()}
    run = story(*arrivals, *ran("a", 0, 40, 2), *ran("b", 0, 180, 2), policy="mine", bounds=bounds)
    assert by_id(run, allowed_ends_s(run)) == {"a": 100.0, "b": 300.0}
    assert run_metrics(run).gps_bound_s == pytest.approx(300 - 180)
    # The guarantee names bound delay and latest jobs.
    # In GPS b and c end at 6 s, here at 6 and 8; an eighth of the 8 s in which all GPUs are held is allowed
    section = guarantee_section(make_report([longest_first()]))
    assert section.rows == (("mine", "1 s", "2 s", "114.3", "1", "3", "c 2 s"),)
    falling = tuple(40.0 * left for left in range(12, 0, -1))
    section = guarantee_section(make_report([longest_first(falling, gps_delay=0.0)]))
    *_, past, of, named = section.rows[0]
    assert (past, of) == ("6", "12")
    assert named.split(", ")[0].startswith("l ")
    assert named.split(", ")[5:] == ["1 more"]
    report = make_report([one_by_one((16.0, 8.0, 8.0), policy="mine"), longest_first()])
    assert [row[0] for row in guarantee_section(report).rows] == [report.runs[1].label]

    for reference in ("gps", "fair-share"):
        text = render(make_report([longest_first()], reference=reference), "md", Extras())
        assert ("What the policy promises against GPS" in text) is (reference == "gps")


def longest_first(work: Sequence[float] = (16.0, 8.0, 8.0), gps_delay: float = 0.125) -> RunRecord:
    return one_by_one(work, policy="mine", bounds={"gps_delay": gps_delay})
