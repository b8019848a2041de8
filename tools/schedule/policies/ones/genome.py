"""Genomes: which job each GPU of a pool works for, all genomes of a population as one array.

A genome has a gene a GPU (ONES, section 3.2). The batch of a job is not a gene of its own: of those that its
limit R allows on its GPUs the fastest has the least score, and workers of a job have equal shares of it.

What jobs may have and what it is worth: allowed sizes, and GPU-seconds for a sample at each, as tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Genomes = npt.NDArray[np.int16]
"""[genome, GPU]: the row of the job that works there; :data:`IDLE` for none."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

IDLE: Final = -1


def counts_of(genomes: Genomes, jobs: int) -> Ints:
    """GPUs by [genome, job]."""
    counted = np.bincount(_cells(genomes, jobs), minlength=len(genomes) * (jobs + 1))
    return counted.reshape(len(genomes), jobs + 1)[:, 1:]


def first_genes(genomes: Genomes, jobs: int) -> Ints:
    """The first gene of each job by [genome, job]; the number of genes for a job that has none."""
    count, genes = genomes.shape
    found = np.full(count * (jobs + 1), genes)
    np.minimum.at(found, _cells(genomes, jobs), np.tile(np.arange(genes), count))
    return found.reshape(count, jobs + 1)[:, 1:]


def reorder(counts: Ints, first: Ints, genes: int) -> Genomes:
    """Genomes with the workers of each job together, jobs in order of their first gene; idle GPUs last."""
    order = np.argsort(first, axis=1, kind="stable")
    sizes = np.take_along_axis(counts, order, 1)
    idle = genes - counts.sum(axis=1)
    sizes = np.concatenate([sizes, idle[:, None]], axis=1)
    rows = np.concatenate([order, np.full((len(order), 1), IDLE)], axis=1).astype(np.int16)
    return np.repeat(rows.ravel(), sizes.ravel()).reshape(len(counts), genes)


def _cells(genomes: Genomes, jobs: int) -> Ints:
    """For each gene the place of its job in a flat table by genome and job, in which idle comes first."""
    cells = genomes.astype(np.int64) + 1
    cells += np.arange(len(genomes))[:, None] * (jobs + 1)
    return cells.ravel()


def crossover(genomes: Genomes, rng: np.random.Generator, pairs: int) -> Genomes:
    """Two children of each of ``pairs`` random pairs: for each GPU a coin says which child inherits whose."""
    one, other = (genomes[rng.integers(len(genomes), size=pairs)] for _ in range(2))
    heads = rng.integers(0, 2, size=one.shape, dtype=np.int8).view(np.bool_)
    return np.concatenate([np.where(heads, one, other), np.where(heads, other, one)])


def random_genomes(jobs: int, genes: int, rng: np.random.Generator, count: int) -> Genomes:
    """A random job on each GPU."""
    return rng.integers(jobs, size=(count, genes), dtype=np.int16)


def runs_of(genomes: Genomes) -> list[list[int]]:
    """Each genome as JSON values: row and length of each run of equal genes in turn."""
    found = []
    for genome in genomes:
        begins = np.flatnonzero(np.concatenate([[True], genome[1:] != genome[:-1]]))
        lengths = np.diff(np.append(begins, len(genome)))
        found.append(np.stack([genome[begins], lengths], axis=1).ravel().tolist())
    return found


def from_runs(runs: Sequence[Sequence[int]]) -> Genomes:
    """The inverse of :func:`runs_of`."""
    return np.array([np.repeat(each[::2], each[1::2]) for each in runs], dtype=np.int16)


class Sizes:
    """Tables by [job, GPUs], for many genomes at once.

    :param utilization: GPU-seconds for a sample, c / X; 0 for no GPUs, infinite where a size is not allowed.
    """

    def __init__(self, utilization: Floats) -> None:
        jobs, width = utilization.shape
        feasible = np.isfinite(utilization)
        self.utilization = utilization
        self._allowed = np.maximum.accumulate(np.where(feasible, np.arange(width), 0), axis=1)
        self.most = self._allowed[:, -1]
        """The largest size of each job."""
        self.largest = utilization[np.arange(jobs), self.most]
        """GPU-seconds for a sample at the largest size of each job."""
        above = np.where(feasible, np.arange(width), np.iinfo(np.int32).max)
        above = np.minimum.accumulate(above[:, ::-1], axis=1)[:, ::-1]
        self._next = np.concatenate([above[:, 1:], np.full((jobs, 1), np.iinfo(np.int32).max)], axis=1)
        self.least = self._next[:, 0]
        """The smallest size of each job; beyond any cluster for one that has none."""
        self._offsets = np.arange(jobs) * width

    def fitted(self, counts: Ints) -> Ints:
        """The largest allowed sizes up to these, by [genome, job]."""
        return np.asarray(self._allowed.ravel()[np.minimum(counts, self._last) + self._offsets])

    def step_up(self, counts: Ints) -> Ints:
        """GPUs to the next allowed size, beyond any cluster where there is none; sizes must be allowed."""
        return np.asarray(self._next.ravel()[counts + self._offsets]) - counts

    def of(self, counts: Ints) -> Floats:
        """GPU-seconds for a sample by [genome, job]; sizes must be allowed."""
        return np.asarray(self.utilization.ravel()[counts + self._offsets])

    @property
    def _last(self) -> int:
        return int(self.utilization.shape[1]) - 1
