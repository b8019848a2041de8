"""The parts of a shared cluster: a policy of its own for each owner, asked about that owner's GPUs and jobs.

Any policy serves a shared cluster unchanged. At each decision the entitlements are computed
(:mod:`pliant.tools.schedule.entitlements`), GPUs that were lent come back, and the cluster is divided: an
owner has the GPUs that its jobs hold, and of the free ones as many as it is entitled to, whole nodes first.
Then each owner's policy is asked about its part alone. The counts of a part bind; where a policy names no
nodes, jobs are placed on the whole cluster, so that parts do not scatter them.

A part has all nodes of the cluster under their own indices, with the GPUs that are its own; a node on
which it has none is down for it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.cluster import ANY_TYPE, Owner
from pliant.schemas.schedule import TeamStanding
from pliant.tools.schedule.entitlements import Claim, TeamUsage
from pliant.tools.schedule.jobs import JobState, NodeState, gpus_by_type
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Reserved, Target
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.session.reclaim import Declined, Reclaim, in_words, left_in, own_part
from pliant.tools.schedule.session.rules import RuleBook
from pliant.tools.schedule.snapshot import Change, ChangeKind, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.checks import Capacities

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
        self.reclaim = Reclaim(usage, nodes, speeds, capacities, resizes=policy.traits.elasticity != "none")
        self._template = policy
        self._usage = usage
        self._shares = usage.shares
        self._nodes = nodes
        self._speeds = speeds
        self._parts: dict[Owner, _TeamPart] = {}
        self._looks_ahead = False

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
        rooms = self.reclaim.rooms(held_types) if spare else {}
        for given in ("owed", "now", "due"):
            for kind, nodes in spare.items():
                wanted = {
                    owner: self.reclaim.owed.get((owner, kind), 0)
                    if given == "owed"
                    else getattr(entitled, given).get(kind, 0) - held_types[owner][kind]
                    for owner in found
                    if (entitled := self.reclaim.entitled.get(owner)) is not None
                }
                self._deal_type(kind, nodes, wanted, held=held, found=found, rooms=rooms)
        return found

    def _by_type(self, counts: Mapping[int, int]) -> Counter[str]:
        by_type = Counter[str]()
        for i, count in counts.items():
            by_type[self._nodes[i].gpu_type] += count
        return by_type

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
                need = int(max(0, min(need, left_in(room, kind))))
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
            decision = part.policy.decide(own, rng)
            part.rules.check_form(decision)
            part.again_s, part.offered = decision.ask_again_s, part.gpus()
            part.rules.check(decision, jobs, part.free.by_type, own.total_gpus)
            targets = self._typed(decision.targets, jobs, part.free.by_type)
            merged.targets = (
                targets | merged.targets if owner in self.reclaim.first else merged.targets | targets
            )
            merged.rejected |= decision.rejected
            admissions |= decision.admissions
            merged.ask_again_s = _earlier(merged.ask_again_s, decision.ask_again_s)
            quiet_s = min(quiet_s, -math.inf if decision.quiet_until_s is None else decision.quiet_until_s)
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
        typed_targets = dict(targets)
        for job_id, target in targets.items():
            if not target.gpus or target.gpu_type or target.placement or target.beside:
                continue
            job = jobs[job_id]
            rates = {kind: self._speeds.rate(job, target.gpus, kind) for kind in free}
            able = [kind for kind, rate in rates.items() if rate > 0 and left[kind] >= target.gpus]
            if able:
                kind = min(able, key=lambda kind: (-rates[kind], kind != job.gpu_type, kind))
                left[kind] -= target.gpus
                typed_targets[job_id] = target._replace(gpu_type=kind)
        return typed_targets

    def leaves_room(self, jobs: Iterable[JobState], time_s: float, whole_at_s: float) -> bool:
        """Whether GPUs that their owner has left free are of use to another one.

        Called after the policies have decided. What an owner did not use counts as declined until its jobs
        change, its policy wants to be asked, or more is offered.
        """
        total = gpus_by_type(self._nodes)
        claims = self.reclaim.claims_of(jobs, total)
        rooms = self.reclaim.rooms({owner: claim.held for owner, claim in claims.items()})
        for owner, claim in claims.items():
            for kind in total:
                reach = left_in(rooms.get(owner.team, {}), kind)
                offered = (
                    self.reclaim.entitled[owner].now.get(kind, 0) if owner in self.reclaim.entitled else 0
                )
                if owner not in self._parts:
                    continue
                left = self._parts[owner].offered.get(kind, 0) - claim.held.get(kind, 0)
                more = offered - claim.held.get(kind, 0)
                if more <= reach and claim.can_start(kind, more) and not claim.can_start(kind, left):
                    more = min(more, left)  # a job waits for the rest, which others hold
                if more > 0 and (left > 0 or more > reach):
                    again_s = self._parts[owner].again_s
                    until_s = min(at_s for at_s in (again_s, whole_at_s, math.inf) if at_s and at_s > time_s)
                    self.reclaim.declined[owner, kind] = Declined(more, claim.mark(kind), until_s)
        self.reclaim.update_declined(claims, time_s)
        now = self.reclaim.entitle(claims, total, time_s)
        return any(
            given.now.get(kind, 0) > claims[owner].held.get(kind, 0)
            for owner, given in now.items()
            for kind in total
            if owner in claims
        )

    def explain(self, seen: Snapshot) -> dict[str, Explanation]:
        """What the policy of each part says; for a job that waits, also how its owner stands."""
        explanations: dict[str, Explanation] = {}
        for part, own in self._views(seen):
            statements = part.policy.explain(own)
            part.rules.check_explained(statements)
            for job_id, why in statements.items():
                explanations[job_id] = self._of_owner(own, job_id, part.owner, why)
        return explanations

    def _of_owner(self, own: Snapshot, job_id: str, owner: Owner, why: Explanation) -> Explanation:
        given, job = self.reclaim.entitled.get(owner), own.jobs.get(job_id)
        if job_id in self.reclaim.taken:
            return Explanation(f"{why.reason}; {self.reclaim.taken[job_id]}", why.needs_gpus)
        if job is None or job.gpus or given is None:
            return why
        held, due = sum(each.gpus for each in own.jobs.values() if each.counts_gpus), sum(given.due.values())
        text = f"{why.reason}; {in_words(owner)} holds {held} of {due} GPUs"
        borrowers = [
            in_words(other)
            for other, claim in self.reclaim.claims.items()
            if other != owner and any(self.reclaim.over(other, kind) > 0 for kind in claim.held)
        ]
        if held < due and borrowers:
            text = f"{text}, and gets more as jobs of {', '.join(borrowers)} end"
        return Explanation(text, why.needs_gpus)

    def reserved(self, seen: Snapshot) -> dict[str, Sequence[Reserved]]:
        spans: dict[str, Sequence[Reserved]] = {}
        for part, own in self._views(seen):
            spans |= part.policy.reserved(own)
        return spans

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
            [*owner, kind, offer.gpus, offer.mark, None if offer.until_s == math.inf else offer.until_s]
            for (owner, kind), offer in sorted(self.reclaim.declined.items())
        ]
        made_room = [[*owner, kind, mark] for (owner, kind), mark in sorted(self.reclaim.made_room.items())]
        if not declined and not made_room and all(each["state"] is None for each in states):
            return None
        state = {"parts": states, "declined": declined}
        return state | ({"made_room": made_room} if made_room else {})

    @staticmethod
    def has_states(state: Any) -> bool:
        """Whether a dumped state holds any of a policy."""
        return any(each["state"] is not None for each in state["parts"])

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        index = {node.name: node.index for node in self._nodes}
        for team, user, kind, gpus, mark, until_s in state["declined"]:
            until = math.inf if until_s is None else until_s
            self.reclaim.declined[Owner(team, user), kind] = Declined(gpus, tuple(mark), until)
        for team, user, kind, mark in state.get("made_room", ()):
            self.reclaim.made_room[Owner(team, user), kind] = tuple(mark)
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
        """Standings of each team of the file, and of each owner with jobs or usage."""
        used_gpu_s = self._usage.until(time_s)
        claims = self.reclaim.claims_of(jobs, gpus_by_type(self._nodes))
        owners = sorted({*self.reclaim.entitled, *claims, *used_gpu_s})
        held = {owner: sum(claims[owner].held.values()) if owner in claims else 0 for owner in owners}
        own = {owner: own_part(self.reclaim.entitled.get(owner)) for owner in owners}
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
                entitled=sum(self.reclaim.entitled[owner].due.values())
                if owner in self.reclaim.entitled
                else 0,
                held=held[owner],
                borrowed=borrowed[owner],
                lent=round(unused[owner] * lends, 2),
                waiting_jobs=len(claims[owner].waiting) if owner in claims else 0,
                waiting_gpus=_least(claims[owner]) if owner in claims else 0,
                usage_gpu_hours=round(used_gpu_s.get(owner, 0.0) / 3600, 3),
            )
            for owner in owners
        )


def _least(claim: Claim) -> int:
    """GPUs that its waiting jobs need at least."""
    return sum(wait.least for wait in claim.waiting)


def _earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def _pick(
    need: int, spare: Mapping[int, int], held: Mapping[int, int], nodes: Sequence[NodeState]
) -> dict[int, int]:
    """Free GPUs for one owner: on its own nodes, then whole nodes, then where they fit best."""
    picked: dict[int, int] = {}
    for i in sorted(held, key=lambda i: (-held[i], i)):
        if need and (count := min(need, spare.get(i, 0))):
            picked[i] = count
            need -= count
    left = {i: count for i, count in spare.items() if i not in picked}
    for i, count in sorted(left.items(), key=lambda item: (-item[1], item[0])):
        if count == nodes[i].gpus and count <= need:
            picked[i] = left.pop(i)
            need -= count
    while need and left:
        fitting = [i for i, count in left.items() if count >= need]
        i = min(fitting, key=lambda i: (left[i], i)) if fitting else max(left, key=lambda i: (left[i], -i))
        picked[i] = min(need, left.pop(i))
        need -= picked[i]
    return picked
