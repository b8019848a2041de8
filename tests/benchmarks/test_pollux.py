"""The benchmark of Pollux, run small."""

from __future__ import annotations

from benchmarks import pollux


def test_figures_of_a_small_snapshot():
    found = {figure.name: figure.value for figure in pollux.figures(jobs=4, nodes=2, rounds=2)}
    assert sorted(found) == [
        "pollux_decision_median_ms",
        "pollux_decision_median_units",
        "pollux_first_decision_units",
    ]
    assert all(value is not None and value > 0 for value in found.values())
