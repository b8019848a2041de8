"""The comparison of Ares with other schedulers: its workloads, its sweeps, and its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.ares import traces, workloads
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.facts import POLICIES, gain_over, jct_by_alpha, mean_of
from experiments.ares.folds import fold
from experiments.ares.speeds import CONTINUED, RTX, fitted, log_error, speeds_of
from experiments.ares.traces import FAMILIES, SIZES, TABLE_2, Sources
from experiments.ares.workloads import (
    ALPHAS,
    SIX_MINUTES,
    WORLDS,
    prepare,
    stem,
    sweeps,
)
from experiments.harness.page import Results
from experiments.harness.replays import carry_out
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.io import read_profile
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.replay.sweep_recipe import SweepRecipe
from pliant.tools.report import read_run
from pliant.tools.schedule.policies.pollux.goodput import Fit
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, reference_data: Path) -> Iterator[Sources]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "DATA", reference_data)
        yield Sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.services
def test_samples_are_like_the_published_jobs_under_each_rule(sources: Sources) -> None:
    given = sources.published["philly"]
    by_rule = {rule: sources.sample("philly", 1, rule) for rule in ("sia", "records", "powers")}
    result = by_rule["sia"]
    assert result == sources.sample("philly", 1) != sources.sample("philly", 2)
    assert len({each.id for each in result}) == len(result) == len(given)
    assert {SIZES[each.model] for each in result} == {SIZES[each.model] for each in given}
    assert all(each.batch.size in TABLE_2[SIZES[each.model]][each.model] for each in result)
    kinds = [[(each.model, each.batch, each.submit_time) for each in jobs] for jobs in by_rule.values()]
    assert kinds[0] == kinds[1] == kinds[2]
    assert {each.gpus.requested for each in by_rule["powers"]} <= {2**power for power in range(7)}
    assert sources.sample("philly", 0) == given != sources.sample("philly", 0, "records")


def test_every_recipe_can_be_read_and_has_its_own_name() -> None:
    result = list(sweeps())
    assert len(dict(result)) == len(result)
    for _, recipe in result:
        SweepRecipe.model_validate_json(json.dumps(recipe))


def test_without_the_published_workloads_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "DATA", tmp_path)
    with pytest.raises(BadInputError, match="PLIANT_DATA"):
        prepare(tmp_path, smoke=True)


@pytest.mark.services
def test_a_smoke_run_replays_the_published_jobs(
    tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "Sources", lambda _folder: sources)
    outcomes = carry_out(EXPERIMENT, tmp_path / "out", sweeps=["testbed-360.json"], smoke=True)
    assert set(outcomes) == {f"testbed-0-{name}" for name in SIX_MINUTES}
    for each in outcomes.values():
        assert each.metrics["jobs_finished"] == 6
        assert each.metrics["cpu_s"] > 0
        assert {"decision_ms", "unfair_fraction_requested"} <= each.extra


def measured(model: str, truth: Fit) -> Iterator[ProfileRow]:
    """Rows of RTX 2080 Ti on up to three nodes that the seven parameters explain exactly."""
    import numpy as np

    for place in ((1,), (2,), (4,), (4, 4), (4, 4, 4), (8, 8, 8)):
        for local in (16, 64, 128):
            gpus, several = np.array([sum(place)]), np.array([len(place) > 1])
            seconds = float(truth.step_seconds(several, gpus, np.array([local]), np.array([1]))[0])
            compute = float(truth.compute_seconds(np.array([local]))[0])
            yield ProfileRow(
                "train", model, RTX, len(place), sum(place), ",".join(map(str, place)), local,
                step_seconds=seconds, compute_seconds=compute, sync_seconds=seconds - compute,
                samples_per_second=sum(place) * local / seconds, source="imported",
            )  # fmt: skip


def test_speeds_beyond_measured_nodes_are_of_the_fitted_model() -> None:
    truth = Fit(0.1, 0.002, 0.2, 0.004, 0.05, 0.002, 2.0)
    rows = tuple(measured("m", truth))
    assert log_error(rows, fitted(rows)) < 0.02
    result = speeds_of(Profile(rows), RTX)
    assert result.rows[: len(rows)] == rows
    assert max(row.gpus for row in result.rows) == 64
    seconds = ThroughputBySize(result).step_seconds("m", RTX, (4,) * 16, 64 * 64, None)
    import numpy as np

    expected = truth.step_seconds(np.array([True]), np.array([64]), np.array([64]), np.array([1]))[0]
    assert seconds == pytest.approx(expected, rel=0.05)


@pytest.mark.services
def test_written_parameters_err_no_more_than_fitted_ones(sources: Sources) -> None:
    measurements = [row for row in read_profile(sources.profile).rows if row.gpu_type == RTX]
    assert {row.model for row in measurements} == CONTINUED.keys()
    for model, result in CONTINUED.items():
        rows = [row for row in measurements if row.model == model]
        assert log_error(rows, result) == pytest.approx(log_error(rows, fitted(rows)), rel=0.01), model


def test_fair_sharing_by_requests_gives_no_more_than_asked(tmp_path: Path) -> None:
    """40 GPU-seconds on 2 of 4 GPUs: twice as fast as on the one that the job asks for."""
    events = [
        begin(cluster(4)),
        submit(job("a", gpus=1, low=1, high=4), 40.0),
        Event(0, "start", "a", 2),
        Event(20, "finish", "a", 0),
    ]
    path = tmp_path / "a.parquet"
    path.with_suffix(".summary.json").write_text('{"mean_decision_seconds": 0.001, "cpu_seconds": 0.5}')
    result = fold(read_run.fold(events), path)
    assert result["unfair_fraction_requested"] == 0.0
    assert result["worst_ftf_requested"] == pytest.approx(0.5)
    assert (result["decision_ms"], result["cpu_s"]) == (1.0, 0.5)


def test_results_have_every_policy_and_alpha_on_every_family() -> None:
    replays = Results.read(EXPERIMENT.results).replays
    for family in FAMILIES:
        for name in (family, stem(WORLDS[0], family)):
            assert {policy for policy in POLICIES if gain_over(replays, name, policy) <= 1} == set(POLICIES)
            assert set(jct_by_alpha(replays, name)) == set(ALPHAS)
    assert mean_of(replays, "philly", "ares", "mean_jct_s") > 0
