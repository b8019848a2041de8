"""Servers with several resources, what one job bids for them, and the plan of a job over slots.

Slots are numbered from 0. Resources are columns, in one order everywhere; the bandwidth of a worker or
parameter server is one of them where servers limit it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

ROUNDING: Final = 1e-9
"""Relative; sums of amounts that should be whole are off by less."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of workers, and those of parameter servers (PS); no server hosts both."""

    resources: tuple[str, ...]
    workers: Floats
    """[server, resource] capacities of the servers of workers; infinite: it does not limit."""
    ps: Floats
    """[server, resource] capacities of the servers of PS; there may be none."""
    worker_names: tuple[str, ...] = ()
    ps_names: tuple[str, ...] = ()
    priced: Bools | None = None
    """[resource] whether it has a price; the others only limit what fits. None: all have."""

    @property
    def weights(self) -> Floats:
        """[resource] 1 where it has a price, else 0."""
        return np.ones(len(self.resources)) if self.priced is None else self.priced.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Bid:
    """One job as the market sees it."""

    id: str
    arrival: int
    """The first slot it can use."""
    work: int
    """Worker-slots, or what ``advance`` counts in; 1 or more."""
    most_workers: int
    """At a time, 1 or more."""
    worker: Floats
    """[resource] what one worker takes."""
    ps: Floats
    """[resource] what one PS takes."""
    worth: Floats
    """[slot] its utility if that slot is its last one; never rises, never below 0."""
    worker_bandwidth: float = 0.0
    ps_bandwidth: float = 0.0
    least_workers: int = 1
    """In a slot in which it runs at all; such a job may do more than its work in the last one."""
    servers: Bools | None = None
    """[server] those that its workers may be on; None: all."""
    advance: Ints | None = None
    """[workers] work that a slot of that number of workers does; 0: not a size of the job. None: as much as
    there are workers."""
    first_part: float = 1.0
    """Of the slot of its arrival, what is left of it."""

    @property
    def needs_ps(self) -> bool:
        """Whether its workers need PS that take something."""
        return bool(np.any(self.ps > 0))

    @property
    def workers_per_ps(self) -> float:
        """For how many workers the bandwidth of one PS does; all of them, where it does not matter."""
        if self.worker_bandwidth > 0 and self.ps_bandwidth > 0:
            return self.ps_bandwidth / self.worker_bandwidth
        return float(self.most_workers)

    @property
    def shortest(self) -> int:
        """Slots that it takes at its fastest throughout, that of its arrival included."""
        first, each = (int(self.advances(is_first=at).max()) for at in (True, False))
        return 1 - (-max(0, self.work - first) // each)

    @property
    def least_worker_slots(self) -> float:
        """Worker-slots that its work takes at the size at which they are fewest."""
        if self.advance is None:
            return float(self.work)
        sizes = np.flatnonzero(self.advance)
        return self.work * float((sizes / self.advance[sizes]).min())

    @property
    def first_price(self) -> float:
        """Of the price of a whole slot, what that of its arrival costs: its part of the work."""
        return int(self.advances(is_first=True).max()) / int(self.advances(is_first=False).max())

    def advances(self, *, is_first: bool) -> Ints:
        """[workers] work that a slot does, that of its arrival or another."""
        whole = np.arange(self.most_workers + 1) if self.advance is None else self.advance
        if not is_first or self.first_part >= 1:
            return whole
        found: Ints = np.floor(whole * self.first_part * (1 + ROUNDING)).astype(np.int64)
        return found

    def ps_of(self, workers: Ints) -> Ints:
        """The fewest PS whose bandwidth is that of these workers; one where bandwidth does not matter."""
        if not self.needs_ps:
            return np.zeros_like(workers)
        wanted = np.ceil(workers / self.workers_per_ps * (1 - ROUNDING)).astype(np.int64)
        found: Ints = np.maximum(wanted, workers > 0)
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a job's workers and PS are, slot by slot."""

    first: int
    """The slot of the first row."""
    workers: Ints
    """[slot from first, server]"""
    ps: Ints
    """[slot from first, server]"""

    @property
    def last(self) -> int:
        """The slot in which the job ends."""
        return self.first + len(self.workers) - 1

    @property
    def slots(self) -> slice:
        """All its slots, those in which nothing runs among them."""
        return slice(self.first, self.last + 1)

    def sizes(self) -> Ints:
        """[slot from first] workers in all."""
        return np.asarray(self.workers.sum(axis=1), dtype=np.int64)


def sigmoid_worth(value: float, decay: float, target: float, arrival: int, slots: int) -> Floats:
    """[slot] value / (1 + exp(decay·(slot - arrival - target))), the paper's utility; times are in slots."""
    late = np.maximum(np.arange(slots) - arrival, 0) - target
    return np.asarray(value / (1 + np.exp(np.minimum(decay * late, 700.0))))


def whole_fits(free: Floats, demand: Floats, most: int) -> Ints:
    """[…] how many of ``demand`` [resource] fit ``free`` […, resource], ``most`` at the most."""
    taken = demand > 0
    if not taken.any():
        return np.full(free.shape[:-1], most, dtype=np.int64)
    fits = np.floor((free[..., taken] / demand[taken]).min(axis=-1) * (1 + ROUNDING) + ROUNDING)
    found: Ints = np.clip(fits, 0, most).astype(np.int64)
    return found


def log_or(value: float, otherwise: float = -math.inf) -> float:
    """The logarithm; of 0 what else it is to be."""
    return math.log(value) if value > 0 else otherwise
