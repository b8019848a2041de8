from __future__ import annotations

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.report.comparisons import compare_runs, comparison_rows, mean_ratio, relative_speed
from tests.builders import job
from tests.tools.report.runs import story, submit


def simulated():
    first = Event(0, "start", "a", 1, overhead_seconds=1.0), Event(9, "finish", "a", 0)
    return story(submit(job("a", low=1), 8.0), submit(job("b"), 4.0), *first, Event(9, "start", "b", 1))


def measured():
    """a runs at 4/5 of the predicted speed: 8 samples in 5 s on one GPU and 2.5 s on two."""
    start = 1_800_000_000.0
    events = [
        submit(job("a", low=1), 8.0, at=start),
        submit(job("b"), 4.0, at=start),
        Event(start + 1, "start", "a", 1),
        Event(start + 3, "progress", "a", overhead_seconds=2.0, samples_done=0.0),
        Event(start + 5, "checkpoint", "a", overhead_seconds=0.5),
        Event(start + 8.5, "grow", "a", 2),
        Event(start + 9, "progress", "a", overhead_seconds=0.5),
        Event(start + 11.5, "finish", "a", 0, samples_done=8.0),
    ]
    return story(*events, at=start, simulated=False, profile_hash="cd" * 32)


def test_a_job_in_both_runs_and_what_explains_the_difference():
    first = compare_runs(measured(), simulated())[0]
    assert (first.job, first.simulated_jct_s, first.measured_jct_s) == ("a", 9.0, 11.5)
    assert first.ratio == pytest.approx(9 / 11.5)
    assert (first.startup_s, first.rescale_s) == (2.0, 0.5)
    extra = first.extra
    assert extra is not None
    parts = (extra.waiting_s, extra.startup_s, extra.rescale_s, extra.checkpoint_s)
    assert parts == (1.0, 1.0, 0.5, 0.5)
    assert extra.training_s == pytest.approx(7.5 - 8.0)
    assert sum(parts) + extra.training_s == pytest.approx(11.5 - 9.0)


def test_speed_is_what_was_trained_over_what_the_profile_predicts_for_the_time_of_training():
    """On one GPU a has 7.5 s, of which its start takes 2 and a checkpoint half of one; on two it has 3 s, of
    which half of one is lost."""
    assert compare_runs(measured(), simulated())[0].speed == pytest.approx(8 / (5 + 2 * 2.5))


def test_a_job_whose_log_names_no_samples_did_all_its_work_if_it_finished():
    """12 samples in 4 s on two GPUs, of which one was the start: 6 are predicted. b has not ended."""
    events = [Event(0, "start", name, 2, overhead_seconds=1.0) for name in "ab"]
    arrivals = [submit(job(name, gpus=2), 12.0) for name in "ab"]
    ended = story(*arrivals, *events, Event(4, "finish", "a", 0), Event(5, "preempt", "b", 0))
    assert [relative_speed(each, ended.last_event_s) for each in ended.jobs[:2]] == [2.0, None]


def test_rows_name_all_columns_and_lay_the_difference_out_in_its_parts():
    first, second = comparison_rows(compare_runs(measured(), simulated()))
    parts = ("waiting", "startup", "rescale", "checkpoint", "training")
    fields = ("job", "simulated_jct_s", "measured_jct_s", "ratio", "startup_s", "rescale_s", "speed")
    assert [*first] == [*fields, *(f"extra_{part}_s" for part in parts)]
    assert [first[f"extra_{part}_s"] for part in parts] == pytest.approx([1.0, 1.0, 0.5, 0.5, -0.5])
    assert {second[f"extra_{part}_s"] for part in parts} == {None}


def test_a_job_that_did_not_end_has_no_ratio():
    second = compare_runs(measured(), simulated())[1]
    assert (second.simulated_jct_s, second.measured_jct_s, second.ratio, second.speed) == (None,) * 4


def test_the_mean_ratio_is_over_jobs_that_finished_twice():
    assert mean_ratio(compare_runs(measured(), simulated())) == pytest.approx(9 / 11.5)
    assert mean_ratio(compare_runs(measured(), story(submit(job("a"), 8.0)))) is None


def test_runs_without_a_common_job():
    with pytest.raises(UsageError, match="no job in common"):
        compare_runs(measured(), story(submit(job("x"), 1.0)))
