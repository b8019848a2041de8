"""The study of shadow-price: its matrix, its ablations, its rows, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parts import pollux_workloads
from experiments.elastic_scaling.live import ROOT
from experiments.harness.study import read_findings
from experiments.shadow_price import runs
from experiments.shadow_price.ablations import NAMES, ablated
from experiments.shadow_price.elsewhere import ELSEWHERE, elsewhere
from experiments.shadow_price.experiment import EXPERIMENT
from experiments.shadow_price.matrix import GROUPS, SHORT, matrix
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS, Replay
from experiments.shadow_price.verdict import headline
from pliant.tools.replay.sweep_recipe import SweepRecipe
from pliant.tools.schedule.policies.shadow_price import sizes as shares
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from tests.builders import job


@pytest.fixture
def few(reference_data: Path, monkeypatch: pytest.MonkeyPatch):
    """Workloads of three jobs."""
    monkeypatch.setattr(pollux_workloads, "DATA", reference_data)
    monkeypatch.setattr(runs, "inputs", lambda name: pollux_workloads.inputs(name, 3))
    runs._sample.cache_clear()
    yield
    runs._sample.cache_clear()


def test_every_replay_of_the_matrix_has_a_name_of_its_own() -> None:
    names = [each.name for group in GROUPS for each in matrix(group)]
    assert len(names) == len(set(names))


def test_other_samples_have_the_jobs_of_the_given_one() -> None:
    given = [job(f"g{n}", at=600.0 * n, gpu_seconds=100.0 + n) for n in range(48)]
    result = runs.resampled(given, 1)
    assert len({each.id for each in result}) == len(result) == 48
    assert {each.work for each in result} <= {each.work for each in given}
    assert [each.submit_time for each in result] == sorted(each.submit_time for each in result)
    assert result == runs.resampled(given, 1) != runs.resampled(given, 2)


def test_a_part_is_missing_only_while_it_is_taken_out() -> None:
    before = (shares._prices, shares.values, ShadowPrice.decide)
    for name in NAMES:
        with ablated(name):
            pass
        assert before == (shares._prices, shares.values, ShadowPrice.decide)


def test_every_recipe_for_the_worlds_of_others_can_be_read(tmp_path: Path) -> None:
    for group in ELSEWHERE:
        rows = list(elsewhere(group, tmp_path))
        assert len({name for name, _ in rows}) == len(rows)
        for _, task in rows:
            recipe = task.args[2]
            assert OURS in recipe["policies"]
            SweepRecipe.model_validate_json(json.dumps(recipe))


@pytest.mark.services
def test_few_jobs_of_each_kind_of_replay(few) -> None:
    """Another load, fixed batches in place, mistaken and predicted work, a sample, an ablation."""
    kinds = [
        Replay("smoke", "w6", "srtf", load=2.0),
        Replay("smoke", "w6", batch="fixed", rescale_s=1.0),
        Replay("smoke", "w6", work="mistaken", parameters={"sigma": 0.5}),
        Replay("smoke", "w6", work="predicted"),
        Replay("smoke", "w6", sample=1),
        Replay("smoke", "w6", ablation="places"),
    ]
    for each in kinds:
        row = each.row()
        assert row["jobs_finished"] == 3
        assert row["policy"] in {OURS, "srtf"}


def test_the_readme_says_what_the_results_say() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert headline(Rows(read_findings(EXPERIMENT))) in text


def test_the_gain_is_over_the_best_rival_of_each_workload() -> None:
    jcts = {OURS: (80.0,) * 4, "steady": (100.0,) * 4, "first-on-one": (90.0, 200.0, 200.0, 200.0)}
    result = {
        f"{policy}/{trace}": {"group": "policies", "trace": trace, "policy": policy, "mean_jct_s": jct}
        for policy, each in jcts.items()
        for trace, jct in zip(SHORT, each, strict=True)
    }
    bounds = {
        trace: {"group": "bounds", "trace": trace, "variant": "free", "load": 1.0, "bound_s": 50.0}
        for trace in SHORT
    }
    assert "is 11 to 20 % below" in headline(Rows({"rows": result | bounds}))


def test_no_policy_is_better_than_the_bound() -> None:
    rows = Rows(read_findings(EXPERIMENT))
    checked = 0
    for group, batch in (("policies", "free"), ("fixed", "fixed"), ("in-place", "free"), ("load", "free")):
        for row in rows.of(group):
            load = float(row["variant"]) if group == "load" else 1.0
            bound_s = rows.bound_s(row["trace"], batch, load)
            if bound_s is not None:
                assert bound_s <= row["mean_jct_s"], row
                checked += 1
    assert checked
    assert all(rows.figure("mean_jct_s", "policies", trace=trace, policy=OURS) for trace in SHORT)
