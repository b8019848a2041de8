"""The jobs of one search: those of one GPU type that run, and those that wait for it."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ones.genome import Genomes, Ints, reorder
from pliant.tools.schedule.policies.ones.limits import Limits
from pliant.tools.schedule.policies.ones.search import Problem
from pliant.tools.schedule.policies.ones.tables import Row, Tables, sizes_of
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from pliant.tools.schedule.forecast import WorkForecast


_DIGITS: Final = 6
"""After the point, of seconds that are compared: differences of times are rounded by the hour."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a policy knows of all jobs."""

    tables: Tables
    limits: Limits
    forecast: WorkForecast


@dataclass(frozen=True)
class Members:
    """Jobs in the order of the rows of a search."""

    pool: Pool
    jobs: Sequence[JobState]
    rows: Sequence[Row]
    problem: Problem

    @classmethod
    def of(cls, pool: Pool, jobs: Sequence[JobState], snapshot: Snapshot, known: Known) -> Members:
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
        problem = Problem(
            pool.gpus,
            sizes_of(rows),
            known.forecast.ahead(jobs, now_s, epochs),
            np.array(new, dtype=np.int64),
            np.array(executed, dtype=np.int64),
        )
        return cls(pool, jobs, rows, problem)

    def without(self, keep: Container[str]) -> Members | None:
        """The search of all other jobs, on the GPUs that these leave; None: it would find nothing."""
        kept = [job for job in self.jobs if job.id in keep]
        return self if not kept else self._part(keep, self.problem.gpus - sum(job.gpus for job in kept))

    def _part(self, keep: Container[str], gpus: int) -> Members | None:
        whole = self.problem
        which = [row for row, job in enumerate(self.jobs) if job.id not in keep]
        which = [row for row in which if whole.sizes.least[row] <= gpus]
        if not which:
            return None
        place = {row: number for number, row in enumerate(which)}
        rows = [self.rows[row] for row in which]
        problem = Problem(
            gpus,
            sizes_of(rows),
            whole.work.only(which),
            np.array([place[row] for row in whole.newcomers.tolist() if row in place], dtype=np.int64),
            np.array([place[row] for row in whole.longest_first.tolist() if row in place], dtype=np.int64),
        )
        return Members(self.pool, [self.jobs[row] for row in which], rows, problem)

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


def _slowest(row: Row) -> float:
    """Samples per second at the smallest size."""
    sizes = (gpus / each for gpus, each in enumerate(row.utilization) if 0 < each < math.inf)
    return next(sizes, 0.0)
