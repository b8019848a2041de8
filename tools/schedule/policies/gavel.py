"""Gavel: fractions of time by a linear program, and rounds that give each job the time it is entitled to.

:func:`max_min` makes the least gain as large as it can be, with a row for each kind of job. Then it goes on
    by water-filling: kinds that no solution can give more are fixed at their level, and the next program
    raises the others. The outcome is max-min fair.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, linprog
from scipy.sparse import csc_array, eye_array, kron, vstack

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    Contention,
    GpuBudget,
    Grant,
    Stake,
    decision_from_grants,
    explain_gang,
    reject_impossible,
    samples_to_go,
)
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy
from pliant.tools.schedule.snapshot import Snapshot

Floats = npt.NDArray[np.float64]
ROUND_S: Final = 360.0
_WHOLE: Final = 1 - 1e-4
_DIGITS: Final = 5
"""Significant digits of a fraction: more of them would be those of a solver and its version."""
_BINDING: Final = 1e-7
"""Prices below this come from rounding."""
_SLACK: Final = 1e-6
"""Part of its level that a fixed kind may lose, so that rounding makes no program infeasible."""
_PRECISION = 1e-4
"""Of the ratio that is made least."""


class Gavel(Policy):
    """Max-min fairness over effective throughput, with GPU types that differ: fractions of time by an LP.

    Gavel (OSDI '20), sections 4.1 and 5. A linear program finds the fraction of time that each job
    spends on each GPU type. It makes the least normalised effective throughput as large as it can be,
    then the next larger one, and so on: throughput over that of equal time on each GPU of the cluster,
    times requested GPUs. Rounds of 360 s follow the fractions: pairs of job and GPU type go by the time
    that the job is entitled to over the time it has received there, and a job gets what it requested or
    waits. Preemptive, needs no knowledge of the work. Departures from the paper: without ``renew_s``,
    time counts since a job arrived, not since the fractions changed last. GPUs that remain go to waiting
    jobs in the same order. No two jobs share a GPU.

    round_s: seconds between decisions; change it together with ``--interval``.
    renew_s: seconds at least between two solutions, as in the authors' simulator. Jobs that arrive in
    between wait for the next, where all begin to count from nothing. 0: a solution at every decision.
    """

    name: ClassVar[str] = "gavel"
    knows: ClassVar[Knows] = "profile"
    priority_means: ClassVar[str] = ""
    default_interval_s: ClassVar[float | None] = ROUND_S
    rebuilds_state: ClassVar[bool] = False

    def __init__(self, round_s: float = ROUND_S, renew_s: float = 0.0) -> None:
        if round_s <= 0:
            raise ValueError("parameter round_s: expected a number above 0")
        if renew_s < 0:
            raise ValueError("parameter renew_s: expected 0 or more")
        self.round_s = round_s
        self.renew_s = renew_s
        self._accounts: Accounts | None = None
        self._renewal = _UNSOLVED
        self._spare: Mapping[str, float] = {}
        """By job, how soon it gets GPUs that the fractions leave idle: the largest first."""
        self._solved: tuple[object, dict[Kind, Fractions]] | None = None
        """The last problem and its solution."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot)
        jobs = sorted(
            (job for job in snapshot.jobs.values() if job.id not in rejected), key=lambda job: job.arrival
        )
        types = tuple(snapshot.speeds.gpu_types)
        if self._accounts is None or self._accounts.gpu_types != types:
            self._accounts, self._renewal = Accounts(types), _UNSOLVED
        if not self.renew_s:
            fractions: Mapping[str, Fractions] = self._fractions(jobs, snapshot)
        else:
            fractions = self._renewed(jobs, snapshot)
        members = [job for job in jobs if job.id in fractions]
        self._accounts.follow(members, _rounded(fractions), snapshot.time_s)
        grants = self._serve(members, self._accounts, snapshot)
        decision = decision_from_grants(snapshot, grants, rejected)
        if len(members) == len(jobs) and all(_has_all(job, grants, fractions[job.id], types) for job in jobs):
            decision.quiet_until_s = math.inf
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        accounts = self._accounts
        if accounts is None:
            return {}
        known = [job for job in snapshot.jobs.values() if job.id in accounts.by_job]
        return {job.id: explain_gang(job, self._reason(accounts.by_job[job.id])) for job in known}

    def _reason(self, account: Balance) -> str:
        types = self._accounts.gpu_types if self._accounts else ()
        named = [
            f"{part:.0%} of the time on {gpu_type} ({account.received_s[index]:.0f} s received)"
            for index, (gpu_type, part) in enumerate(zip(types, account.fractions, strict=True))
            if part > 0
        ]
        priority = max((account.priority(index, self.round_s) for index in range(len(types))), default=0.0)
        return f"entitled to {' and '.join(named) or 'no time'}, priority {priority:.2g}"

    def dump_state(self) -> Any:
        if self._accounts is None:
            return None
        kept = {"renewal": self._renewal, "spare": dict(self._spare)} if self.renew_s else {}
        return self._accounts.dump() | kept

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._accounts = Accounts.load(state)
        time_s, is_stale, fractions = state.get("renewal", _UNSOLVED)
        found = {job_id: tuple(parts) for job_id, parts in fractions.items()}
        self._renewal = Renewal(time_s, is_stale, found)
        self._spare = state.get("spare", {})

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        kinds = {job.id: kind_of(job, _share(job, snapshot), snapshot) for job in jobs}
        problem = (dict(Counter(kinds.values())), capacity_of(snapshot))
        if self._solved is None or self._solved[0] != problem:
            self._solved = problem, max_min(*problem)
        return {job_id: self._solved[1][kind] for job_id, kind in kinds.items()}

    def _renewed(self, jobs: Sequence[JobState], snapshot: Snapshot) -> Mapping[str, Fractions]:
        """The fractions of the last solution, or of a new one."""
        last_s, stale = self._renewal.time_s, self._renewal.is_stale or bool(snapshot.changes)
        if stale and (not last_s or snapshot.time_s - last_s >= self.renew_s):
            self._renewal = Renewal(snapshot.time_s, False, self._fractions(jobs, snapshot))
            self._accounts = Accounts(tuple(snapshot.speeds.gpu_types))
        else:
            self._renewal = self._renewal._replace(is_stale=stale)
        return self._renewal.fractions

    def _serve(self, jobs: Sequence[JobState], accounts: Accounts, snapshot: Snapshot) -> dict[str, Grant]:
        """Give GPUs away, first to the pairs of job and GPU type that are furthest behind."""
        by_id = accounts.by_job
        pairs = sorted(
            (
                part > 0,
                by_id[job.id].priority(index, self.round_s),
                part,
                self._spare.get(job.id, 0.0),
                -turn,
                -index,
            )
            for turn, job in enumerate(jobs)
            for index, part in enumerate(by_id[job.id].fractions)
        )
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for *_, turn, index in reversed(pairs):
            job, grant = jobs[-turn], Grant(jobs[-turn].spec.gpus.requested, accounts.gpu_types[-index])
            if (
                job.id not in grants
                and budget.left.get(grant.gpu_type, 0) >= grant.gpus
                and snapshot.speeds.rate(job, *grant) > 0
            ):
                budget.take(grant)
                grants[job.id] = grant
        return grants


class Renewal(NamedTuple):
    """The last solution that jobs go by until the next."""

    time_s: float
    """0: there was none, or it was at time 0, which counts as none."""
    is_stale: bool
    """Whether something has changed since, or there is no solution."""
    fractions: Mapping[str, Fractions]


_UNSOLVED: Final = Renewal(0.0, True, {})


def _share(job: JobState, snapshot: Snapshot) -> float:
    """Samples per second of equal time on each GPU, for one of its GPUs; 0 where it cannot run."""
    gpus, types = job.spec.gpus.requested, snapshot.speeds.gpu_types
    usable = {kind: count for kind, count in types.items() if count >= gpus}
    rates = (count * snapshot.speeds.rate(job, gpus, kind) for kind, count in usable.items())
    return sum(rates) / (gpus * sum(types.values())) or 1.0


def kind_of(job: JobState, need: float, snapshot: Snapshot) -> Kind:
    gpus = job.spec.gpus.requested
    rates = (snapshot.speeds.rate(job, gpus, gpu_type) for gpu_type in snapshot.speeds.gpu_types)
    return Kind(tuple(rate / need for rate in rates), gpus)


def capacity_of(snapshot: Snapshot) -> list[int]:
    up = snapshot.gpus_by_type()
    return [up.get(gpu_type, 0) for gpu_type in snapshot.speeds.gpu_types]


def _rounded(fractions: Mapping[str, Fractions]) -> dict[str, Fractions]:
    return {
        job_id: tuple(float(f"{part:.{_DIGITS}g}") for part in parts) for job_id, parts in fractions.items()
    }


def _has_all(job: JobState, grants: Mapping[str, Grant], fractions: Fractions, types: Sequence[str]) -> bool:
    grant = grants.get(job.id)
    return grant is not None and fractions[types.index(grant.gpu_type)] >= _WHOLE


# Other aims than max-min fairness.


class GavelMakespan(Gavel):
    """Gavel for the least makespan: the largest remaining time is made as small as it can be, by an LP.

    Gavel (OSDI '20), section 4.2. As ``gavel``, but the fractions make the largest of remaining samples over
    effective throughput as small as they can, at every round for what is left then. That counts as at least
    what the job trains in a round; a job of unknown work is expected to be half done. Where the longest job
    alone decides the end, the program leaves time over, which jobs on a single GPU type share evenly.
    """

    name: ClassVar[str] = "gavel-makespan"

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        kinds = {
            job.id: kind_of(job, samples_to_go(job, snapshot, self.round_s) or 1.0, snapshot) for job in jobs
        }
        found = max_min(Counter(kinds.values()), capacity_of(snapshot), levels=1, even=True)
        return {job_id: found[kind] for job_id, kind in kinds.items()}


class GavelThroughput(Gavel):
    """Gavel for the most throughput: the sum of all jobs' steps per second, by an LP.

    Gavel (OSDI '20), section 4.2, with the same cost for all GPUs. As ``gavel``, but the fractions make the
    sum of the jobs' effective throughputs as large as it can be, in mini-batches of all their workers per
    second, as Gavel counts them. Jobs of few mini-batches a second may wait until others have ended; GPUs
    that remain go to those of most on each GPU.
    """

    name: ClassVar[str] = "gavel-throughput"

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        kinds = {
            job.id: kind_of(job, job.reference_batch / job.spec.gpus.requested, snapshot) for job in jobs
        }
        found = most_throughput(Counter(kinds.values()), capacity_of(snapshot))
        self._spare = {job_id: max(kind.gains) / kind.gpus for job_id, kind in kinds.items()}
        return {job_id: found[kind] for job_id, kind in kinds.items()}


class GavelFtf(Gavel):
    """Gavel for finish-time fairness: the largest ratio of JCT to isolated JCT is made least, by LPs.

    Gavel (OSDI '20), section 4.2, with the ratio of Themis (NSDI '20): expected JCT under these fractions
    over the JCT with 1/N of the cluster, where N is the mean number of active jobs since the job arrived. The
    least ratio for which a linear program of the necessary throughputs has a solution is found by root
    finding, at every round. All else is as in ``gavel``.
    """

    name: ClassVar[str] = "gavel-ftf"

    def __init__(self, round_s: float = ROUND_S, renew_s: float = 0.0) -> None:
        super().__init__(round_s, renew_s)
        self._contention = Contention()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self._contention.follow(snapshot.changes, snapshot.time_s)
        return super().decide(snapshot, rng)

    def dump_state(self) -> Any:
        return {"accounts": super().dump_state(), "contention": self._contention.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        if state["accounts"] is not None:
            super().load_state(state["accounts"], jobs)
        self._contention = Contention.load(state["contention"])

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        capacity = capacity_of(snapshot)
        members = {}
        for job in jobs:
            stake, kind = self._contention.stake(job, snapshot, self.round_s), kind_of(job, 1.0, snapshot)
            if stake is not None and best_rate(kind, capacity) > 0:
                members[job.id] = (kind, stake)
        nothing = dict.fromkeys((job.id for job in jobs), (0.0,) * len(capacity))
        return nothing | least_ratio(members, capacity)


def least_ratio(members: Mapping[str, tuple[Kind, Stake]], capacity: Sequence[int]) -> dict[str, Fractions]:
    """Fractions that make the largest ρ least; ``gains`` of the kinds are samples per second."""
    alike = Counter(members.values())
    if not alike:
        return {}

    def solved(ratio: float) -> tuple[float, dict[tuple[Kind, Stake], Fractions]]:
        """How many times the throughputs that the ratio takes are possible, and the fractions for that."""
        kinds = {member: _towards(ratio, *member) for member in alike}
        counts: Counter[Kind] = Counter()
        for member, count in alike.items():
            counts[kinds[member]] += count
        found = max_min(counts, capacity, levels=1)
        return min(gain(kind, found[kind]) for kind in counts), {
            member: found[kind] for member, kind in kinds.items()
        }

    ratio = max(stake.rho(best_rate(kind, capacity)) for kind, stake in alike)
    times, fractions = solved(ratio)
    if times < 1 - _PRECISION:
        high = max(_ratio_at(times, ratio, stake) for _, stake in alike) * (1 + _PRECISION)
        ratio = brentq(lambda ratio: solved(ratio)[0] - 1, ratio, high, rtol=_PRECISION)
        times, fractions = solved(ratio)
        if times < 1 - _PRECISION:  # the root is just above: near its end a job's need rises steeply
            fractions = solved(ratio * (1 + _PRECISION))[1]
    return {job_id: fractions[member] for job_id, member in members.items()}


def _ratio_at(times: float, ratio: float, stake: Stake) -> float:
    """The ρ of a job that has ``times`` the throughput that takes it to ``ratio``."""
    return (stake.elapsed_s + (ratio * stake.isolated_s - stake.elapsed_s) / times) / stake.isolated_s


def _towards(ratio: float, kind: Kind, stake: Stake) -> Kind:
    """Gains relative to the throughput that ends the job at that ratio."""
    needed = stake.remaining_samples / (ratio * stake.isolated_s - stake.elapsed_s)
    return Kind(tuple(rate / needed for rate in kind.gains), kind.gpus)


def best_rate(kind: Kind, capacity: Sequence[int]) -> float:
    """The largest gain on a type that has enough GPUs; 0 if there is none."""
    usable = (worth for worth, gpus in zip(kind.gains, capacity, strict=True) if kind.gpus <= gpus)
    return max(usable, default=0.0)


# Fractions of time: linear programs.

Fractions = tuple[float, ...]
"""Parts of the time on each GPU type; together at most 1."""


class Kind(NamedTuple):
    """Jobs that gain alike."""

    gains: tuple[float, ...]
    """What all of the time on each GPU type would be worth; 0: they cannot run there."""
    gpus: int


def max_min(
    counts: Mapping[Kind, int], capacity: Sequence[int], levels: int | None = None, *, even: bool = False
) -> dict[Kind, Fractions]:
    """Fractions by kind, for ``counts`` jobs of each on ``capacity`` GPUs of each type.

    A job gains its fractions times ``gains``. A job that fits no type gets none.

    :param levels: how many linear programs at most: 1 makes the least gain as large as it can be and leaves
        the others where the program puts them. None: as many as there are levels. On one GPU type, where a
        closed form gives all levels, it does not count.
    :param even: on one GPU type, only the least gain is made large, and the time left over shared evenly.
    """
    usable = {kind: _usable(kind, capacity) for kind in counts}
    number: Counter[Kind] = Counter()
    for kind, count in counts.items():
        number[usable[kind]] += count
    able = sorted(kind for kind in number if any(kind.gains))
    used = [index for index in range(len(capacity)) if any(kind.gains[index] for kind in able)]
    gains = np.array([[kind.gains[index] for index in used] for kind in able])
    weights = np.array([kind.gpus * number[kind] for kind in able], dtype=float)
    limits = np.array([capacity[index] for index in used], dtype=float)
    parts = np.zeros((len(able), len(capacity)))
    if len(used) == 1:
        form = _one_level if even else _one_type
        parts[:, used[0]] = form(gains[:, 0], weights, limits[0])
    elif used:
        parts[:, used] = _Programs(gains, weights, limits).solve(levels)
    found = dict(zip(able, map(tuple, np.clip(parts, 0.0, 1.0).tolist()), strict=True))
    return {kind: found.get(usable[kind], (0.0,) * len(capacity)) for kind in counts}


def most_throughput(counts: Mapping[Kind, int], capacity: Sequence[int]) -> dict[Kind, Fractions]:
    """Fractions by kind that make the sum of all gains as large as it can be."""
    usable = {kind: _usable(kind, capacity) for kind in sorted(counts)}
    if not usable:
        return {}
    types = len(capacity)
    number = np.array([counts[kind] for kind in usable], dtype=float)
    gains = np.array([kind.gains for kind in usable.values()])
    whole = kron(eye_array(len(usable)), np.ones((1, types)))
    gpus = kron([number * [kind.gpus for kind in usable]], eye_array(types))
    found = linprog(
        -(number[:, None] * gains).ravel(),
        A_ub=vstack([whole, gpus], format="csc"),
        b_ub=[1.0] * len(usable) + list(capacity),
        bounds=[(0.0, 1.0 if gain > 0 else 0.0) for gain in gains.ravel()],
    )
    parts = np.asarray(found.x).reshape(-1, types)
    return {kind: tuple(row) for kind, row in zip(usable, parts.tolist(), strict=True)}


def gain(kind: Kind, fractions: Fractions) -> float:
    """What a job of that kind gains by its fractions."""
    return sum(worth * part for worth, part in zip(kind.gains, fractions, strict=True))


def _usable(kind: Kind, capacity: Sequence[int]) -> Kind:
    """The same without gains on types that have too few GPUs."""
    gains = (worth if kind.gpus <= gpus else 0.0 for worth, gpus in zip(kind.gains, capacity, strict=True))
    return Kind(tuple(gains), kind.gpus)


def _one_type(gains: Floats, weights: Floats, capacity: float) -> Floats:
    """Fractions on the only type: water rises to one level, which a job reaches or has all of the time.

    ``weights`` are GPUs of all jobs of a kind.
    """
    order = np.argsort(gains, kind="stable")
    at_level = np.cumsum((weights / gains)[order][::-1])[::-1]
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    levels = (capacity - before) / at_level
    reached = np.flatnonzero(levels <= gains[order])
    if not reached.size:
        return np.ones_like(gains)
    parts: Floats = np.minimum(levels[reached[0]] / gains, 1.0)
    return parts


def _one_level(gains: Floats, weights: Floats, capacity: float) -> Floats:
    """Fractions on the only type: what the largest least gain takes, and the time left over evenly.

    Kinds that need little for that gain rise to one fraction.
    """
    needs: Floats = (_one_type(gains, weights, capacity) * gains).min() / gains
    order = np.argsort(needs, kind="stable")
    rising = np.cumsum(weights[order])
    settled = np.cumsum((weights * needs)[order][::-1])[::-1]
    floors = (capacity - np.append(settled[1:], 0.0)) / rising
    # the kinds up to the last whose common fraction exceeds its need
    last = np.flatnonzero(floors >= needs[order])[-1:]
    return np.minimum(np.maximum(needs, floors[last]), 1.0) if last.size else needs


class _Programs:
    """The linear programs of one problem: variables are the fractions, and last the level."""

    def __init__(self, gains: Floats, weights: Floats, capacity: Floats) -> None:
        """``weights`` are GPUs of all jobs of a kind."""
        self._rows, self._columns = np.nonzero(gains)
        self._worth = gains[self._rows, self._columns] / gains.max(axis=1).min()
        self._shape = gains.shape
        self._weights = weights
        self._capacity = capacity
        self._levels = np.full(len(gains), np.nan)
        """Of kinds that are fixed."""

    def solve(self, most: int | None) -> Floats:
        """Raise the level until every kind is fixed, or ``most`` times."""
        kinds = self._shape[0]
        parts = np.zeros(self._shape)
        for _ in range(kinds if most is None else most):
            found = self._program()
            if found is None:  # what the programs before it gave is feasible
                break
            parts, level, binding = found
            rising = np.isnan(self._levels)
            binding &= rising
            self._levels[binding if binding.any() else rising] = level
            if not np.isnan(self._levels).any():
                break
        return parts

    def _program(self) -> tuple[Floats, float, npt.NDArray[np.bool_]] | None:
        """Fractions, the level, and which kinds hold it down; None: the solver gave up on the numbers."""
        kinds, types = self._shape
        variables = np.arange(len(self._rows))
        rising = np.flatnonzero(np.isnan(self._levels))
        parts = [
            (self._rows, variables, -self._worth),
            (rising, np.full(len(rising), len(variables)), np.ones(len(rising))),
            (kinds + self._rows, variables, np.ones(len(variables))),
            (2 * kinds + self._columns, variables, self._weights[self._rows]),
        ]
        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        matrix: Any = csc_array((values, (rows, columns)), shape=(2 * kinds + types, len(variables) + 1))
        floors = -np.nan_to_num(self._levels, nan=0.0) * (1 - _SLACK)
        limits = np.concatenate([floors, np.ones(kinds), self._capacity])
        costs = np.zeros(len(variables) + 1)
        costs[-1] = -1.0
        found = linprog(costs, A_ub=matrix, b_ub=limits, method="highs")
        if found.x is None:
            return None
        fractions = np.zeros(self._shape)
        fractions[self._rows, self._columns] = found.x[:-1]
        return fractions, float(found.x[-1]), found.ineqlin.marginals[:kinds] < -_BINDING


# What each job was entitled to and what it received, in seconds on each GPU type.


@dataclass(slots=True)
class Balance:
    """One job. Lists go by GPU type."""

    since_s: float
    """Until when it is kept."""
    fractions: Fractions
    """Parts of the time that it is entitled to since then."""
    entitled_s: list[float]
    received_s: list[float]
    attained_gpu_s: float
    """All service of the job until then."""

    def priority(self, index: int, round_s: float) -> float:
        """Seconds that it is entitled to by the end of the coming round, over those received.

        Half a round counts as received beforehand: else all that received nothing would be level.
        """
        entitled_s = self.entitled_s[index] + round_s * self.fractions[index]
        return entitled_s / (self.received_s[index] + round_s / 2)


class Accounts:
    """The accounts of all active jobs."""

    def __init__(self, gpu_types: Sequence[str]) -> None:
        self.gpu_types = tuple(gpu_types)
        self.by_job: dict[str, Balance] = {}

    def follow(self, jobs: Iterable[JobState], fractions: Mapping[str, Fractions], time_s: float) -> None:
        """Keep the accounts until now; from now on jobs are entitled to these ``fractions``."""
        kept = {}
        for job in jobs:
            account = self.by_job.get(job.id) or self._opened(job, time_s)
            self._keep(account, job, time_s)
            account.fractions = fractions[job.id]
            kept[job.id] = account
        self.by_job = kept

    def _opened(self, job: JobState, time_s: float) -> Balance:
        """For a job that is new, or that a policy without its state finds running."""
        zeros = [0.0] * len(self.gpu_types)
        return Balance(time_s, tuple(zeros), list(zeros), list(zeros), job.attained_service_s(time_s))

    def _keep(self, account: Balance, job: JobState, time_s: float) -> None:
        for index, part in enumerate(account.fractions):
            account.entitled_s[index] += part * (time_s - account.since_s)
        attained = job.attained_service_s(time_s)
        if job.gpu_type in self.gpu_types and job.gpus:
            received_s = (attained - account.attained_gpu_s) / job.gpus
            account.received_s[self.gpu_types.index(job.gpu_type)] += received_s
        account.since_s, account.attained_gpu_s = time_s, attained

    def dump(self) -> dict[str, Any]:
        return {
            "gpu_types": list(self.gpu_types),
            "jobs": {
                job_id: [
                    account.since_s, list(account.fractions), account.entitled_s, account.received_s,
                    account.attained_gpu_s,
                ]
                for job_id, account in self.by_job.items()
            },
        }  # fmt: skip

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Accounts:
        found = cls(state["gpu_types"])
        found.by_job = {
            job_id: Balance(since_s, tuple(fractions), list(entitled_s), list(received_s), attained)
            for job_id, (since_s, fractions, entitled_s, received_s, attained) in state["jobs"].items()
        }
        return found
