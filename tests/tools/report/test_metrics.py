from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.event import Event
from pliant.schemas.job import Utility
from pliant.tools.report.metrics import Wanted, lower_bounds, percentile, run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import gpu_usage
from pliant.tools.report.report import bound_caveats
from tests.builders import cluster, job, mixed_cluster
from tests.tools.report.runs import begin, first_come, submit
from tests.tools.report.test_against_replay import replayed, traces


def one_by_one(work=(8.0, 8.0, 16.0), **info):
    """Jobs a, b, c from time 0 on all four GPUs, one after another."""
    events, now = [begin(**info)], 0.0
    names = "abcdefgh"[: len(work)]
    events += [submit(job(name, gpus=4, low=1), samples) for name, samples in zip(names, work, strict=True)]
    for name, samples in zip(names, work, strict=True):
        events += [Event(now, "start", name, 4), Event(now + samples / 4, "finish", name, 0)]
        now += samples / 4
    return fold(events)


# Figure 1 of Ares: 2, 2 and 4 whole-cluster hours. One by one: 2, 4, 8; shared equally: 6, 6, 8.
def test_one_by_one_beats_equal_sharing_and_nobody_is_later():
    found = run_metrics(one_by_one())
    assert found.mean_jct_s == pytest.approx((2 + 4 + 8) / 3)
    assert (found.median_jct_s, found.makespan_s) == (4.0, 8.0)
    assert found.mean_queueing_delay_s == pytest.approx((0 + 2 + 4) / 3)
    assert found.mean_ftf == pytest.approx((2 / 6 + 4 / 6 + 1) / 3)
    assert found.worst_ftf == pytest.approx(1.0)
    assert found.unfair_fraction == found.unfair_fraction_gps == 0.0
    assert (found.utilization, found.sjs_efficiency) == (1.0, pytest.approx(1.0))
    assert found.worst_gps_delay_s == pytest.approx(0.0)


def test_the_longest_job_first_is_unfair_to_the_others():
    found = run_metrics(one_by_one(work=(16.0, 8.0, 8.0)))
    # Ends at 4, 6, 8 where sharing ends at 8, 6, 6.
    assert found.worst_ftf == pytest.approx(8 / 6)
    assert found.unfair_fraction == pytest.approx(1 / 3)


def test_percentiles_are_linear_between_jobs():
    found = run_metrics(one_by_one(work=(4.0, 4.0, 4.0, 4.0, 4.0)))
    assert found.median_jct_s == 3.0
    assert found.p90_jct_s == pytest.approx(4.6)
    assert found.p99_jct_s == pytest.approx(4.96)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_is_numpys(values, q):
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, 100 * q)), abs=1e-6)


def test_jobs_that_do_not_finish_are_counted_beside_the_means():
    run = fold(
        [
            begin(),
            *(submit(job(name), 4.0) for name in "abcde"),
            Event(0, "start", "a", 1),
            Event(4, "finish", "a", 0),
            Event(1, "start", "b", 1),
            Event(2, "fail", "b", 0),
            Event(2, "cancel", "c", 0),
            Event(2, "reject", "d", 0),
        ]
    )
    found = run_metrics(run)
    counts = (
        found.jobs_submitted,
        found.jobs_finished,
        found.jobs_failed,
        found.jobs_cancelled,
        found.jobs_rejected,
    )
    assert counts == (5, 1, 1, 1, 1)
    assert found.mean_jct_s == 4.0
    assert found.drop_ratio == 0.2
    assert found.mean_queueing_delay_s == 0.5


def test_a_run_in_which_nothing_finished():
    found = run_metrics(fold([begin(), submit(job("a"), 4.0), Event(0, "start", "a", 1)]))
    assert (found.jobs_submitted, found.jobs_finished) == (1, 0)
    for name in (
        "mean_jct_s",
        "p99_jct_s",
        "makespan_s",
        "mean_ftf",
        "worst_ftf_gps",
        "unfair_fraction",
        "utilization",
        "rescales_per_hour",
    ):
        assert getattr(found, name) is None, name


def test_a_run_without_jobs():
    found = run_metrics(fold([begin()]))
    assert (found.jobs_submitted, found.drop_ratio, found.preemptions_per_job) == (0, None, None)


def test_one_job_alone_is_treated_fairly():
    run = fold(
        [begin(), submit(job("a", gpus=2), 6.0), Event(0, "start", "a", 2), Event(3, "finish", "a", 0)]
    )
    found = run_metrics(run)
    assert (found.mean_ftf, found.unfair_fraction) == (1.0, 0.0)
    # GPS gives it all four GPUs, of which it can use two.
    assert (found.mean_ftf_gps, found.unfair_fraction_gps) == (1.0, 0.0)
    assert found.utilization == 0.5


def test_rounding_is_not_unfair_but_a_real_excess_is():
    def unfair(end_s):
        events = [begin(), submit(job("a"), 4.0), Event(0, "start", "a", 1), Event(end_s, "finish", "a", 0)]
        return run_metrics(fold(events)).unfair_fraction

    assert (unfair(4 * (1 + 1e-12)), unfair(4 * (1 + 1e-6))) == (0.0, 1.0)


def test_a_policy_of_any_name_is_held_against_the_bound_that_it_promises():
    # All four GPUs are held from 0 to 8: a quarter of that.
    found = run_metrics(one_by_one(policy="mine", bounds={"gps_delay": 0.25}))
    assert (found.gps_bound_s, found.jobs_past_gps_bound) == (2.0, 0)


def test_no_name_and_no_parameter_promises_anything():
    found = run_metrics(one_by_one(policy="ares", parameters={"alpha": 0.8}))
    assert (found.gps_bound_s, found.jobs_past_gps_bound) == (None, None)
    assert found.worst_gps_delay_s == pytest.approx(0.0)


def test_jobs_past_the_gps_bound_are_counted_not_denied():
    # c ends at 8, in GPS at 6: two seconds late. A quarter of 8 s allows that, a ninth does not.
    found = run_metrics(one_by_one(work=(16.0, 8.0, 8.0), bounds={"gps_delay": 0.25}))
    assert found.worst_gps_delay_s == pytest.approx(2.0)
    assert found.jobs_past_gps_bound == 0
    strict = run_metrics(one_by_one(work=(16.0, 8.0, 8.0), bounds={"gps_delay": 1 / 9}))
    assert strict.jobs_past_gps_bound == 1


def test_utilization_counts_the_gpus_that_are_up():
    # 4 GPUs for 2 s, then 2 for 2 s: 12 GPU-seconds, of which a held 2 · 4 = 8.
    run = fold(
        [
            begin(cluster(2, 2)),
            submit(job("a", gpus=2), 8.0),
            Event(0, "start", "a", 2),
            Event(2, "node_down", detail={"node": "n1"}),
            Event(4, "finish", "a", 0),
            Event(9, "node_up", detail={"node": "n1"}),
        ]
    )
    assert run_metrics(run).utilization == pytest.approx(8 / 12)


def test_the_cluster_is_full_until_one_gpu_is_free():
    run = fold(
        [
            begin(),
            submit(job("a", gpus=4, low=1)),
            submit(job("b", gpus=1)),
            Event(1, "start", "a", 4),
            Event(3, "shrink", "a", 3),
            Event(3, "start", "b", 1),
            Event(6, "finish", "b", 0),
            Event(7, "grow", "a", 4),
            Event(8, "finish", "a", 0),
        ]
    )
    assert gpu_usage(run).longest_full_s() == 5.0


def test_preemptions_and_rescales_per_started_job():
    run = fold(
        [
            begin(),
            submit(job("a", low=1), 4.0),
            submit(job("b"), 4.0),
            submit(job("c"), 4.0),
            Event(0, "start", "a", 1),
            Event(0, "start", "b", 1),
            Event(1, "grow", "a", 2),
            Event(2, "preempt", "a", 0),
            Event(3, "resume", "a", 2),
            Event(4, "shrink", "a", 1),
        ]
    )
    found = run_metrics(run)
    assert (found.preemptions_per_job, found.rescales_per_job) == (0.5, 1.0)


def test_decision_time_from_the_counters_or_from_the_log():
    counted = fold([begin(counters={"decisions": 4.0, "decision_seconds": 0.002})])
    assert run_metrics(counted).mean_decision_ms == pytest.approx(0.5)
    logged = fold([begin(), *(Event(1, "decision", detail={"decision_seconds": s}) for s in (0.001, 0.003))])
    assert run_metrics(logged).mean_decision_ms == pytest.approx(2.0)
    assert run_metrics(fold([begin()])).mean_decision_ms is None


def test_a_job_of_unknown_work_has_a_jct_and_fairness_by_what_it_did():
    run = fold(
        [begin(), submit(job("a")), Event(0, "start", "a", 1), Event(4, "finish", "a", 0, samples_done=2.0)]
    )
    assert (run_metrics(run).mean_jct_s, run_metrics(run).mean_ftf) == (4.0, 2.0)


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


def test_total_utility_is_of_the_finished_jobs_and_only_where_stated():
    stated = job("a", utility={"shape": "step", "value": 5.0, "target": 9.0})
    events = [begin(), submit(stated, 4.0), submit(job("b"), 4.0)]
    run = fold([*events, Event(0, "start", "a", 1), Event(4, "finish", "a", 0)])
    assert run_metrics(run).total_utility == 5.0
    assert run_metrics(one_by_one()).total_utility is None


def test_jobs_completed_by_given_times():
    found = run_metrics(one_by_one(), wanted=Wanted(completed_at_s=(1.9, 2.0, 100.0)))  # they end at 2, 4, 8
    assert found.jobs_completed_at == ((1.9, 0), (2.0, 1), (100.0, 3))


def test_rescales_per_job_and_per_hour():
    # One grow and one shrink until the last completion after 15 minutes: 8 an hour; of two jobs, so 1 a job.
    run = fold(
        [
            begin(),
            submit(job("a", low=1), 1.0, at=50),
            submit(job("b", low=1), 1.0, at=50),
            Event(50, "start", "a", 1),
            Event(50, "start", "b", 1),
            Event(60, "grow", "a", 2),
            Event(70, "shrink", "a", 1),
            Event(900, "finish", "a", 0),
            Event(950, "finish", "b", 0),
        ]
    )
    found = run_metrics(run)
    assert (found.rescales_per_job, found.rescales_per_hour) == (1.0, 8.0)


def test_scheduled_job_scaling_efficiency_of_jobs_that_do_not_scale():
    # a: 6 s on one GPU, 4 s on two it held: 6 / 8. b: 6 s on one GPU that it held: 6 / 6. Together 12 / 14.
    curve = ((1, 1.0), (2, 1.5))
    run = fold(
        [
            begin(),
            submit(job("a", gpus=2), 6.0, curve),
            submit(job("b"), 6.0, curve),
            Event(0, "start", "a", 2),
            Event(0, "start", "b", 1),
            Event(4, "finish", "a", 0),
            Event(6, "finish", "b", 0),
        ]
    )
    assert run_metrics(run).sjs_efficiency == pytest.approx(12 / 14)


def test_completion_is_held_against_targets_and_admissions_are_counted():
    targets = {"a": 3.0, "b": 9.0}
    late, early = (job(name, utility={"shape": "step", "target": at}) for name, at in targets.items())
    said = [{"admission": {"admitted": admitted}} for admitted in (True, False)]
    run = fold(
        [
            begin(),
            *(submit(each, 4.0) for each in (late, early, job("c"))),
            Event(0, "progress", "a", detail=said[0]),
            Event(0, "reject", "c", 0, detail={"reason": "costs more", **said[1]}),
            Event(0, "start", "a", 1),
            Event(0, "start", "b", 1),
            Event(4, "finish", "a", 0),
            Event(4, "finish", "b", 0),
        ]
    )
    found = run_metrics(run)
    assert (found.jobs_admitted, found.jobs_on_time) == (1, 1)
    assert (found.median_late_s, found.stdev_late_s) == (-2.0, 3.0)
    assert [each.utility for each in run.jobs] == [0.0, 1.0, None]


def test_a_move_is_no_rescale_and_a_change_of_the_batch_is():
    """To another node with the same batch, to another batch in its place, and to another node with one."""
    changes = (("n1", 64), ("n1", 128), ("n0", 64))
    run = fold(
        [
            begin(),
            submit(job("a", low=1), 4.0),
            Event(0, "start", "a", 1, (("n0", 1),), 64),
            *(
                Event(float(at + 1), "move", "a", 1, ((node, 1),), batch)
                for at, (node, batch) in enumerate(changes)
            ),
        ]
    )
    found = run_metrics(run)
    assert (found.moves_per_job, found.rescales_per_job) == (1.0, 2.0)


def finished(*submits):
    """A run in which all jobs finish, when and where does not matter to bounds."""
    names = [event.job for event in submits]
    starts = [Event(100.0 + index, "start", name, 1) for index, name in enumerate(names)]
    ends = [Event(900.0 + index, "finish", name, 0) for index, name in enumerate(names)]
    return fold([begin(), *submits, *starts, *ends])


def test_alone_is_the_best_size_and_cheapest_the_most_efficient():
    # 12 samples: on 1, 2 and 4 GPUs 6, 4 and 3 s, so 6, 8 and 12 GPU-seconds.
    curve = ((1, 2.0), (2, 3.0), (4, 4.0))
    found = lower_bounds(finished(submit(job("a", gpus=1, low=1), 12.0, curve)))
    assert (found.bound_jct_alone_s, found.cheapest_gpu_s) == (3.0, 6.0)
    assert (found.bound_jct_pooled_s, found.bound_jct_s, found.bound_makespan_s) == (1.5, 3.0, 3.0)


def test_a_rigid_job_cannot_be_smaller_to_be_cheaper():
    curve = ((1, 2.0), (2, 3.0), (4, 4.0))
    found = lower_bounds(finished(submit(job("a", gpus=4), 12.0, curve)))
    assert (found.bound_jct_alone_s, found.cheapest_gpu_s) == (3.0, 12.0)


def test_pooled_gpus_serve_the_least_work_first():
    # Whole-cluster seconds 8, 2 and 4 at times 0, 1 and 2: a runs to 1, b from 1 to 3, c from 3 to 7, a the
    # rest to 14. JCTs 14, 2 and 5. Alone each takes the same on all four GPUs: 8, 2 and 4.
    rows = (("a", 0, 32.0), ("b", 1, 8.0), ("c", 2, 16.0))
    jobs = [submit(job(name, at=at, gpus=4, low=1), work) for name, at, work in rows]
    found = lower_bounds(finished(*jobs))
    assert found.bound_jct_pooled_s == pytest.approx((14 + 2 + 5) / 3)
    assert found.bound_jct_alone_s == pytest.approx((8 + 2 + 4) / 3)
    assert found.bound_jct_s == found.bound_jct_pooled_s
    assert (found.cheapest_gpu_s, found.bound_makespan_s) == (56.0, 14.0)


def test_a_job_that_stops_scaling_bounds_the_makespan():
    # Pooled, 8 GPU-seconds end at 2; alone on its one GPU the job that came at 5 needs until 13.
    found = lower_bounds(finished(submit(job("a"), 1.0), submit(job("b", at=5), 8.0)))
    assert found.bound_makespan_s == 13.0


def test_jobs_of_unknown_work_count_with_no_time():
    assert lower_bounds(finished(submit(job("a"), 4.0), submit(job("b")))).bound_jct_alone_s == 2.0


def test_only_jobs_that_finished_are_bounded():
    assert lower_bounds(fold(first_come())).cheapest_gpu_s == 480.0 + 240.0
    assert lower_bounds(fold([begin(), submit(job("a"), 1.0)])) is None


def test_bounds_are_computed_where_they_are_wanted():
    run = fold(first_come())
    assert run_metrics(run).bound_jct_s is None
    # Alone a takes 120 s, b 60 s. Pooled, b has less left when it comes: it ends at 70, a at 180.
    found = run_metrics(run, wanted=Wanted(bound=True))
    assert (found.bound_jct_alone_s, found.bound_jct_pooled_s) == (90.0, (180 + 60) / 2)
    unfinished = run_metrics(fold([begin(), submit(job("a"), 1.0)]), wanted=Wanted(bound=True))
    assert unfinished.bound_jct_s is None


def test_what_the_bounds_take_for_granted_is_said():
    assert bound_caveats(fold(first_come())) == []
    moved = fold([begin(progress="epochs"), submit(job("a"), 1.0)])
    assert "requested batches" in bound_caveats(moved)[0]
    mixed = fold([begin(mixed_cluster(t4=(2,), v100=(2,))), submit(job("a"), 1.0)])
    assert "mean speed" in bound_caveats(mixed)[0]


@settings(max_examples=15)
@given(traces)
def test_no_policy_passes_its_bounds(jobs):
    for policy in ("fifo", "ares", "srtf"):
        run = replayed(jobs, policy)
        found = run_metrics(run, wanted=Wanted(bound=True))
        assert found.mean_jct_s >= found.bound_jct_s * (1 - 1e-9)
        assert found.makespan_s >= found.bound_makespan_s * (1 - 1e-9)
