"""The jobs and nodes of one search of Pollux, and populations carried from search to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState
from pliant.tools.schedule.policies.pollux.goodput import Goodput
from pliant.tools.schedule.policies.pollux.search import Matrices
from pliant.tools.schedule.policies.pools import Pool


@dataclass(frozen=True)
class Members:
    """The jobs and nodes of one search, in the order of its matrices."""

    pool: Pool
    jobs: Sequence[JobState]
    nodes: Sequence[NodeState]
    goodputs: Sequence[Goodput]

    def fair_gpus(self, row: int) -> int:
        """An equal share of the GPUs, whole and within the job's limits."""
        job = self.jobs[row]
        share = -(-self.pool.gpus // len(self.jobs))
        return max(job.spec.min_gpus, min(share, job.max_gpus(self.pool.gpus)))

    def held(self) -> Matrices:
        """What the jobs hold now, as one matrix."""
        columns = {node.name: column for column, node in enumerate(self.nodes)}
        found = np.zeros((1, len(self.jobs), len(self.nodes)), dtype=np.int16)
        for row, job in enumerate(self.jobs):
            for name, count in job.placement:
                found[0, row, columns[name]] = count
        return found

    def place(self, row: npt.NDArray[np.int16]) -> NodeGpus:
        """The nodes of one job of a matrix."""
        counts = zip(self.nodes, row.tolist(), strict=True)
        return tuple((node.name, count) for node, count in counts if count)


@dataclass(frozen=True)
class Population:
    """What the last search of a pool found, and whom it was about."""

    jobs: Sequence[str]
    nodes: Sequence[str]
    found: Matrices

    def of(self, members: Members) -> Matrices:
        """The same matrices for the jobs and nodes of now; a new job has nothing."""
        every = range(len(self.found))
        found = np.zeros((len(every), len(members.jobs), len(members.nodes)), dtype=np.int16)
        jobs = _common(self.jobs, [job.id for job in members.jobs])
        nodes = _common(self.nodes, [node.name for node in members.nodes])
        if jobs and nodes:
            (old_jobs, new_jobs), (old_nodes, new_nodes) = zip(*jobs, strict=True), zip(*nodes, strict=True)
            found[np.ix_(every, new_jobs, new_nodes)] = self.found[np.ix_(every, old_jobs, old_nodes)]
        return found

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
    def load(cls, state: Mapping[str, Any]) -> Population:
        """The inverse of :meth:`dump`."""
        jobs, nodes, cells = state["jobs"], state["nodes"], state["found"]
        found = np.zeros((len(cells), len(jobs), len(nodes)), dtype=np.int16)
        for matrix, each in zip(found, cells, strict=True):
            rows = np.array(each, dtype=np.int64).reshape(-1, 3)
            matrix[rows[:, 0], rows[:, 1]] = rows[:, 2]
        return cls(jobs, nodes, found)


def _common(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of those that are in both: (old, new)."""
    where = {name: position for position, name in enumerate(old)}
    return [(where[name], position) for position, name in enumerate(new) if name in where]
