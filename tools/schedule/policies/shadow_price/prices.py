"""Prices: what a unit of progress of each job is worth, in the order in which the jobs are to end.

Job m has remaining work R_m, weight w_m and makes g_m(k) progress per second on k GPUs. The least flow time
∫ Σ w dt under Σ k ≤ K has, by Pontryagin's principle, a costate λ_m for each job, constant while it lives;
every decision maximises Σ λ_m g_m(k_m), and the Hamiltonian is 0 at the end. Numbered backwards by completion
(m = 1 ends last), with S_m(c) the most that the first m make of c GPUs,

    λ_m = min over k of [w_m + S_{m-1}(K) - S_{m-1}(K - k)] / g_m(k)
    S_m(c) = max over k ≤ c, 0 included, of S_{m-1}(c - k) + λ_m g_m(k),    S_0 = 0.

V = Σ λ_m R_m is then the least flow time of the fluid system in that order. Curves may be of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints


class PricedJob(NamedTuple):
    """One job as the prices see it."""

    rates: Floats
    """[size] progress per second, up to the size at which it is fastest."""
    slowness: Floats
    """[size] 1 / rates, infinite where infeasible."""
    weight: float

    @classmethod
    def of(cls, rates: Floats, weight: float = 1.0) -> PricedJob:
        """A job with these rates, of which the first is 0 and another is not."""
        short = rates[: int(rates.argmax()) + 1]
        with np.errstate(divide="ignore"):
            return cls(short, 1.0 / short, weight)


class Worth(Protocol):
    """A way to compute S; what it calls ``worth`` is S in a form of its own."""

    def start(self, future: float) -> Floats:
        """S_0: a GPU that no job uses is worth ``future``."""
        ...

    def price(self, job: PricedJob, worth: Floats) -> float:
        """λ of a job that ends just before those of ``worth``."""
        ...

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        """S with one job more."""
        ...


class ExactWorth:
    """S(c) for every c, by dynamic programming over curves of any shape: O(K · sizes) a job."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._padded = np.full(2 * gpus + 1, -np.inf)
        step = self._padded.strides[0]
        self._left = np.lib.stride_tricks.as_strided(
            self._padded[gpus:], (gpus + 1, gpus + 1), (step, -step), writeable=False
        )
        """[c, k] S(c - k), a view."""

    def start(self, future: float) -> Floats:
        """In proportion."""
        return np.arange(self._gpus + 1, dtype=np.float64) * future

    def price(self, job: PricedJob, worth: Floats) -> float:
        """The least of [w + S(K) - S(K - k)] / g(k)."""
        left = worth[self._gpus - len(job.rates) + 1 :][::-1]
        return float(((job.weight + worth[-1] - left) * job.slowness).min())

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        """The largest over its sizes."""
        self._padded[self._gpus :] = worth
        found: Floats = (self._left[:, : len(job.rates)] + price * job.rates).max(axis=1)
        return found


class SlopeWorth:
    """S of concave hulls, as the worth of its GPUs one by one, ascending: O(K) a job, for large pools.

    What k GPUs are worth to the others is then the sum of the k least.
    """

    def __init__(self, gpus: int, sizes: Ints) -> None:
        self._gpus = gpus
        self._sizes = sizes
        self._hulls: dict[bytes, Floats] = {}

    def start(self, future: float) -> Floats:
        """All alike."""
        return np.full(self._gpus, future)

    def price(self, job: PricedJob, worth: Floats) -> float:
        """The least of [w + what its GPUs are worth] / g(k)."""
        sizes = self._sizes[: len(job.rates)]
        taken = np.concatenate(([0.0], worth[: sizes[-1]].cumsum()))[sizes]
        return float(((job.weight + taken) * job.slowness).min())

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        """The GPUs that are worth most."""
        made = np.concatenate((worth, price * self._slopes(job.rates)))
        made.sort(kind="stable")
        return made[len(made) - self._gpus :]

    def _slopes(self, rates: Floats) -> Floats:
        """Progress of each GPU more, ascending, along the concave hull; jobs that are alike share it."""
        key = rates.tobytes()
        known = self._hulls.get(key)
        if known is None:
            known = self._hulls[key] = hull_slopes(self._sizes[: len(rates)], rates)
        return known


def hull_slopes(sizes: Ints, rates: Floats) -> Floats:
    """Slopes of the concave hull over (size, rate), one for each GPU, ascending."""
    corners = [(0, 0.0)]
    for size, rate in zip(sizes.tolist(), rates.tolist(), strict=True):
        if rate <= 0:
            continue
        while len(corners) > 1 and _is_under(corners[-2], corners[-1], (size, rate)):
            corners.pop()
        corners.append((size, rate))
    points = np.array(corners)
    widths = np.diff(points[:, 0])
    return np.repeat(np.diff(points[:, 1]) / widths, widths.astype(np.int64))[::-1]


def _is_under(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    width, rise = right[0] - left[0], right[1] - left[1]
    return (middle[1] - left[1]) * width <= rise * (middle[0] - left[0])


def priced(order: Sequence[PricedJob], worth: Worth, future: float = 0.0) -> list[float]:
    """λ of jobs that end in the reverse of this order."""
    made = worth.start(future)
    prices = []
    for job in order:
        prices.append(worth.price(job, made))
        made = worth.with_job(job, prices[-1], made)
    return prices
