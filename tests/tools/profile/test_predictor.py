import json
import math
from pathlib import Path

import numpy as np
import pytest

from pliant.cli.predictions import predictor_fit
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events
from pliant.schemas.predictor import MOST_ROWS, Predictor
from pliant.tools.profile.predictor import (
    FEWEST_JOBS,
    EndedJob,
    Epoch,
    ProgressPredictor,
    ended_jobs,
    epochs_to_go,
    features,
    fitted,
    inside,
    narrowed,
    rows_of,
    trust_of,
)
from tests.builders import job
from tests.tools.profile.histories import history, progress_of
from tests.tools.schedule.histories import submitted

NAN = math.nan


def learned(jobs: int, **how: float) -> ProgressPredictor:
    found = ProgressPredictor()
    found.learn(history(jobs, **how))  # type: ignore[arg-type]
    return found


def test_progress_follows_epochs_to_go_of_long_and_unseen_jobs() -> None:
    found = learned(FEWEST_JOBS - 1)
    assert found.fit is None
    alpha, beta = found.beta([Epoch(1000, NAN, 0, NAN, NAN), Epoch(1000, 2.0, 9000, 1.0, 0.5)])
    assert alpha.tolist() == beta.tolist() == [1, 1]
    found.learn(history(1, seed=1))
    assert found.fit is not None
    # The fit finds the line that the epochs to go follow.
    rng = np.random.default_rng(3)
    rows = features(Epoch(size, 5.0, 20 * size, 2.0, 0.5) for size in rng.uniform(1000, 2000, 4000))
    alpha = np.full(len(rows), 20.0)
    beta = 5 + rows[:, 0] / 100
    found = fitted(rows, alpha, rng.beta(alpha, beta))
    assert epochs_to_go(found, rows) == pytest.approx(beta, rel=0.05)
    # Both parameters are at least one however narrow.
    far = [Epoch(40_000, 7.0, 4e9, 1e-3, 0.99), Epoch(1e9, 1e9, 1, 1e12, -50.0), Epoch(NAN, NAN, 0, NAN, NAN)]
    for values in learned(20).beta(far):
        assert np.all(np.isfinite(values))
        assert np.all(values >= 1)
    # Longer jobs are less far and unseen jobs are covered.
    alpha, beta = learned(40, noise=0.1).beta(
        [Epoch(10_000, 1.0, 50_000, 0.8, 0.3), Epoch(40_000, 7.0, 200_000, 6.0, 0.3)]
    )
    short, long = alpha / (alpha + beta)
    assert long < short
    # The interval covers jobs that were not learned from.
    found, hits = learned(60), []
    for ended in history(60, seed=8):
        alpha, beta = found.beta(ended.epochs)
        hits.extend(inside(alpha, beta, progress_of(ended)))
    assert 0.85 <= np.mean(hits) <= 0.95


def test_what_is_learned_is_narrowed_by_unseen_jobs_and_goes_on() -> None:
    rng = np.random.default_rng(1)
    alpha, beta = rng.uniform(2, 40, 4000), rng.uniform(2, 40, 4000)
    assert trust_of(alpha, beta, rng.beta(*narrowed(alpha, beta, 0.25))) == pytest.approx(0.25, abs=0.03)
    assert trust_of(alpha, beta, rng.beta(5 * alpha, 5 * beta)) == 1
    assert narrowed(alpha, beta, 0.0)[0].tolist() == [1] * 4000
    # It goes on from its document as if it had never stopped.
    jobs = history(12)
    through, first = ProgressPredictor(seed=5), ProgressPredictor(seed=5)
    through.learn(jobs[:8])
    first.learn(jobs[:8])
    written = json.loads(first.document().model_dump_json(by_alias=True))
    again = ProgressPredictor(Predictor.model_validate(written, strict=False))
    through.learn(jobs[8:])
    again.learn(jobs[8:])
    assert again.document() == through.document()


def test_a_long_job_gives_as_many_rows_as_others() -> None:
    rows = rows_of(EndedJob([Epoch(10, 1.0, 10.0 * n, 0.5, NAN) for n in range(1, 1001)], 10_000.0))
    assert len(rows) == 64
    assert (rows[0][2], rows[-1][2]) == (10, 9990)
    # A job without an epoch to learn from counts for nothing.
    found = ProgressPredictor()
    found.learn([EndedJob([], 100.0), EndedJob([Epoch(NAN, 1, 50, 1, 1)], 100.0)])
    found.learn([EndedJob([Epoch(100, 1, 100, 1, 1)], 100.0)])
    assert found.jobs == 0

    # The sample of many jobs is bounded, uniform and seeded.
    def of(seed: int) -> Predictor:
        found = ProgressPredictor(seed=seed)
        epochs = [Epoch(10, 1.0, 10.0 * n, 0.5, NAN) for n in range(1, 51)]
        found.learn(EndedJob(epochs, 510) for _ in range(200))
        return found.document()

    found = of(0)
    assert (found.jobs, found.rows_seen, len(found.rows)) == (200, 10_000, MOST_ROWS)
    by_half = np.histogram([row[7] for row in found.rows], bins=2, range=(0, 200))[0]
    assert abs(by_half[0] - by_half[1]) < 200
    assert found == of(0) != of(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "odd", [{"loss": -1.7e308}, {"metric": 1.7e308}, {"initial_loss": 1e308}, {"loss": 1e25}]
)
def test_what_training_that_diverged_reports_counts_as_not_known(odd: dict[str, float]) -> None:
    found = ProgressPredictor()
    diverged = [one._replace(epochs=[e._replace(**odd) for e in one.epochs]) for one in history(FEWEST_JOBS)]
    found.learn([*history(5), *diverged])
    again = Predictor.model_validate_json(found.document().model_dump_json(by_alias=True))
    assert again.fit is not None
    alpha, beta = found.beta([*diverged[0].epochs, *history(1)[0].epochs])
    assert np.isfinite([alpha, beta]).all()


def test_features_that_are_not_known_and_jobs_known_by_loss() -> None:
    found = learned(30)
    assert found.fit is not None
    size, initial, done, gain, metric = found.fit.mean
    typical = Epoch(size, initial, done, initial * (1 - gain), metric)
    known, unknown = found.beta([typical, Epoch(NAN, NAN, done, NAN, NAN)])[1]
    assert unknown == pytest.approx(known)
    # A job is known by its epochs and the first loss.
    first = Event(0.5, "progress", "a", samples_done=10.0, loss=7.0)
    (found,) = ended_jobs([*submitted(job("a")), first, epoch("a", 1, 50, 4.0), epoch("a", 2, 100, 3.0), END])
    assert found.total_samples == 150
    assert [each[:4] for each in found.epochs] == [(50, 7, 50, 4), (50, 7, 100, 3)]
    # Epochs that were trained again after a failure count once.
    twice = [epoch("a", 2, 100, 3.0), epoch("a", 2, 100, 2.0)]
    (found,) = ended_jobs([*submitted(job("a")), epoch("a", 1, 50, 4.0), *twice, END])
    assert [(each.samples_done, each.loss) for each in found.epochs] == [(50, 4), (100, 2)]
    # A replay without epochs teaches how long jobs are.
    (found,) = ended_jobs(
        [
            *submitted(job("a", work={"epochs": 4.0, "dataset_size": 100})),
            Event(2.0, "finish", "a", samples_done=400.0),
        ]
    )
    assert [each.samples_done for each in found.epochs] == [100, 200, 300]
    assert math.isnan(found.epochs[0].loss)
    # Jobs that did not finish teach nothing.
    events = [epoch("a", 1, 50), Event(2.0, "fail", "a"), epoch("b", 1, 50), Event(2.0, "cancel", "b")]
    assert ended_jobs([*events, Event(3.0, "node_down", detail={"node": "n"}), epoch("c", 1, 50)]) == []


END = Event(2.0, "finish", "a", samples_done=150.0)


def epoch(job_id: str, number: int, samples: float, loss: float | None = None) -> Event:
    return Event(1.0, "epoch", job_id, samples_done=samples, loss=loss, detail={"epoch": number - 1})


@pytest.mark.parametrize("number", ["x", None, -1, [1], 1.5, True, 10**400, {}])
def test_an_epoch_without_a_number_counts_as_the_next(number: object) -> None:
    odd = Event(1.0, "epoch", "a", samples_done=100.0, loss=3.0, detail={"epoch": number})
    (found,) = ended_jobs([*submitted(job("a")), epoch("a", 1, 50, 4.0), odd, END])
    assert [each[:3] for each in found.epochs][1:] == [(50, 4, 100)]


def written(path: Path, jobs: int, seed: int) -> str:
    events = []
    for number, made in enumerate(history(jobs, seed)):
        name = f"j{number}"
        for place, each in enumerate(made.epochs):
            detail = {"epoch": place}
            numbers = {"samples_done": each.samples_done, "loss": each.loss, "metric": each.metric}
            events.append(Event(float(place), "epoch", name, detail=detail, **numbers))
        events.append(Event(1000.0 + number, "finish", name, samples_done=made.total_samples))
    write_events(events, path)
    return str(path)


def test_the_command_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = written(tmp_path / "few.jsonl", 2, 1)
    predictor_fit([few], output=str(tmp_path / "few.json"))
    assert "uniform between 0 and 1: fewer than 5 jobs" in capsys.readouterr().err
    nothing = tmp_path / "nothing.jsonl"
    write_events([epoch("a", 1, 50)], nothing)
    with pytest.raises(BadInputError, match=r"nothing\.jsonl: no job finished whose epochs are known"):
        predictor_fit([str(nothing)], output="-")
    with pytest.raises(UsageError, match="keeps its seed"):
        predictor_fit([few], append=str(tmp_path / "few.json"), seed=1, output="-")
