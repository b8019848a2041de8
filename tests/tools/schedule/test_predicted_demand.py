"""Decisions about jobs that state no work, by what is predicted of them, from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.schedule import Schedule
from pliant.tools.profile.predictor import ProgressPredictor
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.policies.srtf import Srtf
from tests.builders import cluster, job
from tests.tools.profile.predictor.histories import history
from tests.tools.schedule.histories import decide_from
from tests.tools.schedule.test_decide import log

NODES = cluster(1)
SRTF = Question("srtf", timing=False, demand="predicted")


def fitted() -> ProgressPredictor:
    found = ProgressPredictor()
    found.learn(history(10))
    return found


def test_a_policy_that_needs_the_work_takes_jobs_that_state_none_where_it_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Srtf, "needs", frozenset({"demand"}))
    with pytest.raises(BadInputError, match='states no work, which policy "srtf" needs'):
        decide([job("a")], NODES, None, Question("srtf"))
    found = decide([job("a"), job("b", gpu_seconds=1e-3)], NODES, None, SRTF)
    assert [given.job for given in found.allocations] == ["b"]
    assert found.demand == "predicted"


def test_the_schedule_holds_what_predicts_and_is_of_a_newer_minor_version() -> None:
    known = fitted()
    found = decide([job("a")], NODES, None, Question("srtf", demand="predicted", predictor=known.document()))
    assert found.forecast is not None
    assert found.forecast.predictor == known.document()
    assert found.minor == 2
    plain = decide([job("a")], NODES, None, Question("fifo"))
    assert (plain.forecast, plain.demand, plain.minor) == (None, "stated", 0)


def test_a_predictor_without_predictions_is_refused() -> None:
    with pytest.raises(UsageError, match="--predictor predicts with --demand predicted only"):
        decide([job("a")], NODES, None, Question("srtf", predictor=fitted().document()))


def story(jobs: int) -> Iterator[Event]:
    """Jobs that run one after the other, each for a few epochs of 100 samples."""
    for number in range(jobs):
        name, at = f"j{number}", 10.0 * number
        spec = job(name, at=at)
        yield Event(at, "submit", name, detail={"job": spec.model_dump(mode="json", exclude_defaults=True)})
        yield Event(at, "start", name, gpus=1, placement=(("n0", 1),), global_batch=960)
        epochs = 4 + number % 3
        for epoch in range(1, epochs):
            reported = {"samples_done": 100.0 * epoch, "loss": 3.0 / epoch, "metric": epoch / 10}
            yield Event(at + epoch, "epoch", name, detail={"epoch": epoch - 1}, **reported)
        yield Event(at + 9, "finish", name, gpus=0, samples_done=100.0 * epochs)


def call(events: list[Event], previous: Schedule | None = None, **asked: Any) -> Schedule:
    question = Question("srtf", timing=False, **asked)
    return decide_from(log(*events), question, now_s=events[-1].time, cluster=NODES, previous=previous)


def test_calls_from_cron_go_on_learning_where_the_last_one_stopped() -> None:
    events = list(story(9))
    first = call([each for each in events if each.time < 60], demand="predicted")
    assert first.forecast is not None
    assert first.forecast.predictor.jobs == 6
    then = call(events, first)
    assert then.forecast is not None
    assert then.demand == "predicted", "as before, where nothing else is said"
    assert then.forecast.predictor.jobs == 9
    again = call(events, then)
    assert again.forecast == then.forecast, "no job is learned from twice"


def test_what_was_learned_is_carried_and_not_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    events = list(story(8))
    first = call(events, demand="predicted")
    learned: list[object] = []
    monkeypatch.setattr(ProgressPredictor, "learn", lambda _self, jobs: learned.extend(jobs))
    call(events, first)
    assert learned == []


def test_without_what_was_carried_it_learns_from_the_whole_log() -> None:
    events = list(story(8))
    found = call(events, demand="predicted").forecast
    assert found is not None
    assert found.predictor.jobs == 8


def test_looking_ahead_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends that are looked ahead at have not happened."""
    learned: list[object] = []
    monkeypatch.setattr(ProgressPredictor, "learn", lambda _self, jobs: learned.extend(jobs))
    jobs = [job("a", gpu_seconds=300.0), job("b", gpu_seconds=200.0)]
    found = decide(jobs, NODES, None, Question("srtf", explain=True, demand="predicted"))
    assert found.waiting[0].predicted_start is not None
    assert learned == []


def test_stated_work_can_be_asked_for_again() -> None:
    events = list(story(3))
    found = call(events, call(events, demand="predicted"), demand="stated")
    assert (found.demand, found.forecast) == ("stated", None)
