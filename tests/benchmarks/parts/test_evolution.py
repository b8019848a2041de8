"""Small instances of ones against every allocation."""

from __future__ import annotations

import numpy as np

from benchmarks.parts import evolution


def test_the_best_genome_comes_within_a_percent_of_the_best_of_all_allocations():
    rng = np.random.default_rng(evolution.SEED)
    assert sum(evolution.comes_close(evolution.small_instance(rng), rng) for _ in range(40)) >= 38
