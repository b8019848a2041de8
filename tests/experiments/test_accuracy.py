"""The study of accuracy: the same training in several ways, small enough for a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.accuracy.arms import FULL, SMOKE, arms
from experiments.accuracy.facts import Run, Runs, claims
from experiments.harness.spec import Findings, Study, find
from experiments.harness.study import read_findings
from pliant.schemas.io import read_events
from pliant.tools.run.statedir.contract.folders import JobDir

TRAINED = ("fixed", "elastic", "regrouped", "warm", "drawn-1")
BATCH, FIRST = SMOKE.batch, SMOKE.first


def trained(folder: Path, arm: str) -> list[tuple[int | None, int | None]]:
    """(workers, global batch) of each epoch."""
    events = read_events(JobDir(folder / f"{arm}-0").attempt(1).progress)
    return [(event.gpus, event.global_batch) for event in events if event.event == "epoch"]


@pytest.mark.torch
def test_small_trainings_change_what_their_arm_says(tmp_path: Path) -> None:
    """Whether a regrouped sum changes that depends on the order in which a processor adds."""
    from experiments.accuracy.measure import measured

    chosen = {arm.name: arm for arm in arms(SMOKE) if arm.name in TRAINED}
    runs: dict[str, Any] = {run["arm"]: run for run in measured(SMOKE, [*chosen.values()], tmp_path)["runs"]}
    fixed, elastic, regrouped, warm = (runs[name] for name in TRAINED[:-1])

    assert trained(tmp_path, "elastic") == [(workers, BATCH) for workers in (1, 2, 3, 2, 1, 1)]
    assert elastic["weights_off"] <= 1e-12
    assert elastic["accuracy"] == fixed["accuracy"]
    assert elastic["loss"] == pytest.approx(fixed["loss"], rel=1e-5)

    assert regrouped["loss_off"][:FIRST] == [0.0] * FIRST
    assert max(regrouped["loss_off"]) <= 1e-12

    later = SMOKE.epochs - FIRST
    assert trained(tmp_path, "warm") == [(1, BATCH)] * FIRST + [(1, 16 * BATCH)] * later
    assert warm["loss"][:FIRST] == fixed["loss"][:FIRST]
    assert warm["loss"][FIRST + 1 :] != fixed["loss"][FIRST + 1 :]

    drawn = {change.epoch: round(BATCH * change.factor) for change in chosen["drawn-1"].changes}
    batches = [BATCH]
    for epoch in range(SMOKE.epochs):
        batches.append(drawn.get(epoch, batches[-1]))
    assert trained(tmp_path, "drawn-1") == [(1, batch) for batch in batches[1:]]
    assert all(BATCH // 4 <= batch <= 2 * BATCH for batch in batches)


def test_a_rise_of_the_loss_and_the_way_back_by_hand() -> None:
    run = Run("abrupt", 0, (4.0, 1.0, 3.0, 2.0, 0.5, 0.7), (0.5,) * 6, (0.0,) * 6, 0.0, first=2)
    assert (run.rise, run.epochs_back) == (3.0, 2)
    assert replace(run, loss=(4.0, 1.0, 3.0, 2.0)).epochs_back == 2
    assert replace(run, loss=(4.0, 1.0, 0.9)).epochs_back == 0


def made(**losses: tuple[float, ...]) -> Findings:
    """Two seeds of every arm: those of the reference are two points apart, all others end as it does."""
    names = [arm.name for arm in arms(FULL)]
    rows = [
        {
            "arm": name,
            "seed": seed,
            "loss": losses.get(name, (2.0, 1.0, 0.9, 0.8, 0.7, 0.6)),
            "accuracy": (0.7 + seed * 0.02 - 0.04 * (name == "larger-8"),),
            "loss_off": (0.0, 0.0, 1e-15, 1e-12, 1e-10, 1e-7),
            "weights_off": 1e-7,
        }
        for name in names
        for seed in (0, 1)
    ]
    return {"scale": {"first": 2}, "arms": {name: name for name in names}, "runs": rows}


JUMPED = (2.0, 1.0, 4.0, 3.0, 2.0, 0.5)


def test_each_claim_can_hold_and_can_fail() -> None:
    def held(result: Findings) -> list[bool]:
        return [claim.holds for claim in claims(Runs(result))]

    assert held(made(abrupt=JUMPED)) == [True] * 5
    assert held(made()) == [True, True, True, False, True]
    assert held(made(abrupt=JUMPED, stepwise=JUMPED)) == [True, True, True, True, False]
    off = made(abrupt=JUMPED)
    for row in off["runs"]:
        row["weights_off"] = 1e-3 if row["arm"] == "elastic" else 1e-7
        row["accuracy"] = (0.7 + 0.02 * row["seed"] - 0.01 * (row["arm"] == "drawn-2"),)
    assert held(off) == [False, False, False, True, True]


def test_the_committed_results_are_of_all_seeds_and_arms() -> None:
    study = find("accuracy")
    assert isinstance(study, Study)
    result = read_findings(study)
    assert result["scale"]["seeds"] == list(FULL.seeds)
    assert result["arms"] == {arm.name: arm.words for arm in arms(FULL)}
