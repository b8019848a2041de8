"""What a session predicts of jobs that do not state their work, and what policies see of it."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.forecast import Demand, WorkForecast
from pliant.tools.schedule.jobs import MOST_EPOCH_ENDS, EpochEnd, JobState
from pliant.tools.schedule.policies.srtf import Srtf
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job

EPOCHS = {"epochs": 10.0, "dataset_size": 100}


def state(**stated: object) -> JobState:
    return JobState(job("a", **stated), 10, None)  # type: ignore[arg-type]


def held(*, demand: Demand = "predicted") -> Session:
    return Session(Srtf(), cluster(1), CurveThroughput(), demand=demand)


def report(found: JobState, epochs: int, size: float = 100.0) -> None:
    for number in range(1, epochs + 1):
        found.end_epoch(EpochEnd(number, number * size, 1 / number, 0.5))
    found.report_progress(0.0, epochs * size)


def test_without_a_history_as_much_again_is_expected() -> None:
    found = state()
    report(found, 3)
    assert WorkForecast().remaining_samples([found], 0.0).tolist() == [300]


def test_a_job_that_has_not_begun_is_expected_to_train_for_an_epoch_or_more() -> None:
    known, unknown = state(work=EPOCHS), state()
    known.hide_work()
    left = WorkForecast().remaining_samples([known, unknown], 0.0)
    assert left[0] == 200
    assert np.isnan(left[1])


def test_work_that_is_stated_is_exact_in_every_draw() -> None:
    stated, silent = state(work=EPOCHS), state()
    stated.total_samples = 1000.0
    report(silent, 3)
    drawn = WorkForecast().draw_remaining_samples([stated, silent], 0.0, np.random.default_rng(0), draws=50)
    assert set(drawn[:, 0]) == {1000}
    assert len(set(drawn[:, 1])) == 50
    assert drawn.min() >= 0


def test_the_band_holds_the_mean_and_is_that_of_the_distribution() -> None:
    found = state()
    report(found, 3)
    low, high = WorkForecast().band([found], 0.0)
    assert (low[0], high[0]) == pytest.approx((0.05, 0.95))


def test_a_policy_sees_a_prediction_where_a_job_states_no_work_and_only_there() -> None:
    session = held()
    silent, stated = session.submit(job("a"), 0.0), session.submit(job("b", work={"samples": 50.0}), 0.0)
    report(silent, 3)
    session.decide(0.0)
    assert (silent.predicted, silent.total_samples) == (True, 600)
    assert (stated.predicted, stated.total_samples) == (False, 50)
    assert stated.gpus, "the shorter one by what is expected"


def test_without_predictions_a_silent_job_stays_silent() -> None:
    session = held(demand="stated")
    silent = session.submit(job("a"), 0.0)
    report(silent, 3)
    session.decide(0.0)
    assert (silent.predicted, silent.total_samples) == (False, None)


def test_the_work_that_is_hidden_still_ends_the_job_and_no_policy_sees_when() -> None:
    found = held().submit(job("a", work=EPOCHS), 0.0)
    found.hide_work()
    assert (found.total_samples, found.work_samples, found.remaining_samples(0.0)) == (None, 1000, None)
    found.report_progress(0.0, 5000.0)
    assert found.samples_done(1.0) == 1000
    assert found.finish_time_s() is None


def test_it_learns_from_jobs_that_finish_and_from_no_others() -> None:
    session = held()
    for number in range(8):
        ended = session.submit(job(f"j{number}"), 0.0)
        report(ended, 10 + number)
        ended.report_progress(0.0, 100.0 * (11 + number))
        session.end(ended.id, 0.0, "finished" if number < 6 else "failed")
    silent = session.submit(job("z"), 0.0)
    report(silent, 5)
    session.decide(0.0)
    assert session.forecast.predictor.jobs == 6
    assert 900 < (silent.total_samples or 0) < 2000, "not 1000, twice what it has done"


def test_of_many_epochs_a_bounded_number_is_kept_the_last_included() -> None:
    found = state()
    report(found, 1000)
    assert len(found.epochs) <= MOST_EPOCH_ENDS
    assert found.epochs[-1].epoch == 1000
    gaps = {after.epoch - before.epoch for before, after in zip(found.epochs, found.epochs[1:], strict=False)}
    assert max(gaps) <= 8


def test_the_size_of_an_epoch_is_stated_or_shown_by_the_epochs() -> None:
    shown = state()
    report(shown, 2, size=70.0)
    assert (state(work=EPOCHS).epoch_samples, shown.epoch_samples, state().epoch_samples) == (100, 70, None)
