"""What policies see of work: what jobs state, predictions of it, or when each job will end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pliant.cli.main import app
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_cluster, write_jobs, write_predictor
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.profile.predictor import ProgressPredictor
from pliant.tools.replay.engine.failures import Mtbf
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions, DemandName
from pliant.tools.replay.progress import validations
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.srtf import Srtf
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.profile.histories import history

Look = Callable[[Callable[[JobState, float], Any]], list[Any]]


def rows(name: str, epochs: int) -> list[ConvergenceRow]:
    """An epoch is a step of 960 samples, after which the metric is a tenth higher."""
    return [ConvergenceRow(name, 960, n, n + 1.0, n + 1.0, 0.1 * (n + 1)) for n in range(epochs)]


TABLE = [*rows("long", 20), *rows("short", 5)]


def silent() -> Inputs:
    """A long job that is there before a short one; neither states its work, validation runs know it."""
    made = [job("a", convergence="long"), job("b", at=1.0, convergence="short")]
    return inputs(made, cluster(1), tables=validations(TABLE))


def early(**labels: str) -> Inputs:
    """A job that states more work than one that came later, and reaches its target after four epochs."""
    made = [
        job("a", convergence="long", work={"epochs": 20.0, "dataset_size": 960}, labels=labels),
        job("b", convergence="short", work={"epochs": 5.0, "dataset_size": 960}),
    ]
    return inputs(made, cluster(1), tables=validations(TABLE))


def sequence(jobs: int = 12, **more: Any) -> Inputs:
    """Jobs of 5 to 16 epochs of 100 samples, one after the other."""
    made = [
        job(f"j{n:02}", at=40.0 * n, work={"epochs": 5.0 + n, "dataset_size": 100}, **more)
        for n in range(jobs)
    ]
    return inputs(made, cluster(2))


def under(found: Inputs, demand: DemandName = "stated", policy: str = "srtf", **more: Any) -> Replayed:
    return replay(
        found, Run(policy, conditions=Conditions(demand=demand, **more), simulated=FREE_CHANGES, seed=3)
    )


def events(done: Replayed, *names: str) -> list[tuple[float, str, str | None]]:
    return [(each.time, each.event, each.job) for each in done.log.events() if each.event in names]


def finished(done: Replayed) -> dict[str | None, tuple[float, float | None]]:
    return {each.job: (each.time, each.samples_done) for each in done.log.events() if each.event == "finish"}


def predictions(done: Replayed) -> list[Any]:
    noted = (each for each in done.log.events() if each.event == "progress")
    return [(each.detail or {})["progress"] for each in noted]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Notes something about every job that the policy srtf sees."""

    def noted(what: Callable[[JobState, float], Any]) -> list[Any]:
        seen: list[Any] = []
        decide = Srtf.decide

        def watched(self: Any, snapshot: Any, rng: Any) -> Any:
            seen.extend(what(each, snapshot.time_s) for each in snapshot.jobs.values())
            return decide(self, snapshot, rng)

        monkeypatch.setattr(Srtf, "decide", watched)
        return seen

    return noted


def test_the_oracle_knows_work_that_jobs_do_not_state(look: Look) -> None:
    assert finished(under(silent(), "oracle")) == {"a": (24000.0, 19200.0), "b": (4801.0, 4800.0)}
    # A job of unknown work comes last, so that the long one trains on unless the policy knows.
    assert events(under(silent(), "oracle"), "preempt") == [(1.0, "preempt", "a")]
    assert events(under(silent()), "preempt") == []
    seen = look(lambda state, time_s: state.remaining_samples(time_s))
    under(silent())
    assert set(seen) == {None}
    seen.clear()
    under(silent(), "oracle")
    assert seen[:3] == [19200.0, 19199.0, 4800.0]


@pytest.mark.parametrize(
    ("policy", "demand"),
    [("srtf", "stated"), ("srtf", "predicted"), ("srtf", "oracle"), ("ones", "stated"), ("pollux", "stated")],
)
def test_a_target_metric_ends_jobs_under_every_demand(policy: str, demand: DemandName) -> None:
    alone = replace(early(target_metric="0.35"), jobs=early(target_metric="0.35").jobs[:1])
    ((_, samples),) = finished(under(alone, demand, policy)).values()
    assert samples == 4 * 960


def test_the_oracle_knows_when_targets_end_jobs_and_no_more() -> None:
    assert events(under(early(target_metric="0.35")), "start")[0] == (0.0, "start", "b")
    known = under(early(target_metric="0.35"), "oracle")
    assert events(known, "start")[0] == (0.0, "start", "a")
    assert finished(known) == {"a": (3840.0, 3840.0), "b": (8640.0, 4800.0)}

    def told(demand: DemandName) -> list[Event]:
        return [each for each in under(early(), demand).log.events() if each.event != "decision"]

    assert told("stated") == told("oracle")


def test_unstated_work_needs_epochs_or_an_oracle() -> None:
    fails = SimulatedCluster(mtbf=Mtbf(between_h=1.0, repair_h=0.1))
    assert events(replay(silent(), Run("srtf", simulated=fails)), "node_down")
    with pytest.raises(UsageError, match='--progress samples: job "a" states no work, and only epochs'):
        replay(silent(), Run("srtf", conditions=Conditions(progress="samples")))
    assert len(finished(under(silent(), "oracle"))) == 2


def test_predictions_are_learned_and_hide_the_work_of_the_trace(look: Look) -> None:
    done = under(sequence(), "predicted")
    assert {name: samples for name, (_, samples) in finished(done).items()} == {
        f"j{n:02}": 100.0 * (5 + n) for n in range(12)
    }
    assert done.session.policy_host.forecast.predictor.jobs >= 11
    first, *_, last = predictions(done)
    assert {"samples_done", "mean", "low", "high"} == set(first)
    assert (first["low"], first["high"]) == (0.05, 0.95), "at first it knows nothing"
    assert last["high"] - last["low"] < 0.9
    assert under(sequence(), "predicted").log.json_lines() == done.log.json_lines()
    seen = look(lambda state, _: (state.predicted, state.total_samples == state.work_samples))
    under(sequence(), "predicted")
    assert all(predicted for predicted, _ in seen)
    assert sum(is_true for _, is_true in seen) < len(seen) / 4


def test_jobs_with_a_table_report_its_metrics() -> None:
    table = [ConvergenceRow("net", 960, n, n + 1.0, 100.0 * (n + 1), 0.1 * n) for n in range(16)]
    done = under(replace(sequence(convergence="net"), tables=validations(table)), "predicted")
    last = done.session.book.ended["j03"].epochs
    assert [(end.epoch, end.samples_done, end.metric) for end in last] == [
        (n, 100.0 * n, pytest.approx(0.1 * (n - 1))) for n in range(1, 8)
    ]
    # Two recorded epochs stand for halves: of eight epochs the first four report the first of them.
    losses = {"initial_loss": 8.0}
    table = [ConvergenceRow("net", 960, n, n + 1.0, n + 1.0, 0.1 + n, loss=4.0 - n, **losses) for n in (0, 1)]
    world = replace(sequence(convergence="net"), tables=validations(table))
    done = under(world, "predicted", progress="samples")
    plain = under(sequence(), "predicted")
    assert events(done, "finish") == events(plain, "finish"), "what it reports changes no speed"
    job = done.session.book.ended["j03"]
    assert job.initial_loss == 8.0
    assert [end.loss for end in job.epochs] == [4.0] * 4 + [3.0] * 3
    assert [end.metric for end in job.epochs] == [0.1] * 4 + [1.1] * 3
    assert [end.samples_done for end in job.epochs] == [100.0 * n for n in range(1, 8)]
    assert under(world, progress="samples").session.book.ended["j03"].epochs == (), "no policy asks"


def test_predictions_begin_as_the_file_says(tmp_path: Path) -> None:
    path = str(tmp_path / "predictor.json")
    write_predictor(Predictor(widened=False), path)
    narrow, wide = (
        under(sequence(), "predicted", predictor=each).session.policy_host.forecast.document()
        for each in (path, None)
    )
    assert narrow.fit.trust == 1 > wide.fit.trust
    assert not narrow.widened
    known = ProgressPredictor()
    known.learn(history(10))
    write_predictor(known.document(), path)
    done = under(sequence(), "predicted", predictor=path)
    assert done.session.policy_host.forecast.predictor.jobs > 20
    first = predictions(done)[0]
    assert (first["low"], first["high"]) != (0.05, 0.95)


def test_a_replay_is_a_history_to_fit_predictors_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the commands; the report and the event file name what was known of the work."""
    monkeypatch.chdir(tmp_path)
    made, begin = sequence(8), ("replay", "jobs.jsonl", "--cluster", "cluster.json", "--policy", "srtf")
    write_jobs(made.jobs, "jobs.jsonl")
    write_cluster(made.cluster, "cluster.json")
    for words in (
        (*begin, "-o", "stated.parquet"),
        ("predictor", "fit", "stated.parquet", "-o", "predictor.json"),
        (*begin, "--demand", "predicted", "--predictor", "predictor.json", "-o", "predicted.parquet"),
        (*begin, "--demand", "oracle", "-o", "oracle.parquet"),
    ):
        assert CliRunner().invoke(app, [*words]).exit_code == 0
    assert any(event.event == "progress" for event in read_events("predicted.parquet"))
    (head, *_) = read_events("oracle.parquet")
    assert [(head.detail or {})[name] for name in ("oracle", "demand")] == [True, "oracle"]
    report = CliRunner().invoke(app, ["report", "predicted.parquet", "oracle.parquet", "--format", "json"])
    assert [run["demand"] for run in json.loads(report.stdout)["runs"]] == ["predicted", "oracle"]
