"""Jobs of the market's model under each of the five schedulers, slot by slot: what they earn, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.multi_resource.dorm import DormRule
from pliant.tools.schedule.policies.multi_resource.fleet import Active, Bid, Servers, SlotPlan
from pliant.tools.schedule.policies.multi_resource.rules import (
    Holdings,
    Prospect,
    RiskReward,
    by_arrival,
    by_dominant_share,
)
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.prices import PriceBounds

BASELINES: Final = ("fifo", "drf", "rrh", "dorm")
Rule = Callable[[Sequence[Active], int], Holdings]
Admits = Callable[[Active, Sequence[Active], int], bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a world."""

    bid: Bid
    requested: int
    """Workers for the schedulers that do not choose."""
    target: float
    """Slots after its arrival in which it should have ended."""
    decay: float
    """Per slot; 0 is insensitive to time, above 4 critical."""


@dataclass(frozen=True, slots=True)
class World:
    """A cluster and its jobs, in order of arrival."""

    servers: Servers
    jobs: tuple[Entry, ...]
    slots: int
    past: tuple[Bid, ...]
    """Jobs like these that have been before."""

    @property
    def bids(self) -> list[Bid]:
        """What the jobs bid."""
        return [job.bid for job in self.jobs]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one world under one scheduler."""

    plans: tuple[tuple[Bid, SlotPlan], ...]
    """Of every job that ended, what it really held."""

    @property
    def utility(self) -> float:
        """Of all jobs that ended."""
        return float(sum(bid.worth[plan.last] for bid, plan in self.plans))

    @property
    def ends(self) -> dict[str, int]:
        """The last slot by job id."""
        return {bid.id: plan.last for bid, plan in self.plans}


def under_oasis(world: World, bounds: PriceBounds) -> Outcome:
    """OASiS, at prices within these bounds."""
    market = Market(world.servers, bounds, world.slots)
    offered = [(bid, market.offer(bid)[1]) for bid in world.bids if not market.is_hopeless(bid)]
    return Outcome(tuple((bid, plan) for bid, plan in offered if plan is not None))


def under(name: str, world: World) -> Outcome:
    """One of the baselines."""
    servers = world.servers
    if name == "rrh":
        rrh = RiskReward(servers)
        return _slot_by_slot(
            world,
            lambda jobs, now: rrh.holdings(jobs, [_prospect(job, now) for job in jobs]),
            lambda job, others, now: rrh.admits(
                job, _prospect(job, now), [_prospect(other, now) for other in others]
            ),
        )
    rules: dict[str, Rule] = {
        "fifo": lambda jobs, _: by_arrival(jobs, servers),
        "drf": lambda jobs, _: by_dominant_share(jobs, servers),
        "dorm": lambda jobs, _: DormRule(servers).holdings(jobs),
    }
    return _slot_by_slot(world, rules[name], lambda *_: True)


def _prospect(job: Active, now: int) -> Prospect:
    """In slots; what ends beyond the last one is worth nothing."""

    def worth(slots: float) -> float:
        end = now + int(slots) - 1
        return float(job.bid.worth[end]) if end < len(job.bid.worth) else 0.0

    return Prospect(job.slots_left(job.requested), worth)


def _slot_by_slot(world: World, rule: Rule, admits: Admits) -> Outcome:
    """Ask the rule when a job has arrived or ended."""
    active: dict[str, Active] = {}
    ended, held = [], dict[str, list[tuple[np.ndarray, np.ndarray]]]()
    arriving = {slot: [job for job in world.jobs if job.bid.arrival == slot] for slot in range(world.slots)}
    changed = False
    for slot in range(world.slots):
        for job in arriving[slot]:
            new = Active(job.bid, job.bid.work, job.requested)
            if admits(new, list(active.values()), slot):
                active[job.bid.id] = new
        if changed or arriving[slot]:
            active = _given(active, rule(list(active.values()), slot))
        active = {job_id: _worked(job, held) for job_id, job in active.items()}
        done = [job for job in active.values() if job.left <= 0]
        ended += [(job.bid, _plan(held[job.bid.id], slot)) for job in done]
        active = {job_id: job for job_id, job in active.items() if job.left > 0}
        changed = bool(done)
    return Outcome(tuple(ended))


def _given(active: dict[str, Active], holdings: Holdings) -> dict[str, Active]:
    return {job_id: replace(job, placed=holdings.get(job_id)) for job_id, job in active.items()}


def _worked(job: Active, held: dict[str, list[tuple[np.ndarray, np.ndarray]]]) -> Active:
    """The job after one slot on what it holds."""
    rows = held.setdefault(job.bid.id, [])
    if job.placed is None:
        if rows:
            rows.append((0 * rows[-1][0], 0 * rows[-1][1]))
        return job
    rows.append((job.placed.workers, job.placed.ps))
    return replace(job, left=job.left - job.placed.size)


def _plan(rows: Iterable[tuple[np.ndarray, np.ndarray]], last: int) -> SlotPlan:
    workers, ps = zip(*rows, strict=True)
    return SlotPlan(last - len(workers) + 1, np.array(workers), np.array(ps))
