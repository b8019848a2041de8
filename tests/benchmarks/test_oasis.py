"""The benchmark of OASiS, small."""

from __future__ import annotations

from benchmarks.oasis import feasibility, offline, ratios
from experiments.oasis.measure import PROVEN_GAP


def test_no_schedule_is_infeasible_and_every_ratio_has_a_value() -> None:
    broken, schedules = feasibility(1, scale=20)
    assert broken.value == 0
    assert schedules.value
    result = {figure.name: figure.value for figure in ratios(scale=20, seeds=range(1))}
    assert len(result) == 16
    assert result["oasis_utility_ratio_drf_400"]


def test_a_proven_offline_optimum_is_never_less() -> None:
    result = {figure.name: figure.value or 0.0 for figure in offline(seeds=range(1))}
    assert result["oasis_offline_ratio_max"] >= result["oasis_offline_ratio_median"] >= 1 - PROVEN_GAP
    assert 0 < result["oasis_offline_proven"] <= 4
