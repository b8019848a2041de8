"""What a schedule gives a job: where it runs, and how its batch is cut."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.schedule.jobs import NodeGpus, gpus_of


@dataclass(frozen=True, slots=True)
class Share:
    """What a schedule gives a job: GPUs by node, and how the batch is cut."""

    job: Job
    placement: NodeGpus
    global_batch: int | None = None
    accum: int = 1
    lr_scale: float = 1.0
    beside: str | None = None
    """The job that has the same slots; None: it has them alone."""

    @property
    def gpus(self) -> int:
        """All GPUs of the share."""
        return gpus_of(self.placement)


def shares_of(schedule: Schedule) -> dict[str, Share]:
    """What the schedule gives each job that holds something."""
    jobs = {job.id: job for job in schedule.jobs}
    return {
        found.job: Share(
            jobs[found.job],
            found.placement,
            found.batch.global_ if found.batch else None,
            found.batch.accum if found.batch else 1,
            found.lr_scale,
            found.beside,
        )
        for found in schedule.allocations
        if found.gpus
    }
