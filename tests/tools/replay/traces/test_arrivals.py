from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pliant.tools.replay.traces.recipe import Recipe, read_recipe
from pliant.tools.replay.traces.synthetic import arrival_times_s

HOUR_S = 3600.0


def hours(seed: int = 0, kind: str = "poisson", **fields: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    recipe: Recipe = read_recipe("poisson", {"kind": kind, **fields})
    return arrival_times_s(recipe, np.random.default_rng(seed)) / HOUR_S


def test_bursts_come_in_turn_with_calm() -> None:
    times = hours(kind="bursty", rate_per_hour=1000, low_rate_per_hour=100, phase_minutes=30, jobs=5500)
    in_bursts = np.sum(times % 1 < 0.5)
    assert in_bursts == pytest.approx(5000, rel=0.05)
    assert times[-1] == pytest.approx(10, rel=0.05)


def test_calm_is_a_quarter_of_a_burst_unless_the_recipe_says_otherwise() -> None:
    times = hours(kind="bursty", rate_per_hour=4000, jobs=5000)
    assert np.sum(times < 1) == pytest.approx(4000, rel=0.05)
    assert times[-1] == pytest.approx(2, rel=0.05)


def test_a_day_peaks_at_its_hour_and_keeps_its_mean() -> None:
    times = hours(kind="diurnal", rate_per_hour=1000, amplitude=0.8, peak_hour=15, jobs=24_000)
    by_hour = np.bincount(times.astype(int) % 24, minlength=24)
    assert times[-1] == pytest.approx(24, rel=0.02)
    assert by_hour[14:16] == pytest.approx([1800, 1800], rel=0.07)
    assert by_hour[2:4] == pytest.approx([200, 200], rel=0.2)


def test_hours_alone_bring_as_many_jobs_as_the_rate() -> None:
    times = hours(hours=10, rate_per_hour=300)
    assert len(times) == pytest.approx(3000, rel=0.06)
    assert times[0] == 0
    assert times[-1] < 10


def test_jobs_and_hours_bring_exactly_so_many_in_so_long() -> None:
    times = hours(jobs=160, hours=8, rate_per_hour=1)
    assert len(times) == 160
    assert 0 <= times[0] < times[-1] < 8


def test_an_hour_and_a_half_of_bursts_ends_within_the_calm() -> None:
    times = hours(kind="bursty", jobs=9000, hours=1.5, rate_per_hour=40, phase_minutes=60)
    assert np.sum(times < 1) == pytest.approx(8000, rel=0.05)
    assert times[-1] < 1.5
