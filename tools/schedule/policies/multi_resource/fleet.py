"""Servers with several resources at one moment: what is free, and workers and PS placed in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import (
    ROUNDING,
    Bid,
    Bools,
    Floats,
    Ints,
    Servers,
    whole_fits,
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the workers and PS of one job are."""

    workers: Ints
    """[server]"""
    ps: Ints
    """[server]"""

    @property
    def size(self) -> int:
        """Workers in all."""
        return int(self.workers.sum())


@dataclass(frozen=True, slots=True)
class Active:
    """A job that has not ended, at one moment."""

    bid: Bid
    left: int
    """Worker-slots, 1 or more."""
    requested: int
    """Workers for a scheduler that does not choose."""
    placed: Placed | None = None
    """What it holds now."""

    @property
    def order(self) -> tuple[int, str]:
        """Of arrival."""
        return self.bid.arrival, self.bid.id

    def slots_left(self, workers: int) -> int:
        """How long that many workers need for the rest."""
        return -(-self.left // workers)


class Half:
    """One kind of servers."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.free = capacity.copy()
        self._most = capacity.max(axis=0, initial=0.0)
        """The most that is free of each resource on any server."""
        self._turn = 0

    def fits(self, demand: Floats, most: int, allowed: Bools | None = None) -> Ints:
        """[server] how many of this demand, up to ``most`` each."""
        found = whole_fits(self.free, demand, most)
        return found if allowed is None else np.where(allowed, found, 0)

    def in_turn(self, demand: Floats, count: int, allowed: Bools | None = None) -> Ints | None:
        """[server] ``count`` places, one a server and lap from where the last ones ended; None: too few."""
        servers = len(self.free)
        if not count:
            return np.zeros(servers, dtype=np.int64)
        if not (demand <= self._most + ROUNDING).all():
            return None
        if count == 1:
            server = self.next_in_turn(demand, allowed)
            return None if server is None else np.bincount([server], minlength=servers)
        fits = self.fits(demand, count, allowed)
        if fits.sum() < count:
            return None
        turn = (self._turn + np.arange(servers)) % max(1, servers)
        laps = np.searchsorted([np.minimum(fits, lap).sum() for lap in range(count + 1)], count)
        found = np.minimum(fits, max(0, int(laps) - 1))
        last = turn[fits[turn] > found[turn]][: count - int(found.sum())]
        found[last] += 1
        if len(last):
            self._turn = (int(last[-1]) + 1) % servers
        return found

    def next_in_turn(self, demand: Floats, allowed: Bools | None = None) -> int | None:
        """The server of one place; None: there is none."""
        servers = len(self.free)
        for server in range(self._turn, min(self._turn + 3, servers)):  # mostly one of the first has space
            if (allowed is None or allowed[server]) and (self.free[server] >= demand).all():
                self._turn = (server + 1) % servers
                return server
        free = np.flatnonzero(self.fits(demand, 1, allowed))
        if not len(free):
            return None
        server = int(free[np.searchsorted(free, self._turn) % len(free)])
        self._turn = (server + 1) % servers
        return server

    def take(self, counts: Ints, demand: Floats) -> None:
        """Use places, or give them back where counts are below 0."""
        self.free -= counts[:, None] * demand
        self._most = self.free.max(axis=0, initial=0.0)


class Fleet:
    """Both kinds of servers, all free at first."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.workers, self.ps = Half(servers.workers), Half(servers.ps)

    def hold(self, jobs: Iterable[Active]) -> None:
        """Take what these jobs hold."""
        for job in jobs:
            if job.placed is not None:
                self.take(job.bid, job.placed)

    def take(self, bid: Bid, placed: Placed) -> None:
        """Use the places of one job."""
        self.workers.take(placed.workers, bid.worker)
        self.ps.take(placed.ps, bid.ps)

    def in_turn(self, bid: Bid, count: int, held: Placed | None = None) -> Placed | None:
        """That many workers more than ``held``, with the PS for all, placed in turn and taken.

        None: they do not fit, and nothing is taken.
        """
        before = held.size if held else 0
        pair = bid.ps_of(np.array([before, before + count]))
        if pair[1] > before + count:
            return None
        workers = self.workers.in_turn(bid.worker, count, bid.servers)
        ps = self.ps.in_turn(bid.ps, int(pair[1] - pair[0])) if workers is not None else None
        if workers is None or ps is None:
            return None
        self.take(bid, Placed(workers, ps))
        return Placed(workers + held.workers, ps + held.ps) if held else Placed(workers, ps)


def dominant_share(bid: Bid, workers: int, servers: Servers) -> float:
    """The largest part of any resource, of either kind of servers, that these workers and their PS take."""
    of_worker, of_ps = shares_of_one(bid, servers)
    return max(workers * of_worker, int(bid.ps_of(np.array([workers]))[0]) * of_ps)


def shares_of_one(bid: Bid, servers: Servers) -> tuple[float, float]:
    """The largest part of any resource that one worker takes, and one PS."""
    return _part(bid.worker, servers.workers.sum(axis=0)), _part(bid.ps, servers.ps.sum(axis=0))


def _part(amount: Floats, capacity: Floats) -> float:
    taken = amount > 0
    with np.errstate(divide="ignore"):
        return float((amount[taken] / capacity[taken]).max(initial=0.0))
