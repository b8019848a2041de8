"""Why each job grew, shrank or waits, in a clause, with its score and its progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ones.limits import Limit, Limits
from pliant.tools.schedule.policies.ones.members import Members
from pliant.tools.schedule.policy import Explanation, Target

_LESS: Final = "jobs with less remaining utilization, or new ones, have the GPUs"


class Reasons:
    """What was decided of each job, in words."""

    def __init__(self) -> None:
        self.generations: int | None = None
        """How many the last decision took, where that is worth saying."""
        self.late: Sequence[str] = ()
        """Jobs that hold the next update back."""
        self._last: dict[str, str] = {}

    def forget(self, job_id: str) -> None:
        """The job has left."""
        self._last.pop(job_id, None)

    def changed(self, job: JobState, target: Target, limit: Limit) -> None:
        """A job gets a target; it still holds what it held before."""
        self._last[job.id] = _of_change(job, target, limit)

    def of(
        self, members: Members, limits: Limits, bands: Mapping[str, tuple[float, float]]
    ) -> dict[str, Explanation]:
        """Explanations of the jobs of a search.

        :param bands: 90 % intervals of predicted progress.
        """
        found: dict[str, Explanation] = {}
        remaining = members.problem.work.expected().tolist()
        for row, job in enumerate(members.jobs):
            said = [self._clause(job, limits[job.id])]
            gpus = job.gpus or int(members.problem.sizes.most[row])
            if gpus < len(members.rows[row].utilization):
                score = remaining[row] * members.rows[row].utilization[gpus]
                at = "" if job.gpus else f" on {in_gpus(gpus)}"
                said += [f"score {score:.0f} GPU-s{at}"] if math.isfinite(score) else []
            said.append(_progress(members, row, remaining[row], bands.get(job.id)))
            if self.generations is not None:
                said.append(f"best after {self.generations} generations")
            found[job.id] = Explanation("; ".join(said), None if job.gpus else job.spec.min_gpus)
        return found

    def _clause(self, job: JobState, limit: Limit) -> str:
        if job.gpus:
            return self._last.get(job.id, f"keeps {in_gpus(job.gpus)}")
        if self.late:
            more = len(self.late) - 1
            others = f" and {more} more have" if more else " has"
            return f'waits for an update, once "{self.late[0]}"{others} done an epoch'
        if limit.rule == "start":
            return f"waits: {_LESS}"
        halved = ", halved while it waits" if limit.rule == "refused" else ""
        return f"waits to resume with a limit of {limit.samples}{halved}: {_LESS}"


def _of_change(job: JobState, target: Target, limit: Limit) -> str:
    if not target.gpus:
        return f"gave up {in_gpus(job.gpus)}: {_LESS}"
    batch = target.global_batch or job.global_batch
    now = f"{in_gpus(target.gpus)}, batch {batch}"
    if not job.gpus:
        verb = "started" if job.first_start_s is None else "resumed"
        return f"{verb} on {now} within its limit of {limit.samples}"
    if target.gpus > job.gpus:
        return f"grew from {job.gpus} to {now}: its limit after an epoch is {limit.samples}"
    if target.gpus == job.gpus:
        return f"batch {job.global_batch} to {batch} on {in_gpus(job.gpus)}: its limit is {limit.samples}"
    if limit.rule == "scale-down":
        why = f"it has run {limit.executed_s:.0f} s, longer than jobs take to arrive, and others wait"
    else:
        why = "others have less remaining utilization"
    return f"shrank from {job.gpus} to {now}: {why}"


def _progress(members: Members, row: int, remaining: float, band: tuple[float, float] | None) -> str:
    """How far a job is, with the band where that is predicted."""
    work, total = members.problem.work, members.jobs[row].total_samples
    if band is None:
        return f"{1 - remaining / total:.0%} done" if total else "its work is not known"
    mean = work.alpha[row] / (work.alpha[row] + work.beta[row])
    return f"predicted to be {mean:.0%} done (90%: {band[0]:.0%} to {band[1]:.0%})"
