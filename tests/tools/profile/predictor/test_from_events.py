"""Jobs to learn from, out of what runs, replays and imports leave behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.predictions import predictor_fit
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_predictor, write_events
from pliant.tools.profile.predictor import ended_jobs
from tests.builders import job
from tests.tools.profile.predictor.histories import history

EPOCHS = {"epochs": 4.0, "dataset_size": 100}
END = Event(2.0, "finish", "a", samples_done=150.0)


def submitted(job_id: str, **stated: Any) -> Event:
    spec = job(job_id, **stated).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return Event(0.0, "submit", job_id, detail={"job": spec})


def epoch(job_id: str, number: int, samples: float, loss: float | None = None) -> Event:
    return Event(1.0, "epoch", job_id, samples_done=samples, loss=loss, detail={"epoch": number - 1})


def test_a_job_is_known_by_its_epochs_and_by_the_first_loss_that_it_reported() -> None:
    first = Event(0.5, "progress", "a", samples_done=10.0, loss=7.0)
    (found,) = ended_jobs([submitted("a"), first, epoch("a", 1, 50, 4.0), epoch("a", 2, 100, 3.0), END])
    assert found.total_samples == 150
    assert [each[:4] for each in found.epochs] == [(50, 7, 50, 4), (50, 7, 100, 3)]


def test_epochs_that_were_trained_again_after_a_failure_count_once() -> None:
    twice = [epoch("a", 2, 100, 3.0), epoch("a", 2, 100, 2.0)]
    (found,) = ended_jobs([submitted("a"), epoch("a", 1, 50, 4.0), *twice, END])
    assert [(each.samples_done, each.loss) for each in found.epochs] == [(50, 4), (100, 2)]


@pytest.mark.parametrize("said", ["x", None, -1, [1], 1.5, True, 10**400, {}])
def test_an_epoch_without_a_number_counts_as_the_next(said: object) -> None:
    """The detail is what a script wrote."""
    odd = Event(1.0, "epoch", "a", samples_done=100.0, loss=3.0, detail={"epoch": said})
    (found,) = ended_jobs([submitted("a"), epoch("a", 1, 50, 4.0), odd, END])
    assert [each[:3] for each in found.epochs][1:] == [(50, 4, 100)]


def test_a_replay_without_epochs_teaches_how_long_jobs_are() -> None:
    (found,) = ended_jobs([submitted("a", work=EPOCHS), Event(2.0, "finish", "a", samples_done=400.0)])
    assert [each.samples_done for each in found.epochs] == [100, 200, 300]
    assert math.isnan(found.epochs[0].loss)


def test_jobs_that_did_not_finish_teach_nothing() -> None:
    events = [epoch("a", 1, 50), Event(2.0, "fail", "a"), epoch("b", 1, 50), Event(2.0, "cancel", "b")]
    assert ended_jobs([*events, Event(3.0, "node_down", detail={"node": "n"}), epoch("c", 1, 50)]) == []


def written(path: Path, jobs: int, seed: int) -> str:
    """An event file of jobs of a made-up history."""
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


def test_the_command_fits_a_predictor_and_goes_on_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, both = (str(tmp_path / name) for name in ("one.json", "two.json", "both.json"))
    first, second = written(tmp_path / "a.jsonl", 10, 1), written(tmp_path / "b.parquet", 4, 2)
    predictor_fit([first], output=one)
    said = capsys.readouterr().err
    assert "10 jobs, " in said
    assert "90 % intervals hold " in said
    predictor_fit([second], append=one, output=two)
    predictor_fit([first, second], output=both)
    assert read_predictor(two).jobs == 14
    assert Path(two).read_bytes() == Path(both).read_bytes()


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
