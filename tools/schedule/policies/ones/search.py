"""The evolutionary search of ONES (SC '21), section 3.2.2: all genomes of a population at once.

Operators change how many GPUs each job has in each genome; ``reorder`` then packs the workers of each job
together. The best of old and new genomes, scored with one draw of every job's remaining work, are the next
population.

Departures from the paper: of two genomes that leave different numbers of GPUs idle, the score does not count
(the paper allows none that leaves any); equal sizes of all jobs are kept once; half of the mutated and the
crossed genomes fill idle GPUs in random order and in random amounts, so that every allocation can be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pliant.tools.schedule.policies.ones.genome import (
    Bools,
    Floats,
    Genomes,
    Ints,
    counts_of,
    crossover,
    first_genes,
    random_genomes,
    reorder,
)
from pliant.tools.schedule.policies.ones.sizes import Sizes
from pliant.tools.schedule.work_ahead import WorkAhead

_PASSES: Final = 4
"""Rounds in which idle GPUs are filled: one nearly always suffices, more serve jobs with least sizes."""


@dataclass(frozen=True)
class Problem:
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


class Candidates(NamedTuple):
    """Genomes whose idle GPUs are yet to be filled, and whose workers to be packed."""

    counts: Ints
    """GPUs by [genome, job]."""
    first: Ints
    """The first gene of each job by [genome, job]."""
    last_in_turn: Bools
    """Jobs that get idle GPUs only after all others had their turn, by [genome, job]."""
    at_random: Bools
    """Genomes that are filled in random order and amounts."""


def evolve(problem: Problem, genomes: Genomes, rng: np.random.Generator, count: int, theta: float) -> Genomes:
    """One generation: the ``count`` best genomes of old and new ones, the best first."""
    operators = (
        refreshed(problem, genomes),
        crossed(problem, genomes, rng, count),
        mutated(problem, genomes, rng, count, theta),
    )
    found = Candidates(*(np.concatenate(parts) for parts in zip(*operators, strict=True)))
    counts = filled(problem, found, rng)
    best = fittest(problem, counts, rng, count)
    return reorder(counts[best], found.first[best], problem.gpus)


def beginning(problem: Problem, rng: np.random.Generator, count: int) -> Genomes:
    """The initial population: a random job on each GPU, as far as jobs may have as many."""
    found = _mended(problem, random_genomes(problem.jobs, problem.gpus, rng, count))
    return reorder(filled(problem, found, rng), found.first, problem.gpus)


def refreshed(problem: Problem, genomes: Genomes) -> Candidates:
    """Jobs kept within their limits, newcomers served, and idle GPUs to be filled."""
    found = _mended(problem, genomes)
    return found._replace(counts=with_newcomers(problem, found.counts))


def crossed(problem: Problem, genomes: Genomes, rng: np.random.Generator, pairs: int) -> Candidates:
    """Uniform crossover of random pairs; children with a job too small or too large are mended."""
    found = _mended(problem, crossover(genomes, rng, pairs))
    return found._replace(at_random=np.arange(2 * pairs) >= pairs)


def mutated(
    problem: Problem, genomes: Genomes, rng: np.random.Generator, count: int, theta: float
) -> Candidates:
    """Uniform mutation: jobs of random genomes lose their GPUs with rate ``theta``, to other jobs first."""
    found = _mended(problem, genomes[rng.integers(len(genomes), size=count)])
    preempted = (rng.random(found.counts.shape) < theta) & (found.counts > 0)
    return Candidates(
        np.where(preempted, 0, found.counts),
        np.where(preempted, problem.gpus, found.first),
        preempted,
        np.arange(count) >= count // 2,
    )


def _mended(problem: Problem, genomes: Genomes) -> Candidates:
    """Each job at the largest size that it may have of its genes."""
    counts = problem.sizes.fitted(counts_of(genomes, problem.jobs))
    first = first_genes(genomes, problem.jobs)
    return Candidates(counts, first, np.zeros(counts.shape, np.bool_), np.zeros(len(counts), np.bool_))


def with_newcomers(problem: Problem, counts: Ints) -> Ints:
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


def filled(problem: Problem, found: Candidates, rng: np.random.Generator) -> Ints:
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


def fittest(problem: Problem, counts: Ints, rng: np.random.Generator, count: int) -> Ints:
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
