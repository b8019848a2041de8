"""Search for the allocation of least mean slowdown: populations of job × node matrices, all rows at once.

Pollux (OSDI '21), sections 4.2 and 5: an element says how many GPUs a job gets on a node; generations of
crossover, mutation, repair and tournament raise the fitness, the p-mean of the jobs' speedups at p = -1.

Departures from the paper: a job without GPUs counts with a small speedup instead of none; mutations also move
whole jobs, nodes and idle GPUs; equal matrices are kept once; the population begins with matrices that start
waiting jobs in turn; a search ends that stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.policies.pollux.goodput import Floats, Ints

Matrices = npt.NDArray[np.int16]
"""GPUs by [matrix, job, node]."""
WAITING: Final = 0.01
"""The speedup that a job without GPUs counts with."""
_IDLE_GENERATIONS: Final = 15
"""The search ends after that number of generations in a row without anything better."""


@dataclass(frozen=True)
class PlacementProblem:
    """What is to be shared out, and among whom; jobs of higher priority first."""

    capacity: Ints
    """GPUs by node."""
    speedups: Floats
    """[job, several nodes, GPUs]: speedup against the fair share; 0 where infeasible."""
    least: Ints
    """Fewest GPUs a job runs on, by job."""
    most: Ints
    """Most GPUs a job may get, by job; at most the columns of ``speedups``, less one."""
    held: Matrices
    """What the jobs hold now, as one matrix: [1, job, node]."""
    restart_factor: Floats
    """What is left of the speedup of a running job that is moved or resized, by job."""
    together: Ints
    """GPUs of a replica that are on one node, by job; 1 if they may be on several."""
    fitted: Ints | None = None
    """[job, GPUs]: the largest size of the job up to that many. None: every number is a size."""

    @property
    def jobs(self) -> int:
        return len(self.least)

    @property
    def nodes(self) -> int:
        return len(self.capacity)

    @cached_property
    def uneven(self) -> bool:
        """Whether nodes have different numbers of GPUs."""
        return bool((self.capacity != self.capacity[0]).any())

    @cached_property
    def _starts(self) -> Ints:
        """By job, where its row for one node begins in all speedups."""
        return np.arange(self.jobs) * 2 * self.speedups.shape[2]

    @cached_property
    def _runs(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.held[0].any(axis=1))

    def job_speedups(self, found: Matrices) -> Floats:
        """Speedups by [matrix, job], those of jobs that change what they hold reduced; 0 without GPUs."""
        index = self._starts + _are_several(found) * self.speedups.shape[2] + _over_nodes(found)
        speedups = self.speedups.ravel().take(index)
        if self._runs.any():
            moved = _over_nodes(found != self.held) > 0
            speedups *= np.where(moved & self._runs, self.restart_factor, 1.0)
        return np.asarray(speedups, dtype=np.float64)

    def fitness(self, found: Matrices) -> Floats:
        """The harmonic mean of the jobs' speedups, by matrix."""
        return np.asarray(self.jobs / (1.0 / np.maximum(self.job_speedups(found), WAITING)).sum(axis=1))


def search(
    problem: PlacementProblem,
    earlier: Matrices,
    rng: np.random.Generator,
    population: int,
    generations: int,
) -> Matrices:
    """The fittest matrices found, best first; ``earlier`` ones, repaired, are where the search begins."""
    empty = np.zeros_like(problem.held[0])
    seeds = [problem.held, first_come(problem, problem.held[0])[None], first_come(problem, empty)[None]]
    found = repair(problem, np.concatenate([*seeds, earlier]).astype(np.int16))
    marks = rng.integers(1, 2**62, size=problem.jobs * problem.nodes)
    kept = _Fittest(found, problem.fitness(found), _sums(found, marks)).first(population)
    idle = 0
    for _ in range(generations):
        best = kept.fitness[0]
        children = _children(problem, kept.found, rng, population)
        kept = kept.with_more(children, problem.fitness(children), _sums(children, marks)).first(population)
        idle = 0 if kept.fitness[0] > best else idle + 1
        if idle == _IDLE_GENERATIONS:
            break
    return kept.found


def first_come(problem: PlacementProblem, start: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """One matrix in which every job without GPUs got its least size in turn, if it was left.

    A job goes where it fits on one node, the fullest such; else on the emptiest nodes without another job of
    several nodes, in whole replicas.
    """
    found = start.copy()
    free = problem.capacity - found.sum(axis=0)
    shared = (found[np.count_nonzero(found, axis=1) > 1] > 0).any(axis=0)
    for row in range(problem.jobs):
        need = int(problem.least[row])
        if found[row].any() or not 0 < need <= problem.most[row]:
            continue
        fitting = np.flatnonzero(free >= need)
        if len(fitting):
            found[row, fitting[free[fitting].argmin()]] = need
        else:
            open_to = np.where(shared, 0, free - free % problem.together[row])
            if open_to.sum() < need:
                continue
            order = np.argsort(-open_to, kind="stable")
            before = np.concatenate(([0], open_to[order].cumsum()[:-1]))
            found[row, order] = np.clip(need - before, 0, open_to[order])
            shared |= found[row] > 0
        free -= found[row]
    return found


# Crossover and mutation.


def _children(problem: PlacementProblem, found: Matrices, rng: np.random.Generator, count: int) -> Matrices:
    """Rows of two parents each, each the winner of a tournament of two; then mutated and repaired."""
    rivals = rng.integers(len(found), size=(2, 2, count))
    winners = rivals.min(axis=0)  # they are sorted by fitness
    take = rng.random((count, problem.jobs)) < 0.5
    first, second = winners[:, :, None] * problem.jobs
    rows = np.where(take, first, second) + np.arange(problem.jobs)
    children = found.reshape(-1, problem.nodes).take(rows, axis=0)
    _mutate(problem, children, rng)
    return repair(problem, children)


def _mutate(problem: PlacementProblem, found: Matrices, rng: np.random.Generator) -> None:
    """One change to every matrix: an element is drawn again, a job goes to one node (or nowhere), a node is
    handed over to one job, or the idle GPUs of a node are.
    """
    kind = rng.integers(4, size=len(found))
    job, node = (rng.integers(most, size=len(found)) for most in (problem.jobs, problem.nodes))
    whole = problem.capacity[node].astype(np.int16)
    # the same numbers; an array of limits takes five times as long
    limits = whole + 1 if problem.uneven else int(problem.capacity[0]) + 1
    drawn = rng.integers(limits, size=len(found), dtype=np.int16)
    _, moves, hands_over, grows = (np.flatnonzero(kind == each) for each in range(4))
    found[moves, job[moves]] = 0
    found[hands_over, :, node[hands_over]] = 0
    drawn[hands_over] = whole[hands_over]
    held = found[grows, :, node[grows]].sum(axis=1, dtype=np.int16)
    drawn[grows] = found[grows, job[grows], node[grows]] + np.maximum(whole[grows] - held, 0)
    found[np.arange(len(found)), job, node] = drawn


# Repair.


def repair(problem: PlacementProblem, found: Matrices) -> Matrices:
    """The matrices made to obey, in place: sizes, one job of several nodes on a node, capacity, whole
    replicas, sizes that jobs may have, least sizes.

    Where jobs are too many, the earlier one keeps what it has.
    """
    _cut_to(found, _over_nodes(found), problem.most)
    _part_neighbours(found)
    _fill_nodes(problem, found)
    if (problem.together > 1).any():
        found -= (found % problem.together[:, None]).astype(np.int16)
    if problem.fitted is not None:
        gpus = _over_nodes(found)
        _cut_to(found, gpus, problem.fitted[np.arange(problem.jobs), gpus])
    found[_over_nodes(found) < problem.least] = 0
    return found


def _over_nodes(cells: npt.NDArray[np.int16] | npt.NDArray[np.bool_]) -> npt.NDArray[np.int16]:
    """Sums by matrix and job. Rows of few nodes are added many times as fast as by ``sum``."""
    return np.asarray(np.einsum("ijk->ij", cells.astype(np.int16, copy=False)))


def _are_several(found: Matrices) -> npt.NDArray[np.bool_]:
    """Whether a job is on several nodes, by matrix and job."""
    return _over_nodes(found > 0) > 1


def _cut_to(found: Matrices, gpus: npt.NDArray[np.int16], most: Ints) -> None:
    """Take surplus GPUs of jobs from their last nodes.

    :param gpus: what jobs have, [matrix, job].
    """
    over = gpus > most
    if over.any():
        rows = found[over]
        kept = most[np.nonzero(over)[1]] if most.ndim == 1 else most[over]
        before = rows.cumsum(axis=1) - rows
        found[over] = np.minimum(rows, np.maximum(kept[:, None] - before, 0))


def _part_neighbours(found: Matrices) -> None:
    """Of the jobs on several nodes that meet on one, the first stays there."""
    several = _are_several(found)
    some = several.sum(axis=1) > 1
    if not some.any():
        return
    matrix, job = np.nonzero(several & some[:, None])
    rows = found[matrix, job]
    spread = rows > 0
    until = spread.cumsum(axis=0, dtype=np.int32)
    first = np.searchsorted(matrix, matrix)
    rows[spread & (until - until[first] + spread[first] > 1)] = 0
    found[matrix, job] = rows


def _fill_nodes(problem: PlacementProblem, found: Matrices) -> None:
    """Of the jobs that share a node, each gets what those before it leave."""
    matrix, node = np.nonzero(np.einsum("ijk->ik", found) > problem.capacity)
    columns = found[matrix, :, node]
    before = columns.cumsum(axis=1, dtype=np.int16) - columns
    left = np.maximum(problem.capacity.astype(np.int16)[node][:, None] - before, 0)
    found[matrix, :, node] = np.minimum(columns, left)


# Tournament.


def _sums(found: Matrices, marks: Ints) -> Ints:
    """By matrix, a number that only equal ones have in common."""
    return np.asarray(found.reshape(len(found), -1) @ marks, dtype=np.int64)


class _Fittest(NamedTuple):
    """Matrices with their fitness and what tells them apart."""

    found: Matrices
    fitness: Floats
    sums: Ints

    def with_more(self, found: Matrices, fitness: Floats, sums: Ints) -> _Fittest:
        return _Fittest(
            np.concatenate([self.found, found]),
            np.concatenate([self.fitness, fitness]),
            np.concatenate([self.sums, sums]),
        )

    def first(self, count: int) -> _Fittest:
        """The ``count`` fittest of the different ones, best first; of equals those that were there before."""
        order = self.sums.argsort(kind="stable")
        sums = self.sums[order]
        different = np.sort(order[np.concatenate(([True], sums[1:] != sums[:-1]))])
        best = different[np.argsort(-self.fitness[different], kind="stable")[:count]]
        return _Fittest(self.found[best], self.fitness[best], self.sums[best])
