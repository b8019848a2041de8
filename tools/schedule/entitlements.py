"""What each team is entitled to: weighted max-min over what teams can use, guarantees first.

:func:`entitle` divides the GPUs of each type in whole numbers. A team gets what it is guaranteed, as far as
it can use it; the rest goes by weight, where no team gets more than it can use. Usage lowers a weight: a team
that has used ``u`` of all GPU time, where its part of the weights is ``s``, counts with weight times
2^(-u/s), so that one that used exactly its part counts half, and one that used nothing counts whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pliant.schemas.cluster import ANY_TYPE, Owner, Shares, Team
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import Speeds

_HOUR_S: Final = 3600.0
_ROUNDING: Final = 1e-9
_MOST_OVER: Final = 10.0
"""Usage lowers a weight to a thousandth at most, however often a team has used its part."""
_NEVER: Final = (math.inf, "")


@dataclass(slots=True)
class GpuUsage:
    """GPU-seconds by owner, which halve every ``half_life_s`` (0: none is kept), and what owners hold now."""

    half_life_s: float
    gpu_s: dict[Owner, float] = field(default_factory=dict)
    """GPU-seconds by owner until ``since_s``."""
    held: dict[Owner, float] = field(default_factory=dict)
    since_s: float = 0.0
    changes: dict[Owner, float] = field(default_factory=dict)
    """GPUs that owners hold more, or fewer, than ``held`` since ``changed_s``."""
    changed_s: float = 0.0

    def hold(self, owner: Owner, more: float, time_s: float) -> None:
        """An owner holds ``more`` GPUs from ``time_s`` on, or fewer if that is negative.

        What changes at one time counts in net: a log leads to the same numbers as the run that wrote it.
        """
        if not more:
            return
        self._settle(time_s)
        self.changed_s = max(time_s, self.changed_s)
        self.changes[owner] = self.changes.get(owner, 0) + more
        if not self.changes[owner]:
            del self.changes[owner]

    def until(self, time_s: float) -> dict[Owner, float]:
        """GPU-seconds by owner at a time, which is no earlier than the last change."""
        self._settle(time_s)
        return self._until(time_s)

    def _settle(self, time_s: float) -> None:
        """Count until the last change, once its time is over."""
        if not self.changes or time_s <= self.changed_s:
            return
        self.gpu_s, self.since_s = self._until(self.changed_s), self.changed_s
        for owner, more in self.changes.items():
            self.held[owner] = self.held.get(owner, 0) + more
        self.held = {owner: gpus for owner, gpus in self.held.items() if gpus}
        self.changes = {}

    def _until(self, time_s: float) -> dict[Owner, float]:
        passed_s = time_s - self.since_s
        if passed_s <= 0 or not self.half_life_s:
            return dict(self.gpu_s)
        kept = 0.5 ** (passed_s / self.half_life_s)
        worth_s = self.half_life_s / math.log(2) * (1 - kept)  # of one GPU held all the time, decayed
        owners = sorted(self.gpu_s.keys() | self.held.keys())
        return {
            owner: self.gpu_s.get(owner, 0.0) * kept + self.held.get(owner, 0) * worth_s for owner in owners
        }


@dataclass(slots=True)
class TeamUsage(GpuUsage):
    """Usage by the owners of a cluster's shares, with their half-life."""

    shares: Shares = field(kw_only=True)

    @classmethod
    def under(cls, shares: Shares) -> TeamUsage:
        return cls(shares.half_life_hours * _HOUR_S, shares=shares)


@dataclass(slots=True)
class Claim:
    """What one owner holds and could use."""

    owner: Owner
    held: dict[str, int] = field(default_factory=dict)
    """GPUs by type."""
    demanded: dict[str, int] = field(default_factory=dict)
    """GPUs by type that its running jobs could use there, those that they hold included."""
    running: list[JobState] = field(default_factory=list)
    waiting: list[WaitingJob] = field(default_factory=list)
    declined: dict[str, int] = field(default_factory=dict)
    """Free GPUs by type that were its own to take, and that its policy left."""
    shrinks: bool = False
    """Whether one of its jobs can go on with fewer GPUs."""

    @property
    def kinds(self) -> set[str]:
        """GPU types that jobs which wait can run on."""
        return {kind for wait in self.waiting for kind in wait.most}

    def mark(self, kind: str) -> tuple[int, int, str]:
        """Changes with what its jobs could do with more GPUs."""
        last = max((wait.job.arrival for wait in self.waiting), default=(0.0, ""))
        return self.held.get(kind, 0), len(self.waiting), last[1]

    def could_use(self, kind: str) -> int:
        """GPUs of a type that its jobs could use, if those that wait all went there."""
        return self.demanded.get(kind, 0) + sum(wait.most.get(kind, 0) for wait in self.waiting)

    def has_use(self, kind: str, more: int) -> bool:
        """Whether its jobs could use any of ``more`` GPUs of a type beyond those that it holds."""
        if more <= self.declined.get(kind, 0):
            return False
        if self.demanded.get(kind, 0) > self.held.get(kind, 0):
            return True
        return self.can_start(kind, more)

    def can_start(self, kind: str, more: int) -> bool:
        fits = any(kind in wait.most and wait.least <= more for wait in self.waiting)
        return fits and more > self.declined.get(kind, 0)


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits."""

    job: JobState
    least: int
    """The fewest GPUs that it can use, under this policy."""
    most: Mapping[str, int]
    """The most GPUs that it can use, by type that it runs on."""


def claims_of(
    jobs: Iterable[JobState], shares: Shares, speeds: Speeds, total: Mapping[str, int], *, resizes: bool
) -> dict[Owner, Claim]:
    """What the owners of jobs hold and could use, by owner in order of names.

    :param total: GPUs that are up, by type.
    :param resizes: the policy resizes elastic jobs.
    """
    claims: dict[Owner, Claim] = {}
    for job in jobs:
        owner = shares.owner_of(job.spec)
        claim = claims.get(owner) or claims.setdefault(owner, Claim(owner))
        if not job.gpus:
            sizes = {
                kind: most_useful(job, kind, gpus, speeds, resizes=resizes) for kind, gpus in total.items()
            }
            most = {kind: size for kind, size in sizes.items() if size}
            rigid = not resizes or job.spec.elastic == "none"
            least = job.requested if rigid else job.min_gpus
            claim.waiting.append(WaitingJob(job, least, most))
            continue
        kind = job.gpu_type or ""
        claim.running.append(job)
        if job.counts_gpus:
            elastic = resizes and job.spec.elastic != "none" and job.beside is None
            claim.shrinks = claim.shrinks or (elastic and job.gpus > job.min_gpus)
            most_here = most_useful(job, kind, total.get(kind, 0), speeds, resizes=resizes)
            claim.held[kind] = claim.held.get(kind, 0) + job.gpus
            claim.demanded[kind] = claim.demanded.get(kind, 0) + max(job.gpus, most_here)
    return dict(sorted(claims.items()))


def most_useful(job: JobState, kind: str, gpus: int, speeds: Speeds, *, resizes: bool) -> int:
    """The most GPUs of a type that a job can use, of ``gpus``; 0 if it cannot run there."""
    if not resizes or job.spec.elastic == "none":
        size = job.requested
        return size if size <= min(gpus, job.max_gpus(gpus)) and speeds.rate(job, size, kind) > 0 else 0
    return speeds.useful(job, job.max_gpus(gpus), kind, global_batch=job.global_batch)


@dataclass(slots=True)
class Entitlement:
    """What one owner is entitled to, by GPU type."""

    owner: Owner
    own: float = 0.0
    """GPUs of its own: its part if all could use everything, without regard to usage. More are borrowed."""
    now: dict[str, int] = field(default_factory=dict)
    """Whole GPUs that its jobs can use at this time."""
    due: dict[str, int] = field(default_factory=dict)
    """The same before what no job of it fits goes to others."""


def entitle(
    shares: Shares,
    claims: Mapping[Owner, Claim],
    used_gpu_s: Mapping[Owner, float],
    total: Mapping[str, int],
    bound: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[Owner, Entitlement]:
    """Divide all GPUs that are up among teams, and those of teams that weigh users among these.

    :param bound: GPUs by team and type of jobs that finish on drained nodes: they count for a maximum.
    """
    by_team: dict[str, list[Claim]] = {name: [] for name in shares.teams}
    for owner, claim in claims.items():
        by_team.setdefault(owner.team, []).append(claim)
    used: dict[str, float] = {}
    for owner, gpu_s in used_gpu_s.items():
        used[owner.team] = used.get(owner.team, 0.0) + gpu_s
    teams = [
        _Party(
            Owner(name),
            shares.team(name).weight,
            shares.team(name),
            tuple(each),
            used.get(name, 0.0),
            (bound or {}).get(name, {}),
        )
        for name, each in by_team.items()
    ]
    entitlements: dict[Owner, Entitlement] = {}
    for party, given in zip(teams, _divide(teams, total, sum(used.values())), strict=True):
        if not shares.team(party.owner.team).weighs_users:
            entitlements[party.owner] = given
            continue
        by_user: dict[Owner, tuple[Claim, ...]] = {
            Owner(party.owner.team, user): () for user in shares.team(party.owner.team).users
        }
        by_user |= {each.owner: (each,) for each in party.claims}
        members = [
            _Party(owner, shares.weight_of(owner), None, own, used_gpu_s.get(owner, 0.0))
            for owner, own in by_user.items()
        ]
        at_hand = {kind: max(gpus, given.now[kind]) for kind, gpus in given.due.items()}
        for member, part in zip(members, _divide(members, at_hand, party.used_gpu_s, given.own), strict=True):
            entitlements[member.owner] = part
    return entitlements


@dataclass(frozen=True, slots=True)
class _Party:
    """One of those among whom GPUs are divided: a team, or a user of a team."""

    owner: Owner
    weight: float
    rules: Team | None
    claims: Sequence[Claim]
    used_gpu_s: float
    bound: Mapping[str, int] = field(default_factory=dict)
    """GPUs by type of jobs that finish on drained nodes: they count for what it may hold."""

    def room(self, kind: str) -> float:
        """GPUs that its rules leave beside those."""
        taken = sum(self.bound.values()) if kind == ANY_TYPE else self.bound.get(kind, 0)
        return max(0.0, _limit(self.rules, kind) - taken)

    def held(self, kind: str) -> int:
        return sum(claim.held.get(kind, 0) for claim in self.claims)

    def has_use(self, kind: str, more: int) -> bool:
        return any(claim.has_use(kind, more) for claim in self.claims)

    def can_start(self, more: int) -> bool:
        """Whether a job that waits fits that many GPUs of one type."""
        return any(claim.can_start(kind, more) for claim in self.claims for kind in claim.kinds)

    @property
    def can_give(self) -> bool:
        """Whether it can give up a GPU that no job of it that waits asks for."""
        return not any(claim.waiting for claim in self.claims) and any(claim.shrinks for claim in self.claims)

    @property
    def turn(self) -> tuple[float, tuple[float, str], Owner]:
        """Who gives way comes last."""
        first = min((wait.job.arrival for claim in self.claims for wait in claim.waiting), default=_NEVER)
        return self.used_gpu_s / self.weight, first, self.owner

    def could_use(self, kind: str, gpus: int) -> int:
        """GPUs of a type that its jobs could use, if those that wait all went there."""
        most = min(gpus, self.room(kind))
        return int(min(most, sum(claim.could_use(kind) for claim in self.claims)))

    @property
    def demand(self) -> int:
        """GPUs that its jobs could use together, each on one type."""
        return sum(
            sum(claim.demanded.values()) + sum(max(wait.most.values(), default=0) for wait in claim.waiting)
            for claim in self.claims
        )

    def most(self, total: Mapping[str, int]) -> float:
        """GPUs that its rules allow."""
        typed = sum(min(gpus, _limit(self.rules, kind)) for kind, gpus in total.items())
        return min(typed, _limit(self.rules, ANY_TYPE))

    def firm(self, total: Mapping[str, int]) -> float:
        """GPUs that it is guaranteed."""
        typed = sum(_guarantee(self.rules, kind) for kind in total)
        return min(max(typed, _guarantee(self.rules, ANY_TYPE)), _limit(self.rules, ANY_TYPE))


def _divide(
    parties: Sequence[_Party],
    total: Mapping[str, int],
    used_gpu_s: float,
    own_gpus: float | None = None,
) -> list[Entitlement]:
    """Divide the number of GPUs first, then the types: held ones stay, and who gets more gets few types.

    :param used_gpu_s: by all.
    :param own_gpus: what the parties may call their own together; None: all.
    """
    gpus = sum(total.values())
    limits = [party.most(total) for party in parties]
    firm = [party.firm(total) for party in parties]
    plain = [party.weight for party in parties]
    if own_gpus is None:
        own = _shared(gpus, plain, firm, limits)
    else:  # what a team has at hand now does not limit what its users call their own
        own = _shared(own_gpus, plain, firm, [math.inf] * len(parties))
    caps, kept = [], 0.0
    for party, limit, mine, first in zip(parties, limits, own, firm, strict=True):
        could = sum(party.could_use(kind, count) for kind, count in total.items())
        can = min(limit, party.room(ANY_TYPE), party.demand, could)
        if party.rules is not None and not party.rules.borrows:
            can = max(0.0, min(can, mine - sum(party.bound.values()) + _ROUNDING))
        if party.rules is not None and not party.rules.lends:
            kept += max(0.0, min(first, mine) - can)
        caps.append(math.floor(can))
    at_hand = max(0, gpus - math.ceil(kept - _ROUNDING))
    terms = _Terms(_weighed(parties, used_gpu_s), firm, caps, at_hand)
    now, due = _in_use(parties, total, terms)
    return [
        Entitlement(party.owner, mine, given, first)
        for party, mine, given, first in zip(parties, own, now, due, strict=True)
    ]


class _Terms(NamedTuple):
    """By party: the weight, what is guaranteed, and what can be used at most; and all that is divided."""

    weights: Sequence[float]
    firm: Sequence[float]
    caps: Sequence[int]
    gpus: int


_Parts = list[dict[str, int]]
"""GPUs by type, of each party."""


def _in_use(parties: Sequence[_Party], total: Mapping[str, int], terms: _Terms) -> tuple[_Parts, _Parts]:
    """Whole GPUs that can be used at once, and those before parties give way.

    A part that none of its party's jobs fits goes to others, so that their jobs may fit: the one that has
    used most for its weight gives way first, of equal ones the one whose jobs came last.
    """
    could = [{kind: party.could_use(kind, count) for kind, count in total.items()} for party in parties]
    usable = [dict(each) for each in could]
    held = [sum(party.held(kind) for kind in total) for party in parties]
    due: _Parts | None = None
    while True:
        caps = [min(cap, sum(each.values())) for cap, each in zip(terms.caps, usable, strict=True)]
        shared = _shared(terms.gpus, terms.weights, terms.firm, caps)
        counts = _with_first_starts(parties, shared, _whole(shared, held), held)
        parts = _by_type(parties, counts, usable, total)
        due = due or parts
        idle = [
            (i, kind)
            for i, party in enumerate(parties)
            for kind in total
            if parts[i][kind] > party.held(kind)
            and not party.has_use(kind, parts[i][kind] - party.held(kind))
        ]
        if not idle:
            break
        last, kind = max(idle, key=lambda each: (parties[each[0]].turn, each[1]))
        usable[last][kind] = parties[last].held(kind)
    left = {kind: count - sum(part[kind] for part in parts) for kind, count in total.items()}
    spare = terms.gpus - sum(sum(part.values()) for part in parts)
    for i in sorted(range(len(parties)), key=lambda i: parties[i].turn):
        for kind in total:
            room = min(left[kind], spare, terms.caps[i] - sum(parts[i].values()))
            more = min(room, could[i][kind] - parts[i][kind])
            if more > 0 and parties[i].has_use(kind, parts[i][kind] + more - parties[i].held(kind)):
                parts[i][kind] += more
                left[kind], spare = left[kind] - more, spare - more
    return parts, due


def _with_first_starts(
    parties: Sequence[_Party], shared: Sequence[float], whole: Sequence[int], held: Sequence[int]
) -> list[int]:
    """The numbers, with one more GPU for parties that a fraction of one keeps from a first start.

    It comes from a party whose number is above its part, none of whose jobs waits, and one of which can
    shrink. So the other does not take it back before one of its jobs waits.
    """
    counts = list(whole)
    for i in sorted(range(len(parties)), key=lambda i: parties[i].turn):
        more = counts[i] - held[i]
        if (
            shared[i] <= counts[i] + _ROUNDING
            or parties[i].can_start(more)
            or not parties[i].can_start(more + 1)
        ):
            continue
        above = [j for j, party in enumerate(parties) if counts[j] > shared[j] + _ROUNDING and party.can_give]
        if above:
            counts[max(above, key=lambda j: (counts[j] - shared[j], parties[j].turn))] -= 1
            counts[i] += 1
    return counts


def _by_type(
    parties: Sequence[_Party],
    counts: Sequence[int],
    usable: Sequence[Mapping[str, int]],
    total: Mapping[str, int],
) -> _Parts:
    """The types of GPUs that parties get: guaranteed ones, those that they hold, then of few types."""
    left, rest = dict(total), list(counts)
    parts: _Parts = [dict.fromkeys(total, 0) for _ in parties]

    def give(i: int, kind: str, most: float) -> None:
        count = int(min(most, rest[i], left[kind], usable[i][kind] - parts[i][kind]))
        if count > 0:
            parts[i][kind] += count
            left[kind], rest[i] = left[kind] - count, rest[i] - count

    for i, party in enumerate(parties):
        for kind in total:
            give(i, kind, _guarantee(party.rules, kind))
    for i, party in enumerate(parties):
        for kind in total:
            give(i, kind, party.held(kind) - parts[i][kind])
    for i in sorted(range(len(parties)), key=lambda i: (-rest[i], i)):
        for kind in sorted(total, key=lambda kind: -left[kind]):
            give(i, kind, math.inf)
    return parts


def _weighed(parties: Sequence[_Party], used_gpu_s: float) -> list[float]:
    """Weights, lowered by usage; of parties that neither have claims nor have used anything they stay."""
    active = sum(party.weight for party in parties if party.claims or party.used_gpu_s)
    if used_gpu_s <= 0 or active <= 0:
        return [party.weight for party in parties]
    weights = []
    for party in parties:
        over = (party.used_gpu_s / used_gpu_s) / (party.weight / active)
        weights.append(party.weight * 2.0 ** -min(over, _MOST_OVER))
    return weights


def _limit(rules: Team | None, kind: str) -> float:
    return math.inf if rules is None else rules.max.get(kind, math.inf)


def _guarantee(rules: Team | None, kind: str) -> float:
    return 0 if rules is None else rules.guaranteed.get(kind, 0)


def _shared(
    amount: float, weights: Sequence[float], firm: Sequence[float], caps: Sequence[float]
) -> list[float]:
    """Firm amounts first, then the rest by weight, never above a cap.

    Firm amounts that exceed all there is are cut in proportion.
    """
    base = [min(first, cap) for first, cap in zip(firm, caps, strict=True)]
    if (promised := sum(base)) > amount:
        return _shared(amount, firm, [0.0] * len(base), base)
    left, parts = amount - promised, list(base)
    open_ = [i for i, cap in enumerate(caps) if cap > base[i] and weights[i] > 0]
    while open_ and left > 0:
        level = left / sum(weights[i] for i in open_)
        full = [i for i in open_ if caps[i] - parts[i] <= level * weights[i]]
        if not full:
            for i in open_:
                parts[i] += level * weights[i]
            break
        for i in full:
            left -= caps[i] - parts[i]
            parts[i] = caps[i]
        open_ = [i for i in open_ if i not in full]
    return parts


def _whole(parts: Sequence[float], held: Sequence[int]) -> list[int]:
    """Whole GPUs less than one away from ``parts``; what is held now stays where that allows it.

    They come to as many as the parts do, to the nearest.
    """
    target = round(math.fsum(parts))
    whole = [
        have if abs(part - have) < 1 - _ROUNDING else math.floor(part + _ROUNDING)
        for part, have in zip(parts, held, strict=True)
    ]
    order = range(len(parts))
    while sum(whole) < target:
        whole[max(order, key=lambda i: (parts[i] - whole[i], -i))] += 1
    while sum(whole) > target:
        whole[max(order, key=lambda i: (whole[i] - parts[i], i))] -= 1
    return whole
