"""Replays in which policies see predictions of work, and the trace alone knows when jobs end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.main import app
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_cluster, write_jobs, write_predictor
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.profile.predictor import ProgressPredictor
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.progress.convergence import validations
from pliant.tools.replay.run import Replayed, Run, replay
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.profile.predictor.histories import history

PREDICTED = Conditions(demand="predicted")


def trace(jobs: int = 12, **more: Any) -> Inputs:
    """Jobs of 5 to 16 epochs of 100 samples, one after the other."""
    made = [
        job(f"j{n:02}", at=40.0 * n, work={"epochs": 5.0 + n, "dataset_size": 100}, **more)
        for n in range(jobs)
    ]
    return inputs(made, cluster(2))


def ends(done: Replayed) -> dict[str, float | None]:
    return {event.job or "": event.samples_done for event in done.log.events() if event.event == "finish"}


def predictions(done: Replayed) -> list[Event]:
    return [event for event in done.log.events() if event.event == "progress"]


def test_every_job_still_does_the_work_of_the_trace() -> None:
    done = replay(trace(), Run("srtf", conditions=PREDICTED, simulated=FREE_CHANGES))
    assert ends(done) == {f"j{n:02}": 100.0 * (5 + n) for n in range(12)}


def test_it_learns_as_jobs_end_and_notes_what_it_predicts() -> None:
    done = replay(trace(), Run("srtf", conditions=PREDICTED, simulated=FREE_CHANGES))
    assert done.session.forecast.predictor.jobs >= 11
    noted = [(event.detail or {})["progress"] for event in predictions(done)]
    assert {"samples_done", "mean", "low", "high"} == set(noted[0])
    assert (noted[0]["low"], noted[0]["high"]) == (0.05, 0.95), "at first it knows nothing"
    assert noted[-1]["high"] - noted[-1]["low"] < 0.9


def test_equal_replays_are_equal_byte_for_byte() -> None:
    one, two = (
        replay(trace(), Run("srtf", seed=3, conditions=PREDICTED, simulated=FREE_CHANGES)).log.json_lines()
        for _ in range(2)
    )
    assert one == two


def test_no_policy_sees_the_work_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from pliant.tools.schedule.policies.srtf import Srtf

    seen: list[tuple[bool, float | None, float | None]] = []
    decide = Srtf.decide

    def watched(self: Any, snapshot: Any, rng: Any) -> Any:
        seen.extend(
            (each.predicted, each.total_samples, each.work_samples) for each in snapshot.jobs.values()
        )
        return decide(self, snapshot, rng)

    monkeypatch.setattr(Srtf, "decide", watched)
    replay(trace(), Run("srtf", conditions=PREDICTED, simulated=FREE_CHANGES))
    assert all(predicted for predicted, _, _ in seen)
    assert sum(shown == truth for _, shown, truth in seen) < len(seen) / 4


def test_jobs_with_a_table_report_their_epochs_and_metrics() -> None:
    rows = [
        ConvergenceRow("net", 960, epoch, epoch + 1.0, 100.0 * (epoch + 1), 0.1 * epoch)
        for epoch in range(16)
    ]
    made = replace(trace(convergence="net"), tables=validations(rows))
    done = replay(made, Run("srtf", conditions=PREDICTED, simulated=FREE_CHANGES))
    last = done.session.ended["j03"].epochs
    assert [(end.epoch, end.samples_done, end.metric) for end in last] == [
        (n, 100.0 * n, pytest.approx(0.1 * (n - 1))) for n in range(1, 8)
    ]


def test_a_fitted_file_is_where_predictions_begin(tmp_path: Path) -> None:
    known = ProgressPredictor()
    known.learn(history(10))
    path = tmp_path / "predictor.json"
    write_predictor(known.document(), path)
    done = replay(
        trace(), Run("srtf", conditions=replace(PREDICTED, predictor=str(path)), simulated=FREE_CHANGES)
    )
    assert done.session.forecast.predictor.jobs > 20
    first = (predictions(done)[0].detail or {})["progress"]
    assert (first["low"], first["high"]) != (0.05, 0.95)


def test_the_command_takes_both_and_the_report_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    made = trace(8)
    write_jobs(made.jobs, "jobs.jsonl")
    write_cluster(made.cluster, "cluster.json")
    begin = ["replay", "--jobs", "jobs.jsonl", "--cluster", "cluster.json", "--policy", "srtf"]
    run = CliRunner().invoke
    assert run(app, [*begin, "-o", "stated.parquet"]).exit_code == 0
    assert run(app, ["predictor", "fit", "stated.parquet", "-o", "predictor.json"]).exit_code == 0
    options = ["--demand", "predicted", "--predictor", "predictor.json"]
    assert run(app, [*begin, *options, "-o", "predicted.parquet"]).exit_code == 0
    assert any(event.event == "progress" for event in read_events("predicted.parquet"))
    told = json.loads(run(app, ["report", "predicted.parquet", "--format", "json"]).stdout)
    assert told["runs"][0]["demand"] == "predicted"
    alone = run(app, [*begin, "--predictor", "predictor.json"])
    assert alone.exit_code == 2
    assert "it predicts with --demand predicted only" in alone.output
