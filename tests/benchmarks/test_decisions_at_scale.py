"""How many decisions the figure of a policy is the mean of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.parts import decisions_at_scale
from benchmarks.parts.decisions_at_scale import ENOUGH_S, LATER, MOST_DECISIONS, measured


def sessions_of(decision_s: float, seeds: list[int]) -> Callable[..., list[float]]:
    def decided(policy: str, gpus: int, jobs: int, seed: int = 0) -> list[float]:
        seeds.append(seed)
        return [1.0, *[decision_s] * LATER]

    return decided


@pytest.mark.parametrize(
    ("decision_s", "sessions"),
    [(ENOUGH_S, 1), (ENOUGH_S / LATER, 1), (ENOUGH_S / LATER / 2.5, 3), (1e-6, MOST_DECISIONS // LATER)],
)
def test_only_quick_decisions_are_repeated_with_other_jobs(
    decision_s: float, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(decisions_at_scale, "decisions_s", sessions_of(decision_s, seeds))
    monkeypatch.setattr(decisions_at_scale, "_used_s", lambda: 0.0)
    first_s, later_s, number = measured("fifo", 64, 100)
    assert (first_s, number) == (1.0, sessions * LATER)
    assert later_s == pytest.approx(decision_s)
    assert len(set(seeds)) == sessions


def test_a_process_that_has_taken_long_begins_no_further_session(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(decisions_at_scale, "decisions_s", sessions_of(1e-6, seeds))
    monkeypatch.setattr(decisions_at_scale, "_used_s", lambda: 15.0)
    assert measured("fifo", 64, 100)[2] == LATER
