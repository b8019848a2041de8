"""The populations of a policy, one a pool, and how long they evolve for a decision.

The evolutionary search of ONES (SC '21), section 3.2.2: all genomes of a population at once.

Operators change how many GPUs each job has in each genome; ``reorder`` then packs the workers of each job
together. The best of old and new genomes, scored with one draw of every job's remaining work, are the next
population.

Departures from the paper: of two genomes that leave different numbers of GPUs idle, the score does not count
(the paper allows none that leaves any); equal sizes of all jobs are kept once; half of the mutated and the
crossed genomes fill idle GPUs in random order and in random amounts, so that every allocation can be reached.

A population that is carried from search to search, while jobs and GPUs come and go.

The jobs of one search: those of one GPU type that run, and those that wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.ones.genome import (
    IDLE,
    Bools,
    Floats,
    Genomes,
    Ints,
    Sizes,
    counts_of,
    crossover,
    first_genes,
    from_runs,
    random_genomes,
    reorder,
    runs_of,
)
from pliant.tools.schedule.policies.ones.limits import BatchLimits, SizeRow, SizeTables, sizes_of
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.work_ahead import WorkAhead

if TYPE_CHECKING:
    from pliant.tools.schedule.forecast import WorkForecast


_LEAST_POPULATION: Final = 16
_BEGINNING: Final = 32
"""Generations of a population that begins at random."""
_STILL: Final = 12
"""A search without a time budget ends after that number of generations in a row with the same best genome."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a search goes: parameters of the policy."""

    population: int
    generations: int
    time_budget_s: float | None
    theta: float


class Searches:
    """Populations that go on from decision to decision."""

    def __init__(self, effort: Effort) -> None:
        self.generations = 0
        """Made for the last decision."""
        self.ahead = False
        """One generation a decision is enough."""
        self._effort = effort
        self._populations: dict[str, Population] = {}

    def best(self, members: SearchedJobs, rng: np.random.Generator, searches: int) -> Ints:
        """Go on with the population of a pool; returns the GPUs of each job in its best genome.

        :param searches: how many share the time of this decision.
        """
        jobs, kind = [job.id for job in members.jobs], members.pool.gpu_type
        last = self._populations.get(kind)
        if last is None:
            genomes = beginning(members.problem, rng, self._count(members))
        else:
            genomes = last.of(jobs, members.problem.gpus)
        genomes = np.concatenate([members.held(), genomes])
        least = self._effort.generations if last else max(self._effort.generations, _BEGINNING)
        genomes = self._searched(members, genomes, rng, least, self._seconds / searches)
        self._populations[kind] = Population(jobs, genomes)
        return _first(genomes, len(jobs))

    def alone(self, members: SearchedJobs, rng: np.random.Generator) -> Ints:
        """The GPUs of each job in the best genome of a search that nothing is kept of."""
        genomes = beginning(members.problem, rng, self._count(members))
        least = max(self._effort.generations, _BEGINNING)
        return _first(self._searched(members, genomes, rng, least), len(members.jobs))

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {kind: each.dump() for kind, each in sorted(self._populations.items())}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`dump`."""
        self._populations = {kind: Population.load(each) for kind, each in state.items()}

    def _searched(
        self,
        members: SearchedJobs,
        genomes: Genomes,
        rng: np.random.Generator,
        least: int,
        seconds: float = 0.0,
    ) -> Genomes:
        """Generations up to their number; where there is time to spend, until that is spent."""
        until_s = time.monotonic() + seconds
        least = 1 if self.ahead or seconds else least
        made, still, count, theta = 0, 0, self._count(members), self._effort.theta
        while (made < least and still < _STILL) or (seconds and time.monotonic() < until_s):
            best = genomes[0]
            genomes = evolve(members.problem, genomes, rng, count, theta)
            made += 1
            still = still + 1 if np.array_equal(genomes[0], best) else 0
        self.generations += made
        return genomes

    @property
    def _seconds(self) -> float:
        return 0.0 if self.ahead else self._effort.time_budget_s or 0.0

    def _count(self, members: SearchedJobs) -> int:
        return min(self._effort.population, max(_LEAST_POPULATION, members.problem.gpus))


def _first(genomes: Genomes, jobs: int) -> Ints:
    return np.asarray(counts_of(genomes[:1], jobs)[0])


_PASSES: Final = 4
"""Rounds in which idle GPUs are filled: one nearly always suffices, more serve jobs with least sizes."""


@dataclass(frozen=True)
class SharingProblem:
    """What is to be shared out, and among whom."""

    gpus: int
    sizes: Sizes
    work: WorkAhead
    newcomers: Ints
    """Rows of the jobs that never ran, the first to be served first."""
    longest_first: Ints
    """Rows of all jobs, those that have run longest first."""

    @property
    def jobs(self) -> int:
        """How many jobs."""
        return len(self.sizes.most)

    def idle(self, counts: Ints) -> Ints:
        """GPUs that no job has, by genome."""
        return np.asarray(self.gpus - counts.sum(axis=1))

    def scores(self, counts: Ints, remaining: Floats) -> Floats:
        """SRUF: the sum of remaining time times GPUs over the jobs that run, by genome (equation 8)."""
        return np.asarray((self.sizes.of(counts) * remaining).sum(axis=1))


class Offspring(NamedTuple):
    """Genomes whose idle GPUs are yet to be filled, and whose workers to be packed."""

    counts: Ints
    """GPUs by [genome, job]."""
    first: Ints
    """The first gene of each job by [genome, job]."""
    last_in_turn: Bools
    """Jobs that get idle GPUs only after all others had their turn, by [genome, job]."""
    at_random: Bools
    """Genomes that are filled in random order and amounts."""


def evolve(
    problem: SharingProblem, genomes: Genomes, rng: np.random.Generator, count: int, theta: float
) -> Genomes:
    """One generation: the ``count`` best genomes of old and new ones, the best first."""
    operators = (
        refreshed(problem, genomes),
        crossed(problem, genomes, rng, count),
        mutated(problem, genomes, rng, count, theta),
    )
    found = Offspring(*(np.concatenate(parts) for parts in zip(*operators, strict=True)))
    counts = filled(problem, found, rng)
    best = fittest(problem, counts, rng, count)
    return reorder(counts[best], found.first[best], problem.gpus)


def beginning(problem: SharingProblem, rng: np.random.Generator, count: int) -> Genomes:
    """The initial population: a random job on each GPU, as far as jobs may have as many."""
    found = _mended(problem, random_genomes(problem.jobs, problem.gpus, rng, count))
    return reorder(filled(problem, found, rng), found.first, problem.gpus)


def refreshed(problem: SharingProblem, genomes: Genomes) -> Offspring:
    """Jobs kept within their limits, newcomers served, and idle GPUs to be filled."""
    found = _mended(problem, genomes)
    return found._replace(counts=with_newcomers(problem, found.counts))


def crossed(problem: SharingProblem, genomes: Genomes, rng: np.random.Generator, pairs: int) -> Offspring:
    """Uniform crossover of random pairs; children with a job too small or too large are mended."""
    found = _mended(problem, crossover(genomes, rng, pairs))
    return found._replace(at_random=np.arange(2 * pairs) >= pairs)


def mutated(
    problem: SharingProblem, genomes: Genomes, rng: np.random.Generator, count: int, theta: float
) -> Offspring:
    """Uniform mutation: jobs of random genomes lose their GPUs with rate ``theta``, to other jobs first."""
    found = _mended(problem, genomes[rng.integers(len(genomes), size=count)])
    preempted = (rng.random(found.counts.shape) < theta) & (found.counts > 0)
    return Offspring(
        np.where(preempted, 0, found.counts),
        np.where(preempted, problem.gpus, found.first),
        preempted,
        np.arange(count) >= count // 2,
    )


def _mended(problem: SharingProblem, genomes: Genomes) -> Offspring:
    """Each job at the largest size that it may have of its genes."""
    counts = problem.sizes.fitted(counts_of(genomes, problem.jobs))
    first = first_genes(genomes, problem.jobs)
    return Offspring(counts, first, np.zeros(counts.shape, np.bool_), np.zeros(len(counts), np.bool_))


def with_newcomers(problem: SharingProblem, counts: Ints) -> Ints:
    """Every newcomer at its least size in turn while GPUs last: idle ones, then those of the longest jobs."""
    if not len(problem.newcomers):
        return counts
    counts = counts.copy()
    rows, least = problem.newcomers, problem.sizes.least[problem.newcomers]
    served = np.cumsum(least) <= problem.gpus
    rows, least = rows[served], least[served]
    lacking = np.where(counts[:, rows] > 0, 0, least)
    short = lacking.sum(axis=1) - problem.idle(counts)
    others = problem.longest_first[~np.isin(problem.longest_first, rows)]
    held = counts[:, others]
    before = held.cumsum(axis=1) - held
    taken = np.clip(short[:, None] - before, 0, held)
    counts[:, others] = held - taken
    counts[:, rows] = np.maximum(counts[:, rows], least)
    return problem.sizes.fitted(counts)


def filled(problem: SharingProblem, found: Offspring, rng: np.random.Generator) -> Ints:
    """GPUs by [genome, job] once idle ones are given to jobs that wait or may grow.

    Jobs are served in order of sampled gain Δφ · Y, the least first.
    """
    sizes, counts = problem.sizes, found.counts
    for number in range(_PASSES):
        idle, step = problem.idle(counts)[:, None], sizes.step_up(counts)
        able = step <= idle
        if number == 0:
            able &= ~found.last_in_turn
        elif not able.any():
            break
        wanted = np.where(able, sizes.most - counts, 0)
        gains = (sizes.largest - sizes.of(counts)) * problem.work.draws(rng, len(counts))
        some = found.at_random
        if some.any():
            gains[some] = rng.random((int(some.sum()), problem.jobs))
            amounts = np.ceil(rng.random(gains[some].shape) * wanted[some]).astype(np.int64)
            wanted[some] = np.where(able[some], np.maximum(amounts, step[some]), 0)
        counts = sizes.fitted(counts + _dealt(idle, wanted, gains))
    return counts


def _dealt(idle: Ints, wanted: Ints, gains: Floats) -> Ints:
    """What each job gets: of each genome, what they want in order of ``gains`` while GPUs last."""
    order = np.argsort(np.where(wanted > 0, gains, np.inf), axis=1, kind="stable")
    asked = np.take_along_axis(wanted, order, 1)
    given: Ints = np.clip(idle - (asked.cumsum(axis=1) - asked), 0, asked)
    found = np.empty_like(given)
    np.put_along_axis(found, order, given, 1)
    return found


def fittest(problem: SharingProblem, counts: Ints, rng: np.random.Generator, count: int) -> Ints:
    """The ``count`` best genomes, the best first: fewest idle GPUs, then least score under one draw.

    That is algorithm 1. Of genomes in which all jobs have the same sizes the first counts.
    """
    marks = rng.integers(1, 2**40, size=problem.jobs)
    _, different = np.unique(counts @ marks, return_index=True)
    different.sort()
    rivals = counts[different]
    scores = problem.scores(rivals, problem.work.draws(rng, 1))
    order: Ints = np.lexsort((scores, problem.idle(rivals)))
    return np.asarray(different[order[:count]])


@dataclass(frozen=True)
class Population:
    """What the last search of a pool left, and whom it was about."""

    jobs: Sequence[str]
    genomes: Genomes

    def of(self, jobs: Sequence[str], gpus: int) -> Genomes:
        """The same genomes for the jobs and GPUs of now: jobs that take no part leave theirs to be filled.

        Where there are fewer GPUs than before, the last ones are cut off.
        """
        rows = {job_id: row for row, job_id in enumerate(jobs)}
        now = np.array([*(rows.get(job_id, IDLE) for job_id in self.jobs), IDLE], dtype=np.int16)
        found = now[self.genomes]  # the last element stands for IDLE
        order = np.argsort(found == IDLE, axis=1, kind="stable")[:, :gpus]
        more = max(0, gpus - found.shape[1])
        return np.pad(np.take_along_axis(found, order, 1), ((0, 0), (0, more)), constant_values=IDLE)

    def dump(self) -> dict[str, Any]:
        """As JSON values: of each genome the runs of equal genes."""
        return {"jobs": list(self.jobs), "genomes": runs_of(self.genomes)}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Population:
        """The inverse of :meth:`dump`."""
        return cls(state["jobs"], from_runs(state["genomes"]))


_DIGITS: Final = 6
"""After the point, of seconds that are compared: differences of times are rounded by the hour."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a policy knows of all jobs."""

    tables: SizeTables
    limits: BatchLimits
    forecast: WorkForecast


@dataclass(frozen=True)
class SearchedJobs:
    """Jobs in the order of the rows of a search."""

    pool: Pool
    jobs: Sequence[JobState]
    rows: Sequence[SizeRow]
    problem: SharingProblem

    @classmethod
    def of(cls, pool: Pool, jobs: Sequence[JobState], snapshot: Snapshot, known: JobFacts) -> SearchedJobs:
        """The search that is to be made now."""
        limits = known.limits
        now_s = snapshot.time_s
        rows = [known.tables.row(job, pool.gpu_type, pool.gpus, limits[job.id]) for job in jobs]
        epochs = [
            job.epoch_samples or limits.epochs.unknown_s * _slowest(row) or 1.0
            for job, row in zip(jobs, rows, strict=True)
        ]
        new = [row for row, job in enumerate(jobs) if job.first_start_s is None]
        new.sort(key=lambda row: jobs[row].turn)
        executed = sorted(
            range(len(jobs)), key=lambda row: (-round(limits[jobs[row].id].executed_s, _DIGITS), row)
        )
        problem = SharingProblem(
            pool.gpus,
            sizes_of(rows),
            known.forecast.ahead(jobs, now_s, epochs),
            np.array(new, dtype=np.int64),
            np.array(executed, dtype=np.int64),
        )
        return cls(pool, jobs, rows, problem)

    def without(self, keep: Container[str]) -> SearchedJobs | None:
        """The search of all other jobs, on the GPUs that these leave; None: it would find nothing."""
        kept = [job for job in self.jobs if job.id in keep]
        return self if not kept else self._part(keep, self.problem.gpus - sum(job.gpus for job in kept))

    def _part(self, keep: Container[str], gpus: int) -> SearchedJobs | None:
        whole = self.problem
        which = [row for row, job in enumerate(self.jobs) if job.id not in keep]
        which = [row for row in which if whole.sizes.least[row] <= gpus]
        if not which:
            return None
        place = {row: number for number, row in enumerate(which)}
        rows = [self.rows[row] for row in which]
        problem = SharingProblem(
            gpus,
            sizes_of(rows),
            whole.work.only(which),
            np.array([place[row] for row in whole.newcomers.tolist() if row in place], dtype=np.int64),
            np.array([place[row] for row in whole.longest_first.tolist() if row in place], dtype=np.int64),
        )
        return SearchedJobs(self.pool, [self.jobs[row] for row in which], rows, problem)

    def held(self) -> Genomes:
        """What the jobs hold now, as a genome."""
        counts = np.array([[job.gpus for job in self.jobs]], dtype=np.int64)
        return reorder(counts, np.arange(len(self.jobs))[None], self.problem.gpus)

    @property
    def settled(self) -> bool:
        """Whether each job has the most that it may have: there is nothing to search for."""
        return not self.targets(self.problem.sizes.most)

    def targets(self, counts: Ints) -> dict[str, Target]:
        """What differs from what the jobs hold if each gets that many GPUs."""
        found: dict[str, Target] = {}
        for row, (job, gpus) in enumerate(zip(self.jobs, counts.tolist(), strict=True)):
            batch = self.rows[row].batches[gpus] if gpus else job.global_batch
            if (gpus, batch) != (job.gpus, job.global_batch):
                moves = job.spec.elastic == "size+batch"
                found[job.id] = (
                    Target(gpus, self.pool.gpu_type, batch if moves else None) if gpus else Target(0)
                )
        return found

    def rate(self, row: int, gpus: int) -> float:
        """Samples per second of a job on that many GPUs of the pool; 0 for none."""
        return gpus / self.rows[row].utilization[gpus] if gpus else 0.0


def _slowest(row: SizeRow) -> float:
    """Samples per second at the smallest size."""
    sizes = (gpus / each for gpus, each in enumerate(row.utilization) if 0 < each < math.inf)
    return next(sizes, 0.0)
