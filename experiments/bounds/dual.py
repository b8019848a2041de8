"""A lower bound on the mean JCT of every schedule: the Lagrangian dual of sharing GPUs among jobs.

Let a GPU cost π(t) ≥ 0. Every schedule keeps Σ k_j(t) ≤ K, so for every π

    Σ_j (C_j - r_j) ≥ Σ_j [ (C_j - r_j) + ∫ π(t) k_j(t) dt ] - K ∫ π(t) dt,

and each bracket is at least V_j(π), the least that job j alone could pay if time and GPUs cost that. Then
Σ V_j - K ∫ π is a bound, whatever π is; :func:`flow_bound` looks for prices that make it large.

A job is known by *covers*: pairs (γ, W) with ∫ γ(k_j(t)) dt ≥ W for every way in which it can run to its end.
For θ ≥ 0 and a completion at C, integrals from r to C,

    (C - r) + ∫ π k ≥ (C - r) + θ W - ∫ max over k of [ θ γ(k) - π(t) k ] dt.

With π constant in cells of time the right side is linear in C within a cell, so it is least at an end of it.
So V_j is at least the least over the cells of the largest such value over θ and the covers. Cells, values of
θ and covers make the bound tighter or looser, and never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.bounds.covers import BoundJob, Cover, Floats, Ints, concave_hull


@dataclass(frozen=True, eq=False)
class Prices:
    """π: constant between the edges, 0 after the last. All jobs come between the first edge and the last."""

    edges_s: Floats
    """[cell + 1] ascending."""
    values: Floats
    """[cell] cost of a GPU for a second, in seconds of completion time."""


@dataclass(frozen=True, eq=False)
class Dual:
    """The bound at some prices."""

    sum_s: float
    """No schedule has a smaller sum of JCTs."""
    used: Floats
    """[cell] mean number of GPUs that the jobs would take at these prices."""


def dual(jobs: Sequence[BoundJob], gpus: int, prices: Prices, *, thetas: int = 48) -> Dual:
    """The bound at given prices.

    :param thetas: values of θ that are tried for each cover.
    """
    widths = np.diff(prices.edges_s)
    total, used = -gpus * float(prices.values @ widths), np.zeros(len(widths))
    kinds: dict[int, tuple[tuple[Cover, ...], list[float]]] = {}
    for job in jobs:
        kinds.setdefault(id(job.covers), (job.covers, []))[1].append(job.release_s)
    for covers, releases_s in kinds.values():
        kind = _Kind.of(covers, prices, thetas)
        for release_s in releases_s:
            value, taken = kind.value(release_s)
            total += value
            used += taken
    return Dual(total, used / widths)


@dataclass(frozen=True)
class _Kind:
    """All that jobs of one kind share at given prices; a row is a cover and a θ."""

    prices: Prices
    least: Floats
    """[row, cell] what is left of the bracket if the job ends in a cell, but for what depends on release."""
    saved: Floats
    """[row, edge] ∫ max over k of [θ γ(k) - π k] up to the edge."""
    rates: Floats
    """[row, cell] its integrand."""
    sizes: Ints
    """[row, cell] the k of the maximum."""
    owed: Floats
    """[row] θ W."""

    @classmethod
    def of(cls, covers: Sequence[Cover], prices: Prices, thetas: int) -> _Kind:
        edges, values = prices.edges_s, prices.values
        tables = [_conjugate(cover, values, thetas) for cover in covers]
        theta, rates, sizes = (np.concatenate(each) for each in zip(*tables, strict=True))
        owed = np.concatenate([each[0] * cover.work for each, cover in zip(tables, covers, strict=True)])
        fastest = np.concatenate(
            [0 * each[0] + cover.rates.max() for each, cover in zip(tables, covers, strict=True)]
        )
        saved = np.zeros((len(theta), len(edges)))
        np.cumsum(rates * np.diff(edges), axis=1, out=saved[:, 1:])
        ends = edges + owed[:, None] - saved
        after = np.where(theta * fastest <= 1.0, ends[:, -1], -np.inf)
        least = np.column_stack((np.minimum(ends[:, :-1], ends[:, 1:]), after))
        return cls(prices, least, saved, rates, sizes, owed)

    def value(self, release_s: float) -> tuple[float, Floats]:
        """V_j, and the GPU-seconds by cell of a run that has about this value."""
        edges = self.prices.edges_s
        first = int(np.searchsorted(edges, release_s, side="right")) - 1
        before = self.saved[:, first] + self.rates[:, first] * (release_s - edges[first])
        found = self.least[:, first:] + before[:, None] - release_s
        # in the cell of the release the bracket begins there
        end = edges[first + 1] - release_s + self.owed - self.rates[:, first] * (edges[first + 1] - release_s)
        found[:, 0] = np.minimum(self.owed, end)
        rows = found.argmax(axis=0)
        best = found[rows, np.arange(len(rows))]
        cell = int(best.argmin())
        taken = np.zeros(len(edges) - 1)
        row, last = int(rows[cell]), first + cell
        until = slice(first, min(last + 1, len(taken)))
        taken[until] = self.sizes[row, until] * np.diff(edges)[until]
        taken[first] *= (edges[first + 1] - release_s) / (edges[first + 1] - edges[first])
        return float(best[cell]), taken


def _conjugate(cover: Cover, values: Floats, thetas: int) -> tuple[Floats, Floats, Ints]:
    """θ, and by [θ, cell] the maximum over k of θ γ(k) - π k and its k."""
    sizes, heights = concave_hull(cover.rates)
    fastest = heights[-1]
    slopes = np.diff(heights) / np.diff(sizes)
    dearest = (1.0 + 2.0 * float(values.max())) / slopes[0]
    grid = np.geomspace(0.5 / fastest, max(dearest, 2.0 / fastest), thetas - 2)
    theta = np.concatenate(([0.0, (1.0 - 1e-12) / fastest], grid))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(theta[:, None] > 0, theta[:, None] / values, 0.0)
    corner = np.searchsorted(1.0 / slopes, ratio)
    found = theta[:, None] * heights[corner] - values * sizes[corner]
    return theta, found, sizes[corner]
