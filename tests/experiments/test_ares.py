"""The comparison of Ares with other schedulers: its workloads, its sweeps, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ares import workloads
from experiments.ares.experiment import EXPERIMENT, POLICIES, gain_over, jct_by_alpha
from experiments.ares.workloads import ALPHAS, FAMILIES, MINUTE, SIX_MINUTES, drawn, prepare, sweeps
from experiments.harness.page import Results, page_text
from experiments.harness.replays import carry_out
from pliant.schemas.errors import BadInputError
from pliant.tools.replay.sweep.recipe import SweepRecipe
from pliant.tools.schedule.registry import policy_class
from tests.builders import job


def test_drawn_samples_have_the_jobs_and_the_times_of_the_given_one() -> None:
    given = [job(f"g{n}", at=600.0 * n, gpus=1 + n % 4, gpu_seconds=100.0 + n) for n in range(48)]
    found = drawn(given, seed=1)
    assert len({each.id for each in found}) == len(found) == 48
    assert {each.work for each in found} <= {each.work for each in given}
    assert [each.submit_time for each in found] == sorted(each.submit_time for each in found)
    assert found == drawn(given, seed=1)
    assert found != drawn(given, seed=2)


def test_a_sample_for_the_testbed_is_shorter() -> None:
    given = [job(f"g{n}", at=600.0 * n) for n in range(48)]
    found = drawn(given, seed=0, count=12, hours=1.0)
    assert len(found) == 12
    assert max(each.submit_time for each in found) <= 3600 + 600


def test_every_policy_is_asked_as_often_as_the_paper_asks_it() -> None:
    assert set(SIX_MINUTES) == {name for name in POLICIES if policy_class(name).default_interval_s == 360}
    asked = {
        (recipe["interval"], *recipe["policies"]) for name, recipe in sweeps() if name.startswith("philly")
    }
    assert asked == {(60.0, *MINUTE), (360.0, *SIX_MINUTES), (60.0, "ares")}


def test_every_recipe_can_be_read() -> None:
    for _, recipe in sweeps():
        SweepRecipe.model_validate_json(json.dumps(recipe))


def test_without_the_published_workloads_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "DATA", tmp_path)
    with pytest.raises(BadInputError, match="PLIANT_DATA"):
        prepare(tmp_path, smoke=True)


def test_a_smoke_run_replays_the_published_jobs(
    tmp_path: Path, reference_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "DATA", reference_data)
    outcomes = carry_out(EXPERIMENT, tmp_path / "out", sweeps=["philly-360.json"], smoke=True)
    assert set(outcomes) == {f"philly-0-{name}" for name in SIX_MINUTES}
    assert all(each.metrics["jobs_finished"] == 6 for each in outcomes.values())


def test_the_page_is_made_from_the_results() -> None:
    results = Results.read(EXPERIMENT.results)
    assert page_text(EXPERIMENT, results) == EXPERIMENT.page.read_text()


def test_the_results_have_every_policy_and_every_alpha_on_every_family() -> None:
    replays = Results.read(EXPERIMENT.results).replays
    for family in FAMILIES:
        assert {name for name in POLICIES if gain_over(replays, family, name) <= 1} == set(POLICIES)
        assert set(jct_by_alpha(replays, family)) == set(ALPHAS)
