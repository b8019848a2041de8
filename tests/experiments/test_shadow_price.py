import json
from pathlib import Path

from experiments.elastic_scaling.live import ROOT
from experiments.harness.study import read_findings
from experiments.shadow_price import runs
from experiments.shadow_price.ablations import NAMES, ablated
from experiments.shadow_price.elsewhere import ELSEWHERE, elsewhere
from experiments.shadow_price.experiment import EXPERIMENT
from experiments.shadow_price.matrix import GROUPS, SHORT, matrix
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from experiments.shadow_price.verdict import headline
from pliant.tools.replay.sweep_recipe import SweepRecipe
from pliant.tools.schedule.policies.shadow_price import sizes as shares
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from tests.builders import job


def test_replays_samples_and_ablations_of_the_study() -> None:
    names = [each.name for group in GROUPS for each in matrix(group)]
    assert len(names) == len(set(names))
    # Other samples have the jobs of the given one.
    given = [job(f"g{n}", at=600.0 * n, gpu_seconds=100.0 + n) for n in range(48)]
    result = runs.resampled(given, 1)
    assert len({each.id for each in result}) == len(result) == 48
    assert {each.work for each in result} <= {each.work for each in given}
    assert [each.submit_time for each in result] == sorted(each.submit_time for each in result)
    assert result == runs.resampled(given, 1) != runs.resampled(given, 2)
    # A part is missing only while it is taken out.
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


def test_the_readme_and_the_bound_say_what_the_results_say() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert headline(Rows(read_findings(EXPERIMENT))) in text
    # No policy is better than the bound.
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
