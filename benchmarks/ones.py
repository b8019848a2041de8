"""Time of a generation of ones, how close its search comes to the best, and how well progress is predicted.

Generations are of 64 genomes and 50 jobs; small instances are compared with all allocations (both in
parts/evolution.py). The predictor is asked for jobs that it did not learn from: how often its 90 % interval
holds what they did. The gains over other schedulers are those of the page docs/experiments/ones.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.parts.evolution import SEED, comes_close, generation_s, small_instance
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.gains_of_ones import gains
from benchmarks.parts.progress_coverage import interval_coverage

MEASURES: Final = ("tools/schedule/policies/ones", "tools/profile/predictor.py", "experiments/ones")

INSTANCES: Final = 200


def figures(
    instances: int = INSTANCES, repeats: int = 30, scale: int = 1, *, with_gains: bool = True
) -> list[Figure]:
    """All figures.

    :param scale: divides the numbers of GPUs.
    :param with_gains: replay the paper's comparison, which takes minutes.
    """
    need_data("ones")
    rng = np.random.default_rng(SEED)
    small, large = (generation_s(gpus // scale, rng, repeats) for gpus in (64, 1024))
    solved = sum(comes_close(small_instance(rng), rng) for _ in range(instances))
    return [
        Figure("ones_generation_64_ms", 1000 * small, "ms", 20.0),
        Figure("ones_generation_1024_s", large, "s", 0.5),
        Figure("ones_optimal_share", solved / instances, "ratio", 0.95, at_least=True),
        interval_coverage(),
        *(gains() if with_gains else ()),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(instances=2, repeats=1, scale=8, with_gains=False)
