"""What owners are entitled to, and which GPUs must come back to them from jobs of others that borrow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pliant.schemas.cluster import ANY_TYPE, Owner
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.entitlements import Claim, Entitlement, TeamUsage, claims_of, entitle
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_by_type, gpus_of
from pliant.tools.schedule.rates import Speeds, cut
from pliant.tools.schedule.session.assignment import Demands

if TYPE_CHECKING:
    from pliant.schemas.checks import Capacities

ROUNDING: Final = 1e-9


class Declined(NamedTuple):
    """GPUs that were free for an owner and that its policy left free."""

    gpus: int
    mark: tuple[int, int, str]
    """Mark of its jobs then (:meth:`Claim.mark`)."""
    until_s: float
    """Time from which its policy may decide otherwise."""


class Reclaim:
    """Entitlements of owners at the last decision, and what they led to."""

    def __init__(
        self,
        usage: TeamUsage,
        nodes: Sequence[NodeState],
        speeds: Speeds,
        capacities: Capacities,
        *,
        resizes: bool,
    ) -> None:
        """:param resizes: jobs may shrink."""
        self.claims: dict[Owner, Claim] = {}
        self.entitled: dict[Owner, Entitlement] = {}
        # Free GPUs by type that owners get before others: those that were taken back for them.
        self.owed: dict[tuple[Owner, str], int] = {}
        # Owners for whose jobs CPUs, memory or bandwidth were taken back: they are placed before others.
        self.first: set[Owner] = set()
        # By job, whom the last decision gave GPUs that it had borrowed.
        self.taken: dict[str, str] = {}
        self.declined: dict[tuple[Owner, str], Declined] = {}
        # How an owner's jobs were when others stopped for one; not again if it did not start.
        self.made_room: dict[tuple[Owner, str], tuple[int, int, str]] = {}
        # GPUs by team and type of jobs that finish on drained nodes.
        self.bound: dict[str, Counter[str]] = {}
        self._usage = usage
        self._shares = usage.shares
        self._nodes = nodes
        self._speeds = speeds
        self._capacities = capacities
        self._resizes = resizes
        self._limited = [name for name, team in usage.shares.teams.items() if team.max or not team.borrows]
        self._hidden: Sequence[JobState] = ()

    def updates(
        self, jobs: Iterable[JobState], time_s: float, hidden: Sequence[JobState] = ()
    ) -> dict[str, NodeGpus]:
        """What jobs are to keep of their GPUs, so that each owner can have what it is entitled to.

        :param hidden: jobs that no policy sees, and which keep the CPUs, memory and bandwidth that they hold.
        """
        self._hidden = hidden
        total = gpus_by_type(self._nodes)
        claims = self.claims_of(jobs, total)
        self.update_declined(claims, time_s)
        self.claims = claims
        self.entitled = self.entitle(claims, total, time_s)
        self.owed, self.first, self.taken = {}, set(), {}
        cuts: dict[str, NodeGpus] = {}
        for kind, gpus in total.items():
            cuts |= self._reclaim_type(kind, gpus)
        for kind in total:
            for owner in self.claims:
                cuts |= self._reclaim_nodes(owner, kind, cuts)
        return cuts

    def bound_updates(
        self, bound: Iterable[JobState], jobs: Iterable[JobState], drained: Container[str], time_s: float
    ) -> dict[str, NodeGpus]:
        """What elastic jobs are to keep that finish on drained nodes, and borrow GPUs of other nodes, too.

        They keep the drained nodes alone, where others lack GPUs: the rest is in service again then.
        """
        bound = sorted(bound, key=lambda job: job.id)
        self.bound = {}
        for job in bound:
            self._bind(job, job.gpus)
        rest = {job.id: tuple(each for each in job.placement if each[0] in drained) for job in bound}
        more = {
            job.id: job.gpus - gpus_of(rest[job.id]) for job in bound if self._keeps_rest(job, rest[job.id])
        }
        if not more:
            return {}
        free, held = Counter(gpus_by_type(self._nodes)), Counter[Owner]()
        total = free.copy()
        for job in bound:
            held[self._shares.owner_of(job.spec)] += job.gpus
            total[job.gpu_type or ""] += more.get(job.id, 0)
        claims = claims_of(jobs, self._shares, self._speeds, total, resizes=True)
        entitled = self.entitle(claims, total, time_s)
        held.update({owner: sum(claim.held.values()) for owner, claim in claims.items()})
        for claim in claims.values():
            free.subtract(claim.held)
        kept: dict[str, NodeGpus] = {}
        for job in bound:
            owner, kind = self._shares.owner_of(job.spec), job.gpu_type or ""
            lacks = {
                each: gpus
                for each, claim in claims.items()
                if (gpus := entitled[each].now.get(kind, 0) - claim.held.get(kind, 0)) > 0
            }
            borrows = held[owner] > math.ceil(own_part(entitled.get(owner)) - ROUNDING)
            helps = any(each != owner for each in lacks) and sum(lacks.values()) > free[kind]
            if job.id in more and borrows and helps:
                kept[job.id] = rest[job.id]
                held[owner] -= more[job.id]
                free[kind] += more[job.id]
                self._bind(job, -more[job.id])
        return kept

    def _bind(self, job: JobState, gpus: int) -> None:
        if job.counts_gpus:
            self.bound.setdefault(self._shares.team_of(job.spec), Counter())[job.gpu_type or ""] += gpus

    def entitle(
        self, claims: Mapping[Owner, Claim], total: Mapping[str, int], time_s: float
    ) -> dict[Owner, Entitlement]:
        return entitle(self._shares, claims, self._usage.until(time_s), total, self.bound)

    def _keeps_rest(self, job: JobState, rest: NodeGpus) -> bool:
        """Whether a job can shrink in place to a part of what it holds."""
        size = gpus_of(rest)
        fits = job.spec.min_gpus <= size < job.gpus and job.spec.gpus.allows(size)
        return self._resizes and fits and _shrinks(job)

    def _reclaim_type(self, kind: str, gpus: int) -> dict[str, NodeGpus]:
        """Elastic jobs of those who hold too many shrink; then, for jobs of owners that wait, others stop.

        Nothing is taken that helps no owner.
        """
        over = {owner: more for owner in self.claims if (more := self.over(owner, kind)) > 0}
        if not over:
            return {}
        cuts: dict[str, NodeGpus] = {}
        held = sum(claim.held.get(kind, 0) for claim in self.claims.values())
        spare = gpus - held + self._shrink(over, kind, cuts)
        helps = any(
            claim.demanded.get(kind, 0) > claim.held.get(kind, 0) or self._can_start(owner, kind, spare, cuts)
            for owner, claim in self.claims.items()
            if self.over(owner, kind) < 0
        )
        for owner, lacks in self._lenders(kind):
            room = self._room(owner.team, kind, cuts)
            mates = over if room >= lacks else {each: over[each] for each in over if each.team == owner.team}
            stopped = self._stopped(mates, kind, lacks - int(min(spare, room)), cuts)
            freed = sum(more for more, _ in stopped)
            got = min(lacks, int(min(spare, room)) + freed)
            after = cuts | dict.fromkeys([job_id for _, job_ids in stopped for job_id in job_ids], ())
            if self._can_start(owner, kind, got, after):
                cuts = after
                self.owed[owner, kind] = got
                if any(self._demands_room(wait.job) for wait in self.claims[owner].waiting):
                    self.first.add(owner)
                spare, helps = spare + freed - got, True
        if not helps:
            return {}
        takers = ", ".join(in_words(owner) for owner in self.claims if self.over(owner, kind) < 0)
        running = {job.id: job for claim in self.claims.values() for job in claim.running}
        for job_id in cuts:
            freed = self._freed_by(running[job_id], cuts)
            self.taken[job_id] = f"{in_gpus(freed)} of it went to {takers}"
        return cuts

    def _reclaim_nodes(self, owner: Owner, kind: str, cuts: Mapping[str, NodeGpus]) -> dict[str, NodeGpus]:
        """Jobs stop that borrow GPUs beside CPUs, memory and bandwidth that a job of the owner lacks.

        That job is the first of those that wait within its own part. GPUs may be free then, so that nobody
        seems to hold too many of them.
        """
        claim = self.claims[owner]
        own = math.floor(own_part(self.entitled[owner]) + ROUNDING) - sum(claim.held.values())
        waiting = [wait for wait in claim.waiting if kind in wait.most and wait.least <= own]
        wait = min(waiting, key=lambda each: each.job.arrival, default=None)
        if wait is None or not wait.job.spec.resources.worker:
            return {}
        mark = claim.mark(kind)
        if self.made_room.get((owner, kind)) == mark or wait.least > self._room(owner.team, kind, cuts):
            return {}
        spare = self._spare(wait.job, kind, cuts)
        need = wait.least - spare.workers()
        if need <= 0:
            return {}
        others = [other for other in self.claims if other != owner]
        for least in (need, 1):  # one job, if one is enough
            stopped = self._stopped(others, kind, need, cuts, partial(spare.gained_by, least=least))
            if spare.workers() >= wait.least:
                break
        else:
            return {}
        self.owed[owner, kind] = max(self.owed.get((owner, kind), 0), wait.least)
        self.first.add(owner)
        self.made_room[owner, kind] = mark
        stops = dict.fromkeys(job_id for _, job_ids in stopped for job_id in job_ids)
        for job in map(spare.running.__getitem__, stops):
            given = self.entitled[self._shares.owner_of(job.spec)]
            for gpus in (given.now, given.due):
                gpus[kind] = max(0, gpus.get(kind, 0) - job.gpus)
            self.taken[job.id] = f"its place went to {in_words(owner)}"
        return dict.fromkeys(stops, ())

    def _demands_room(self, job: JobState) -> bool:
        return job.takes_room and self._capacities.limits_demands(job.spec)

    def _spare(self, job: JobState, kind: str, cuts: Mapping[str, NodeGpus]) -> _Spare:
        running = {job.id: job for claim in self.claims.values() for job in claim.running}
        return _Spare(
            *(job, kind),
            nodes=self._nodes,
            running=running,
            cuts=cuts,
            capacities=self._capacities,
            hidden=self._hidden,
        )

    def _can_start(self, owner: Owner, kind: str, gpus: int, cuts: Mapping[str, NodeGpus]) -> bool:
        """Whether a job of an owner that waits fits that many GPUs: each replica on one node, with what its
        workers demand.
        """
        claim = self.claims[owner]
        if not claim.can_start(kind, gpus):
            return False
        waiting = [wait for wait in claim.waiting if kind in wait.most and wait.least <= gpus]
        # One look for all jobs with the same demands, at the smallest.
        demanding = {
            id(wait.job.room): wait
            for wait in sorted(waiting, key=lambda wait: -wait.least)
            if self._demands_room(wait.job)
        }
        if any(self._spare(wait.job, kind, cuts).workers() >= wait.least for wait in demanding.values()):
            return True
        sizes = [(wait.least, wait.job.per_replica) for wait in waiting if id(wait.job.room) not in demanding]
        if any(each == 1 for _, each in sizes):
            return True
        free = {node.name: node.gpus for node in self._nodes if node.up and node.gpu_type == kind}
        largest = max(free.values(), default=0)
        for job in (job for claim in self.claims.values() for job in claim.running if job.counts_gpus):
            for name, count in cuts.get(job.id, job.placement):
                if name in free:
                    free[name] -= count
        return any(
            each > largest or sum(count // each for count in free.values()) * each >= least
            for least, each in sizes
        )

    def _room(self, team: str, kind: str, cuts: Mapping[str, NodeGpus]) -> float:
        """GPUs of a type that a team may get beside those that it holds, or is to get already; at least 0."""
        if team not in self._limited:
            return math.inf
        held = {owner: Counter(claim.held) for owner, claim in self.claims.items() if owner.team == team}
        for owner, counts in held.items():
            freed = sum(self._freed_by(job, cuts) for job in self.claims[owner].running)
            counts[kind] += self.owed.get((owner, kind), 0) - freed
        return max(0.0, left_in(self.rooms(held)[team], kind))

    def over(self, owner: Owner, kind: str) -> int:
        return self.claims[owner].held.get(kind, 0) - self.entitled[owner].now.get(kind, 0)

    def _lenders(self, kind: str) -> list[tuple[Owner, int]]:
        """Owners with jobs that wait for GPUs of their own, and how many they lack; most first."""
        lenders = []
        for owner, claim in self.claims.items():
            of_own = math.ceil(self.entitled[owner].own - ROUNDING) - sum(claim.held.values())
            lacks = min(-self.over(owner, kind), of_own)
            if lacks > 0:
                lenders.append((owner, lacks))
        return sorted(lenders, key=lambda each: (-each[1], each[0]))

    def _shrink(self, over: dict[Owner, int], kind: str, cuts: dict[str, NodeGpus]) -> int:
        """Shrink elastic jobs, the largest first; returns the GPUs freed."""
        freed = 0
        for owner in list(over) if self._resizes else ():
            jobs = [job for job in self.claims[owner].running if job.gpu_type == kind and _shrinks(job)]
            for job in sorted(jobs, key=lambda job: (job.spec.min_gpus - job.gpus, job.id)):
                left = over[owner]
                if left <= 0:
                    break
                size = self._smaller(job, max(job.spec.min_gpus, job.gpus - left), kind)
                if size is not None:
                    cuts[job.id] = cut(job.placement, size, job.placement)
                    over[owner] = left - (job.gpus - size)
                    freed += job.gpus - size
        return freed

    def _smaller(self, job: JobState, gpus: int, kind: str) -> int | None:
        """The largest size up to ``gpus`` on which the job trains; None if there is none."""
        for size in reversed(job.spec.gpus.between(job.spec.min_gpus, gpus)):
            if size < job.gpus and self._speeds.rate(job, size, kind, global_batch=job.global_batch) > 0:
                return size
        return None

    def _stopped(
        self,
        over: Iterable[Owner],
        kind: str,
        need: int,
        cuts: Mapping[str, NodeGpus],
        gained_by: Callable[[Sequence[str]], int] | None = None,
    ) -> list[tuple[int, list[str]]]:
        """Jobs to stop for that many GPUs: each with the GPUs that it frees.

        None that keeps its GPUs until it ends. Those on borrowed GPUs alone before those that hold some of
        their owner's own, elastic ones before rigid ones, of each kind the one that has run for the shortest
        time.

        :param gained_by: of how much use it is that jobs stop, where that is not the number of their GPUs.
        """
        kept = {job.id for claim in self.claims.values() for job in claim.running if job.stays}
        jobs: list[tuple[tuple[bool, bool, float, str], JobState, Owner]] = []
        borrowed: dict[Owner, int] = {}
        for owner in over:
            claim = self.claims[owner]
            freed = sum(self._freed_by(job, cuts) for job in claim.running)
            own = math.ceil(self.entitled[owner].own - ROUNDING)
            borrowed[owner] = sum(claim.held.values()) - freed - own
            for job in claim.running:
                if job.gpu_type == kind and job.counts_gpus and kept.isdisjoint((job.id, job.beside)):
                    straddles = job.gpus - self._freed_by(job, cuts) > borrowed[owner]
                    key = (straddles, not _resizable(job), -job.granted_s, job.id)
                    jobs.append((key, job, owner))
        options = []
        for _, job, owner in sorted(jobs, key=lambda each: each[0]):
            if need <= 0:
                break
            if borrowed[owner] <= 0:
                continue
            more = job.gpus - self._freed_by(job, cuts)
            stops = [each for each in (job.id, job.beside) if each is not None]
            gained = more if gained_by is None else gained_by(stops)
            if gained:
                options.append((more, stops))
                need, borrowed[owner] = need - gained, borrowed[owner] - more
        return options

    def _freed_by(self, job: JobState, cuts: Mapping[str, NodeGpus]) -> int:
        return job.gpus - gpus_of(cuts[job.id]) if job.id in cuts else 0

    def claims_of(self, jobs: Iterable[JobState], total: Mapping[str, int]) -> dict[Owner, Claim]:
        """What each owner holds and waits for."""
        return claims_of(jobs, self._shares, self._speeds, total, resizes=self._resizes)

    def rooms(self, held: Mapping[Owner, Mapping[str, int]]) -> dict[str, dict[str, float]]:
        """By team that must not exceed something: the GPUs by type ("*": of any) that it may get beside those
        that it holds. Some of these may be more than their user is entitled to.
        """
        if not self._limited:
            return {}
        taken = {team: self.bound.get(team, Counter[str]()).copy() for team in self._limited}
        own: dict[str, float] = dict.fromkeys(self._limited, 0.0)
        for owner, given in self.entitled.items():
            own[owner.team] = own.get(owner.team, 0.0) + given.own
        for owner, counts in held.items():
            if owner.team in taken:
                taken[owner.team].update(counts)
        rooms_by_team = {}
        for team, gpus in taken.items():
            rules = self._shares.team(team)
            room: dict[str, float] = {kind: most - gpus[kind] for kind, most in rules.max.items()}
            most = math.inf if rules.borrows else math.floor(own[team] + ROUNDING)
            room[ANY_TYPE] = min(most, rules.max.get(ANY_TYPE, math.inf)) - sum(gpus.values())
            rooms_by_team[team] = room
        return rooms_by_team

    def update_declined(self, claims: Mapping[Owner, Claim], time_s: float) -> None:
        """Forget what was declined by jobs that have changed since."""
        for (owner, kind), offer in list(self.declined.items()):
            claim = claims.get(owner)
            if claim is None or offer.until_s <= time_s or claim.mark(kind) != offer.mark:
                del self.declined[owner, kind]
            else:
                claim.declined[kind] = offer.gpus


class _Spare:
    """What is free on the nodes of a GPU type for a job that waits, and what it is once others stop."""

    def __init__(
        self,
        job: JobState,
        kind: str,
        *,
        nodes: Sequence[NodeState],
        running: Mapping[str, JobState],
        cuts: Mapping[str, NodeGpus],
        capacities: Capacities,
        hidden: Iterable[JobState],
    ) -> None:
        self._job, self._cuts = job, cuts
        self._free = {node.name: node.gpus for node in nodes if node.up and node.gpu_type == kind}
        self._index = {node.name: node.index for node in nodes}
        self._demands = Demands(capacities, self._index, hidden)
        self.running = running
        self._change(running, 1)

    def _change(self, job_ids: Iterable[str], sign: int) -> None:
        """Jobs get what they hold, or give it back (-1)."""
        for job in map(self.running.__getitem__, job_ids):
            place = self._cuts.get(job.id, job.placement)
            self._demands.book(job, place, job.servers if place else (), sign)
            for name, count in place if job.counts_gpus else ():
                if name in self._free:
                    self._free[name] -= sign * count

    def workers(self) -> int:
        """How many workers of the job there is room for, in whole replicas."""
        job, each = self._job, self._job.per_replica
        nodes = ((self._index[name], gpus) for name, gpus in self._free.items())
        counts = (self._demands.useful_on(job, at, gpus) for at, gpus in nodes if at not in job.barred)
        return sum(count // each for count in counts) * each

    def gained_by(self, job_ids: Sequence[str], *, least: int) -> int:
        """How many workers more have room once jobs stop, which they do if it is at least that many."""
        before = self.workers()
        self._change(job_ids, -1)
        gained = self.workers() - before
        if gained >= least:
            return gained
        self._change(job_ids, 1)
        return 0


def left_in(room: Mapping[str, float], kind: str) -> float:
    """GPUs of a type that a team may get, whose room is given by type."""
    return min(room.get(ANY_TYPE, math.inf), room.get(kind, math.inf))


def in_words(owner: Owner) -> str:
    team = "the jobs of no team" if owner.team == "*" else f"team {owner.team}"
    return f"{owner.user} of {team}" if owner.user else team


def own_part(given: Entitlement | None) -> float:
    return 0.0 if given is None else given.own


def _resizable(job: JobState) -> bool:
    return job.spec.elastic != "none"


def _shrinks(job: JobState) -> bool:
    return _resizable(job) and job.beside is None and job.gpus > job.spec.min_gpus and not job.stays
