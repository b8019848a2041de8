"""Sia: which job gets how many GPUs of which type, by an integer program over normalised goodputs.

:mod:`configurations` has the bundles of GPUs and their nodes, :mod:`goodputs` the matrix of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policies.common import minimum_alone, reject_impossible
from pliant.tools.schedule.policies.sia.configurations import (
    Configuration,
    GpuType,
    Seat,
    gpu_types,
    held_configuration,
    place,
)
from pliant.tools.schedule.policies.sia.goodputs import GoodputRow, JobGoodputs, Knowledge
from pliant.tools.schedule.policies.solver import solved
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot

Floats = npt.NDArray[np.float64]
_LEAST_FACTOR: Final = 0.01
_DIGITS: Final = 4
"""Digits after the point of a restart factor and of what enters the program: further ones would be those of a
solver, of ages and of fits."""
_GAP: Final = 1e-4
"""Part of the optimum by which a solution may miss it."""
_TIE: Final = 1e-6
"""Settles ties, as part of the penalty: jobs stay, then earlier ones come first, then fewer GPUs do."""
_HALF: Final = 0.5
"""Variables above it are 1: they are whole but for rounding."""
_MANY: Final = 1e4
"""GPUs that settle a tie as much as one place in the order."""


class Sia(Policy):
    """Largest sum of normalised goodputs on GPU types that differ, by an integer program.

    Sia (SOSP '23), sections 3.2 and 3.3. Every round each job gets at most one configuration: a power of
    two of the GPUs of a node, or whole nodes, of one GPU type. The integer program (HiGHS) makes the sum
    over all jobs of G^p least (p < 0) or largest (p > 0), where G is the job's goodput there over the
    least in its row, times its smallest size; a job without GPUs adds the penalty λ. Where a running job
    would change its configuration, G counts by the restart factor (T − N · S) / (T + S): T its age, N
    its restarts, S what one costs. A job starts with its least configuration and at most doubles in a
    round. Jobs that only scale keep their batch; rigid ones keep their size, and only the GPU type is
    chosen; with GPUs fixed and the batch free, that and the batch are.

    Departures from the paper: a job whose limits hold no configuration gets its least size, on what GPUs
    remain. A job that restarts keeps what it has until it trains. Nodes whose GPUs are no power of two
    take the same jobs by limits instead of virtual nodes. What has been measured of several types stands
    in for others by the first of them. Jobs are moved between nodes only where a larger one needs room.
    There are no reservations.

    p: the power, below 0 the fairer; not 0.
    penalty: λ, for a job without GPUs; where p is below 0, above 1, as a job on one GPU costs up to 1.
    knowledge: "profile": step times are the profile's. "bootstrap", the paper's way: those of one
    replica on every GPU type are the profile's; else what the job has measured itself, on another type
    in the ratio of the speeds of one replica. "measured": before a job has measured anything, all types
    count alike.
    restart_s: seconds that a restart is taken to cost where the profile has not measured it.
    retune: "paid": a job that keeps its GPUs gets another batch only where that is worth a restart;
    "free": whenever another is better.
    lone_accumulation: one GPU cuts batches above the smallest into two micro-steps at least.
    """

    name: ClassVar[str] = "sia"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means="",
        elasticity="size+batch",
        default_interval_s=60.0,
        rebuilds_state=False,
    )

    def __init__(
        self,
        *,
        p: float = -0.5,
        penalty: float = 1.1,
        knowledge: Knowledge = "profile",
        restart_s: float = 30.0,
        retune: Literal["paid", "free"] = "paid",
        lone_accumulation: bool = False,
    ) -> None:
        if p == 0:
            raise UsageError('policy "sia": p is not 0')
        if penalty <= 0:
            raise UsageError(f'policy "sia": penalty {penalty:g} is not above 0')
        if p < 0 and penalty <= 1:
            rather = "a job on one GPU would cost 1, and wait rather"
            raise UsageError(f'policy "sia": penalty {penalty:g} is not above 1, p is below 0: {rather}')
        if restart_s < 0:
            raise UsageError(f'policy "sia": restart_s {restart_s:g} is below 0')
        self.p = p
        self.penalty = penalty
        self.knowledge = knowledge
        self.restart_s = restart_s
        self.retune = retune
        self.lone_accumulation = lone_accumulation
        self._restarts: dict[str, int] = {}
        # Most GPUs that each job was given.
        self._largest: dict[str, int] = {}
        self._goodputs: JobGoodputs | None = None
        self._reasons: dict[str, Explanation] = {}

    def chooses_nodes(self) -> bool:
        return True

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return False

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        goodputs = self._up_to_date(snapshot)
        decision = Decision(rejected=reject_impossible(snapshot, minimum_alone))
        types = gpu_types(snapshot.nodes)
        candidates = [
            self._candidate(job, types, goodputs, snapshot)
            for job in snapshot.arrivals()
            if job.id not in decision.rejected
        ]
        chosen = self._chosen(candidates, types)
        self._reasons = {}
        places = _places(candidates, chosen, types)
        for each, column in zip(candidates, chosen, strict=True):
            target = self._target(each, column, places.get(each.job.id, ()), goodputs)
            self._reasons[each.job.id] = _explanation(each, column)
            if target is not None:
                decision.targets[each.job.id] = target
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {job_id: reason for job_id, reason in self._reasons.items() if job_id in snapshot.jobs}

    def dump_state(self) -> dict[str, Any]:
        return {
            "restarts": dict(sorted(self._restarts.items())),
            "largest": dict(sorted(self._largest.items())),
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._restarts, self._largest = dict(state["restarts"]), dict(state["largest"])
        self._goodputs = None

    def _up_to_date(self, snapshot: Snapshot) -> JobGoodputs:
        if self._goodputs is None or self._goodputs.speeds is not snapshot.speeds:
            self._goodputs = JobGoodputs(
                snapshot.speeds, self.knowledge, lone_accumulates=self.lone_accumulation
            )
        for change in snapshot.changes:
            if (ended := change.ended_job) is not None:
                self._goodputs.forget(ended.id)
                self._restarts.pop(ended.id, None)
                self._largest.pop(ended.id, None)
        return self._goodputs

    def _candidate(
        self, job: JobState, types: Mapping[str, GpuType], goodputs: JobGoodputs, snapshot: Snapshot
    ) -> Candidate:
        offers = self._offers(job, types, snapshot)
        row = goodputs.row(job, offers)
        held = _held(job, row.configurations) if job.gpus else None
        factor = self._restart_factor(job, snapshot)
        if held is not None and held not in row.configurations:
            row = _with(row, held, job)
        return Candidate(
            job,
            row,
            held,
            factor,
            job.is_restarting(snapshot.time_s),
            self._utilities(job, row, held, factor),
        )

    def _offers(
        self, job: JobState, types: Mapping[str, GpuType], snapshot: Snapshot
    ) -> dict[GpuType, Sequence[Configuration]]:
        """What the job may get of each type this round: at most twice what it has tried."""
        sizes = job.sizes(snapshot.total_gpus)
        tried = self._largest.get(job.id, job.gpus)
        if self.knowledge != "profile":
            tried = max((sum(seen.placement) for seen in job.observations), default=0)
        offers: dict[GpuType, Sequence[Configuration]] = {}
        for kind in types.values():
            every = kind.for_job(sizes, job.per_replica)
            if every:
                most = max(every[0].gpus, 2 * tried)
                offers[kind] = [
                    one for one in every if one.gpus <= most and job.fits_now(one.gpus, kind.name)
                ]
        return {kind: offered for kind, offered in offers.items() if offered}

    def _restart_factor(self, job: JobState, snapshot: Snapshot) -> float:
        """(T - N · S) / (T + S), equation 2."""
        measured_s = snapshot.speeds.rescale_seconds(job.spec.model)
        cost_s = self.restart_s if measured_s is None else measured_s
        age_s = max(0.0, snapshot.time_s - job.spec.submit_time)
        lost_s = self._restarts.get(job.id, 0) * cost_s
        total_s = age_s + cost_s
        return max(_LEAST_FACTOR, round((age_s - lost_s) / total_s, _DIGITS)) if total_s else 1.0

    def _utilities(self, job: JobState, row: GoodputRow, held: Configuration | None, factor: float) -> Floats:
        """G^p of each configuration, with the restart factor in G."""
        if not row.configurations:
            return np.zeros(0)
        smallest = job.requested if job.spec.elastic == "none" else job.min_gpus
        gains = row.rates / row.rates.min() * smallest
        if held is not None:
            gains *= [1.0 if one == held else factor for one in row.configurations]
        return np.asarray(np.round(gains**self.p, _DIGITS), dtype=np.float64)

    def _chosen(self, candidates: Sequence[Candidate], types: Mapping[str, GpuType]) -> list[int | None]:
        """The column of each candidate's row that it gets; None: no GPUs."""
        sign = math.copysign(1.0, -self.p)
        terms: list[Term] = []
        chosen: list[int | None] = [None] * len(candidates)
        for number, each in enumerate(candidates):
            if each.restarts and each.held is not None:
                chosen[number] = each.row.configurations.index(each.held)
                continue
            for column, one in enumerate(each.row.configurations):
                cost = sign * float(each.utilities[column]) - self.penalty
                tie = _TIE * (one.gpus / _MANY + number / len(candidates) - (one == each.held))
                terms.append(Term(number, column, one, cost + tie))
        fixed = [
            candidates[number].row.configurations[column]
            for number, column in enumerate(chosen)
            if column is not None
        ]
        for number, column in _solve(terms, types, fixed):
            chosen[number] = column
        return chosen

    def _target(
        self, each: Candidate, column: int | None, place: NodeGpus, goodputs: JobGoodputs
    ) -> Target | None:
        """What differs from what the job holds."""
        job = each.job
        if column is None or not place:
            return Target(0) if job.gpus else None
        one = each.row.configurations[column]
        batch = int(each.row.batches[column])
        self._largest[job.id] = max(one.gpus, self._largest.get(job.id, 0))
        if one == each.held and place == job.placement:
            if each.restarts or batch == job.global_batch:
                return None
            if self.retune == "paid" and each.row.rates[column] * each.factor <= goodputs.present(job, one):
                return None
            return Target(one.gpus, one.gpu_type, batch, job.placement)
        if job.first_start_s is not None:
            self._restarts[job.id] = self._restarts.get(job.id, 0) + 1
        return Target(one.gpus, one.gpu_type, batch, place)


class Candidate(NamedTuple):
    """A job in the program of one round."""

    job: JobState
    row: GoodputRow
    held: Configuration | None
    """Configuration that it holds; it is in the row."""
    factor: float
    """Factor of every other configuration."""
    restarts: bool
    """Whether it is restarting: then it keeps what it holds."""
    utilities: Floats
    """Utilities by column of the row."""


class Term(NamedTuple):
    """A binary variable of the program: a candidate gets one of its configurations."""

    number: int
    column: int
    configuration: Configuration
    cost: float


def _held(job: JobState, offered: Sequence[Configuration]) -> Configuration:
    """What a running job holds, as one of the configurations that it may get where it is one."""
    held = held_configuration(job)
    alike = (one for one in offered if one[:3] == held[:3])
    return next(alike, held)


def _with(row: GoodputRow, held: Configuration, job: JobState) -> GoodputRow:
    """The row with what the job holds, too: as good by the GPU as the least of that type, if any."""
    by_gpu = [
        (one.gpu_type != held.gpu_type, rate / one.gpus)
        for one, rate in zip(row.configurations, row.rates.tolist(), strict=True)
    ]
    rate = held.gpus * min(by_gpu, default=(False, 1.0))[1]
    return GoodputRow(
        (*row.configurations, held), np.append(row.rates, rate), np.append(row.batches, job.global_batch)
    )


def _solve(
    terms: Sequence[Term], types: Mapping[str, GpuType], fixed: Sequence[Configuration]
) -> list[tuple[int, int]]:
    """(candidate, column) of the chosen terms: least cost, one for each candidate, within all limits.

    :param fixed: what other jobs keep.
    """
    from scipy.sparse import csr_array

    if not terms:
        return []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    order = {number: row for row, number in enumerate(dict.fromkeys(term.number for term in terms))}
    most: list[float] = [1.0] * len(order)
    for variable, term in enumerate(terms):
        rows.append(order[term.number])
        columns.append(variable)
        values.append(1.0)
    for kind in types.values():
        of_type = [
            (n, term.configuration)
            for n, term in enumerate(terms)
            if term.configuration.gpu_type == kind.name
        ]
        kept = [one for one in fixed if one.gpu_type == kind.name]
        for limit in kind.limits:
            left = limit.gpus - sum(kind.counted(one, limit) for one in kept)
            for variable, one in of_type:
                if count := kind.counted(one, limit):
                    rows.append(len(most))
                    columns.append(variable)
                    values.append(count / max(left, 1))  # the solver's tolerances are absolute
            most.append(float(left > 0))
    matrix: Any = csr_array((values, (rows, columns)), shape=(len(most), len(terms)))
    costs = np.array([term.cost for term in terms])
    whole = np.ones(len(terms), dtype=np.int64)
    solution = solved(costs, matrix, -np.inf, np.array(most), whole=whole, mip_rel_gap=_GAP)
    if solution.x is None:
        return []
    return [(terms[n].number, terms[n].column) for n in np.flatnonzero(solution.x > _HALF).tolist()]


def _places(
    candidates: Sequence[Candidate], chosen: Sequence[int | None], types: Mapping[str, GpuType]
) -> dict[str, NodeGpus]:
    """Nodes of all jobs that get GPUs; without an entry, replicas do not fit what others leave."""
    seats: dict[str, list[Seat]] = {name: [] for name in types}
    for each, column in zip(candidates, chosen, strict=True):
        if column is not None:
            one = each.row.configurations[column]
            held = each.job.placement if one == each.held else ()
            seats[one.gpu_type].append(Seat(each.job.id, one, held, each.job.per_replica))
    places: dict[str, NodeGpus] = {}
    for name, members in seats.items():
        if members:
            places |= place(types[name], members)
    return places


def _explanation(each: Candidate, column: int | None) -> Explanation:
    if column is None:
        return Explanation("all jobs together lose less without it this round", needs_gpus=each.job.min_gpus)
    one, row = each.row.configurations[column], each.row
    gain = float(row.rates[column] / row.rates.min())
    return Explanation(
        f"{gain:.2f} times the goodput of the least that it may get, on {in_gpus(one.gpus)} of {one.gpu_type}"
    )
