"""The decision-time benchmark measures what it says: a loaded cluster, the same one every time."""

from __future__ import annotations

import statistics

from benchmarks.ares import SEED, decisions


def test_the_cluster_is_loaded_and_every_run_decides_the_same() -> None:
    first, second = ([used for _, used in decisions(64, 300, SEED)] for _ in range(2))
    assert first == second
    assert 0.9 <= statistics.mean(first[-300:]) <= 1
