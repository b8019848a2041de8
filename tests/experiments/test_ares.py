import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.ares import traces, workloads
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.folds import fold
from experiments.ares.traces import Sources
from experiments.ares.workloads import (
    SIX_MINUTES,
    sweeps,
)
from experiments.harness.replays import carry_out
from pliant.schemas.event import Event
from pliant.tools.replay.sweep_recipe import SweepRecipe
from pliant.tools.report import read_run
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, reference_data: Path) -> Iterator[Sources]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "DATA", reference_data)
        yield Sources(tmp_path_factory.mktemp("sources"))


def test_every_recipe_can_be_read_and_has_its_own_name() -> None:
    result = list(sweeps())
    assert len(dict(result)) == len(result)
    for _, recipe in result:
        SweepRecipe.model_validate_json(json.dumps(recipe))


@pytest.mark.services
def test_a_smoke_run_replays_the_published_jobs(tmp_path, sources: Sources, monkeypatch) -> None:
    monkeypatch.setattr(workloads, "Sources", lambda _folder: sources)
    outcomes = carry_out(EXPERIMENT, tmp_path / "out", sweeps=["testbed-360.json"], smoke=True)
    assert set(outcomes) == {f"testbed-0-{name}" for name in SIX_MINUTES}
    for each in outcomes.values():
        assert each.metrics["jobs_finished"] == 6
        assert each.metrics["cpu_s"] > 0
        assert {"decision_ms", "unfair_fraction_requested"} <= each.extra


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
