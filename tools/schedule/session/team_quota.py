"""The parts of a shared cluster: a policy of its own for each owner, asked about that owner's GPUs and jobs.

Any policy serves a shared cluster unchanged. At each decision the entitlements are computed
(:mod:`pliant.tools.schedule.quota`), GPUs that were lent come back, and the cluster is divided: an owner has
the GPUs that its jobs hold, and of the free ones as many as it is entitled to, whole nodes first. Then each
owner's policy is asked about its part alone. The counts of a part bind; where a policy names no nodes, jobs
are placed on the whole cluster, so that parts do not scatter them.

A part has all nodes of the cluster under their own indices, with the GPUs that are its own; a node on
which it has none is down for it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pliant.schemas.cluster import ANY_TYPE, Owner
from pliant.schemas.schedule import TeamStanding
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_by_type, gpus_of
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Reserved, Target
from pliant.tools.schedule.quota import Claim, Entitlement, TeamUsage, claims_of, entitle
from pliant.tools.schedule.rates import Speeds, cut
from pliant.tools.schedule.session.allocations import AllocationUpdate
from pliant.tools.schedule.session.assignment import Demands
from pliant.tools.schedule.session.rules import RuleBook
from pliant.tools.schedule.snapshot import Change, ChangeKind, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.checks import Capacities

_ROUNDING: Final = 1e-9
_HOUR_S: Final = 3600.0
_LOOKS: Final = 32
"""Entitlement refreshes per half-life."""


@dataclass(slots=True)
class _TeamPart:
    """What one owner has: a policy, and the cluster as it sees it."""

    owner: Owner
    policy: Policy
    free: FreeGpus
    rules: RuleBook
    notified_gpus: dict[int, int] | None = None
    """GPUs by index of the node when the policy was last asked; None: never."""
    pending_changes: list[Change] = field(default_factory=list)
    again_s: float | None = None
    """Time at which its policy is to be asked again."""
    offered: dict[str, int] = field(default_factory=dict)
    """GPUs by type, held and free, when it was asked last."""

    @property
    def nodes(self) -> Sequence[NodeState]:
        return self.free.nodes

    def gpus(self) -> dict[str, int]:
        return gpus_by_type(self.nodes)


class Declined(NamedTuple):
    """GPUs that were free for an owner and that its policy left free."""

    gpus: int
    mark: tuple[int, int, str]
    """Mark of its jobs then (:meth:`Claim.mark`)."""
    until_s: float
    """Time from which its policy may decide otherwise."""


class TeamQuota:
    """The owners' policies; asked as one."""

    state_version: Final = 1000
    """Added to the version of a policy's state where the states of its parts are kept."""

    def __init__(
        self,
        policy: Policy,
        usage: TeamUsage,
        nodes: Sequence[NodeState],
        speeds: Speeds,
        capacities: Capacities,
    ) -> None:
        self._template = policy
        self._capacities = capacities
        self._usage = usage
        self._shares = usage.shares
        self._limited = [name for name, team in usage.shares.teams.items() if team.max or not team.borrows]
        self._nodes = nodes
        self._speeds = speeds
        self._resizes = policy.traits.elasticity != "none"
        self._parts: dict[Owner, _TeamPart] = {}
        self._looks_ahead = False
        self._entitled: dict[Owner, Entitlement] = {}
        self._claims: dict[Owner, Claim] = {}
        self._hidden: Sequence[JobState] = ()
        # Free GPUs by type that owners get before others: those that were taken back for them.
        self._owed: dict[tuple[Owner, str], int] = {}
        # Owners for whose jobs CPUs, memory or bandwidth were taken back: they are placed before others.
        self._first: set[Owner] = set()
        # By job, whom the last decision gave GPUs that it had borrowed.
        self._taken: dict[str, str] = {}
        self._declined: dict[tuple[Owner, str], Declined] = {}
        # How an owner's jobs were when others stopped for one; not again if it did not start.
        self._made_room: dict[tuple[Owner, str], tuple[int, int, str]] = {}
        # GPUs by team and type of jobs that finish on drained nodes.
        self._bound: dict[str, Counter[str]] = {}

    # What owners are entitled to, and what must come back.

    def reclaim(
        self, jobs: Iterable[JobState], time_s: float, hidden: Sequence[JobState] = ()
    ) -> list[AllocationUpdate]:
        """What jobs are to hold instead, so that each owner can have what it is entitled to.

        :param hidden: jobs that no policy sees, and which keep the CPUs, memory and bandwidth that they hold.
        """
        self._hidden = hidden
        total = gpus_by_type(self._nodes)
        claims = claims_of(jobs, self._shares, self._speeds, total, resizes=self._resizes)
        self._look_at_declined(claims, time_s)
        self._claims = claims
        self._entitled = self._entitle(claims, total, time_s)
        self._owed, self._first, self._taken = {}, set(), {}
        cuts = {each.job_id: each for kind, gpus in total.items() for each in self._reclaim_type(kind, gpus)}
        for kind in total:
            for owner in self._claims:
                cuts |= self._reclaim_nodes(owner, kind, cuts)
        return list(cuts.values())

    def reclaim_bound(
        self, bound: Iterable[JobState], jobs: Iterable[JobState], drained: Container[str], time_s: float
    ) -> list[AllocationUpdate]:
        """What elastic jobs are to hold that finish on drained nodes, and borrow GPUs of other nodes, too.

        They keep the drained nodes alone, where others lack GPUs: the rest is in service again then.
        """
        bound = sorted(bound, key=lambda job: job.id)
        self._bound = {}
        for job in bound:
            self._bind(job, job.gpus)
        rest = {job.id: tuple(each for each in job.placement if each[0] in drained) for job in bound}
        more = {
            job.id: job.gpus - gpus_of(rest[job.id]) for job in bound if self._keeps_rest(job, rest[job.id])
        }
        if not more:
            return []
        free, held = Counter(gpus_by_type(self._nodes)), Counter[Owner]()
        total = free.copy()
        for job in bound:
            held[self._shares.owner_of(job.spec)] += job.gpus
            total[job.gpu_type or ""] += more.get(job.id, 0)
        claims = claims_of(jobs, self._shares, self._speeds, total, resizes=True)
        entitled = self._entitle(claims, total, time_s)
        held.update({owner: sum(claim.held.values()) for owner, claim in claims.items()})
        for claim in claims.values():
            free.subtract(claim.held)
        found = []
        for job in bound:
            owner, kind = self._shares.owner_of(job.spec), job.gpu_type or ""
            lacks = {
                each: gpus
                for each, claim in claims.items()
                if (gpus := entitled[each].now.get(kind, 0) - claim.held.get(kind, 0)) > 0
            }
            borrows = held[owner] > math.ceil(_own(entitled.get(owner)) - _ROUNDING)
            helps = any(each != owner for each in lacks) and sum(lacks.values()) > free[kind]
            if job.id in more and borrows and helps:
                found.append(AllocationUpdate(job.id, rest[job.id], None, job.servers))
                held[owner] -= more[job.id]
                free[kind] += more[job.id]
                self._bind(job, -more[job.id])
        return found

    def _bind(self, job: JobState, gpus: int) -> None:
        if job.counts_gpus:
            self._bound.setdefault(self._shares.team_of(job.spec), Counter())[job.gpu_type or ""] += gpus

    def _entitle(
        self, claims: Mapping[Owner, Claim], total: Mapping[str, int], time_s: float
    ) -> dict[Owner, Entitlement]:
        return entitle(self._shares, claims, self._usage.until(time_s), total, self._bound)

    def _keeps_rest(self, job: JobState, rest: NodeGpus) -> bool:
        """Whether a job can shrink in place to a part of what it holds."""
        size = gpus_of(rest)
        fits = job.spec.min_gpus <= size < job.gpus and job.spec.gpus.allows(size)
        return self._resizes and fits and _shrinks(job)

    def _reclaim_type(self, kind: str, gpus: int) -> Iterable[AllocationUpdate]:
        """Elastic jobs of those who hold too many shrink; then, for jobs of owners that wait, others stop.

        Nothing is taken that helps no owner.
        """
        over = {owner: more for owner in self._claims if (more := self._over(owner, kind)) > 0}
        if not over:
            return ()
        cuts: dict[str, AllocationUpdate] = {}
        held = sum(claim.held.get(kind, 0) for claim in self._claims.values())
        spare = gpus - held + self._shrink(over, kind, cuts)
        helps = any(
            claim.wanted.get(kind, 0) > claim.held.get(kind, 0) or self._can_start(owner, kind, spare, cuts)
            for owner, claim in self._claims.items()
            if self._over(owner, kind) < 0
        )
        for owner, lacks in self._lenders(kind):
            room = self._room(owner.team, kind, cuts)
            mates = over if room >= lacks else {each: over[each] for each in over if each.team == owner.team}
            stopped = self._stopped(mates, kind, lacks - int(min(spare, room)), cuts)
            freed = sum(more for more, _ in stopped)
            got = min(lacks, int(min(spare, room)) + freed)
            after = cuts | {holding.job_id: holding for _, holdings in stopped for holding in holdings}
            if self._can_start(owner, kind, got, after):
                cuts = after
                self._owed[owner, kind] = got
                if any(self._demands_room(wait.job) for wait in self._claims[owner].waiting):
                    self._first.add(owner)
                spare, helps = spare + freed - got, True
        if not helps:
            return ()
        takers = ", ".join(in_words(owner) for owner in self._claims if self._over(owner, kind) < 0)
        running = {job.id: job for claim in self._claims.values() for job in claim.running}
        for job_id in cuts:
            freed = self._freed_by(running[job_id], cuts)
            self._taken[job_id] = f"{in_gpus(freed)} of it went to {takers}"
        return cuts.values()

    def _reclaim_nodes(
        self, owner: Owner, kind: str, cuts: Mapping[str, AllocationUpdate]
    ) -> dict[str, AllocationUpdate]:
        """Jobs stop that borrow GPUs beside CPUs, memory and bandwidth that a job of the owner lacks.

        That job is the first of those that wait within its own part. GPUs may be free then, so that nobody
        seems to hold too many of them.
        """
        claim = self._claims[owner]
        own = math.floor(_own(self._entitled[owner]) + _ROUNDING) - sum(claim.held.values())
        waiting = [wait for wait in claim.waiting if kind in wait.most and wait.least <= own]
        wait = min(waiting, key=lambda each: each.job.arrival, default=None)
        if wait is None or not wait.job.spec.resources.worker:
            return {}
        mark = claim.mark(kind)
        if self._made_room.get((owner, kind)) == mark or wait.least > self._room(owner.team, kind, cuts):
            return {}
        spare = self._spare(wait.job, kind, cuts)
        need = wait.least - spare.workers()
        if need <= 0:
            return {}
        others = [other for other in self._claims if other != owner]
        for least in (need, 1):  # one job, if one is enough
            stopped = self._stopped(others, kind, need, cuts, partial(spare.gained_by, least=least))
            if spare.workers() >= wait.least:
                break
        else:
            return {}
        self._owed[owner, kind] = max(self._owed.get((owner, kind), 0), wait.least)
        self._first.add(owner)
        self._made_room[owner, kind] = mark
        holdings = {each.job_id: each for _, stops in stopped for each in stops}
        for job in map(spare.running.__getitem__, holdings):
            given = self._entitled[self._shares.owner_of(job.spec)]
            for gpus in (given.now, given.due):
                gpus[kind] = max(0, gpus.get(kind, 0) - job.gpus)
            self._taken[job.id] = f"its place went to {in_words(owner)}"
        return holdings

    def _demands_room(self, job: JobState) -> bool:
        return job.takes_room and self._capacities.limits_demands(job.spec)

    def _spare(self, job: JobState, kind: str, cuts: Mapping[str, AllocationUpdate]) -> _Spare:
        running = {job.id: job for claim in self._claims.values() for job in claim.running}
        return _Spare(
            *(job, kind),
            nodes=self._nodes,
            running=running,
            cuts=cuts,
            capacities=self._capacities,
            hidden=self._hidden,
        )

    def _can_start(self, owner: Owner, kind: str, gpus: int, cuts: Mapping[str, AllocationUpdate]) -> bool:
        """Whether a job of an owner that waits fits that many GPUs: each replica on one node, with what its
        workers demand.
        """
        claim = self._claims[owner]
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
        for job in (job for claim in self._claims.values() for job in claim.running if job.counts_gpus):
            for name, count in cuts[job.id].placement if job.id in cuts else job.placement:
                if name in free:
                    free[name] -= count
        return any(
            each > largest or sum(count // each for count in free.values()) * each >= least
            for least, each in sizes
        )

    def _room(self, team: str, kind: str, cuts: Mapping[str, AllocationUpdate]) -> float:
        """GPUs of a type that a team may get beside those that it holds, or is to get already; at least 0."""
        if team not in self._limited:
            return math.inf
        held = {owner: Counter(claim.held) for owner, claim in self._claims.items() if owner.team == team}
        for owner, counts in held.items():
            freed = sum(self._freed_by(job, cuts) for job in self._claims[owner].running)
            counts[kind] += self._owed.get((owner, kind), 0) - freed
        return max(0.0, _left_in(self._rooms(held)[team], kind))

    def _over(self, owner: Owner, kind: str) -> int:
        return self._claims[owner].held.get(kind, 0) - self._entitled[owner].now.get(kind, 0)

    def _lenders(self, kind: str) -> list[tuple[Owner, int]]:
        """Owners with jobs that wait for GPUs of their own, and how many they lack; most first."""
        found = []
        for owner, claim in self._claims.items():
            of_own = math.ceil(self._entitled[owner].own - _ROUNDING) - sum(claim.held.values())
            lacks = min(-self._over(owner, kind), of_own)
            if lacks > 0:
                found.append((owner, lacks))
        return sorted(found, key=lambda each: (-each[1], each[0]))

    def _shrink(self, over: dict[Owner, int], kind: str, cuts: dict[str, AllocationUpdate]) -> int:
        """Shrink elastic jobs, the largest first; returns the GPUs freed."""
        freed = 0
        for owner in list(over) if self._resizes else ():
            jobs = [job for job in self._claims[owner].running if job.gpu_type == kind and _shrinks(job)]
            for job in sorted(jobs, key=lambda job: (job.spec.min_gpus - job.gpus, job.id)):
                left = over[owner]
                if left <= 0:
                    break
                size = self._smaller(job, max(job.spec.min_gpus, job.gpus - left), kind)
                if size is not None:
                    cuts[job.id] = AllocationUpdate(
                        job.id, cut(job.placement, size, job.placement), None, job.servers
                    )
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
        cuts: Mapping[str, AllocationUpdate],
        gained_by: Callable[[Sequence[str]], int] | None = None,
    ) -> list[tuple[int, list[AllocationUpdate]]]:
        """Jobs to stop for that many GPUs: each with the GPUs that it frees.

        None that keeps its GPUs until it ends. Those on borrowed GPUs alone before those that hold some of
        their owner's own, elastic ones before rigid ones, of each kind the one that has run for the shortest
        time.

        :param gained_by: of how much use it is that jobs stop, where that is not the number of their GPUs.
        """
        kept = {job.id for claim in self._claims.values() for job in claim.running if job.stays}
        jobs: list[tuple[tuple[bool, bool, float, str], JobState, Owner]] = []
        borrowed: dict[Owner, int] = {}
        for owner in over:
            claim = self._claims[owner]
            freed = sum(self._freed_by(job, cuts) for job in claim.running)
            own = math.ceil(self._entitled[owner].own - _ROUNDING)
            borrowed[owner] = sum(claim.held.values()) - freed - own
            for job in claim.running:
                if job.gpu_type == kind and job.counts_gpus and kept.isdisjoint((job.id, job.beside)):
                    straddles = job.gpus - self._freed_by(job, cuts) > borrowed[owner]
                    key = (straddles, not _resizable(job), -job.granted_s, job.id)
                    jobs.append((key, job, owner))
        found = []
        for _, job, owner in sorted(jobs, key=lambda each: each[0]):
            if need <= 0:
                break
            if borrowed[owner] <= 0:
                continue
            more = job.gpus - self._freed_by(job, cuts)
            stops = [each for each in (job.id, job.beside) if each is not None]
            gained = more if gained_by is None else gained_by(stops)
            if gained:
                found.append((more, [AllocationUpdate(each) for each in stops]))
                need, borrowed[owner] = need - gained, borrowed[owner] - more
        return found

    def _freed_by(self, job: JobState, cuts: Mapping[str, AllocationUpdate]) -> int:
        return job.gpus - gpus_of(cuts[job.id].placement) if job.id in cuts else 0

    # The parts.

    def _part(self, owner: Owner) -> _TeamPart:
        part = self._parts.get(owner)
        if part is None:
            policy = type(self._template)(**self._template.parameters)
            if self._looks_ahead:
                policy.look_ahead()
            nodes = [copy.copy(node) for node in self._nodes]
            for node in nodes:
                node.up = node.up and node.for_servers
            rules = RuleBook(policy, nodes, self._speeds)
            part = self._parts[owner] = _TeamPart(owner, policy, FreeGpus(nodes), rules)
        return part

    def _fit(self, jobs: Mapping[str, JobState], free: FreeGpus) -> dict[Owner, dict[str, JobState]]:
        """Give each part what its jobs hold and its share of the free GPUs; returns jobs by owner."""
        mine: dict[Owner, dict[str, JobState]] = {}
        held: dict[Owner, Counter[int]] = {}
        index = {node.name: node.index for node in self._nodes} if jobs else {}
        for job_id, job in jobs.items():
            owner = self._shares.owner_of(job.spec)
            mine.setdefault(owner, {})[job_id] = job
            if job.counts_gpus:
                for name, count in job.placement:
                    held.setdefault(owner, Counter())[index[name]] += count
        for owner in mine:
            self._part(owner)
        dealt = self._deal(held, mine, free)
        for owner, part in self._parts.items():
            own, more = held.get(owner, Counter[int]()), dealt.get(owner, Counter[int]())
            for node, real in zip(part.nodes, self._nodes, strict=True):
                if real.for_servers:
                    part.free.refit(node.index, 0, 0, up=real.up)
                    continue
                spare = more[node.index]
                gpus = own[node.index] + spare
                part.free.refit(node.index, gpus, spare, up=real.up and gpus > 0)
        return mine

    def _deal(
        self,
        held: Mapping[Owner, Counter[int]],
        owners: Iterable[Owner],
        free: FreeGpus,
    ) -> dict[Owner, Counter[int]]:
        """Free GPUs by node for each owner: as many as it is entitled to, then what none can use as yet."""
        spare: dict[str, dict[int, int]] = {}
        for node in self._nodes:
            if node.up and (count := free.free_on(node.name)):
                spare.setdefault(node.gpu_type, {})[node.index] = count
        found: dict[Owner, Counter[int]] = {owner: Counter() for owner in owners}
        held_types = {owner: self._by_type(held.get(owner, {})) for owner in found}
        rooms = self._rooms(held_types) if spare else {}
        for given in ("owed", "now", "due"):
            for kind, nodes in spare.items():
                wanted = {
                    owner: self._owed.get((owner, kind), 0)
                    if given == "owed"
                    else getattr(entitled, given).get(kind, 0) - held_types[owner][kind]
                    for owner in found
                    if (entitled := self._entitled.get(owner)) is not None
                }
                self._deal_type(kind, nodes, wanted, held=held, found=found, rooms=rooms)
        return found

    def _rooms(self, held: Mapping[Owner, Mapping[str, int]]) -> dict[str, dict[str, float]]:
        """By team that must not exceed something: the GPUs by type ("*": of any) that it may get beside those
        that it holds. Some of these may be more than their user is entitled to.
        """
        if not self._limited:
            return {}
        taken = {team: self._bound.get(team, Counter[str]()).copy() for team in self._limited}
        own: dict[str, float] = dict.fromkeys(self._limited, 0.0)
        for owner, given in self._entitled.items():
            own[owner.team] = own.get(owner.team, 0.0) + given.own
        for owner, counts in held.items():
            if owner.team in taken:
                taken[owner.team].update(counts)
        found = {}
        for team, gpus in taken.items():
            rules = self._shares.team(team)
            room: dict[str, float] = {kind: most - gpus[kind] for kind, most in rules.max.items()}
            most = math.inf if rules.borrows else math.floor(own[team] + _ROUNDING)
            room[ANY_TYPE] = min(most, rules.max.get(ANY_TYPE, math.inf)) - sum(gpus.values())
            found[team] = room
        return found

    def _by_type(self, counts: Mapping[int, int]) -> Counter[str]:
        found = Counter[str]()
        for i, count in counts.items():
            found[self._nodes[i].gpu_type] += count
        return found

    def _deal_type(
        self,
        kind: str,
        spare: dict[int, int],
        wanted: Mapping[Owner, int],
        *,
        held: Mapping[Owner, Counter[int]],
        found: dict[Owner, Counter[int]],
        rooms: Mapping[str, dict[str, float]],
    ) -> None:
        """Deal free GPUs of a type, those who lack most of what they want first.

        :param wanted: free GPUs that owners are to have, those dealt before included.
        :param rooms: what their teams may get at most; changes.
        """
        needs = {
            owner: need
            for owner, most in wanted.items()
            if (need := most - self._by_type(found[owner])[kind]) > 0
        }
        for owner in sorted(needs, key=lambda owner: (-needs[owner], owner)):
            need, room = needs[owner], rooms.get(owner.team)
            if room is not None:
                need = int(max(0, min(need, _left_in(room, kind))))
            picked = _pick(need, spare, held.get(owner, Counter()), self._nodes)
            found[owner].update(picked)
            if room is not None:
                for limit in (kind, ANY_TYPE):
                    room[limit] = room.get(limit, math.inf) - sum(picked.values())
            for i, count in picked.items():
                spare[i] -= count
                if not spare[i]:
                    del spare[i]

    def _view(
        self, part: _TeamPart, seen: Snapshot, jobs: Mapping[str, JobState], changes: Sequence[Change]
    ) -> Snapshot:
        return seen._replace(
            nodes=part.nodes,
            jobs=jobs,
            changes=changes,
            total_gpus=sum(part.gpus().values()),
            free_gpus=part.free.by_type,
            free=part.free,
            future=[job for job in seen.future if self._shares.owner_of(job) == part.owner],
        )

    def _changes(self, part: _TeamPart, time_s: float) -> list[Change]:
        """Changes that the policy of a part has not seen: of its jobs, then of its nodes."""
        changes, part.pending_changes = part.pending_changes, []
        before = part.notified_gpus
        part.notified_gpus = {node.index: node.gpus for node in part.nodes if node.up}
        if before is None:
            return changes
        for i in sorted(before.keys() | part.notified_gpus.keys()):
            was, now = before.get(i, 0), part.notified_gpus.get(i, 0)
            if was == now:
                continue
            kind: ChangeKind = "node_up" if not was else "capacity" if now else "node_down"
            changes.append(Change(time_s, kind, node=part.nodes[i], gpus=now - was))
        return changes

    # Asked as one policy.

    def decide(self, seen: Snapshot, rng: np.random.Generator) -> Decision:
        """Ask the policy of each part that has jobs, or had some, and put the answers together."""
        mine = self._fit(seen.jobs, seen.free)
        for change in seen.changes:
            if change.job is not None:
                self._part(self._shares.owner_of(change.job.spec)).pending_changes.append(change)
        merged, admissions = Decision(), dict[str, Mapping[str, Any]]()
        quiet_s, asked = math.inf, False
        for owner in sorted(self._parts):
            part, jobs = self._parts[owner], mine.get(owner, {})
            if not jobs and not part.pending_changes:
                continue
            asked = True
            own = self._view(part, seen, jobs, self._changes(part, seen.time_s))
            said = part.policy.decide(own, rng)
            part.rules.check_form(said)
            part.again_s, part.offered = said.ask_again_s, part.gpus()
            part.rules.check(said, jobs, part.free.by_type, own.total_gpus)
            targets = self._typed(said.targets, jobs, part.free.by_type)
            merged.targets = targets | merged.targets if owner in self._first else merged.targets | targets
            merged.rejected |= said.rejected
            admissions |= said.admissions
            merged.ask_again_s = _earlier(merged.ask_again_s, said.ask_again_s)
            quiet_s = min(quiet_s, -math.inf if said.quiet_until_s is None else said.quiet_until_s)
        merged.admissions = admissions
        merged.quiet_until_s = quiet_s if asked and quiet_s > -math.inf else None
        if self._shares.half_life_hours and len(mine) > 1:
            look_s = seen.time_s + self._shares.half_life_hours * _HOUR_S / _LOOKS
            merged.ask_again_s = _earlier(merged.ask_again_s, look_s)
            if merged.quiet_until_s is not None:
                merged.quiet_until_s = min(merged.quiet_until_s, look_s)
        return merged

    def _typed(
        self, targets: Mapping[str, Target], jobs: Mapping[str, JobState], free: Mapping[str, int]
    ) -> dict[str, Target]:
        """Targets that name their GPU type, so that no job takes GPUs of another part."""
        if len(free) < 2:
            return dict(targets)
        left = Counter(dict(free))
        for job_id, target in targets.items():
            job = jobs[job_id]
            if job.gpus and job.frees_gpus(targets):
                left[job.gpu_type or ""] += job.gpus
            if target.gpus and target.gpu_type is not None and target.beside is None:
                left[target.gpu_type] -= target.gpus
        found = dict(targets)
        for job_id, target in targets.items():
            if not target.gpus or target.gpu_type or target.placement or target.beside:
                continue
            job = jobs[job_id]
            rates = {kind: self._speeds.rate(job, target.gpus, kind) for kind in free}
            able = [kind for kind, rate in rates.items() if rate > 0 and left[kind] >= target.gpus]
            if able:
                kind = min(able, key=lambda kind: (-rates[kind], kind != job.gpu_type, kind))
                left[kind] -= target.gpus
                found[job_id] = target._replace(gpu_type=kind)
        return found

    def leaves_room(self, jobs: Iterable[JobState], time_s: float, whole_at_s: float) -> bool:
        """Whether GPUs that their owner has left free are of use to another one.

        Called after the policies have decided. What an owner did not use counts as declined until its jobs
        change, its policy wants to be asked, or more is offered.
        """
        total = gpus_by_type(self._nodes)
        claims = claims_of(jobs, self._shares, self._speeds, total, resizes=self._resizes)
        rooms = self._rooms({owner: claim.held for owner, claim in claims.items()})
        for owner, claim in claims.items():
            for kind in total:
                reach = _left_in(rooms.get(owner.team, {}), kind)
                offered = self._entitled[owner].now.get(kind, 0) if owner in self._entitled else 0
                if owner not in self._parts:
                    continue
                left = self._parts[owner].offered.get(kind, 0) - claim.held.get(kind, 0)
                more = offered - claim.held.get(kind, 0)
                if more <= reach and claim.can_start(kind, more) and not claim.can_start(kind, left):
                    more = min(more, left)  # a job waits for the rest, which others hold
                if more > 0 and (left > 0 or more > reach):
                    again_s = self._parts[owner].again_s
                    until_s = min(at_s for at_s in (again_s, whole_at_s, math.inf) if at_s and at_s > time_s)
                    self._declined[owner, kind] = Declined(more, claim.mark(kind), until_s)
        self._look_at_declined(claims, time_s)
        now = self._entitle(claims, total, time_s)
        return any(
            given.now.get(kind, 0) > claims[owner].held.get(kind, 0)
            for owner, given in now.items()
            for kind in total
            if owner in claims
        )

    def _look_at_declined(self, claims: Mapping[Owner, Claim], time_s: float) -> None:
        """Forget what was declined by jobs that have changed since."""
        for (owner, kind), said in list(self._declined.items()):
            claim = claims.get(owner)
            if claim is None or said.until_s <= time_s or claim.mark(kind) != said.mark:
                del self._declined[owner, kind]
            else:
                claim.declined[kind] = said.gpus

    def explain(self, seen: Snapshot) -> dict[str, Explanation]:
        """What the policy of each part says; for a job that waits, also how its owner stands."""
        found: dict[str, Explanation] = {}
        for part, own in self._views(seen):
            said = part.policy.explain(own)
            part.rules.check_explained(said)
            for job_id, why in said.items():
                found[job_id] = self._of_owner(own, job_id, part.owner, why)
        return found

    def _of_owner(self, own: Snapshot, job_id: str, owner: Owner, why: Explanation) -> Explanation:
        given, job = self._entitled.get(owner), own.jobs.get(job_id)
        if job_id in self._taken:
            return Explanation(f"{why.reason}; {self._taken[job_id]}", why.needs_gpus)
        if job is None or job.gpus or given is None:
            return why
        held, due = sum(each.gpus for each in own.jobs.values() if each.counts_gpus), sum(given.due.values())
        text = f"{why.reason}; {in_words(owner)} holds {held} of {due} GPUs"
        borrowers = [
            in_words(other)
            for other, claim in self._claims.items()
            if other != owner and any(self._over(other, kind) > 0 for kind in claim.held)
        ]
        if held < due and borrowers:
            text = f"{text}, and gets more as jobs of {', '.join(borrowers)} end"
        return Explanation(text, why.needs_gpus)

    def reserved(self, seen: Snapshot) -> dict[str, Sequence[Reserved]]:
        found: dict[str, Sequence[Reserved]] = {}
        for part, own in self._views(seen):
            found |= part.policy.reserved(own)
        return found

    def _views(self, seen: Snapshot) -> Iterator[tuple[_TeamPart, Snapshot]]:
        mine = self._fit(seen.jobs, seen.free)
        for owner in sorted(mine):
            part = self._parts[owner]
            yield part, self._view(part, seen, mine[owner], ())

    def look_ahead(self) -> None:
        self._looks_ahead = True
        for part in self._parts.values():
            part.policy.look_ahead()

    def dump_state(self) -> Any:
        """The states of all parts with the nodes that they know of; None if none has a state."""
        states = [
            {
                "team": owner.team,
                "user": owner.user,
                "state": part.policy.dump_state(),
                "told": {self._nodes[i].name: gpus for i, gpus in (part.notified_gpus or {}).items()},
            }
            for owner, part in sorted(self._parts.items())
        ]
        declined = [
            [*owner, kind, said.gpus, said.mark, None if said.until_s == math.inf else said.until_s]
            for (owner, kind), said in sorted(self._declined.items())
        ]
        made_room = [[*owner, kind, mark] for (owner, kind), mark in sorted(self._made_room.items())]
        if not declined and not made_room and all(each["state"] is None for each in states):
            return None
        found = {"parts": states, "declined": declined}
        return found | ({"made_room": made_room} if made_room else {})

    @staticmethod
    def has_states(state: Any) -> bool:
        """Whether a dumped state holds any of a policy."""
        return any(each["state"] is not None for each in state["parts"])

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        index = {node.name: node.index for node in self._nodes}
        for team, user, kind, gpus, mark, until_s in state["declined"]:
            until = math.inf if until_s is None else until_s
            self._declined[Owner(team, user), kind] = Declined(gpus, tuple(mark), until)
        for team, user, kind, mark in state.get("made_room", ()):
            self._made_room[Owner(team, user), kind] = tuple(mark)
        for each in state["parts"]:
            owner = Owner(each["team"], each["user"])
            part = self._part(owner)
            part.notified_gpus = {index[name]: gpus for name, gpus in each["told"].items() if name in index}
            if each["state"] is not None:
                mine = ((job_id, job) for job_id, job in jobs.items() if self._owns(owner, job))
                part.policy.load_state(each["state"], dict(mine))

    def _owns(self, owner: Owner, job: JobState) -> bool:
        return self._shares.owner_of(job.spec) == owner

    # How teams stand.

    def standings(self, jobs: Iterable[JobState], time_s: float) -> tuple[TeamStanding, ...]:
        """Of each team of the file, and of each owner with jobs or usage."""
        used_gpu_s = self._usage.until(time_s)
        claims = claims_of(jobs, self._shares, self._speeds, gpus_by_type(self._nodes), resizes=self._resizes)
        owners = sorted({*self._entitled, *claims, *used_gpu_s})
        held = {owner: sum(claims[owner].held.values()) if owner in claims else 0 for owner in owners}
        own = {owner: _own(self._entitled.get(owner)) for owner in owners}
        borrowed = {owner: max(0, held[owner] - math.ceil(own[owner] - 1e-9)) for owner in owners}
        unused = {
            owner: max(0.0, own[owner] - held[owner]) if self._shares.team(owner.team).lends else 0.0
            for owner in owners
        }
        lends = min(1.0, sum(borrowed.values()) / (sum(unused.values()) or 1.0))
        return tuple(
            TeamStanding(
                team=owner.team,
                user=owner.user,
                own=round(own[owner], 2),
                entitled=sum(self._entitled[owner].due.values()) if owner in self._entitled else 0,
                held=held[owner],
                borrowed=borrowed[owner],
                lent=round(unused[owner] * lends, 2),
                waiting_jobs=len(claims[owner].waiting) if owner in claims else 0,
                waiting_gpus=_least(claims[owner]) if owner in claims else 0,
                usage_gpu_hours=round(used_gpu_s.get(owner, 0.0) / 3600, 3),
            )
            for owner in owners
        )


class _Spare:
    """What is free on the nodes of a GPU type for a job that waits, and what it is once others stop."""

    def __init__(
        self,
        job: JobState,
        kind: str,
        *,
        nodes: Sequence[NodeState],
        running: Mapping[str, JobState],
        cuts: Mapping[str, AllocationUpdate],
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
            holding = self._cuts.get(job.id) or AllocationUpdate.of(job)
            self._demands.book(job, holding.placement, holding.servers, sign)
            for name, count in holding.placement if job.counts_gpus else ():
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


def _left_in(room: Mapping[str, float], kind: str) -> float:
    """GPUs of a type that a team may get, whose room is given by type."""
    return min(room.get(ANY_TYPE, math.inf), room.get(kind, math.inf))


def in_words(owner: Owner) -> str:
    team = "the jobs of no team" if owner.team == "*" else f"team {owner.team}"
    return f"{owner.user} of {team}" if owner.user else team


def _own(given: Entitlement | None) -> float:
    return 0.0 if given is None else given.own


def _least(claim: Claim) -> int:
    """GPUs that its waiting jobs need at least."""
    return sum(wait.least for wait in claim.waiting)


def _resizable(job: JobState) -> bool:
    return job.spec.elastic != "none"


def _shrinks(job: JobState) -> bool:
    return _resizable(job) and job.beside is None and job.gpus > job.spec.min_gpus and not job.stays


def _earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def _pick(
    need: int, spare: Mapping[int, int], held: Mapping[int, int], nodes: Sequence[NodeState]
) -> dict[int, int]:
    """Free GPUs for one owner: on its own nodes, then whole nodes, then where they fit best."""
    found: dict[int, int] = {}
    for i in sorted(held, key=lambda i: (-held[i], i)):
        if need and (count := min(need, spare.get(i, 0))):
            found[i] = count
            need -= count
    left = {i: count for i, count in spare.items() if i not in found}
    for i, count in sorted(left.items(), key=lambda item: (-item[1], item[0])):
        if count == nodes[i].gpus and count <= need:
            found[i] = left.pop(i)
            need -= count
    while need and left:
        fitting = [i for i, count in left.items() if count >= need]
        i = min(fitting, key=lambda i: (left[i], i)) if fitting else max(left, key=lambda i: (left[i], -i))
        found[i] = min(need, left.pop(i))
        need -= found[i]
    return found
