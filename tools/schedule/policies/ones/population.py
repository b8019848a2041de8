"""A population that is carried from search to search, while jobs and GPUs come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.tools.schedule.policies.ones.genome import IDLE, Genomes, from_runs, runs_of


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
