"""The evolutionary search of ONES (SC '21), section 3.2: which job each GPU of a pool works for.

A genome has a gene a GPU. :func:`evolve` makes one generation: refresh, crossover and mutation change how
many GPUs each job has, idle GPUs are filled, the workers of each job packed together (reorder), and selection
keeps the best of old and new genomes, scored with one draw of every job's remaining work. Every step works on
the whole population, one array. The batch of a job is not a gene: the fastest that its limit R allows has the
least score.

Departures from the paper: of two genomes that leave different numbers of GPUs idle, the score does not count
(the paper allows none that leaves any); equal sizes of all jobs are kept once; half of the mutated and the
crossed genomes fill idle GPUs in random order and amounts, so that every allocation can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.policies.ones.limits import Bools, Floats, Ints, Sizes
from pliant.tools.schedule.remaining_work import RemainingWork

Genomes = npt.NDArray[np.int16]
"""[genome, GPU]: the row of the job that works there; :data:`IDLE` for none."""
IDLE: Final = -1
_PASSES: Final = 4
"""Rounds in which idle GPUs are filled: one nearly always suffices, more serve jobs with least sizes."""


@dataclass(frozen=True)
class SharingProblem:
    """What is to be shared out, and among whom."""

    gpus: int
    sizes: Sizes
    work: RemainingWork
    newcomers: Ints
    """Rows of the jobs that never ran, the first to be served first."""
    longest_first: Ints
    """Rows of all jobs, those that have run longest first."""

    @property
    def jobs(self) -> int:
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
        refresh(problem, genomes),
        crossover(problem, genomes, rng, count),
        mutate(problem, genomes, rng, count, theta),
    )
    offspring = Offspring(*(np.concatenate(parts) for parts in zip(*operators, strict=True)))
    counts = fill_idle(problem, offspring, rng)
    best = select(problem, counts, rng, count)
    return reorder(counts[best], offspring.first[best], problem.gpus)


def beginning(problem: SharingProblem, rng: np.random.Generator, count: int) -> Genomes:
    """The initial population: a random job on each GPU, as far as jobs may have as many."""
    repaired = _repaired(problem, random_genomes(problem.jobs, problem.gpus, rng, count))
    return reorder(fill_idle(problem, repaired, rng), repaired.first, problem.gpus)


# Refresh.


def refresh(problem: SharingProblem, genomes: Genomes) -> Offspring:
    """Jobs kept within their limits, newcomers served, and idle GPUs to be filled."""
    repaired = _repaired(problem, genomes)
    return repaired._replace(counts=newcomers_served(problem, repaired.counts))


def newcomers_served(problem: SharingProblem, counts: Ints) -> Ints:
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


# Crossover.


def crossover(problem: SharingProblem, genomes: Genomes, rng: np.random.Generator, pairs: int) -> Offspring:
    """Two children of each of ``pairs`` random pairs: for each GPU a coin says which child inherits whose."""
    one, other = (genomes[rng.integers(len(genomes), size=pairs)] for _ in range(2))
    heads = rng.integers(0, 2, size=one.shape, dtype=np.int8).view(np.bool_)
    children = np.concatenate([np.where(heads, one, other), np.where(heads, other, one)])
    return _repaired(problem, children)._replace(at_random=np.arange(2 * pairs) >= pairs)


# Mutation.


def mutate(
    problem: SharingProblem, genomes: Genomes, rng: np.random.Generator, count: int, theta: float
) -> Offspring:
    """Uniform mutation: jobs of random genomes lose their GPUs with rate ``theta``, to other jobs first."""
    repaired = _repaired(problem, genomes[rng.integers(len(genomes), size=count)])
    preempted = (rng.random(repaired.counts.shape) < theta) & (repaired.counts > 0)
    return Offspring(
        np.where(preempted, 0, repaired.counts),
        np.where(preempted, problem.gpus, repaired.first),
        preempted,
        np.arange(count) >= count // 2,
    )


# Filling: idle GPUs go to jobs that wait or may grow.


def fill_idle(problem: SharingProblem, offspring: Offspring, rng: np.random.Generator) -> Ints:
    """GPUs by [genome, job] once idle ones went to jobs that wait or may grow, least gain Δφ · Y first."""
    sizes, counts = problem.sizes, offspring.counts
    for number in range(_PASSES):
        idle, step = problem.idle(counts)[:, None], sizes.step_up(counts)
        able = step <= idle
        if number == 0:
            able &= ~offspring.last_in_turn
        elif not able.any():
            break
        wanted = np.where(able, sizes.most - counts, 0)
        gains = (sizes.largest - sizes.of(counts)) * problem.work.draws(rng, len(counts))
        some = offspring.at_random
        if some.any():
            gains[some] = rng.random((int(some.sum()), problem.jobs))
            amounts = np.ceil(rng.random(gains[some].shape) * wanted[some]).astype(np.int64)
            wanted[some] = np.where(able[some], np.maximum(amounts, step[some]), 0)
        counts = sizes.fitted(counts + _dealt(idle, wanted, gains))
    return counts


def _dealt(idle: Ints, wanted: Ints, gains: Floats) -> Ints:
    order = np.argsort(np.where(wanted > 0, gains, np.inf), axis=1, kind="stable")
    asked = np.take_along_axis(wanted, order, 1)
    given: Ints = np.clip(idle - (asked.cumsum(axis=1) - asked), 0, asked)
    dealt = np.empty_like(given)
    np.put_along_axis(dealt, order, given, 1)
    return dealt


# Selection.


def select(problem: SharingProblem, counts: Ints, rng: np.random.Generator, count: int) -> Ints:
    """The ``count`` best genomes: fewest idle GPUs, then least score under one draw (algorithm 1).

    Of genomes in which all jobs have the same sizes the first counts.
    """
    marks = rng.integers(1, 2**40, size=problem.jobs)
    _, different = np.unique(counts @ marks, return_index=True)
    different.sort()
    rivals = counts[different]
    scores = problem.scores(rivals, problem.work.draws(rng, 1))
    order: Ints = np.lexsort((scores, problem.idle(rivals)))
    return np.asarray(different[order[:count]])


# Genomes as arrays: repair, reorder, counts, JSON.


def _repaired(problem: SharingProblem, genomes: Genomes) -> Offspring:
    """Each job at the largest size that it may have of its genes."""
    counts = problem.sizes.fitted(counts_of(genomes, problem.jobs))
    first = first_genes(genomes, problem.jobs)
    return Offspring(counts, first, np.zeros(counts.shape, np.bool_), np.zeros(len(counts), np.bool_))


def reorder(counts: Ints, first: Ints, genes: int) -> Genomes:
    """Genomes with the workers of each job together, jobs in order of their first gene; idle GPUs last."""
    order = np.argsort(first, axis=1, kind="stable")
    sizes = np.take_along_axis(counts, order, 1)
    idle = genes - counts.sum(axis=1)
    sizes = np.concatenate([sizes, idle[:, None]], axis=1)
    rows = np.concatenate([order, np.full((len(order), 1), IDLE)], axis=1).astype(np.int16)
    return np.repeat(rows.ravel(), sizes.ravel()).reshape(len(counts), genes)


def counts_of(genomes: Genomes, jobs: int) -> Ints:
    counted = np.bincount(_cells(genomes, jobs), minlength=len(genomes) * (jobs + 1))
    return counted.reshape(len(genomes), jobs + 1)[:, 1:]


def first_genes(genomes: Genomes, jobs: int) -> Ints:
    """The first gene of each job by [genome, job]; the number of genes for a job that has none."""
    count, genes = genomes.shape
    first = np.full(count * (jobs + 1), genes)
    np.minimum.at(first, _cells(genomes, jobs), np.tile(np.arange(genes), count))
    return first.reshape(count, jobs + 1)[:, 1:]


def _cells(genomes: Genomes, jobs: int) -> Ints:
    """For each gene the place of its job in a flat table by genome and job, in which idle comes first."""
    cells = genomes.astype(np.int64) + 1
    cells += np.arange(len(genomes))[:, None] * (jobs + 1)
    return cells.ravel()


def random_genomes(jobs: int, genes: int, rng: np.random.Generator, count: int) -> Genomes:
    return rng.integers(jobs, size=(count, genes), dtype=np.int16)


def runs_of(genomes: Genomes) -> list[list[int]]:
    """Each genome as JSON values: row and length of each run of equal genes in turn."""
    runs = []
    for genome in genomes:
        begins = np.flatnonzero(np.concatenate([[True], genome[1:] != genome[:-1]]))
        lengths = np.diff(np.append(begins, len(genome)))
        runs.append(np.stack([genome[begins], lengths], axis=1).ravel().tolist())
    return runs


def from_runs(runs: Sequence[Sequence[int]]) -> Genomes:
    return np.array([np.repeat(each[::2], each[1::2]) for each in runs], dtype=np.int16)
