"""The benchmark of OASiS, small."""

from __future__ import annotations

import pytest

from benchmarks import oasis
from benchmarks.oasis import feasibility, offline_pair, ratios, slowest_arrival_s
from experiments.oasis.measure import PROVEN_GAP
from experiments.oasis.worlds import world
from pliant.tools.schedule.policies.oasis.offline import Optimum


def test_every_figure_has_a_value() -> None:
    assert slowest_arrival_s(world(0, 3, 10), repeats=1) > 0
    broken, schedules = feasibility(2, scale=10)
    assert broken.value == 0
    assert schedules.value
    found = {figure.name: figure.value for figure in ratios(scale=20, seeds=range(1))}
    assert len(found) == 16
    assert found["oasis_utility_ratio_drf_400"]


def test_the_offline_optimum_is_never_less() -> None:
    found = [offline_pair(seed) for seed in range(3)]
    assert any(found)
    assert all(pair is None or pair[0] >= pair[1] * (1 - PROVEN_GAP) for pair in found)


def test_an_optimum_that_is_not_proven_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(3) if offline_pair(seed))
    monkeypatch.setattr(oasis, "solve", lambda *_: Optimum((), 5.0, 9.0))
    assert offline_pair(seed) is None
