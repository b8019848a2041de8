"""How far jobs are that state no work, learned from jobs that ended."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pliant.schemas.predictor import MOST_ROWS, Predictor
from pliant.tools.profile.predictor import (
    FEWEST_JOBS,
    EndedJob,
    Epoch,
    ProgressPredictor,
    epochs_to_go,
    features,
    fitted,
    inside,
    narrowed,
    rows_of,
    trust_of,
)
from tests.tools.profile.predictor.histories import history, progress_of

NAN = math.nan


def learned(jobs: int, **how: float) -> ProgressPredictor:
    found = ProgressPredictor()
    found.learn(history(jobs, **how))  # type: ignore[arg-type]
    return found


def test_with_too_few_jobs_progress_is_uniform_and_it_waits_for_more() -> None:
    found = learned(FEWEST_JOBS - 1)
    assert found.fit is None
    alpha, beta = found.beta([Epoch(1000, NAN, 0, NAN, NAN), Epoch(1000, 2.0, 9000, 1.0, 0.5)])
    assert alpha.tolist() == beta.tolist() == [1, 1]
    found.learn(history(1, seed=1))
    assert found.fit is not None


def test_the_fit_finds_the_line_that_the_epochs_to_go_follow() -> None:
    rng = np.random.default_rng(3)
    rows = features(Epoch(size, 5.0, 20 * size, 2.0, 0.5) for size in rng.uniform(1000, 2000, 4000))
    alpha = np.full(len(rows), 20.0)
    beta = 5 + rows[:, 0] / 100
    found = fitted(rows, alpha, rng.beta(alpha, beta))
    assert epochs_to_go(found, rows) == pytest.approx(beta, rel=0.05)


def test_both_parameters_are_at_least_one_however_narrow() -> None:
    far = [Epoch(40_000, 7.0, 4e9, 1e-3, 0.99), Epoch(1e9, 1e9, 1, 1e12, -50.0), Epoch(NAN, NAN, 0, NAN, NAN)]
    for values in learned(20).beta(far):
        assert np.all(np.isfinite(values))
        assert np.all(values >= 1)


def test_a_longer_job_is_predicted_to_be_less_far_after_as_many_epochs() -> None:
    alpha, beta = learned(40, noise=0.1).beta(
        [Epoch(10_000, 1.0, 50_000, 0.8, 0.3), Epoch(40_000, 7.0, 200_000, 6.0, 0.3)]
    )
    short, long = alpha / (alpha + beta)
    assert long < short


def test_the_interval_covers_jobs_that_were_not_learned_from() -> None:
    found, hits = learned(60), []
    for job in history(60, seed=8):
        alpha, beta = found.beta(job.epochs)
        hits.extend(inside(alpha, beta, progress_of(job)))
    assert 0.85 <= np.mean(hits) <= 0.95


def test_the_published_distribution_is_narrowed_as_far_as_unseen_jobs_bear_it() -> None:
    rng = np.random.default_rng(1)
    alpha, beta = rng.uniform(2, 40, 4000), rng.uniform(2, 40, 4000)
    assert trust_of(alpha, beta, rng.beta(*narrowed(alpha, beta, 0.25))) == pytest.approx(0.25, abs=0.03)
    assert trust_of(alpha, beta, rng.beta(5 * alpha, 5 * beta)) == 1
    assert narrowed(alpha, beta, 0.0)[0].tolist() == [1] * 4000


def test_it_goes_on_from_its_document_as_if_it_had_never_stopped() -> None:
    jobs = history(12)
    through, first = ProgressPredictor(seed=5), ProgressPredictor(seed=5)
    through.learn(jobs[:8])
    first.learn(jobs[:8])
    written = json.loads(first.document().model_dump_json(by_alias=True))
    again = ProgressPredictor(Predictor.model_validate(written, strict=False))
    through.learn(jobs[8:])
    again.learn(jobs[8:])
    assert again.document() == through.document()


def test_a_job_without_an_epoch_to_learn_from_counts_for_nothing() -> None:
    found = ProgressPredictor()
    found.learn([EndedJob([], 100.0), EndedJob([Epoch(NAN, 1, 50, 1, 1)], 100.0)])
    found.learn([EndedJob([Epoch(100, 1, 100, 1, 1)], 100.0)])
    assert found.jobs == 0


def test_a_long_job_gives_no_more_rows_than_others_and_the_last_epoch_is_left_out() -> None:
    rows = rows_of(EndedJob([Epoch(10, 1.0, 10.0 * n, 0.5, NAN) for n in range(1, 1001)], 10_000.0))
    assert len(rows) == 64
    assert (rows[0][2], rows[-1][2]) == (10, 9990)


def test_the_sample_is_bounded_uniform_and_seeded() -> None:
    def of(seed: int) -> Predictor:
        found = ProgressPredictor(seed=seed)
        found.learn(
            EndedJob([Epoch(10, 1.0, 10.0 * n, 0.5, NAN) for n in range(1, 51)], 510) for _ in range(200)
        )
        return found.document()

    found = of(0)
    assert (found.jobs, found.rows_seen, len(found.rows)) == (200, 10_000, MOST_ROWS)
    by_half = np.histogram([row[7] for row in found.rows], bins=2, range=(0, 200))[0]
    assert abs(by_half[0] - by_half[1]) < 200
    assert found == of(0) != of(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "odd", [{"loss": 1e200}, {"loss": -1.7e308}, {"metric": 1.7e308}, {"initial_loss": 1e308}, {"loss": 1e25}]
)
@pytest.mark.parametrize("jobs", [0, 20])
def test_what_a_training_that_diverged_reports_counts_as_not_known(odd: dict[str, float], jobs: int) -> None:
    found = ProgressPredictor()
    diverged = [
        job._replace(epochs=[epoch._replace(**odd) for epoch in job.epochs]) for job in history(FEWEST_JOBS)
    ]
    found.learn([*history(jobs), *diverged])
    again = Predictor.model_validate_json(found.document().model_dump_json(by_alias=True))
    assert again.fit is not None
    alpha, beta = found.beta([*diverged[0].epochs, *history(1)[0].epochs])
    assert np.isfinite([alpha, beta]).all()


def test_features_that_are_not_known_count_as_their_mean() -> None:
    found = learned(30)
    assert found.fit is not None
    size, initial, done, gain, metric = found.fit.mean
    typical = Epoch(size, initial, done, initial * (1 - gain), metric)
    known, unknown = found.beta([typical, Epoch(NAN, NAN, done, NAN, NAN)])[1]
    assert unknown == pytest.approx(known)
