"""Replays in which policies see when each job will end, and jobs that state less than the replay knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.main import app
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import read_events, write_cluster, write_convergence, write_jobs
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.replay.engine.failures import Mtbf
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions, DemandName
from pliant.tools.replay.progress.convergence import Validation, validations
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.policies.srtf import Srtf
from tests.builders import FREE_CHANGES, cluster, job

ORACLE = Conditions(demand="oracle")


def rows(name: str, epochs: int) -> list[ConvergenceRow]:
    """An epoch is a step of 960 samples, after which the metric is a tenth higher."""
    return [ConvergenceRow(name, 960, n, n + 1.0, n + 1.0, 0.1 * (n + 1)) for n in range(epochs)]


TABLE = [*rows("long", 20), *rows("short", 5)]


def validated() -> dict[str, Validation]:
    return dict(validations(TABLE))


def silent() -> Inputs:
    """A long job that is there before a short one; neither states its work, validation runs know it."""
    made = [job("a", convergence="long"), job("b", at=1.0, convergence="short")]
    return inputs(made, cluster(1), tables=validated())


def early(**labels: str) -> Inputs:
    """A job that states more work than one that came later, and reaches its target after four epochs."""
    made = [
        job("a", convergence="long", work={"epochs": 20.0, "dataset_size": 960}, labels=labels),
        job("b", convergence="short", work={"epochs": 5.0, "dataset_size": 960}),
    ]
    return inputs(made, cluster(1), tables=validated())


def under(found: Inputs, demand: DemandName = "stated", policy: str = "srtf") -> Replayed:
    return replay(found, Run(policy, conditions=Conditions(demand=demand), simulated=FREE_CHANGES))


def events(done: Replayed, *names: str) -> list[tuple[float, str, str | None]]:
    return [(each.time, each.event, each.job) for each in done.log.events() if each.event in names]


def finished(done: Replayed) -> dict[str | None, tuple[float, float | None]]:
    return {each.job: (each.time, each.samples_done) for each in done.log.events() if each.event == "finish"}


def test_the_work_of_jobs_that_state_none_is_that_of_their_validation_run() -> None:
    assert finished(under(silent(), "oracle")) == {"a": (24000.0, 19200.0), "b": (4801.0, 4800.0)}


def test_the_oracle_lets_a_policy_serve_the_short_job_first_that_does_not_say_so() -> None:
    """A job of unknown work comes last, so that the long one trains on unless the policy knows."""
    assert events(under(silent(), "oracle"), "preempt") == [(1.0, "preempt", "a")]
    assert events(under(silent()), "preempt") == []


def test_what_no_policy_may_see_is_unknown_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []
    decide = Srtf.decide

    def watched(self: Any, snapshot: Any, rng: Any) -> Any:
        seen.extend(each.remaining_samples(snapshot.time_s) for each in snapshot.jobs.values())
        return decide(self, snapshot, rng)

    monkeypatch.setattr(Srtf, "decide", watched)
    under(silent())
    assert set(seen) == {None}
    seen.clear()
    under(silent(), "oracle")
    assert seen[:3] == [19200.0, 19199.0, 4800.0]


@pytest.mark.parametrize(
    ("policy", "demand"),
    [("srtf", "stated"), ("srtf", "predicted"), ("srtf", "oracle"), ("ones", "stated"), ("pollux", "stated")],
)
def test_a_target_metric_ends_a_job_also_where_epochs_are_looked_at_one_by_one(
    policy: str, demand: DemandName
) -> None:
    alone = replace(early(target_metric="0.35"), jobs=early(target_metric="0.35").jobs[:1])
    ((_, samples),) = finished(under(alone, demand, policy)).values()
    assert samples == 4 * 960


def test_the_oracle_knows_that_a_target_will_be_reached_sooner_than_stated() -> None:
    assert events(under(early(target_metric="0.35")), "start")[0] == (0.0, "start", "b")
    known = under(early(target_metric="0.35"), "oracle")
    assert events(known, "start")[0] == (0.0, "start", "a")
    assert finished(known) == {"a": (3840.0, 3840.0), "b": (8640.0, 4800.0)}


def test_where_jobs_end_as_they_state_an_oracle_knows_no_more() -> None:
    stated, known = under(early()), under(early(), "oracle")
    assert [each for each in stated.log.events() if each.event != "decision"] == [
        each for each in known.log.events() if each.event != "decision"
    ]


def test_failures_are_drawn_for_the_work_that_is_not_stated_too() -> None:
    fails = SimulatedCluster(mtbf=Mtbf(between_h=1.0, repair_h=0.1))
    assert events(replay(silent(), Run("srtf", simulated=fails)), "node_down")


def test_only_epochs_take_work_from_a_table() -> None:
    with pytest.raises(UsageError, match='--progress samples: job "a" states no work, and only epochs'):
        replay(silent(), Run("srtf", conditions=Conditions(progress="samples")))


def test_a_policy_that_needs_the_work_refuses_jobs_that_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Srtf, "needs", frozenset({"demand"}))
    with pytest.raises(BadInputError, match='job "a" states no work, which policy "srtf" needs'):
        under(silent())
    assert len(finished(under(silent(), "oracle"))) == 2


def test_the_event_file_and_the_report_name_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    write_jobs(silent().jobs, "jobs.jsonl")
    write_cluster(silent().cluster, "cluster.json")
    write_convergence(TABLE, "epochs.parquet")
    run = CliRunner().invoke
    begin = ["replay", "--jobs", "jobs.jsonl", "--cluster", "cluster.json", "--policy", "srtf"]
    for demand in ("stated", "oracle"):
        options = ["--convergence", "epochs.parquet", "--demand", demand, "-o", f"{demand}.parquet"]
        assert run(app, [*begin, *options]).exit_code == 0
    (head, *_) = read_events("oracle.parquet")
    assert [(head.detail or {})[name] for name in ("oracle", "demand")] == [True, "oracle"]
    text = run(app, ["report", "stated.parquet", "oracle.parquet"]).output
    assert "srtf oracle demand" in text, "the name of the run"
    assert "oracle demand (knows when jobs end, as no scheduler can)" in text
    assert "the policies did not see the same of the work of jobs" in text


@pytest.mark.parametrize("command", ["schedule", "run"])
def test_no_other_command_has_an_oracle(command: str) -> None:
    from typer.testing import CliRunner

    told = CliRunner().invoke(app, [command, "--policy", "srtf", "--demand", "oracle"])
    assert told.exit_code == 2
    assert "only a replay knows when jobs will end" in " ".join(told.output.replace("│", "").split())
