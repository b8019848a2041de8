"""Pollux: co-adaptive goodput scheduling. Sizes, places and batches that make the mean slowdown least.

Pollux (OSDI '21), sections 3 to 5; symbols as there. :mod:`goodput` is the throughput model, its fit and the
choice of the batch; :mod:`search` is the genetic search.

Departures from the paper: each GPU type is a cluster of its own, and a waiting job queues for the one with
most speed per job; of a long queue only the first wait to be placed, as many as the type has GPUs; the search
shrinks with the size of its matrices; step times may be the profile's; the batch is chosen from a geometric
grid; what a job's measurements leave open of its seven parameters stays near the first guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobKind, JobState, NodeGpus, NodeState
from pliant.tools.schedule.policies.common import Pool, minimum_alone, pools, reject_impossible
from pliant.tools.schedule.policies.pollux.goodput import (
    BatchCandidates,
    GoodputTable,
    JobLimits,
    ProfileCandidates,
    from_fit,
    job_limits,
)
from pliant.tools.schedule.policies.pollux.search import Matrices, PlacementProblem, search
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.step_time_fit import Fit, fit

_CELLS: Final = 4_000_000
"""Matrix elements that one search may make, over all generations."""
_LEAST_GENERATIONS: Final = 8
_MOST_KEPT: Final = 8_000_000
"""Matrix elements of a population."""
_LEAST_POPULATION: Final = 4
_LEAST_FACTOR: Final = 0.01
_FACTOR_DIGITS: Final = 4
"""Digits after the point."""
Knowledge = Literal["profile", "measured"]
"""Where step times come from: the session's profile, or nothing but what the job itself has measured."""


class Pollux(Policy):
    """Least mean slowdown against the fair share, by goodput: throughput times statistical efficiency.

    Every round it searches, with a seeded population of allocations, for the largest harmonic mean (p = -1)
    of the jobs' speedups: goodput over that on an equal share of the GPUs. A running job that is moved or
    resized counts for less the younger it is and the more often it was. Where a job lets its batch move and
    its gradient noise scale is known, every allocation comes with its best batch; other batches stay.

    knowledge: "profile": step times are the profile's. "measured": nothing but what each job has measured
    itself, fitted with seven parameters, at most twice the GPUs it has tried, the smallest batch at first.
    restart_s: seconds that a restart is taken to cost.
    retune: "paid": a job that keeps its GPUs gets another batch only where that is worth a restart; "free":
    whenever another is better.
    lone_accumulation: one GPU cuts batches above the smallest into two micro-steps at least.
    population, generations: how far the search goes at most; where jobs times nodes are many, less.
    """

    name: ClassVar[str] = "pollux"
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
        knowledge: Knowledge = "profile",
        restart_s: float = 30.0,
        retune: Literal["paid", "free"] = "paid",
        lone_accumulation: bool = False,
        population: int = 100,
        generations: int = 60,
    ) -> None:
        if restart_s < 0:
            raise UsageError(f'policy "pollux": restart_s {restart_s:g} is below 0')
        if population < 1 or generations < 0:
            raise UsageError('policy "pollux": population is at least 1, generations at least 0')
        self.knowledge = knowledge
        self.restart_s = restart_s
        self.retune = retune
        self.lone_accumulation = lone_accumulation
        self.population = population
        self.generations = generations
        # Drawn once; every round then has a stream of its own, whatever came before.
        self._seed: int | None = None
        self._round = 0
        self._restarts: dict[str, int] = {}
        self._populations: dict[str, MatrixPopulation] = {}
        self._goodputs: Goodputs | None = None
        self._reasons: dict[str, Explanation] = {}

    def chooses_nodes(self) -> bool:
        return True

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return False

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self._seed is None:
            self._seed = int(rng.integers(2**53))
        self._round += 1
        stream = np.random.default_rng([self._seed, self._round])
        goodputs = self._up_to_date(snapshot)
        decision = Decision(rejected=reject_impossible(snapshot, minimum_alone))
        self._reasons = {}
        for pool, jobs in pools(snapshot, decision.rejected):
            nodes = [node for node in snapshot.nodes if node.up and node.gpu_type == pool.gpu_type]
            tables = [goodputs.goodput(job, pool) for job in jobs]
            members = SearchedNodes(pool, jobs, nodes, tables)
            decision.targets |= self._share(members, goodputs, snapshot, stream)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {job_id: reason for job_id, reason in self._reasons.items() if job_id in snapshot.jobs}

    def dump_state(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "round": self._round,
            "restarts": dict(sorted(self._restarts.items())),
            "populations": {kind: each.dump() for kind, each in sorted(self._populations.items())},
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._seed, self._round = state["seed"], state["round"]
        self._restarts = dict(state["restarts"])
        self._populations = {kind: MatrixPopulation.load(each) for kind, each in state["populations"].items()}
        self._goodputs = None

    def _up_to_date(self, snapshot: Snapshot) -> Goodputs:
        if self._goodputs is None or self._goodputs.speeds is not snapshot.speeds:
            self._goodputs = Goodputs(
                snapshot.speeds, self.knowledge, lone_accumulates=self.lone_accumulation
            )
        for change in snapshot.changes:
            if change.ended_job is not None:
                self._goodputs.forget(change.ended_job.id)
                self._restarts.pop(change.ended_job.id, None)
        return self._goodputs

    def _share(
        self, members: SearchedNodes, goodputs: Goodputs, snapshot: Snapshot, rng: np.random.Generator
    ) -> dict[str, Target]:
        problem = self._problem(members, snapshot)
        each = max(1, problem.jobs * problem.nodes)
        population = min(self.population, max(_LEAST_POPULATION, _MOST_KEPT // each))
        cells = population * problem.jobs * problem.nodes
        generations = min(self.generations, max(_LEAST_GENERATIONS, _CELLS // max(1, cells)))
        kind = members.pool.gpu_type
        last = self._populations.get(kind)
        earlier = problem.held[:0] if last is None else last.of(members)
        matrices = search(problem, earlier, rng, population, generations)
        self._populations[kind] = MatrixPopulation(
            [job.id for job in members.jobs], [node.name for node in members.nodes], matrices
        )
        return self._targets(members, problem, matrices[:1], goodputs)

    def _problem(self, members: SearchedNodes, snapshot: Snapshot) -> PlacementProblem:
        jobs = members.jobs
        most = np.array([table.rates.shape[1] - 1 for table in members.goodputs])
        speedups = np.zeros((len(jobs), 2, int(most.max()) + 1))
        for row, table in enumerate(members.goodputs):
            fair = members.fair_gpus(row)
            speedups[row, :, : most[row] + 1] = table.speedups(fair, members.pool.node_gpus)
        return PlacementProblem(
            capacity=np.array([node.gpus for node in members.nodes]),
            speedups=speedups,
            least=np.array([job.min_gpus for job in jobs]),
            most=most,
            held=members.held(),
            restart_factor=np.array([self._restart_factor(job, snapshot.time_s) for job in jobs]),
            together=np.array(
                [snapshot.free.on_one_node(job.per_replica, members.pool.gpu_type) for job in jobs]
            ),
            fitted=_fitted(jobs, int(most.max())),
        )

    def _restart_factor(self, job: JobState, time_s: float) -> float:
        """(T - R · δ) / (T + δ): T the job's age, R its restarts so far, δ what one costs.

        Rounded, for the last digit of an age would choose between equally good allocations.
        """
        age_s = max(0.0, time_s - job.spec.submit_time)
        lost_s = self._restarts.get(job.id, 0) * self.restart_s
        total_s = age_s + self.restart_s
        return max(_LEAST_FACTOR, round((age_s - lost_s) / total_s, _FACTOR_DIGITS)) if total_s else 1.0

    def _targets(
        self, members: SearchedNodes, problem: PlacementProblem, best: Matrices, goodputs: Goodputs
    ) -> dict[str, Target]:
        """What differs from what the jobs hold; an allocation on which a job would not advance is none."""
        speedups = problem.job_speedups(best)[0]
        targets: dict[str, Target] = {}
        for row, job in enumerate(members.jobs):
            place = members.place(best[0, row]) if speedups[row] > 0 else ()
            gpus, several = sum(count for _, count in place), int(len(place) > 1)
            speedup = float(problem.speedups[row, several, gpus])
            self._reasons[job.id] = _explanation(job, gpus, speedup, members.fair_gpus(row))
            table = members.goodputs[row]
            if place == job.placement:
                batch = self._retuned(job, table, several, float(problem.restart_factor[row]), goodputs)
                if batch not in (None, job.global_batch):
                    targets[job.id] = Target(gpus, job.gpu_type, batch, place)
            elif place:
                batch = int(table.batches[several, gpus])
                targets[job.id] = Target(gpus, members.pool.gpu_type, batch, place)
                if job.first_start_s is not None:
                    self._restarts[job.id] = self._restarts.get(job.id, 0) + 1
            else:
                targets[job.id] = Target(0)
        return targets

    def _retuned(
        self, job: JobState, table: GoodputTable, several: int, factor: float, goodputs: Goodputs
    ) -> int | None:
        """Another batch for a job that keeps its GPUs, if it is worth it."""
        if not job.gpus:
            return None
        batch, rate = int(table.batches[several, job.gpus]), float(table.rates[several, job.gpus])
        if self.retune == "free":
            return batch
        return batch if rate * factor > goodputs.present(job, several) else None


def _fitted(jobs: Sequence[JobState], most: int) -> npt.NDArray[np.int64] | None:
    """[job, GPUs]: the largest size up to that many GPUs. None if every number is one, but for replicas."""
    if all(job.spec.gpus.sizes is None for job in jobs):
        return None
    return np.array([[job.spec.gpus.whole(gpus) for gpus in range(most + 1)] for job in jobs])


def _explanation(job: JobState, gpus: int, speedup: float, fair_gpus: int) -> Explanation:
    share = in_gpus(fair_gpus)
    if gpus:
        return Explanation(f"{speedup:.2f} times the goodput of its fair share of {share}")
    return Explanation(
        f"the mean slowdown of all jobs is less without it this round; its fair share is {share}",
        needs_gpus=job.min_gpus,
    )


def _positions(old: Sequence[str], new: Sequence[str]) -> list[int]:
    """Where each of the new ones was among the old ones; -1 if it was not there."""
    where = {name: position for position, name in enumerate(old)}
    return [where.get(name, -1) for name in new]


class Goodputs:
    """Goodput tables of jobs, made again only when what they are made of has changed."""

    def __init__(self, speeds: Speeds, knowledge: Knowledge, *, lone_accumulates: bool) -> None:
        self.speeds = speeds
        self._measured = knowledge == "measured"
        self._lone_accumulates = lone_accumulates
        self._profile = ProfileCandidates(speeds)
        self._known: dict[str, _Known] = {}

    def forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)

    def limits(self, job: JobState, pool: Pool) -> JobLimits:
        """What the job may be given out of the pool: its own limits, and at most twice what it has tried.

        The batch may move where its elasticity and knowledge of its noise allow; a job that only measures
        begins with the smallest it allows.
        """
        spec = job.spec
        least, most = spec.min_gpus, job.max_gpus(pool.gpus)
        if spec.elastic == "none":
            least = most = spec.gpus.requested
        limits = job_limits(job, pool.gpu_type, (least, most), self.speeds, begins_small=self._measured)
        moves = spec.elastic == "size+batch"
        batch = (spec.batch.max if moves else None) or job.reference_batch
        tried = self._tried(job, pool, least, limits.most_gpus, batch)
        return limits._replace(most_gpus=tried, sizes=job.sizes(pool.gpus))

    def goodput(self, job: JobState, pool: Pool) -> GoodputTable:
        limits, measured = self.limits(job, pool), len(job.observations)
        known = self._known.get(job.id)
        if known is None or (known.kind, known.pool, known.limits, known.observations) != (
            JobKind.of(job),
            pool,
            limits,
            measured,
        ):
            candidates, new_fit = self._candidates(job, pool, limits, known)
            best = candidates.best(job.noise_scale, job.reference_batch)
            known = _Known(
                JobKind.of(job), pool, limits, measured, candidates, job.noise_scale, best, new_fit
            )
            self._known[job.id] = known
        elif known.noise_scale != job.noise_scale:
            known.noise_scale = job.noise_scale
            known.goodput = known.candidates.best(job.noise_scale, job.reference_batch)
        return known.goodput

    def present(self, job: JobState, several: int) -> float:
        """Goodput on as many GPUs as the job holds, at the candidate nearest to its present batch."""
        candidates = self._known[job.id].candidates
        if job.gpus >= candidates.batches.shape[1]:
            return 0.0
        return candidates.present(job, several, job.gpus)

    def _candidates(
        self, job: JobState, pool: Pool, limits: JobLimits, known: _Known | None
    ) -> tuple[BatchCandidates, Fit | None]:
        if not self._measured:
            return self._profile.of(job, pool.gpu_type, pool.node_gpus, limits), None
        new_fit, fitted = None, -1
        if known is not None and known.pool.gpu_type == pool.gpu_type:
            new_fit, fitted = known.fit, known.observations
        seen = job.observations_on(pool.gpu_type)
        if seen and fitted != len(job.observations):
            new_fit = fit(seen, job.per_replica)
        return from_fit(new_fit, limits, lone_accumulates=self._lone_accumulates), new_fit

    def _tried(self, job: JobState, pool: Pool, least: int, most: int, batch: int) -> int:
        """At most twice what the job has tried, and nothing without a known speed: fits stand still there."""
        if not self._measured:
            return most
        largest = max((sum(each.placement) for each in job.observations), default=0)
        most = min(most, max(1, least, 2 * largest))
        rate = self.speeds.rate
        sizes = reversed(job.spec.gpus.between(least + 1, most))
        return next(
            (k for k in sizes if rate(job, k, pool.gpu_type, global_batch=batch) > 0), min(most, least)
        )


@dataclass(slots=True)
class _Known:
    kind: JobKind
    pool: Pool
    limits: JobLimits
    observations: int
    candidates: BatchCandidates
    noise_scale: float | None
    goodput: GoodputTable
    fit: Fit | None


@dataclass(frozen=True)
class SearchedNodes:
    """The jobs and nodes of one search, in the order of its matrices."""

    pool: Pool
    jobs: Sequence[JobState]
    nodes: Sequence[NodeState]
    goodputs: Sequence[GoodputTable]

    def fair_gpus(self, row: int) -> int:
        """An equal share of the GPUs, whole and within the job's limits."""
        job = self.jobs[row]
        share = job.spec.gpus.whole(-(-self.pool.gpus // len(self.jobs)))
        return max(job.min_gpus, min(share, job.max_gpus(self.pool.gpus)))

    def held(self) -> Matrices:
        columns = {node.name: column for column, node in enumerate(self.nodes)}
        matrices = np.zeros((1, len(self.jobs), len(self.nodes)), dtype=np.int16)
        for row, job in enumerate(self.jobs):
            for name, count in job.placement:
                matrices[0, row, columns[name]] = count
        return matrices

    def place(self, row: npt.NDArray[np.int16]) -> NodeGpus:
        counts = zip(self.nodes, row.tolist(), strict=True)
        return tuple((node.name, count) for node, count in counts if count)


@dataclass(frozen=True)
class MatrixPopulation:
    """What the last search of a pool found, and whom it was about."""

    jobs: Sequence[str]
    nodes: Sequence[str]
    found: Matrices

    def of(self, members: SearchedNodes) -> Matrices:
        """The same matrices for the jobs and nodes of now; a new job has nothing."""
        # The last job and the last node have nothing.
        with_nothing = np.zeros((len(self.found), len(self.jobs) + 1, len(self.nodes) + 1), dtype=np.int16)
        with_nothing[:, :-1, :-1] = self.found
        jobs = _positions(self.jobs, [job.id for job in members.jobs])
        nodes = _positions(self.nodes, [node.name for node in members.nodes])
        return with_nothing.take(jobs, axis=1).take(nodes, axis=2)

    def dump(self) -> dict[str, Any]:
        """As JSON values; of each matrix the elements with GPUs: job, node, GPUs in turn."""
        cells = [np.nonzero(each) for each in self.found]
        return {
            "jobs": list(self.jobs),
            "nodes": list(self.nodes),
            "found": [
                np.stack([*where, each[where]], axis=1).ravel().tolist()
                for each, where in zip(self.found, cells, strict=True)
            ],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> MatrixPopulation:
        jobs, nodes, cells = state["jobs"], state["nodes"], state["found"]
        matrices = np.zeros((len(cells), len(jobs), len(nodes)), dtype=np.int16)
        for matrix, each in zip(matrices, cells, strict=True):
            rows = np.array(each, dtype=np.int64).reshape(-1, 3)
            matrix[rows[:, 0], rows[:, 1]] = rows[:, 2]
        return cls(jobs, nodes, matrices)
