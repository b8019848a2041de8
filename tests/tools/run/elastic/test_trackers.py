"""What trackers get: one run over all attempts and sizes, each value once, of rank 0."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.parts.trackers import tracked
from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic import ElasticJob, trackers
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.trackers import Tracking, checked_names
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_RUN
from tests.tools.run.elastic.alone import Alone
from tests.tools.run.elastic.gang import plan

Point = tuple[int, dict[str, float]]


class Client:
    """Keeps what it gets; fails where the test wants it."""

    points: list[Point]
    ends: list[bool]
    fails = False

    def __init__(self, run: str | None, name: str | None, folder: Path | None) -> None:
        if self.fails:
            raise OSError("no server")

    def log(self, samples: int, values: Mapping[str, float]) -> None:
        self.points.append((samples, dict(values)))

    def close(self, *, done: bool) -> None:
        self.ends.append(done)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    kind = type("Fresh", (Client,), {"points": [], "ends": []})
    monkeypatch.setattr(trackers, "CLIENTS", {"wandb": kind})
    monkeypatch.setattr(trackers, "require", lambda *_: None)
    monkeypatch.setenv(ENV_RUN, "a-1")
    return kind


def worker(folder: Path, attempt: int, number: int = 0, workers: tuple[int, ...] = (0,)) -> WorkerContext:
    return WorkerContext(JobDir(folder), plan(1, workers, attempt=attempt, progress_s=1e-9), number)


def logs(tracking: Tracking, *samples: int) -> None:
    for at in samples:
        tracking.pending["lr"] = 0.5
        tracking.step_done(at)


def test_what_is_trained_again_is_logged_once(client: type[Client], tmp_path: Path) -> None:
    first = Tracking(worker(tmp_path, 1), ["wandb"])
    logs(first, 10, 20, 30)
    first.flush()  # and is killed; the next attempt begins after 10 samples
    second = Tracking(worker(tmp_path, 2), ["wandb"])
    logs(second, 20, 30, 40)
    second.log(40, {"metric": 0.9})
    logs(Tracking(worker(tmp_path, 2, 1, (0, 1)), ["wandb"]), 50)  # rank 1
    second.close(done=True)
    assert client.points == [
        *((at, {"lr": 0.5}) for at in (10, 20, 30, 40)),
        (40, {"metric": 0.9}),
    ]
    assert client.ends == [True]


def test_job_log_reaches_them_at_the_end_of_its_step(client: type[Client], job: Alone) -> None:
    job.begin = partial(elastic.init, batch_size=10, seed=5, track="wandb")
    outcome = job.run(lambda it: trains(it, epochs=2), progress_s=1e-9)
    assert outcome.outcome == "done", outcome
    assert [at for at, values in client.points if "loss" in values] == [10, 20, 30, 40]
    assert [(at, values["metric"]) for at, values in client.points if "metric" in values] == [
        (20, 0.0),
        (40, 1.0),
    ]
    assert client.ends == [True]


def trains(it: ElasticJob, epochs: int, **values: Any) -> None:
    model = nn.Linear(1, 1)
    data = torch.utils.data.TensorDataset(torch.ones(20, 1))
    model, optimizer, loader = it.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    for epoch in it.epochs(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            it.log(loss=loss, **values)
        it.log(metric=float(epoch))


def test_a_tracker_that_fails_stops_nothing(
    client: type[Client], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client.fails = True
    tracking = Tracking(worker(tmp_path, 1), ["wandb"])
    logs(tracking, 10, 20)
    tracking.close()
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING] == [
        "wandb: no server; training goes on, and this is said once"
    ]


def test_a_damaged_mark_stops_nothing(
    client: type[Client], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracked_in = JobDir(tmp_path).tracked / "a-1"
    tracked_in.mkdir(parents=True)
    for name, text in {"1-0": '{"lr": 20}', "2-0": '{"lr"', "3-0": "[1]", "4-0": '{"lr": null}'}.items():
        (tracked_in / f"{name}-wandb.json").write_text(text)
    (tracked_in / "5-0-wandb.json").mkdir()
    tracking = Tracking(worker(tmp_path, 6), ["wandb"])
    logs(tracking, 10, 20, 30)
    tracking.close()
    assert client.points == [(30, {"lr": 0.5})]
    (warning,) = (each.getMessage() for each in caplog.records if each.levelno == logging.WARNING)
    assert warning.endswith("cannot be read: values may be logged twice; training goes on")


def test_mistakes_are_refused(job: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="track names 'wanb', expected wandb, mlflow, tensorboard"):
        checked_names("wanb")
    monkeypatch.setattr("pliant.schemas.errors.find_spec", lambda _: None)
    with pytest.raises(
        ServiceMissingError, match=r"mlflow is not installed: pip install 'pliant\[trackers\]'"
    ):
        checked_names(["mlflow"])
    assert "job.log got lr, which only trackers take" in job.run(lambda it: trains(it, 1, lr=0.1)).message


@pytest.mark.services
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the clients' own libraries
def test_each_tracker_has_one_run_and_nothing_twice(tmp_path: Path) -> None:
    """Through 1 → 2 → 1 workers, a stop, a kill and resumes: wandb offline, SQLite, event files."""
    for name, found in tracked(tmp_path).items():
        assert (found.runs, found.twice) == (1, 0), name
        assert {"loss", "lr", "metric"} <= {each for each, _ in found.points}, name
