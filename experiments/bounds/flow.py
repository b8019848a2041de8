"""The dual bound at prices that make it large: :func:`flow_bound`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from experiments.bounds.covers import BoundJob, Floats
from experiments.bounds.dual import Prices, dual
from pliant.tools.report.metrics import least_left_first

CELLS: Final = 200
ROUNDS: Final = 160
_LEVELS: Final = tuple(float(level) for level in np.geomspace(0.02, 3.0, 16))
"""Prices to begin with: of the whole cluster for a second, for each job that is there."""
_STEP, _MEAN, _SQUARE, _SLACK = 0.3, 0.9, 0.99, 0.01
_FINE: Final = 240
"""Values of θ for the bound at the end."""


def flow_bound(jobs: Sequence[BoundJob], gpus: int, *, cells: int = CELLS, rounds: int = ROUNDS) -> float:
    """Seconds: no schedule of the jobs has a smaller mean JCT.

    :param cells: in which prices are constant, from the first arrival until all work could be done.
    :param rounds: in which prices are improved.
    """
    edges_s = np.linspace(min(job.release_s for job in jobs), _horizon_s(jobs, gpus), cells + 1)
    best = _ascended(jobs, gpus, edges_s, rounds)
    at_end = dual(jobs, gpus, best, thetas=_FINE).sum_s
    free = dual(jobs, gpus, Prices(edges_s, np.zeros(cells)), thetas=_FINE).sum_s
    return max(at_end, free) / len(jobs)


def _horizon_s(jobs: Sequence[BoundJob], gpus: int) -> float:
    """When all jobs could be done: each alone, and on their cheapest sizes after the last arrival."""
    pooled_s = sum(_cheapest_gpu_s(job) for job in jobs) / gpus
    return max(job.release_s for job in jobs) + max(pooled_s, *map(_alone_s, jobs))


def _alone_s(job: BoundJob) -> float:
    return max(cover.work / float(cover.rates.max()) for cover in job.covers)


def _cheapest_gpu_s(job: BoundJob) -> float:
    sizes = np.arange(1, len(job.covers[0].rates))
    return max(cover.work / float((cover.rates[1:] / sizes).max()) for cover in job.covers)


def _present(jobs: Sequence[BoundJob], gpus: int, edges_s: Floats) -> Floats:
    """[cell] jobs there if all GPUs work on the one with the least left, and none is faster than alone."""
    pooled = least_left_first(
        (job.release_s, _cheapest_gpu_s(job) / gpus, str(number)) for number, job in enumerate(jobs)
    )
    middles_s = (edges_s[1:] + edges_s[:-1]) / 2
    found = np.zeros(len(middles_s))
    for number, job in enumerate(jobs):
        end_s = max(pooled[str(number)], job.release_s + _alone_s(job))
        found += (middles_s >= job.release_s) & (middles_s < end_s)
    return found


def _ascended(jobs: Sequence[BoundJob], gpus: int, edges_s: Floats, rounds: int) -> Prices:
    """Prices that make the bound large.

    They begin in proportion to the jobs that would be there if all GPUs worked on the one with the least
    left, as prices do where jobs scale linearly. Then each cell's price rises while the jobs would take more
    GPUs there than there are, and falls while they take fewer, in steps as Adam (Kingma and Ba, 2015) sizes
    them; the steps shrink.
    """
    there = _present(jobs, gpus, edges_s)
    starts = [Prices(edges_s, there * level / gpus) for level in _LEVELS]
    best = max(starts, key=lambda prices: dual(jobs, gpus, prices).sum_s)
    most_s, now = -np.inf, best.values
    width = _STEP * float(now.mean())
    mean, square = np.zeros_like(now), np.zeros_like(now)
    for step in range(1, rounds + 1):
        prices = Prices(edges_s, now)
        found = dual(jobs, gpus, prices)
        if found.sum_s > most_s:
            most_s, best = found.sum_s, prices
        excess = found.used / gpus - 1.0
        mean = _MEAN * mean + (1 - _MEAN) * excess
        square = _SQUARE * square + (1 - _SQUARE) * excess**2
        towards = mean / (1 - _MEAN**step) / (np.sqrt(square / (1 - _SQUARE**step)) + _SLACK)
        now = np.maximum(0.0, now + width / (1 + 8 * step / rounds) * towards)
    return best
