"""The benchmark of OASiS, small."""

from __future__ import annotations

from benchmarks.oasis import feasibility, offline, ratios, slowest_arrival_s, slowest_decision_s
from experiments.oasis.measure import PROVEN_GAP
from experiments.oasis.worlds import world


def test_every_figure_has_a_value() -> None:
    made = world(0, 3, 10)
    assert slowest_arrival_s(made, repeats=1) > 0
    assert slowest_decision_s(made.servers, 3, 10, repeats=1) > 0
    broken, schedules = feasibility(2, scale=10)
    assert broken.value == 0
    assert schedules.value
    found = {figure.name: figure.value for figure in ratios(scale=20, seeds=range(1))}
    assert len(found) == 16
    assert found["oasis_utility_ratio_drf_400"]


def test_the_offline_optimum_is_never_less_and_counts_where_it_is_proven() -> None:
    found = {figure.name: figure.value or 0.0 for figure in offline(seeds=range(1))}
    assert found["oasis_offline_ratio_max"] >= found["oasis_offline_ratio_median"] >= 1 - PROVEN_GAP
    assert 0 < found["oasis_offline_proven"] <= 4
