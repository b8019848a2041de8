"""The rules of the schedulers without a horizon: FIFO, RRH and DRF say who holds what now.

As OASiS (INFOCOM 2018), section V, describes them; all place workers and parameter servers (PS) in turn.
:class:`ServerView` makes of a snapshot the jobs that take part, and of their sizes a decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Grant, decision_from_grants
from pliant.tools.schedule.policies.multi_resource.fleet import (
    Active,
    Fleet,
    Floats,
    PlacedWorkers,
    ServerNodes,
    Servers,
    dominant_share,
    shares_of_one,
)
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.snapshot import Snapshot

Holdings = Mapping[str, PlacedWorkers]
"""Workers by job id; a job that is not named holds nothing."""


def by_arrival(jobs: Iterable[Active], servers: Servers) -> Holdings:
    """FIFO: jobs hold what they requested until they end; no job overtakes another one."""
    fleet = Fleet(servers)
    running = {job.bid.id: job for job in jobs if job.placed is not None}
    fleet.hold(running.values())
    holdings = {job_id: job.placed for job_id, job in running.items() if job.placed is not None}
    for job in sorted((job for job in jobs if job.placed is None), key=lambda job: job.order):
        placed = fleet.in_turn(job.bid, job.requested)
        if placed is None:
            if fits_when_empty(job, servers):
                break
            continue
        holdings[job.bid.id] = placed
    return holdings


def fits_when_empty(job: Active, servers: Servers) -> bool:
    return Fleet(servers).in_turn(job.bid, job.requested) is not None


def by_dominant_share(jobs: Sequence[Active], servers: Servers) -> Holdings:
    """DRF: worker by worker to the job with the smallest dominant share, all from scratch (NSDI 2011)."""
    fleet = Fleet(servers)
    holdings: dict[str, PlacedWorkers] = {}
    shares = {job.bid.id: shares_of_one(job.bid, servers) for job in jobs}
    queue = [(0.0, *job.order, job) for job in jobs]
    heapq.heapify(queue)
    while queue:
        *_, job = heapq.heappop(queue)
        held = holdings.get(job.bid.id)
        size = held.size if held else 0
        more = 1 if held else job.bid.least_workers
        if size + more > min(job.bid.most_workers, max(job.left, job.bid.least_workers)):
            continue
        placed = fleet.in_turn(job.bid, more, held)
        if placed is None:
            continue
        holdings[job.bid.id] = placed
        of_worker, of_ps = shares[job.bid.id]
        share = max(placed.size * of_worker, int(placed.ps.sum()) * of_ps)
        heapq.heappush(queue, (share, *job.order, job))
    return holdings


class WorthStep(NamedTuple):
    """A utility that is lost at once."""

    value: float
    since: float
    """Time from the submission until now, in the unit of the prospect."""
    target: float
    """The longest from the submission to the end with which it is not lost."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What lies ahead of one job, in any unit of time."""

    duration: float
    """Time until it ends, if it runs from now on without a pause."""
    worth: Callable[[float], float]
    """Its utility if it ends after that time from now; never rises."""
    falls: bool = True
    """False: its utility is the same whenever it ends."""
    step: WorthStep | None = None
    """The same as ``worth``, where it is of that shape."""


class Losses:
    """What jobs lose if they end later, added in their order; steps all at once."""

    def __init__(self, jobs: Iterable[Prospect] = ()) -> None:
        self._jobs = [each for each in jobs if each.falls]
        self._columns: _Columns | None = None

    def add(self, job: Prospect) -> None:
        if job.falls:
            self._jobs.append(job)
            self._columns = None

    def by(self, delay: Prospect) -> float:
        """What a job costs the others if each ends later by its duration."""
        if not self._jobs:
            return 0.0
        columns = self._columns = self._columns or _Columns.of(self._jobs)
        until = columns.durations + delay.duration
        late = columns.steps[1] + until - columns.steps[2]
        lost = columns.worths - np.where(late <= 0, columns.steps[0], 0.0)
        for at in columns.others:
            lost[at] = columns.worths[at] - self._jobs[at].worth(float(until[at]))
        if (own := columns.places.get(id(delay))) is not None:
            lost[own] = 0.0
        return float(lost.cumsum()[-1])


@dataclass(frozen=True, slots=True)
class _Columns:
    """Jobs of falling utility, a column each."""

    durations: Floats
    worths: Floats
    """If they run from now on without a pause."""
    steps: Floats
    """[value, since, target]; 0 of jobs whose utility is no step."""
    others: Sequence[int]
    """Those."""
    places: Mapping[int, int]
    """Places by the identity of the prospect."""

    @classmethod
    def of(cls, jobs: Sequence[Prospect]) -> Self:
        return cls(
            np.array([each.duration for each in jobs], dtype=np.float64),
            np.array([each.worth(each.duration) for each in jobs]),
            np.array([each.step or (0.0, 0.0, 0.0) for each in jobs]).T,
            [at for at, each in enumerate(jobs) if each.step is None],
            {id(each): at for at, each in enumerate(jobs)},
        )


@dataclass(frozen=True, slots=True)
class RiskReward:
    """RRH: what a job earns if it runs now, less what its running costs the others by delay (HPDC 2004).

    There a task fills a processor; here the others are delayed by the job's duration times its dominant
    share.
    """

    servers: Servers
    threshold: float = 0.0
    """A job is admitted if its gain less the cost is larger."""

    def gain(self, job: Active, mine: Prospect, others: Losses) -> float:
        """Utility less the cost of a job that runs from now on without a pause, beside the others."""
        lost = others.by(mine)
        share = min(1.0, dominant_share(job.bid, job.requested, self.servers)) if lost else 0.0
        return mine.worth(mine.duration) - share * lost

    def admits(self, job: Active, mine: Prospect, others: Sequence[Prospect]) -> bool:
        return self.gain(job, mine, Losses(others)) > self.threshold

    def holdings(self, jobs: Sequence[Active], prospects: Sequence[Prospect]) -> Holdings:
        """Who runs: by gain less cost per time, as long as they fit; a running job stays where it is.

        Those that earn nothing any more come last, on what the others leave.
        """
        falling = Losses(prospects)
        pairs = zip(jobs, prospects, strict=True)
        gains = [(self.gain(job, mine, falling), mine.duration, job) for job, mine in pairs]
        gains.sort(key=lambda each: (-each[0] / each[1], each[2].order))
        fleet = Fleet(self.servers)
        holdings = {}
        for *_, job in gains:
            placed = _again(fleet, job) or fleet.in_turn(job.bid, job.requested)
            if placed is not None:
                holdings[job.bid.id] = placed
        return holdings


def _again(fleet: Fleet, job: Active) -> PlacedWorkers | None:
    """The places that the job holds, taken once more; None if it holds none, or others have them now."""
    placed = job.placed
    if placed is None:
        return None
    free = fleet.workers.fits(job.bid.worker, placed.size), fleet.ps.fits(job.bid.ps, int(placed.ps.sum()))
    if (placed.workers > free[0]).any() or (placed.ps > free[1]).any():
        return None
    fleet.take(job.bid, placed)
    return placed


@dataclass(frozen=True, slots=True)
class TypedJob:
    """A job that takes part, and the GPU type that it takes part on."""

    job: JobState
    active: Active
    gpu_type: str


class ServerView:
    """The servers of a snapshot, and its jobs as those of the rules."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = ServerNodes(snapshot.nodes)
        self.servers = self._nodes.now()
        self._of_type = {kind: self._nodes.of_type(kind) for kind in snapshot.gpus_by_type()}

    def members(self, jobs: Sequence[JobState], *, requested: bool = False) -> list[TypedJob]:
        """Jobs that run on a type, each on the one that it holds or on the emptiest of those it runs on.

        :param requested: at the requested size alone.
        """
        load = dict.fromkeys(self._of_type, 0)
        gpus = self._snapshot.gpus_by_type()
        members = []
        places = {job.id: place for place, job in enumerate(sorted(jobs, key=lambda job: job.arrival))}
        for job in sorted(jobs, key=lambda job: (not job.gpus, job.arrival)):
            least = job.requested if requested else job.min_gpus
            kinds = [job.gpu_type] if job.gpus and job.gpu_type in gpus else self._runs_on(job, least, gpus)
            if kinds:
                kind = min(
                    kinds, key=lambda kind: ((load[kind] + least) / max(1, gpus[kind]), kinds.index(kind))
                )
                load[kind] += least
                active = self._active(job, kind, least, places[job.id], requested=requested)
                members.append(TypedJob(job, active, kind))
        return members

    def decision(self, members: Sequence[TypedJob], holdings: Holdings, rejected: dict[str, str]) -> Decision:
        """The placement step chooses nodes, and a running job keeps its own."""
        grants = {}
        for member in members:
            placed = holdings.get(member.job.id)
            size = self._feasible(member, placed.size * member.active.bid.gpus) if placed else 0
            if size:
                grants[member.job.id] = Grant(size, member.gpu_type)
        return decision_from_grants(self._snapshot, grants, rejected)

    def _runs_on(self, job: JobState, least: int, gpus: Mapping[str, int]) -> list[str]:
        rates = [
            (-self._snapshot.speeds.rate(job, least, kind), kind) for kind in gpus if gpus[kind] >= least
        ]
        return [kind for rate, kind in sorted(rates) if rate < 0]

    def _feasible(self, member: TypedJob, size: int) -> int:
        """The largest size up to this one at which the job runs; 0 if there is none."""
        bid = member.active.bid
        sizes = range(size, bid.least_workers * bid.gpus - 1, -bid.gpus)
        rate = self._snapshot.speeds.rate
        return next((each for each in sizes if rate(member.job, each, member.gpu_type) > 0), 0)

    def _active(self, job: JobState, kind: str, least: int, place: int, *, requested: bool) -> Active:
        total = self._snapshot.speeds.gpu_types[kind]
        most = least if requested else max(least, job.max_gpus(total))
        bid = self._nodes.demands(job, kind)
        bid = replace(
            bid,
            arrival=place,
            work=most // bid.gpus,
            most_workers=most // bid.gpus,
            least_workers=least // bid.gpus,
            servers=self._of_type[kind],
        )
        held = self._nodes.holding(job)
        return Active(bid, bid.most_workers, job.requested // bid.gpus, held)
