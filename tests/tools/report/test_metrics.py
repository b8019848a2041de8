import json
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import USER, Shares
from pliant.schemas.event import Event
from pliant.schemas.job import Utility
from pliant.schemas.metrics import JOB_METRICS, RUN_METRICS, TEST_METRICS, JobFigures, PairedJcts, RunMetrics
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report import metrics
from pliant.tools.report.fairness import fairness
from pliant.tools.report.figures import draw
from pliant.tools.report.metrics import (
    MetricOptions,
    lower_bounds,
    percentile,
    run_metrics,
    team_figures,
    team_gpus_over_time,
)
from pliant.tools.report.read_run import fold, read_run
from pliant.tools.report.records import gpu_usage
from pliant.tools.report.rendering.output import Extras, document, render
from pliant.tools.report.rendering.sections import team_sections
from pliant.tools.report.report import bound_caveats, make_report
from tests.builders import FREE_CHANGES, cluster, job, mixed_cluster
from tests.effort import examples
from tests.tools.report.runs import begin, by_id, first_come, one_by_one, ran, story, submit


# Figure 1 of Ares: 2, 2 and 4 whole-cluster hours. One by one: 2, 4, 8; shared equally: 6, 6, 8.
def test_the_order_of_jobs_decides_times_and_fairness():
    found = run_metrics(one_by_one())
    assert found.mean_jct_s == pytest.approx((2 + 4 + 8) / 3)
    assert (found.median_jct_s, found.makespan_s) == (4.0, 8.0)
    assert found.mean_queueing_delay_s == pytest.approx((0 + 2 + 4) / 3)
    assert found.mean_ftf == pytest.approx((2 / 6 + 4 / 6 + 1) / 3)
    assert found.worst_ftf == pytest.approx(1.0)
    assert found.unfair_fraction == found.unfair_fraction_gps == 0.0
    assert (found.utilization, found.sjs_efficiency) == (1.0, pytest.approx(1.0))
    assert found.worst_gps_delay_s == pytest.approx(0.0)
    found = run_metrics(one_by_one(work=(16.0, 8.0, 8.0)))
    # Ends at 4, 6, 8 where sharing ends at 8, 6, 6.
    assert found.worst_ftf == pytest.approx(8 / 6)
    assert found.unfair_fraction == pytest.approx(1 / 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_is_numpys(values, q):
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, 100 * q)), abs=1e-6)


def test_unfinished_jobs_and_ftf_of_rounding() -> None:
    others = [Event(1, "start", "b", 1), Event(2, "fail", "b", 0), Event(2, "cancel", "c", 0)]
    arrivals = (submit(job(name), 4.0) for name in "abcde")
    found = run_metrics(story(*arrivals, *ran("a", 0, 4), *others, Event(2, "reject", "d", 0)))
    kinds = ("submitted", "finished", "failed", "cancelled", "rejected")
    assert [getattr(found, f"jobs_{kind}") for kind in kinds] == [5, 1, 1, 1, 1]
    assert (found.mean_jct_s, found.drop_ratio, found.mean_queueing_delay_s) == (4.0, 0.2, 0.5)
    found = run_metrics(story(submit(job("a"), 4.0), Event(0, "start", "a", 1)))
    assert (found.jobs_submitted, found.jobs_finished) == (1, 0)
    names = ("mean_jct_s", "p99_jct_s", "makespan_s", "utilization", "rescales_per_hour", "mean_ftf")
    assert {getattr(found, name) for name in (*names, "worst_ftf_gps", "unfair_fraction")} == {None}
    empty = run_metrics(story())
    assert (empty.jobs_submitted, empty.drop_ratio, empty.preemptions_per_job) == (0, None, None)
    # FTF of one job of no time and of rounding.
    found = run_metrics(story(submit(job("a", gpus=2), 6.0), *ran("a", 0, 3, 2)))
    assert (found.mean_ftf, found.unfair_fraction) == (1.0, 0.0)
    # GPS gives it all four GPUs, of which it can use two.
    assert (found.mean_ftf_gps, found.unfair_fraction_gps) == (1.0, 0.0)
    assert found.utilization == 0.5
    run = story(*(submit(job(name), 4.0) for name in "ab"), *ran("a", 0, 4), *ran("b", 0, 0))
    assert [*by_id(run, fairness(run)["fair-share"].ftf)] == ["a"]

    def unfair(end_s):
        return run_metrics(story(submit(job("a"), 4.0), *ran("a", 0, end_s))).unfair_fraction

    assert (unfair(4 * (1 + 1e-12)), unfair(4 * (1 + 1e-6))) == (0.0, 1.0)
    run = story(submit(job("a")), Event(0, "start", "a", 1), Event(4, "finish", "a", 0, samples_done=2.0))
    assert (run_metrics(run).mean_jct_s, run_metrics(run).mean_ftf) == (4.0, 2.0)


def test_each_reference_shares_in_its_own_way_from_arrivals_on():
    """Fluid: a has 20 samples left at 10, both do 1.5 a second, b ends at 20 and a, with 5 left, at 22.5.
    GPS: a counts with 80 GPU seconds and b with 20. At 10 a has 40 left; on two GPUs each, b ends at 20 and
    a, with 20 left, at 25.
    Isolated: 1.5 jobs are active on average, so each is alone on 8/3 GPUs: between two and three."""
    # One after the other on all four GPUs, and b, which asked for two, comes at 10.
    curve = ((1, 1.0), (2, 1.5), (4, 2.0))
    a = submit(job("a", gpus=4, low=1), 40.0, curve)
    b = submit(job("b", at=10, gpus=2, low=1, high=4), 15.0, curve)
    run = story(a, b, *ran("a", 0, 20, 4), *ran("b", 20, 30, 4))
    found = run_metrics(run)
    alone = [work / 1.5 + 2 / 3 * (work / 1.75 - work / 1.5) for work in (40, 15)]
    for suffix, shared_s in (("", (22.5, 10)), ("_gps", (25, 10)), ("_isolated", alone)):
        ftf = [20 / seconds for seconds in shared_s]
        names = (f"mean_ftf{suffix}", f"worst_ftf{suffix}", f"unfair_fraction{suffix}")
        expected = (sum(ftf) / 2, max(ftf), 0.5)
        assert [getattr(found, name) for name in names] == pytest.approx(expected)
    assert by_id(run, fairness(run)["gps"].delays_s()) == pytest.approx({"a": 20 - 25, "b": 30 - 20})
    assert found.worst_gps_delay_s == pytest.approx(10)


@pytest.mark.parametrize(("late_s", "past"), [(2.0**-22, 0), (2.0**-18, 1)])
def test_what_a_clock_cannot_resolve_is_not_past_a_bound(late_s, past):
    """Of times of today a float resolves 2⁻²² s."""
    start_s = 1.8e9
    events = submit(job("a"), 4.0, at=start_s), *ran("a", start_s, start_s + 4 + late_s)
    run = story(*events, at=start_s, simulated=False, profile_hash="cd" * 32, bounds={"gps_delay": 0.0})
    assert run_metrics(run).jobs_past_gps_bound == past


def test_only_a_stated_bound_is_checked_and_counted():
    # All four GPUs are held from 0 to 8: a quarter of that.
    found = run_metrics(one_by_one(policy="mine", bounds={"gps_delay": 0.25}))
    assert (found.gps_bound_s, found.jobs_past_gps_bound) == (2.0, 0)
    found = run_metrics(one_by_one(policy="ares", parameters={"alpha": 0.8}))
    assert (found.gps_bound_s, found.jobs_past_gps_bound) == (None, None)
    assert found.worst_gps_delay_s == pytest.approx(0.0)
    # c ends at 8, in GPS at 6: two seconds late. A quarter of 8 s allows that, a ninth does not.
    found = run_metrics(one_by_one(work=(16.0, 8.0, 8.0), bounds={"gps_delay": 0.25}))
    assert found.worst_gps_delay_s == pytest.approx(2.0)
    assert found.jobs_past_gps_bound == 0
    strict = run_metrics(one_by_one(work=(16.0, 8.0, 8.0), bounds={"gps_delay": 1 / 9}))
    assert strict.jobs_past_gps_bound == 1


@pytest.mark.parametrize("began_s", [0.0, 1e9])
def test_utilization_counts_the_gpus_that_are_up(began_s):
    # 4 GPUs for 2 s, then 2 for 2 s: 12 GPU-seconds, of which a held 2 · 4 = 8.
    lost = Event(began_s + 2, "node_down", detail={"node": "n1"})
    start, finish = ran("a", began_s, began_s + 4, 2)
    back = Event(began_s + 9, "node_up", detail={"node": "n1"})
    arrival = submit(job("a", gpus=2), 8.0, at=began_s)
    run = story(arrival, start, lost, finish, back, nodes=cluster(2, 2), at=max(0.0, began_s - 50))
    assert run_metrics(run).utilization == pytest.approx(8 / 12)


def test_a_full_cluster_rates_of_changes_and_time_of_decisions() -> None:
    changes = [(1, "start", "a", 4), (3, "shrink", "a", 3), (3, "start", "b", 1), (6, "finish", "b", 0)]
    changes += [(7, "grow", "a", 4), (8, "finish", "a", 0)]
    run = story(submit(job("a", gpus=4, low=1)), submit(job("b")), *(Event(*change) for change in changes))
    assert gpu_usage(run).longest_full_s() == 5.0
    # Preemptions and rescales count per job and hour.
    changes = [(0, "start", "a", 1), (0, "start", "b", 1), (1, "grow", "a", 2), (2, "preempt", "a", 0)]
    changes += [(3, "resume", "a", 2), (4, "shrink", "a", 1), (900, "finish", "a", 0)]
    arrivals = (submit(job(name, low=1), 4.0) for name in "abc")
    found = run_metrics(story(*arrivals, *(Event(*change) for change in changes)))
    assert (found.preemptions_per_job, found.rescales_per_job, found.rescales_per_hour) == (0.5, 1.0, 8.0)
    # Of the two rescales one is at that moment and one after it.
    changes = [(0, "start", "a", 1), (0, "start", "b", 1), (900, "grow", "b", 2), (900, "finish", "a", 0)]
    events = (Event(*change) for change in [*changes, (1000, "shrink", "b", 1)])
    found = run_metrics(story(*(submit(job(name, low=1), 4.0) for name in "ab"), *events))
    assert (found.rescales_per_job, found.rescales_per_hour) == (1.0, 4.0)
    # Decision time from the counters or from the log.
    counted = story(counters={"decisions": 4.0, "decision_seconds": 0.002})
    assert run_metrics(counted).mean_decision_ms == pytest.approx(0.5)
    logged = story(*(Event(1, "decision", detail={"decision_seconds": s}) for s in (0.001, 0.003)))
    assert run_metrics(logged).mean_decision_ms == pytest.approx(2.0)
    assert run_metrics(story()).mean_decision_ms is None
    none = story(counters={"decisions": 0.0, "decision_seconds": 0.0})
    assert run_metrics(none).mean_decision_ms is None
    untimed = story(counters={"decisions": 4.0})
    assert run_metrics(untimed).mean_decision_ms is None, "no time is not a time of nothing"


@pytest.mark.parametrize(
    ("utility", "jct", "expected"),
    [
        ({"shape": "constant", "value": 3.0}, 100, 3.0),
        ({"shape": "step", "value": 3.0, "target": 10.0}, 10, 3.0),
        ({"shape": "step", "value": 3.0, "target": 10.0}, 10.5, 0.0),
        ({"shape": "sigmoid", "value": 3.0, "decay": 2.0, "target": 10.0}, 10, 1.5),
        ({"shape": "sigmoid", "value": 3.0, "decay": 0.0, "target": 10.0}, 99, 1.5),
        ({"shape": "sigmoid", "value": 3.0, "decay": 6.0, "target": 10.0}, 1e6, pytest.approx(0.0)),
    ],
)
def test_what_finishing_in_time_is_worth(utility, jct, expected):
    assert Utility.model_validate(utility).worth(jct) == expected


def test_utility_completions_and_scaling_efficiency() -> None:
    stated = job("a", utility={"shape": "step", "value": 5.0, "target": 9.0})
    run = story(submit(stated, 4.0), submit(job("b"), 4.0), *ran("a", 0, 4))
    assert run_metrics(run).total_utility == 5.0
    assert run_metrics(one_by_one()).total_utility is None
    found = run_metrics(
        one_by_one(), wanted=MetricOptions(completed_at_s=(1.9, 2.0, 100.0))
    )  # they end at 2, 4, 8
    assert found.jobs_completed_at == ((1.9, 0), (2.0, 1), (100.0, 3))

    # a: 6 s on one GPU, 4 s on two it held: 6 / 8. b: 6 s on one GPU that it held: 6 / 6. Together 12 / 14.
    curve = ((1, 1.0), (2, 1.5))
    arrivals = submit(job("a", gpus=2), 6.0, curve), submit(job("b"), 6.0, curve)
    run = story(*arrivals, *ran("a", 0, 4, 2), *ran("b", 0, 6))
    assert run_metrics(run).sjs_efficiency == pytest.approx(12 / 14)


@pytest.mark.parametrize(("simulated", "efficiency"), [(False, 4 / 6), (True, 8 / 6)])
def test_a_live_job_that_stops_early_counts_what_it_did(simulated, efficiency):
    """It states 8 s of work on one GPU, of which it did 4 in 3 s on two; a replay knows what there was."""
    start, _ = ran("a", 0, 3, 2)
    early = Event(3, "finish", "a", 0, samples_done=4.0)
    world = {"simulated": simulated, "profile_hash": "cd" * 32}
    found = run_metrics(story(submit(job("a", gpus=2), 8.0, ((1, 1.0), (2, 1.5))), start, early, **world))
    assert found.sjs_efficiency == pytest.approx(efficiency)


def test_completion_is_compared_with_targets():
    targets = {"a": 3.0, "b": 9.0}
    late, early = (job(name, utility={"shape": "step", "target": at}) for name, at in targets.items())
    said = [{"admission": {"admitted": admitted}} for admitted in (True, False)]
    run = story(
        *(submit(each, 4.0) for each in (late, early, job("c"))),
        Event(0, "progress", "a", detail=said[0]),
        Event(0, "reject", "c", 0, detail={"reason": "costs more", **said[1]}),
        *(*ran("a", 0, 4), *ran("b", 0, 4)),
    )
    found = run_metrics(run)
    assert (found.jobs_admitted, found.jobs_on_time) == (1, 1)
    assert (found.median_late_s, found.stdev_late_s) == (-2.0, 3.0)
    assert [each.utility for each in run.jobs] == [0.0, 1.0, None]


def test_deadlines_moves_and_changes_of_the_batch_are_counted() -> None:
    # Of kept, late, turned away and failed jobs, and one that is past it: 1 of 5. Not counted are one
    # without a target, one cancelled before it, and two that may yet meet it, one at this moment.
    targets = {"kept": 4.0, "late": 3.0, "turned-away": 9.0, "failed": 9.0, "past": 5.0}
    undecided = {"cancelled": 9.0, "open": 90.0, "due": 6.0}
    stated = {
        name: job(name, utility={"shape": "step", "target": at}) for name, at in (targets | undecided).items()
    }
    run = story(
        *(submit(each, 4.0) for each in (*stated.values(), job("none"))),
        Event(0, "reject", "turned-away", 0, detail={"reason": "too late"}),
        *(event for name in ("kept", "late", "none") for event in ran(name, 0, 4)),
        Event(5, "fail", "failed", 0, detail={"reason": "exit code 1", "final": True}),
        Event(6, "cancel", "cancelled", 0),
    )
    outcomes = {each.id: each.outcome for each in run.jobs}
    assert (outcomes["failed"], outcomes["cancelled"]) == ("failed", "cancelled")
    assert run_metrics(run).deadlines_met == pytest.approx(1 / 5)
    worth = {each.id: each.utility for each in run.jobs}
    ended = dict.fromkeys(("late", "turned-away", "failed", "cancelled"), 0.0)
    assert worth == {"kept": 1.0, **ended, **dict.fromkeys(("past", "open", "due", "none"))}
    assert run_metrics(one_by_one()).deadlines_met is None
    # To another node with the same batch, to another batch in its place, and to another node with one.
    changes = (("n1", 64), ("n1", 128), ("n0", 64))
    start = Event(0, "start", "a", 1, (("n0", 1),), 64)
    moves = (Event(at, "move", "a", 1, ((node, 1),), batch) for at, (node, batch) in enumerate(changes, 1))
    found = run_metrics(story(submit(job("a", low=1), 4.0), start, *moves))
    assert (found.moves_per_job, found.rescales_per_job) == (1.0, 2.0)


def finished(*submits):
    names = [event.job for event in submits]
    return story(*submits, *(event for name in names for event in ran(name, 100.0, 900.0)))


def test_bounds_follow_from_sizes_work_and_arrivals():
    # 12 samples: on 1, 2 and 4 GPUs 6, 4 and 3 s, so 6, 8 and 12 GPU-seconds.
    curve = ((1, 2.0), (2, 3.0), (4, 4.0))
    found = lower_bounds(finished(submit(job("a", gpus=1, low=1), 12.0, curve)))
    assert (found.bound_jct_alone_s, found.cheapest_gpu_s) == (3.0, 6.0)
    assert (found.bound_jct_pooled_s, found.bound_jct_s, found.bound_makespan_s) == (1.5, 3.0, 3.0)
    rigid = lower_bounds(finished(submit(job("a", gpus=4), 12.0, curve)))
    assert (rigid.bound_jct_alone_s, rigid.cheapest_gpu_s) == (3.0, 12.0)
    two = lower_bounds(finished(submit(job("a", gpus=4, low=2), 12.0, curve)))
    assert (two.bound_jct_alone_s, two.cheapest_gpu_s) == (3.0, 8.0), "it never has the GPU that is cheapest"
    # Whole-cluster seconds 8, 2 and 4 at times 0, 1 and 2: a runs to 1, b from 1 to 3, c from 3 to 7, a the
    # rest to 14. JCTs 14, 2 and 5. Alone each takes the same on all four GPUs: 8, 2 and 4.
    rows = (("a", 0, 32.0), ("b", 1, 8.0), ("c", 2, 16.0))
    jobs = [submit(job(name, at=at, gpus=4, low=1), work) for name, at, work in rows]
    found = lower_bounds(finished(*jobs))
    assert found.bound_jct_pooled_s == pytest.approx((14 + 2 + 5) / 3)
    assert found.bound_jct_alone_s == pytest.approx((8 + 2 + 4) / 3)
    assert found.bound_jct_s == found.bound_jct_pooled_s
    assert (found.cheapest_gpu_s, found.bound_makespan_s) == (56.0, 14.0)
    # Pooled, 8 GPU-seconds end at 2; alone on its one GPU the job that came at 5 needs until 13.
    found = lower_bounds(finished(submit(job("a"), 1.0), submit(job("b", at=5), 8.0)))
    assert found.bound_makespan_s == 13.0


def test_bounds_are_of_finished_jobs_of_known_work():
    assert lower_bounds(finished(submit(job("a"), 4.0), submit(job("b")))).bound_jct_alone_s == 2.0
    assert lower_bounds(fold(first_come())).cheapest_gpu_s == 480.0 + 240.0
    assert lower_bounds(story(submit(job("a"), 1.0))) is None
    run = fold(first_come())
    assert run_metrics(run).bound_jct_s is None
    # Alone a takes 120 s, b 60 s. Pooled, b has less left when it comes: it ends at 70, a at 180.
    found = run_metrics(run, wanted=MetricOptions(bound=True))
    assert (found.bound_jct_alone_s, found.bound_jct_pooled_s) == (90.0, (180 + 60) / 2)
    assert bound_caveats(fold(first_come())) == []
    moved = story(submit(job("a"), 1.0), progress="epochs")
    assert "requested batches" in bound_caveats(moved)[0]
    mixed = story(submit(job("a"), 1.0), nodes=mixed_cluster(t4=(2,), v100=(2,)))
    assert "mean speed" in bound_caveats(mixed)[0]


traces = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 800), st.sampled_from([1, 2, 4, 8])),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        job(f"j{n:02}", at=float(at), gpus=gpus, low=1, high=8, gpu_seconds=float(work))
        for n, (at, work, gpus) in enumerate(sorted(rows))
    ]
)


@settings(max_examples=examples(25))
@given(traces)
def test_no_policy_passes_its_bounds_nor_ares_its_time_in_gps(jobs):
    for policy in ("fifo", "ares", "srtf"):
        done = replay(inputs(jobs, cluster(4, 4)), Run(policy, simulated=FREE_CHANGES))
        found = run_metrics(fold(done.log.events(), policy), wanted=MetricOptions(bound=True))
        assert found.jobs_finished == len(jobs)
        assert found.mean_jct_s >= found.bound_jct_s * (1 - 1e-9)
        assert found.makespan_s >= found.bound_makespan_s * (1 - 1e-9)
        if policy == "ares":  # jobs scale linearly
            assert found.unfair_fraction_gps == 0.0
            assert found.worst_gps_delay_s <= 1e-6


@pytest.mark.parametrize(
    ("record", "declared"),
    [(RunMetrics, RUN_METRICS), (JobFigures, JOB_METRICS), (PairedJcts, TEST_METRICS)],
)
def test_every_number_of_a_report_is_declared(record, declared):
    fields = record.model_json_schema()["properties"]
    kinds = {
        name: [each.get("type") for each in field.get("anyOf", [field])] for name, field in fields.items()
    }
    numbers = {name for name, types in kinds.items() if {"number", "integer"} & set(types)}
    assert set(declared) - {"admission"} == numbers - {"seed"}


@pytest.mark.parametrize(
    ("figures", "wrong"),
    [
        ({"sjs_efficiency": 1166.51}, "sjs_efficiency"),
        ({"sjs_efficiency": 0.0}, "sjs_efficiency"),
        ({"unfair_fraction": 1.5}, "unfair_fraction"),
        ({"utilization": -0.1}, "utilization"),
        ({"mean_ftf": 0.0}, "mean_ftf"),
        ({"mean_ftf": inf}, "mean_ftf"),
        ({"mean_jct_s": nan}, "mean_jct_s"),
        ({"mean_jct_s": 101.0}, "mean_jct_s"),  # of a run that was over after 100 s
        ({"worst_ftf": 0.5}, "worst_ftf"),  # with a mean of 0.8
        ({"jobs_on_time": 4}, "jobs_on_time"),  # of three that finished
        ({"sjs_efficiency": 1.05, "utilization": 1 + 1e-12, "mean_ftf": None, "worst_ftf": 0.2}, ""),
        ({"mean_jct_s": 60.0, "worst_gps_delay_s": -65_457.0}, ""),
        # Rounding is relative or absolute by size.
        ({"makespan_s": 0.0, "mean_jct_s": 0.0, "utilization": 0.0, "jobs_finished": 0}, ""),
        ({"makespan_s": 1e6, "mean_jct_s": 1e6 * (1 + 1e-12)}, ""),
        ({"makespan_s": 1e6, "mean_jct_s": 1e6 * (1 + 1e-8)}, "mean_jct_s"),
        ({"makespan_s": 1e-6, "mean_jct_s": 1.5e-6, "utilization": -1e-12}, "mean_jct_s"),
        ({"makespan_s": -1e-6}, "makespan_s"),
    ],
)
def test_values_that_cannot_be_are_named(figures, wrong):
    usual = {"makespan_s": 100.0, "mean_ftf": 0.8, "jobs_finished": 3}
    assert metrics.impossible(usual | figures, RUN_METRICS) == ((wrong,) if wrong else ())
    of_a_job = {"queueing_delay_s": 5.0, "jct_s": 4.0, "ftf": 0.5}
    assert metrics.impossible(of_a_job, JOB_METRICS) == ("jct_s",)


def test_a_report_withholds_what_cannot_be_and_says_so():
    """100 samples at one a second, done in a second by two slots of a cluster of one."""
    events = [submit(job("a"), 100.0), Event(0, "start", "a", 5), Event(1, "finish", "a", 0)]
    report = make_report([fold([begin(), *events])])
    found = json.loads(render(report, "json", Extras()))["runs"][0]
    assert (found["sjs_efficiency"], found["utilization"], found["mean_jct_s"]) == (None, None, 1.0)
    told = "SJS efficiency not known: 20 is impossible, expected above 0 and at most 1.1"
    assert told in found["caveats"]
    for kind in ("table", "md", "html"):
        shown = render(report, kind, Extras())
        assert told in " ".join(shown.split())
        assert "2,000" not in shown


HOUR_S = 3600.0


def test_documents_tables_and_figures_show_teams_if_any(tmp_path):
    """Ann borrows all four GPUs; bob wants his two, and her job shrinks.

    Bob owns two of the four GPUs once he is there; ann had them all for half an hour, then shared.
    """
    nodes = cluster(4).model_copy(update={"shares": Shares(label=USER, half_life_hours=0.0)})
    jobs = [
        job("a", gpus=4, low=2, high=4, gpu_seconds=4 * HOUR_S, user="ann"),
        job("b", at=HOUR_S / 2, gpus=2, gpu_seconds=2 * HOUR_S, user="bob"),
    ]
    done = replay(inputs(jobs, nodes), Run("ares", simulated=FREE_CHANGES))
    write(done.log, done.summary, str(tmp_path / "run.parquet"))
    shared = make_report([read_run(tmp_path / "run.parquet")])
    teams = {each.team: each for each in shared.runs[0].teams}
    assert teams["ann"].service_gpu_hours == pytest.approx(4.0)
    assert teams["bob"].service_gpu_hours == pytest.approx(2.0)
    assert teams["ann"].deficit_gpu_hours == teams["bob"].deficit_gpu_hours == 0.0
    assert teams["bob"].mean_jct_s == pytest.approx(HOUR_S)
    assert [each.team for each in document(shared).runs[0].teams or ()] == ["ann", "bob"]
    assert [row[0] for row in team_sections(shared)[0].rows] == ["ann", "bob"]
    assert "teams-ares" in draw(shared)
    report = make_report([story(submit(job("x"), 8.0), *ran("x", 0.0, 2.0, 4))])
    assert not report.runs[0].teams
    assert not team_sections(report)
    assert document(report).runs[0].teams is None


TEAMS = cluster(4).model_copy(update={"shares": Shares.model_validate({"teams": {"a": {}, "b": {}}})})


def part(team: str, entitled: float, held: float, **more: object) -> dict[str, object]:
    """How a team, or one of its users, stands; borrowed GPUs and waiting jobs where there are some."""
    return {"team": team, "own": 2.0, "entitled": entitled, "held": held, **more}


def stood(at_s: float, *parts: dict[str, object]) -> Event:
    return Event(at_s, "decision", detail={"teams": parts})


def test_what_a_team_lacked_and_borrowed_is_summed_over_time():
    """For an hour each: b lacks two GPUs, then one, then none because it holds more than it is entitled to.
    No job of a waits while it holds less than its part: it lacks nothing."""
    begun_s, hour_s = 500.0, HOUR_S
    run = story(
        submit(job("x", at=begun_s, gpus=3, low=1, team="a", user="ann")),
        submit(job("y", at=begun_s, gpus=2, team="a", user="bob")),
        submit(job("z", at=begun_s, low=1, gpus=3, team="b")),
        Event(begun_s, "start", "x", 3),
        stood(begun_s, part("a", 2, 3, borrowed=1), part("b", 2, 0, waiting_jobs=1)),
        Event(begun_s + hour_s, "start", "z", 1),
        stood(begun_s + hour_s, part("a", 2, 3, borrowed=1), part("b", 2, 1, waiting_jobs=1)),
        Event(begun_s + 2 * hour_s, "shrink", "x", 1),
        Event(begun_s + 2 * hour_s, "grow", "z", 3),
        stood(begun_s + 2 * hour_s, part("a", 2, 1), part("b", 2, 3, borrowed=1, waiting_jobs=1)),
        Event(begun_s + 3 * hour_s, "finish", "z", 0),
        nodes=TEAMS,
    )
    found = {(each.team, each.user): each for each in team_figures(run)}
    assert [*found] == [("a", ""), ("a", "ann"), ("a", "bob"), ("b", "")]
    a, b = found["a", ""], found["b", ""]
    hours = [(each.deficit_gpu_hours, each.borrowed_gpu_hours, each.service_gpu_hours) for each in (a, b)]
    assert hours == [pytest.approx((0, 2, 3 + 3 + 1)), pytest.approx((2 + 1, 1, 1 + 3))]
    assert [(each.jobs, each.finished) for each in found.values()] == [(2, 0), (1, 0), (1, 0), (1, 1)]
    assert (b.mean_jct_s, b.p99_jct_s, a.mean_jct_s) == (3 * hour_s, 3 * hour_s, None)
    assert (found["a", "ann"].service_gpu_hours, found["a", "ann"].deficit_gpu_hours) == (7.0, None)
    times = [0.0, 0.0, hour_s, 2 * hour_s, 3 * hour_s]
    assert team_gpus_over_time(run)["b"] == (times, [0, 0, 1, 3, 3], [0, 2, 2, 2, 2])


def test_a_team_is_its_users_and_borrows_beyond_its_part() -> None:
    arrivals = (submit(job(name, team="a", user=name)) for name in ("ann", "bob"))
    ann, bob = part("a", 1, 3, borrowed=2, user="ann"), part("a", 3, 1, waiting_jobs=2, user="bob")
    run = story(*arrivals, stood(0.0, ann, bob), Event(HOUR_S / 2, "start", "ann", 1), nodes=TEAMS)
    found = {each.user: (each.deficit_gpu_hours, each.borrowed_gpu_hours) for each in team_figures(run)}
    assert found == {"": (1.0, 1.0), "ann": (0.0, 1.0), "bob": (1.0, 0.0)}
    assert team_gpus_over_time(run)["a"][1:] == ([0, 4, 4], [0, 4, 4])
    # A job that names no user counts once.
    run = story(submit(job("x", team="a"), 8.0), *ran("x", 0.0, 2.0, 4), nodes=TEAMS)
    (found,) = team_figures(run)
    assert (found.jobs, found.finished, found.service_gpu_hours) == (1, 1, pytest.approx(8 / HOUR_S))

    # Three of eight GPUs are a's own until a node is lost, and then one more than its half of four is.
    lost = NodeEvent(HOUR_S, "n1", up=False)
    nodes = TEAMS.model_copy(update={"nodes": cluster(4, 4).nodes})
    trace = [job("x", gpus=3, gpu_seconds=3 * 2 * HOUR_S, team="a")]
    simulated = replace(FREE_CHANGES, node_events=(lost,))
    done = replay(inputs(trace, nodes), Run("fifo", simulated=simulated))
    (found,) = team_figures(fold(done.log.events()))
    assert (found.service_gpu_hours, found.borrowed_gpu_hours) == pytest.approx((6.0, 1.0))
