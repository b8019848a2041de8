"""The decision-time benchmark measures what it says: a loaded cluster, the same one every time."""

from __future__ import annotations

import statistics

from benchmarks.ares import SEED, decisions, figures


def test_the_cluster_is_loaded_and_every_run_decides_the_same() -> None:
    first, second = ([used for _, used in decisions(64, 300, SEED)] for _ in range(2))
    assert first == second
    assert 0.9 <= statistics.mean(first[-300:]) <= 1


def test_two_figures_for_each_cluster_and_their_growth() -> None:
    measured = {row.name: row for row in figures(clusters=(64, 2048), events=20, warm_up_s=60)}
    assert list(measured) == [
        "ares_decision_median_ms_64",
        "ares_decision_median_ms_2048",
        "ares_decision_growth",
        "ares_decision_p99_ms_64",
        "ares_decision_p99_ms_2048",
    ]
    assert [row.limit for row in measured.values()] == [None, 5.0, None, None, None]
    assert all(row.value is not None and row.value > 0 for row in measured.values())
