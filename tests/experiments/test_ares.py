import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.ares import traces, workloads
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.traces import Sources
from experiments.ares.workloads import (
    SIX_MINUTES,
    sweeps,
)
from experiments.harness.replays import carry_out
from pliant.tools.replay.sweep_recipe import SweepRecipe


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
