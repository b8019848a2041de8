"""The populations that ONES carries from decision to decision, one a pool, and the jobs of each search.

:class:`Searches` says for how many generations a population evolves (:mod:`search`). :class:`SearchedJobs`
puts together what a search is about: the jobs of one GPU type that run and those that wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.ones.limits import BatchLimits, Ints, SizeRow, SizeTables, sizes_of
from pliant.tools.schedule.policies.ones.search import (
    IDLE,
    Genomes,
    SharingProblem,
    beginning,
    counts_of,
    evolve,
    from_runs,
    reorder,
    runs_of,
)
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from pliant.tools.schedule.forecast import WorkForecast

_LEAST_POPULATION: Final = 16
_BEGINNING: Final = 32
"""Generations of a population that begins at random."""
_STILL: Final = 12
"""A search without a time budget ends after that number of generations in a row with the same best genome."""
_DIGITS: Final = 6
"""Digits after the point of seconds that are compared: differences of times are rounded by the hour."""


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
        # Made for the last decision.
        self.generations = 0
        # One generation a decision is enough.
        self.ahead = False
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
        return {kind: each.dump() for kind, each in sorted(self._populations.items())}

    def load(self, state: Mapping[str, Any]) -> None:
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


@dataclass(frozen=True)
class Population:
    """What the last search of a pool left, and whom it was about."""

    jobs: Sequence[str]
    genomes: Genomes

    def of(self, jobs: Sequence[str], gpus: int) -> Genomes:
        """The same genomes for the jobs and GPUs of now: jobs that are gone leave theirs to be filled."""
        rows = {job_id: row for row, job_id in enumerate(jobs)}
        now = np.array([*(rows.get(job_id, IDLE) for job_id in self.jobs), IDLE], dtype=np.int16)
        genes = now[self.genomes]  # the last element stands for IDLE
        order = np.argsort(genes == IDLE, axis=1, kind="stable")[:, :gpus]
        more = max(0, gpus - genes.shape[1])
        return np.pad(np.take_along_axis(genes, order, 1), ((0, 0), (0, more)), constant_values=IDLE)

    def dump(self) -> dict[str, Any]:
        return {"jobs": list(self.jobs), "genomes": runs_of(self.genomes)}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Population:
        return cls(state["jobs"], from_runs(state["genomes"]))


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
        """The search of all other jobs, on the GPUs that these leave; None if it would find nothing."""
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
        targets: dict[str, Target] = {}
        for row, (job, gpus) in enumerate(zip(self.jobs, counts.tolist(), strict=True)):
            batch = self.rows[row].batches[gpus] if gpus else job.global_batch
            if (gpus, batch) != (job.gpus, job.global_batch):
                moves = job.spec.elastic == "size+batch"
                targets[job.id] = (
                    Target(gpus, self.pool.gpu_type, batch if moves else None) if gpus else Target(0)
                )
        return targets

    def rate(self, row: int, gpus: int) -> float:
        """Samples per second of a job on that many GPUs of the pool; 0 for none."""
        return gpus / self.rows[row].utilization[gpus] if gpus else 0.0


def _slowest(row: SizeRow) -> float:
    """Samples per second at the smallest size."""
    sizes = (gpus / each for gpus, each in enumerate(row.utilization) if 0 < each < math.inf)
    return next(sizes, 0.0)
