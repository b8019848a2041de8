"""Search for the allocation of least mean slowdown: populations of job × node matrices, all rows at once.

Pollux (OSDI '21), sections 4.2 and 5: an element says how many GPUs a job gets on a node; generations of
crossover, mutation, repair and tournament raise the fitness, the p-mean of the jobs' speedups at p = -1.

Departures from the paper: a job without GPUs counts with a small speedup instead of none; mutations also move
whole jobs, nodes and idle GPUs; equal matrices are kept once; the population begins with matrices that start
waiting jobs in turn; a search ends that stands still.

Rows of matrices are numbered and kept with what they are worth, and a matrix is the numbers of its rows: a
child has most of them from its parents, and only the others are repaired and valued.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.policies.pollux.goodput import Ints
from pliant.tools.schedule.step_time_fit import Floats

Matrices = npt.NDArray[np.int16]
"""GPUs by [matrix, job, node]."""
Gpus = npt.NDArray[np.int16]
Flags = npt.NDArray[np.bool_]
WAITING: Final = 0.01
"""The speedup that a job without GPUs counts with."""
_ROOM: Final = 4
"""Rows that are kept at most, for each that matrices which come at a time have."""
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
    """GPUs that the jobs hold now, as one matrix: [1, job, node]."""
    restart_factor: Floats
    """Part that is left of the speedup of a running job that is moved or resized, by job."""
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
        return np.asarray(np.arange(self.jobs) * 2 * self.speedups.shape[2])

    @cached_property
    def _kept_of_moved(self) -> Floats:
        """By job, what is left of its speedup where it does not keep what it holds."""
        return np.asarray(np.where(self.held[0].any(axis=1), self.restart_factor, 1.0))

    def row_speedups(self, jobs: Ints, gpus: Gpus, several: Flags, moved: Flags) -> Floats:
        """Speedups of jobs, those of running jobs that are moved or resized reduced; 0 without GPUs.

        :param gpus: what each of ``jobs`` has.
        :param several: whether that is on several nodes.
        :param moved: whether it differs from what the job holds.
        """
        index = several * self.speedups.shape[2]
        index += self._starts.take(jobs)
        index += gpus
        speedups = self.speedups.reshape(-1).take(index)
        return np.asarray(speedups * np.where(moved, self._kept_of_moved.take(jobs), 1.0))

    def job_speedups(self, matrices: Matrices) -> Floats:
        """:meth:`row_speedups` by [matrix, job]."""
        gpus, several = matrices.sum(axis=2, dtype=np.int16), np.count_nonzero(matrices, axis=2) > 1
        moved = (matrices != self.held).any(axis=2)
        return self.row_speedups(np.broadcast_to(np.arange(self.jobs), gpus.shape), gpus, several, moved)

    def fitness(self, matrices: Matrices) -> Floats:
        """The harmonic mean of the jobs' speedups, by matrix."""
        return self.fitness_at(_slowdowns(self.job_speedups(matrices)))

    def fitness_at(self, slowdowns: Floats) -> Floats:
        return np.asarray(self.jobs / np.add.reduce(slowdowns, axis=1))


def _slowdowns(speedups: Floats) -> Floats:
    return np.asarray(1.0 / np.maximum(speedups, WAITING))


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
    matrices = np.concatenate([*seeds, earlier])
    marks = rng.integers(1, 2**62, size=problem.jobs * problem.nodes)
    rows = _Rows(problem, marks, max(len(matrices), population))
    ids = _Repair(problem, rows, len(matrices)).of(matrices)
    kept = _Fittest(ids, *rows.worth(ids)).first(population)
    breeding = _Breeding(problem, rows, population)
    idle = 0
    for _ in range(generations):
        best = kept.fitness[0]
        if rows.are_many:
            kept = kept._replace(ids=rows.only(kept.ids))
        children = breeding.children(kept.ids, rng)
        kept = kept.with_more(children, *rows.worth(children)).first(population)
        idle = 0 if kept.fitness[0] > best else idle + 1
        if idle == _IDLE_GENERATIONS:
            break
    return rows.matrices(kept.ids)


def first_come(problem: PlacementProblem, start: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """One matrix in which every job without GPUs got its least size in turn, if it was left.

    A job goes where it fits on one node, the fullest such; else on the emptiest nodes without another job of
    several nodes, in whole replicas.
    """
    matrix = start.copy()
    free = problem.capacity - matrix.sum(axis=0)
    shared = (matrix[np.count_nonzero(matrix, axis=1) > 1] > 0).any(axis=0)
    too_full = int(problem.capacity.max()) + 1
    waiting = ~matrix.any(axis=1) & (problem.least > 0) & (problem.least <= problem.most)
    for row in waiting.nonzero()[0].tolist():
        need = int(problem.least[row])
        fullest = int(np.where(free < need, too_full, free).argmin())
        if free[fullest] >= need:
            matrix[row, fullest] = need
            free[fullest] -= need
            continue
        open_to = np.where(shared, 0, free - free % problem.together[row])
        if open_to.sum() < need:
            continue
        order = np.argsort(-open_to, kind="stable")
        before = np.concatenate(([0], open_to[order].cumsum()[:-1]))
        matrix[row, order] = np.clip(need - before, 0, open_to[order])
        shared |= matrix[row] > 0
        free -= matrix[row]
    return matrix


class _Rows:
    """Rows of matrices by number: what one job gets of each node, and what that is worth.

    Matrices are the numbers of their rows, [job, matrix]. Row 0 is that of a job without GPUs.
    """

    def __init__(self, problem: PlacementProblem, marks: Ints, most: int) -> None:
        """
        :param marks: random numbers, one for each element of a matrix.
        :param most: matrices that come at a time, at most.
        """
        self.problem, self._most = problem, most * problem.jobs
        room = 1 + _ROOM * self._most
        # By row the GPUs of each node; and 1 where a job on several nodes has some, else 0.
        self.table = np.empty((2, room, problem.nodes), dtype=np.int16)
        self.table[:, 0] = 0
        # Only equal rows of a job have the same mark; the mark of a matrix is the sum of theirs.
        self._slowdowns, self._marks = np.empty(room), np.empty(room, dtype=np.int64)
        self.count = 1
        self._mark_of_node, self._mark_of_job = marks[: problem.nodes], marks[:: problem.nodes] | 1
        self._held = (problem.held[0] @ self._mark_of_node) * self._mark_of_job

    @property
    def are_many(self) -> bool:
        """Whether there may be no room for more matrices."""
        return self.count + self._most > len(self._marks)

    def only(self, ids: Ints) -> Ints:
        """Forget all rows but those of some matrices, whose new numbers these are."""
        used = np.zeros(self.count, dtype=bool)
        used[0] = True
        used[ids] = True
        numbers, kept = used.cumsum() - 1, used.nonzero()[0]
        self.count = len(kept)
        self.table[:, : self.count] = self.table.take(kept, axis=1)
        self._slowdowns[: self.count] = self._slowdowns.take(kept)
        self._marks[: self.count] = self._marks.take(kept)
        return np.asarray(numbers.take(ids))

    def draft(self, rows: Matrices) -> Flags:
        """Write rows where the next are to be added; whether each is on several nodes."""
        end = self.count + len(rows)
        spans = np.sign(rows)
        several = _sums(spans) > 1
        self.table[0, self.count : end] = rows
        np.multiply(spans, several.astype(np.int16)[:, None], out=self.table[1, self.count : end])
        return np.asarray(several)

    def add(self, rows: Matrices, gpus: Gpus, jobs: Ints) -> Ints:
        """The numbers of new rows."""
        several = self.draft(rows)
        marks = rows @ self._mark_of_node
        marks *= self._mark_of_job.take(jobs)
        speedups = self.problem.row_speedups(jobs, gpus, several, marks != self._held.take(jobs))
        start, self.count = self.count, self.count + len(rows)
        self._slowdowns[start : self.count] = _slowdowns(speedups)
        self._marks[start : self.count] = marks
        return np.arange(start, self.count)

    def worth(self, ids: Ints) -> tuple[Floats, Ints]:
        """The fitness of matrices, and their marks."""
        fitness = self.problem.fitness_at(self._slowdowns.take(ids.T))
        return fitness, np.asarray(np.add.reduce(self._marks.take(ids), axis=0))

    def matrices(self, ids: Ints) -> Matrices:
        return np.asarray(self.table[0].take(ids.T, axis=0))


# Repair.


class _Repair:
    """Makes ``count`` matrices at a time obey: sizes, one job of several nodes on a node, capacity, whole
    replicas, sizes that jobs may have, least sizes.

    Where jobs are too many, the earlier one keeps what it has. Places are counted through [job, matrix],
    elements through [job, matrix, node].
    """

    def __init__(self, problem: PlacementProblem, rows: _Rows, count: int) -> None:
        self.problem, self.rows = problem, rows
        self.capacity = problem.capacity.astype(np.int16)
        # By place.
        self.jobs = np.repeat(np.arange(problem.jobs), count)
        self._most = problem.most.take(self.jobs)
        # Elements of one job.
        self._each = count * problem.nodes
        # By job, its first element.
        self._first = np.arange(problem.jobs)[:, None] * self._each
        self._limits = np.ones((2, count, problem.nodes), dtype=np.int16)
        # GPUs, and jobs on several nodes, by [matrix, node].
        self._limits[0] = self.capacity
        self._in_replicas, self._in_gangs = (
            bool((problem.together > 1).any()),
            bool((problem.least > 1).any()),
        )

    def of(self, matrices: Matrices) -> Ints:
        """The numbers of rows of these matrices, [matrix, job, node]."""
        rows = matrices.astype(np.int16).transpose(1, 0, 2).reshape(-1, self.problem.nodes)
        ids = np.zeros((self.problem.jobs, len(matrices)), dtype=np.int64)
        self.mend(ids, np.arange(len(rows)), rows)
        return ids

    def mend(self, ids: Ints, places: Ints, rows: Matrices) -> None:
        """Let matrices obey of which some places get new rows; each row at the others obeys by itself."""
        _cut_to(rows, _sums(rows), self._most.take(places))
        self.rows.draft(rows)
        numbers = ids.reshape(-1)
        numbers[places] = np.arange(self.rows.count, self.rows.count + len(rows))
        table = self.rows.table.take(ids, axis=1)
        changed = np.zeros(len(numbers), dtype=bool)
        changed[places] = True
        changed[self._share_nodes(table) // self.problem.nodes] = True
        places = changed.nonzero()[0]
        rows = table[0].reshape(-1, self.problem.nodes).take(places, axis=0)
        jobs = self.jobs.take(places)
        numbers[places] = self.rows.add(rows, self._keep_to_sizes(rows, jobs), jobs)

    def _share_nodes(self, table: Matrices) -> Ints:
        """Take from jobs what they have too much of where they meet; the elements that changed.

        :param table: as that of rows, [2, job, matrix, node].
        """
        full, meet = np.add.reduce(table, axis=1, dtype=np.int16) > self._limits
        gpus, gangs = table.reshape(2, -1)
        parted = self._part_neighbours(gpus, gangs, meet.reshape(-1).nonzero()[0])
        return np.concatenate([parted, self._fill_nodes(gpus, full.reshape(-1).nonzero()[0])])

    def _part_neighbours(self, cells: Gpus, gangs: Gpus, crowded: Ints) -> Ints:
        """Of the jobs on several nodes that meet on one, the first stays there."""
        elements = crowded + self._first
        meet = gangs.take(elements)
        lost = elements[np.add.accumulate(meet, axis=0, dtype=np.int16) * meet > 1]
        cells[lost] = 0
        return lost

    def _fill_nodes(self, cells: Gpus, crowded: Ints) -> Ints:
        """Of the jobs that share a node, each gets what those before it leave."""
        elements = crowded + self._first
        wanted = cells.take(elements)
        capacity = self._limits[0].reshape(-1).take(crowded)
        got: Gpus = np.minimum(np.add.accumulate(wanted, axis=0, dtype=np.int16), capacity)
        got[1:] -= got[:-1]
        less = got < wanted
        lost = elements[less]
        cells[lost] = got[less]
        return lost

    def _keep_to_sizes(self, rows: Matrices, jobs: Ints) -> Gpus:
        """Take what is not of a size that a job may have; the GPUs left."""
        problem = self.problem
        if self._in_replicas:
            rows -= (rows % problem.together.take(jobs)[:, None]).astype(np.int16)
        gpus = _sums(rows)
        if problem.fitted is not None:
            _cut_to(rows, gpus, problem.fitted[jobs, gpus])
        if self._in_gangs:
            short = gpus < problem.least.take(jobs)
            rows[short], gpus[short] = 0, 0
        return gpus


def repair(problem: PlacementProblem, matrices: Matrices) -> Matrices:
    """These matrices as :class:`_Repair` makes them."""
    rows = _Rows(problem, np.zeros(problem.jobs * problem.nodes, dtype=np.int64), len(matrices))
    return rows.matrices(_Repair(problem, rows, len(matrices)).of(matrices))


def _sums(rows: Matrices) -> Gpus:
    """Of few nodes they are added faster than by ``sum``."""
    return np.asarray(np.einsum("ij->i", rows))


def _cut_to(rows: Matrices, gpus: Gpus, most: Ints) -> None:
    """Take surplus GPUs of jobs from their last nodes, in place.

    :param gpus: what the rows have.
    :param most: what they may have.
    """
    over = (gpus > most).nonzero()[0]
    if len(over):
        most = most.take(over)
        kept = np.minimum(np.add.accumulate(rows.take(over, axis=0), axis=1), most[:, None])
        kept[:, 1:] -= kept[:, :-1]
        rows[over], gpus[over] = kept, most


# Crossover and mutation.


class _Breeding:
    """Generations of ``count`` children."""

    def __init__(self, problem: PlacementProblem, rows: _Rows, count: int) -> None:
        self.problem, self.rows, self.count = problem, rows, count
        self._repair = _Repair(problem, rows, count)
        self._each = np.arange(count)
        self._choices = np.repeat([4, problem.jobs, problem.nodes], count)

    def children(self, parents: Ints, rng: np.random.Generator) -> Ints:
        """Rows of two parents each, each the winner of a tournament of two; then mutated and repaired.

        :param found: the parents, best first.
        """
        rivals = rng.integers(parents.shape[1], size=(2, 2, self.count))
        winners, others = np.minimum(rivals[0], rivals[1])
        take = rng.random((self.count, self.problem.jobs)) < 0.5
        ids: Ints = parents.take(others, axis=1)
        np.copyto(ids, parents.take(winners, axis=1), where=take.T)
        self._repair.mend(ids, *self._mutated(ids, rng))
        return ids

    def _mutated(self, ids: Ints, rng: np.random.Generator) -> tuple[Ints, Matrices]:
        """The places that change, and their rows. In each matrix an element is drawn again, a job goes to one
        node (or nowhere), a node is handed over to one job, or its idle GPUs are.
        """
        kind, job, node = rng.integers(self._choices).reshape(3, -1)  # one call: as three, which take longer
        whole = self._repair.capacity.take(node)
        # the same numbers; an array of limits takes five times as long
        limits = whole + 1 if self.problem.uneven else int(self.problem.capacity[0]) + 1
        drawn = rng.integers(limits, size=self.count, dtype=np.int16)
        moves, hands_over, grows = kind == 1, kind == 2, kind == 3
        places = job * self.count
        places += self._each
        on_node = self.rows.table[0].reshape(-1).take(ids * self.problem.nodes + node)
        idle = np.maximum(whole - np.add.reduce(on_node, axis=0, dtype=np.int16), 0)
        grown = on_node.reshape(-1).take(places) + idle
        robbed = ((on_node > 0) & hands_over).reshape(-1)
        robbed[places] = False
        others = robbed.nonzero()[0]
        changed = np.concatenate([places, others])
        numbers = ids.reshape(-1).take(changed)
        numbers[: self.count][moves] = 0
        rows = self.rows.table[0].take(numbers, axis=0)
        np.copyto(drawn, grown, where=grows)
        np.copyto(drawn, whole, where=hands_over)
        rows[self._each, node] = drawn
        rows[np.arange(self.count, len(rows)), node.take(others % self.count)] = 0
        return changed, rows


# Tournament.


class _Fittest(NamedTuple):
    """Matrices with their fitness and marks, which tell them apart."""

    ids: Ints
    """Ids of their rows: [job, matrix]."""
    fitness: Floats
    marks: Ints

    def with_more(self, ids: Ints, fitness: Floats, marks: Ints) -> _Fittest:
        return _Fittest(
            np.concatenate([self.ids, ids], axis=1),
            np.concatenate([self.fitness, fitness]),
            np.concatenate([self.marks, marks]),
        )

    def first(self, count: int) -> _Fittest:
        """The ``count`` fittest of the different ones, best first; of equals those that were there before."""
        order = self.marks.argsort(kind="stable")
        marks = self.marks.take(order)
        again = order[1:][marks[1:] == marks[:-1]]
        ranks = -self.fitness
        ranks[again] = np.inf
        best = ranks.argsort(kind="stable")[: min(count, len(order) - len(again))]
        return _Fittest(self.ids.take(best, axis=1), self.fitness.take(best), self.marks.take(best))
