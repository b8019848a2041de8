"""Lower bounds, by hand and against replays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from pliant.schemas.event import Event
from pliant.tools.report.metrics import Wanted, lower_bounds, run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.report.report import bound_caveats
from tests.builders import job, mixed_cluster
from tests.tools.report.runs import begin, first_come, submit
from tests.tools.report.test_against_replay import replayed, traces


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
