"""Prices of resources: L·(U/L)^(part that is committed), from the least and the largest worth of a unit.

Equations 22 to 26 of "Online Job Scheduling in Distributed Machine Learning Clusters" (Bao et al., 2018); the
largest utility of a job is that of its shortest duration, as the text below equation 26 says, with the most
workers that fit the nodes, which may be fewer than the paper's N. Bounds are
logarithms: the least worth of a unit can be smaller than any float for a time-critical job that ends with the
last slot. Such jobs make L so small that prices hardly rise before a server is full.
:meth:`PriceBounds.estimated` is ours, for the paper's estimates "based on past experience";
:class:`BoundsEstimate` says of which jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self

import numpy as np

from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Floats, Servers

QUANTILE: Final = 0.5
"""Quantile of jobs by which an estimate measures what a unit is worth: the median."""
IDLE_PART: Final = 0.5
"""Cost of a unit of an empty cluster, as part of that: 1 would reject a job alone."""
LEAST_WORTH: Final = 1e-12
"""Least part of the best that a job can be worth, for one that ends at the last slot."""
FILLED: Final = 0.5
"""Part of the capacity of a cluster that the jobs that it serves may need."""
_MOST: Final = 400
"""Jobs that an estimate is made from: the last that were seen, and those that the true bounds need."""
Bound = Literal["U", "L"]
Kind = Literal["estimate", "paper"]


@dataclass(frozen=True, slots=True)
class PriceBounds:
    """U and L of both kinds of servers: with index 1 workers', with index 2 those of parameter servers."""

    workers: SideBounds
    ps: SideBounds

    @classmethod
    def of(
        cls, jobs: Sequence[Bid | KnownJob], servers: Servers, slots: int, least_worth: float = LEAST_WORTH
    ) -> Self:
        """The true bounds where these are all jobs, or an estimate from jobs like those to come.

        :param least_worth: the worth of a job at the last slot counts as at least this part of its best.
        """
        known, weights = _known(jobs, slots), servers.weights
        both = [(each, _log_worths(each, least_worth)) for each in known]
        of_workers = [(each.work, each.worker * weights, logs) for each, logs in both]
        of_ps = [(each.work, each.ps * weights, logs) for each, logs in both if (each.ps > 0).any()]
        return cls(
            _side(of_workers, slots * _units(servers.workers, weights), weights),
            _side(of_ps, slots * _units(servers.ps, weights), weights),
        )

    @classmethod
    def estimated(
        cls, jobs: Sequence[Bid | KnownJob], servers: Servers, slots: int, quantile: float = QUANTILE
    ) -> Self:
        """Bounds from jobs like those to come: L is half of what a unit is worth to the median job.

        U is as in :meth:`of`. What a unit is worth to a job is f / (W·Σ w), its largest utility by
        worker-slot and unit; the paper bounds the worst of all.
        """
        known, weights = _known(jobs, slots), servers.weights
        bounds = cls.of(known, servers, slots)
        of_workers = [each.by_unit(each.worker, weights) for each in known]
        of_ps = [each.by_unit(each.ps, weights) for each in known]
        return cls(_raised(bounds.workers, of_workers, quantile), _raised(bounds.ps, of_ps, quantile))

    def scaled(self, part: float, moves: Bound = "U") -> Self:
        """Both ratios U/L multiplied by ``part``: an estimate that is wrong by this factor.

        :param moves: the bound that is wrong: too large a U makes prices rise abruptly, too small an L makes
            them begin too low.
        """
        return replace(self, workers=self.workers.scaled(part, moves), ps=self.ps.scaled(part, moves))

    @property
    def competitive_ratio(self) -> float:
        """Theorem 4: the offline optimum is at most this many times the utility of OASiS."""
        return 2 * max(1.0, self.workers.log_ratio, self.ps.log_ratio)


@dataclass(frozen=True, slots=True)
class SideBounds:
    """The bounds of one kind of servers."""

    log_least: float
    """ln L."""
    log_most: Floats
    """[resource] ln U, no less than ln L."""
    weights: Floats
    """[resource] 1 where it has a price, else 0."""

    def prices(self, part: Floats) -> Floats:
        """[…, resource] of servers of which that part of each resource is committed."""
        return np.asarray(self.weights * np.exp(self.log_least + part * (self.log_most - self.log_least)))

    @property
    def log_ratio(self) -> float:
        return float((self.log_most - self.log_least).max(initial=0.0))

    def scaled(self, part: float, moves: Bound) -> Self:
        log_least = self.log_least - (math.log(part) if moves == "L" else 0.0)
        log_most = self.log_most + (math.log(part) if moves == "U" else 0.0)
        return replace(self, log_least=log_least, log_most=np.maximum(log_least, log_most))


def _side(
    jobs: Sequence[tuple[float, Floats, tuple[float, float]]], capacity: float, weights: Floats
) -> SideBounds:
    """The bounds of one kind of servers from the work, the priced demand and the worths of each job.

    :param capacity: of all servers and slots, the units of all resources added.
    """
    used = [
        (work * float(demand.sum()), demand, late, best)
        for work, demand, (late, best) in jobs
        if demand.sum() > 0 and best > -math.inf
    ]
    if not used or not capacity:
        return SideBounds(0.0, np.zeros(len(weights)), weights)
    log_eta = math.log(capacity / min(amount for amount, *_ in used))
    log_least = min(late - math.log(amount) for amount, _, late, _ in used) - math.log(4) - log_eta
    log_most = np.full(len(weights), log_least)
    for _, demand, _, best in used:
        taken = demand > 0
        log_most[taken] = np.maximum(log_most[taken], best - np.log(demand[taken]))
    return SideBounds(log_least, log_most, weights)


def _units(capacity: Floats, weights: Floats) -> float:
    """Of all resources that have a price and a limit, added."""
    return float((np.where(np.isfinite(capacity), capacity, 0.0) @ weights).sum())


def _raised(side: SideBounds, densities: Sequence[float], quantile: float) -> SideBounds:
    """With L from a quantile of the densities above 0; unchanged where there are none."""
    known = [density for density in densities if density > 0]
    if not known:
        return side
    log_least = math.log(IDLE_PART * float(np.quantile(known, quantile)))
    return replace(side, log_least=log_least, log_most=np.maximum(log_least, side.log_most))


def _log_worths(job: KnownJob, least_worth: float) -> tuple[float, float]:
    """Logarithms of what the job is worth if it ends as late as it can, and as early."""
    late, best = (math.log(worth) if worth > 0 else -math.inf for worth in (job.late, job.early))
    return max(late, best + math.log(least_worth)), best


@dataclass(frozen=True, slots=True)
class KnownJob:
    """What the bounds of prices need of a job."""

    id: str
    work: float
    """Worker-slots at the size at which they are fewest."""
    worker: Floats
    """[resource] what one worker takes."""
    ps: Floats
    """[resource] what one PS takes."""
    early: float
    """Worth if it ends as early as it can."""
    late: float
    """And if it ends with the last slot."""
    can_end: bool
    """Whether there are enough slots for it."""

    @classmethod
    def of(cls, bid: Bid, slots: int) -> Self:
        """Of a bid for the first of ``slots`` slots, or a later one."""
        end = bid.arrival + bid.shortest - 1
        worths = float(bid.worth[min(end, slots - 1)]), float(bid.worth[slots - 1])
        return cls(bid.id, bid.least_worker_slots, bid.worker, bid.ps, *worths, can_end=end < slots)

    def by_unit(self, demand: Floats, weights: Floats) -> float:
        units = float(demand @ weights)
        return self.early / (self.work * units) if self.can_end and units > 0 else 0.0


def _known(jobs: Sequence[Bid | KnownJob], slots: int) -> list[KnownJob]:
    return [each if isinstance(each, KnownJob) else KnownJob.of(each, slots) for each in jobs]


# The bounds U and L from jobs: those seen so far, or those of a file.


class BoundsEstimate:
    """Jobs that stand for those to come, and the bounds that follow from them.

    :param kind: "paper": equations 23 to 26, as if these were all jobs; "estimate": L is what a unit is worth
        to a job that is worth little.
    :param quantile: of an estimate: the part of the jobs that are worth less; None: by :func:`left_over`.
    :param part: what U/L is multiplied by.
    """

    def __init__(self, kind: Kind = "paper", quantile: float | None = 0.0, part: float = 1.0) -> None:
        self._kind = kind
        self._quantile = quantile
        self._part = part
        # With the slot of its arrival, since time 0.
        self._jobs: list[tuple[int, KnownJob]] = []
        # The last bounds, and what they were of; None: other jobs are known since.
        self._found: tuple[Servers, int, PriceBounds] | None = None

    def learn(self, bids: Iterable[tuple[int, Bid]], servers: Servers, slots: int) -> bool:
        """Take in jobs, each with the slot of its arrival; returns whether that changes the bounds."""
        new = [(slot, KnownJob.of(bid, slots)) for slot, bid in bids]
        if not new:
            return False
        before = _key(self.bounds(servers, slots))
        self._jobs, self._found = [*self._jobs, *new], None
        if len(self._jobs) > _MOST:
            is_estimate = self._kind == "estimate"
            self._jobs = self._jobs[-_MOST:] if is_estimate else _thinned(self._jobs, servers, slots)
        return _key(self.bounds(servers, slots)) != before

    def bounds(self, servers: Servers, slots: int) -> PriceBounds:
        if self._found is None or self._found[1] != slots or not _alike(self._found[0], servers):
            self._found = servers, slots, self._fresh(servers, slots)
        return self._found[2]

    def _fresh(self, servers: Servers, slots: int) -> PriceBounds:
        jobs = [job for _, job in self._jobs]
        if self._kind == "paper":
            bounds = PriceBounds.of(jobs, servers, slots)
        else:
            quantile = left_over(self._jobs, servers, slots) if self._quantile is None else self._quantile
            bounds = PriceBounds.estimated(jobs, servers, slots, quantile)
        return bounds if self._part == 1 else bounds.scaled(self._part)

    def dump(self) -> list[dict[str, Any]]:
        names = [field.name for field in fields(KnownJob)]
        return [
            {"slot": slot, **{name: _plain(getattr(job, name)) for name in names}} for slot, job in self._jobs
        ]

    def load(self, values: Sequence[dict[str, Any]], resources: int) -> None:
        jobs = [(each["slot"], _job(each)) for each in values if "slot" in each]
        self._jobs, self._found = [pair for pair in jobs if len(pair[1].worker) == resources], None


def left_over(jobs: Sequence[tuple[int, KnownJob]], servers: Servers, slots: int) -> float:
    """The part of the jobs that would be left out if those worth most by unit came first.

    Jobs of the last ``slots`` slots count, in the time in which they came, at least a quarter of that; they
    may fill :data:`FILLED` of one kind of resource.
    """
    last = max((slot for slot, _ in jobs), default=0)
    recent = [(slot, job) for slot, job in jobs if slot > last - slots]
    if not recent:
        return 0.0
    span = max(last - min(slot for slot, _ in recent) + 1, slots / 4)
    capacity = np.where(np.isfinite(servers.workers), servers.workers, 0.0).sum(axis=0) * servers.weights
    most = np.where(capacity > 0, FILLED * span * capacity, np.inf)
    worths = [job.by_unit(job.worker, servers.weights) for _, job in recent]
    order = sorted(range(len(recent)), key=lambda at: -worths[at])
    seen: set[str] = set()
    filled = np.zeros(len(capacity))
    for rank, at in enumerate(order):
        job = recent[at][1]
        if job.id not in seen:  # of the GPU types that it can have, the one that suits it best
            seen.add(job.id)
            filled += job.work * job.worker
        if (filled > most).any():
            return 1 - rank / len(order)
    return 0.0


def _thinned(kept: list[tuple[int, KnownJob]], servers: Servers, slots: int) -> list[tuple[int, KnownJob]]:
    """A part that has the same bounds: halves are left out where that changes nothing, then quarters."""

    def key_of(jobs: list[tuple[int, KnownJob]]) -> tuple[object, ...]:
        return _key(PriceBounds.of([job for _, job in jobs], servers, slots))

    whole, size = key_of(kept), len(kept)
    while size := size // 2:
        at = 0
        while at < len(kept):
            others = [*kept[:at], *kept[at + size :]]
            if key_of(others) == whole:
                kept = others
            else:
                at += size
    return kept


def _alike(one: Servers, other: Servers) -> bool:
    pairs = ((one.workers, other.workers), (one.ps, other.ps), (one.weights, other.weights))
    return one is other or all(np.array_equal(*pair) for pair in pairs)


def _key(bounds: PriceBounds) -> tuple[object, ...]:
    sides = (bounds.workers, bounds.ps)
    return tuple((side.log_least, side.log_most.tobytes()) for side in sides)


def _job(values: dict[str, Any]) -> KnownJob:
    stated = {key: value for key, value in values.items() if key != "slot"}
    return KnownJob(**{**stated, **{name: np.array(stated[name], dtype=float) for name in ("worker", "ps")}})


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
