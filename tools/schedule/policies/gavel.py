"""Gavel: fractions of time by a linear program, and rounds that give each job the time it is entitled to.

:func:`max_min` makes the least gain as large as it can be, with a row for each kind of job. Then it goes on
    by water-filling: kinds that no solution can give more are fixed at their level, and the next program
    raises the others. The outcome is max-min fair.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, linprog
from scipy.sparse import csc_array, eye_array, kron, vstack

from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobKind, JobState
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
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits
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
"""Precision of the ratio that is minimized."""


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
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means="",
        default_interval_s=ROUND_S,
        rebuilds_state=False,
    )

    def __init__(self, round_s: float = ROUND_S, renew_s: float = 0.0) -> None:
        if round_s <= 0:
            raise ValueError("parameter round_s: expected a number above 0")
        if renew_s < 0:
            raise ValueError("parameter renew_s: expected 0 or more")
        self.round_s = round_s
        self.renew_s = renew_s
        self._accounts: Accounts | None = None
        self._renewal = _UNSOLVED
        # By job, how soon it gets GPUs that the fractions leave idle: the largest first.
        self._spare: Mapping[str, float] = {}
        # The last problem and its solution.
        self._solved: tuple[object, dict[Kind, Fractions]] | None = None

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return False

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot)
        jobs = sorted(
            (job for job in snapshot.jobs.values() if job.id not in rejected), key=attrgetter("arrival")
        )
        types = tuple(snapshot.speeds.gpu_types)
        if self._accounts is None or self._accounts.gpu_types != types:
            self._accounts, self._renewal = Accounts(types), _UNSOLVED
        members, parts = (self._renewed if self.renew_s else self._fractions)(jobs, snapshot)
        self._accounts.follow(members, _rounded(parts), snapshot.time_s)
        grants = self._serve(members, self._accounts, snapshot)
        decision = decision_from_grants(snapshot, grants, rejected)
        if len(grants) == len(jobs):
            given = ((row, types.index(grants[job.id].gpu_type)) for row, job in enumerate(members))
            if all(parts[where] >= _WHOLE for where in given):
                decision.quiet_until_s = math.inf
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        accounts = self._accounts
        if accounts is None:
            return {}
        known = [job for job in snapshot.jobs.values() if job.id in accounts.rows]
        priorities = accounts.priorities(self.round_s).max(axis=1, initial=0.0).tolist()
        return {
            job.id: explain_gang(
                job, f"entitled to {accounts.entitlement(row)}, priority {priorities[row]:.2g}"
            )
            for job, row in ((job, accounts.rows[job.id]) for job in known)
        }

    def dump_state(self) -> Any:
        if self._accounts is None:
            return None
        kept = {"renewal": self._renewal, "spare": dict(self._spare)} if self.renew_s else {}
        return self._accounts.dump() | kept

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._accounts = Accounts.load(state)
        time_s, is_stale, fractions = state.get("renewal", _UNSOLVED)
        parts_by_job = {job_id: tuple(parts) for job_id, parts in fractions.items()}
        self._renewal = Renewal(time_s, is_stale, parts_by_job)
        self._spare = state.get("spare", {})

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        """The jobs that take part, in the same order, and their fractions."""
        kinds = kinds_of(jobs, "gavel", lambda job: _share(job, snapshot), snapshot)
        problem = (dict(Counter(kinds)), capacity_of(snapshot))
        if self._solved is None or self._solved[0] != problem:
            self._solved = problem, max_min(*problem)
        return TimeFractions.of_kinds(jobs, kinds, self._solved[1])

    def _renewed(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        """The fractions of the last solution, or of a new one."""
        last_s, stale = self._renewal.time_s, self._renewal.is_stale or bool(snapshot.changes)
        if stale and (not last_s or snapshot.time_s - last_s >= self.renew_s):
            shares = self._fractions(jobs, snapshot)
            by_job = dict(
                zip((job.id for job in shares.jobs), map(tuple, shares.parts.tolist()), strict=True)
            )
            self._renewal = Renewal(snapshot.time_s, False, by_job)
            self._accounts = Accounts(tuple(snapshot.speeds.gpu_types))
        else:
            self._renewal = self._renewal._replace(is_stale=stale)
        known = self._renewal.fractions
        return TimeFractions.of([job for job in jobs if job.id in known], known)

    def _serve(self, jobs: Sequence[JobState], accounts: Accounts, snapshot: Snapshot) -> dict[str, Grant]:
        """Give GPUs away, first to the pairs of job and GPU type that are furthest behind."""
        parts, types = accounts.fractions, accounts.gpu_types
        spare = np.zeros(len(jobs))
        if self._spare:
            spare[:] = [self._spare.get(job.id, 0.0) for job in jobs]
        keys = (np.repeat(spare, len(types)), parts, accounts.priorities(self.round_s), 1.0 * (parts > 0))
        # the largest of the last key first; of equals the first pair, which is that of the first job
        order = np.lexsort([-key.ravel() for key in keys])
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for pair in order.tolist():
            turn, index = divmod(pair, len(types))
            job, gpu_type = jobs[turn], types[index]
            gpus, left = job.requested, budget.left.get(gpu_type, 0)
            if left < gpus or job.id in grants or not snapshot.speeds.rate(job, gpus, gpu_type) > 0:
                continue
            grants[job.id] = grant = Grant(gpus, gpu_type)
            budget.take(grant)
            if not budget.total:
                break
        return grants


class TimeFractions(NamedTuple):
    """Jobs with fractions of time."""

    jobs: Sequence[JobState]
    parts: Floats
    """[job, GPU type]."""

    @classmethod
    def of(cls, jobs: Sequence[JobState], fractions: Mapping[str, Sequence[float]]) -> Self:
        return cls(jobs, np.array([fractions[job.id] for job in jobs], dtype=float))

    @classmethod
    def of_kinds(
        cls, jobs: Sequence[JobState], kinds: Sequence[Kind], fractions: Mapping[Kind, Fractions]
    ) -> Self:
        """:param kinds: of each job, few of them different."""
        row = {kind: number for number, kind in enumerate(fractions)}
        rows = np.array([row[kind] for kind in kinds], dtype=np.int64)
        return cls(jobs, np.array(list(fractions.values()), dtype=float)[rows])


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
    gpus, types = job.requested, snapshot.speeds.gpu_types
    usable = {kind: count for kind, count in types.items() if count >= gpus}
    rates = (count * snapshot.speeds.rate(job, gpus, kind) for kind, count in usable.items())
    return sum(rates) / (gpus * sum(types.values())) or 1.0


def kinds_of(
    jobs: Iterable[JobState], what: str, need_of: Callable[[JobState], float], snapshot: Snapshot
) -> list[Kind]:
    """What jobs gain by their speed over what they need.

    :param what: names ``need_of``, which depends on the speed of a job and its requested GPUs alone.
    """
    speeds = snapshot.speeds

    def made(job: JobState, gpus: int) -> Kind:
        need = need_of(job)
        return Kind(tuple(speeds.rate(job, gpus, kind) / need for kind in speeds.gpu_types), gpus)

    known: dict[tuple[JobKind, int], Kind] = {}
    kinds = []
    for job in jobs:
        key = (job.kind or JobKind.of(job), job.requested)
        if (kind := known.get(key)) is None:
            gpus = job.requested
            kind = known[key] = speeds.of_kind(job, (what, gpus), partial(made, job, gpus))
        kinds.append(kind)
    return kinds


def speeds_of(jobs: Iterable[JobState], snapshot: Snapshot) -> list[Kind]:
    """Kinds whose gains are samples per second."""
    return kinds_of(jobs, "speed by type", lambda _: 1.0, snapshot)


def capacity_of(snapshot: Snapshot) -> list[int]:
    up = snapshot.gpus_by_type()
    return [up.get(gpu_type, 0) for gpu_type in snapshot.speeds.gpu_types]


def _rounded(parts: Floats) -> Floats:
    rounded = parts.copy()
    some = parts[parts > 0].tolist()
    known = {part: float(f"{part:.{_DIGITS}g}") for part in set(some)}
    rounded[parts > 0] = [known[part] for part in some]
    return rounded


# Other aims than max-min fairness.


class GavelMakespan(Gavel):
    """Gavel for the least makespan: the largest remaining time is made as small as it can be, by an LP.

    Gavel (OSDI '20), section 4.2. As ``gavel``, but the fractions make the largest of remaining samples over
    effective throughput as small as they can, at every round for what is left then. That counts as at least
    what the job trains in a round; a job of unknown work is expected to be half done. Where the longest job
    alone decides the end, the program leaves time over, which jobs on a single GPU type share evenly.
    """

    name: ClassVar[str] = "gavel-makespan"

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return True

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        needs = [samples_to_go(job, snapshot, self.round_s) or 1.0 for job in jobs]
        kinds = Kinds.of(speeds_of(jobs, snapshot)).over(np.array(needs))
        return TimeFractions(jobs, kinds.max_min(capacity_of(snapshot), levels=1, even=True))


class GavelThroughput(Gavel):
    """Gavel for the most throughput: the sum of all jobs' steps per second, by an LP.

    Gavel (OSDI '20), section 4.2, with the same cost for all GPUs. As ``gavel``, but the fractions make the
    sum of the jobs' effective throughputs as large as it can be, in mini-batches of all their workers per
    second, as Gavel counts them. Jobs of few mini-batches a second may wait until others have ended; GPUs
    that remain go to those of most on each GPU.
    """

    name: ClassVar[str] = "gavel-throughput"

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        kinds = kinds_of(jobs, self.name, lambda job: job.reference_batch / job.requested, snapshot)
        parts = most_throughput(Counter(kinds), capacity_of(snapshot))
        self._spare = {job.id: max(kind.gains) / kind.gpus for job, kind in zip(jobs, kinds, strict=True)}
        return TimeFractions.of_kinds(jobs, kinds, parts)


class GavelFtf(Gavel):
    """Gavel for finish-time fairness: the largest ratio of JCT to isolated JCT is made least, by LPs.

    Gavel (OSDI '20), section 4.2, with the ratio of Themis (NSDI '20): expected JCT under these fractions
    over the JCT with 1/N of the cluster, where N is the mean number of active jobs since the job arrived. The
    least ratio for which a linear program of the necessary throughputs has a solution is found by root
    finding, at every round. All else is as in ``gavel``.
    """

    name: ClassVar[str] = "gavel-ftf"

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return True

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

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        capacity = capacity_of(snapshot)
        parts = np.zeros((len(jobs), len(capacity)))
        members = []
        for row, (job, kind) in enumerate(zip(jobs, speeds_of(jobs, snapshot), strict=True)):
            stake = self._contention.stake(job, snapshot, self.round_s)
            if stake is not None and best_rate(kind, capacity) > 0:
                members.append((row, kind, stake))
        if members:
            rows, kinds, stakes = zip(*members, strict=True)
            parts[list(rows)] = least_ratio(kinds, stakes, capacity)
        return TimeFractions(jobs, parts)


def least_ratio(kinds: Sequence[Kind], stakes: Sequence[Stake], capacity: Sequence[int]) -> Floats:
    """Fractions [job, type] that make the largest ρ of some jobs least; ``gains`` are samples per second."""
    speeds = Kinds.of(kinds)
    elapsed_s, left, isolated_s = np.array(stakes, dtype=float).T

    def solved(ratio: float) -> tuple[float, Floats]:
        """How many times the throughputs that the ratio takes are possible, and the fractions for that."""
        towards = speeds.over(left / (ratio * isolated_s - elapsed_s))
        parts = towards.max_min(capacity, levels=1)
        return float(towards.gained(parts).min()), parts

    best = speeds.usable(capacity).gains.max(axis=1)
    ratio = float(((elapsed_s + left / best) / isolated_s).max())
    times, parts = solved(ratio)
    if times < 1 - _PRECISION:
        # the ρ of each job that has ``times`` the throughput that takes it to ``ratio``
        reached = (elapsed_s + (ratio * isolated_s - elapsed_s) / times) / isolated_s
        high = float(reached.max()) * (1 + _PRECISION)
        ratio = brentq(lambda ratio: solved(ratio)[0] - 1, ratio, high, rtol=_PRECISION)
        times, parts = solved(ratio)
        if times < 1 - _PRECISION:  # the root is just above: near its end a job's need rises steeply
            parts = solved(ratio * (1 + _PRECISION))[1]
    return parts


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
    """Worth of all of the time on each GPU type; 0: they cannot run there."""
    gpus: int


@dataclass(frozen=True, slots=True)
class Kinds:
    """The same in columns, for jobs of which hardly two gain alike; a row may occur more than once."""

    gains: Floats
    """[kind, type]."""
    gpus: Floats
    """[kind] of one job."""
    counts: Floats
    """[kind] jobs."""

    @classmethod
    def of(cls, kinds: Sequence[Kind], counts: Sequence[int] = ()) -> Self:
        types = len(kinds[0].gains) if kinds else 0
        gains = np.array([kind.gains for kind in kinds], dtype=float).reshape(len(kinds), types)
        gpus = np.array([kind.gpus for kind in kinds], dtype=float)
        return cls(gains, gpus, np.array(counts, dtype=float) if counts else np.ones(len(kinds)))

    def over(self, needs: Floats) -> Self:
        """With what the kinds gain over what each needs."""
        return replace(self, gains=self.gains / needs[:, None])

    def usable(self, capacity: Sequence[int]) -> Self:
        """Without gains on types that have too few GPUs."""
        return replace(self, gains=np.where(self.gpus[:, None] <= capacity, self.gains, 0.0))

    def gained(self, parts: Floats) -> Floats:
        """[kind] what a job gains by its fractions."""
        return np.asarray(sum((self.gains * parts).T, np.zeros(len(parts))))

    def max_min(self, capacity: Sequence[int], levels: int | None = None, *, even: bool = False) -> Floats:
        """Fractions [kind, type]; see :func:`max_min`."""
        if not len(self.gains):
            return self.gains
        usable = self.usable(capacity)
        order = np.lexsort([usable.gpus, *usable.gains.T[::-1]])
        rows = np.column_stack([usable.gains, usable.gpus])[order]
        is_new = np.ones(len(rows), dtype=bool)
        is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        kind = np.cumsum(is_new) - 1
        gains, weights = rows[is_new, :-1], rows[is_new, -1] * np.bincount(kind, usable.counts[order])
        able, used = (gains > 0).any(axis=1), np.flatnonzero((gains > 0).any(axis=0))
        limits = np.array(capacity, dtype=float)[used]
        kind_parts = np.zeros(gains.shape)
        if len(used) == 1:
            form = _one_level if even else _one_type
            kind_parts[able, used[0]] = form(gains[able, used[0]], weights[able], limits[0])
        elif len(used):
            kind_parts[np.ix_(able, used)] = _Programs(
                gains[np.ix_(able, used)], weights[able], limits
            ).solve(levels)
        parts = np.empty(self.gains.shape)
        parts[order] = np.clip(kind_parts, 0.0, 1.0)[kind]
        return parts


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
    parts = Kinds.of(list(counts), list(counts.values())).max_min(capacity, levels, even=even)
    return dict(zip(counts, map(tuple, parts.tolist()), strict=True))


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
    solution = linprog(
        -(number[:, None] * gains).ravel(),
        A_ub=vstack([whole, gpus], format="csc"),
        b_ub=[1.0] * len(usable) + list(capacity),
        bounds=[(0.0, 1.0 if gain > 0 else 0.0) for gain in gains.ravel()],
    )
    parts = np.asarray(solution.x).reshape(-1, types)
    return {kind: tuple(row) for kind, row in zip(usable, parts.tolist(), strict=True)}


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
        # Of kinds that are fixed.
        self._levels = np.full(len(gains), np.nan)

    def solve(self, most: int | None) -> Floats:
        """Raise the level until every kind is fixed, or ``most`` times."""
        kinds = self._shape[0]
        parts = np.zeros(self._shape)
        for _ in range(kinds if most is None else most):
            solution = self._program()
            if solution is None:  # what the programs before it gave is feasible
                break
            parts, level, binding = solution
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
        solution = linprog(costs, A_ub=matrix, b_ub=limits, method="highs")
        if solution.x is None:
            return None
        fractions = np.zeros(self._shape)
        fractions[self._rows, self._columns] = solution.x[:-1]
        return fractions, float(solution.x[-1]), solution.ineqlin.marginals[:kinds] < -_BINDING


# What each job was entitled to and what it received, in seconds on each GPU type.


class Accounts:
    """The accounts of all active jobs, in columns; all are kept until :attr:`since_s`."""

    def __init__(self, gpu_types: Sequence[str]) -> None:
        self.gpu_types = tuple(gpu_types)
        # By job.
        self.rows: dict[str, int] = {}
        self.since_s = 0.0
        # [job, type] parts of the time that it is entitled to since then.
        self.fractions: Floats = np.zeros((0, len(self.gpu_types)))
        self._entitled_s, self._received_s = self.fractions, self.fractions
        # [job] all its service until then.
        self._attained_gpu_s = np.zeros(0)

    def follow(self, jobs: Sequence[JobState], fractions: Floats, time_s: float) -> None:
        """Keep the accounts until now; from now on jobs are entitled to these ``fractions``, [job, type].

        A job that is new, or that a policy without its state finds running, begins with nothing.
        """
        attained = np.array([job.attained_service_s(time_s) for job in jobs])
        ids = [job.id for job in jobs]
        at = np.array([*map(self.rows.get, ids, repeat(-1))], dtype=np.int64)
        before = np.where(at < 0, attained, np.append(self._attained_gpu_s, 0.0)[at])
        former, entitled_s, received_s = (
            np.append(each, np.zeros((1, len(self.gpu_types))), axis=0)[at]  # its last row is of new jobs
            for each in (self.fractions, self._entitled_s, self._received_s)
        )
        entitled_s += former * (time_s - self.since_s)
        for row, job in enumerate(jobs):
            if job.gpus and job.gpu_type in self.gpu_types:
                received_s[row, self.gpu_types.index(job.gpu_type)] += (
                    attained[row] - before[row]
                ) / job.gpus
        self.rows = dict(zip(ids, range(len(ids)), strict=True))
        self.since_s, self.fractions, self._attained_gpu_s = time_s, fractions.reshape(former.shape), attained
        self._entitled_s, self._received_s = entitled_s, received_s

    def priorities(self, round_s: float) -> Floats:
        """[job, type] seconds that it is entitled to by the end of the coming round, over those received.

        Half a round counts as received beforehand: else all that received nothing would be level.
        """
        priorities: Floats = (self._entitled_s + round_s * self.fractions) / (self._received_s + round_s / 2)
        return priorities

    def entitlement(self, row: int) -> str:
        """What a job is entitled to, in words."""
        parts, received_s = self.fractions[row].tolist(), self._received_s[row].tolist()
        named = [
            f"{part:.0%} of the time on {gpu_type} ({seconds:.0f} s received)"
            for gpu_type, part, seconds in zip(self.gpu_types, parts, received_s, strict=True)
            if part > 0
        ]
        return " and ".join(named) or "no time"

    def dump(self) -> dict[str, Any]:
        columns = (self.fractions, self._entitled_s, self._received_s, self._attained_gpu_s)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        jobs = {job_id: [self.since_s, *row] for job_id, row in zip(self.rows, rows, strict=True)}
        return {"gpu_types": list(self.gpu_types), "jobs": jobs}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Accounts:
        accounts = cls(state["gpu_types"])
        if jobs := state["jobs"]:
            accounts.rows = {job_id: row for row, job_id in enumerate(jobs)}
            since_s, *columns = zip(*jobs.values(), strict=True)
            accounts.since_s = since_s[0]
            accounts.fractions, accounts._entitled_s, accounts._received_s, accounts._attained_gpu_s = (
                np.array(column, dtype=float) for column in columns
            )
        return accounts
