"""When a job's predicted progress is recorded."""

from __future__ import annotations

import math
from typing import Final

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.session import Session

BAND: Final = 0.9
"""The probability that a job's progress lies in the recorded range."""
_DIGITS: Final = 6
_DENSE: Final = 32
"""The first predictions of a job are kept at every epoch, later ones ever more rarely."""


class ForecastLog:
    """Says when to record a job's predicted progress: once an epoch at most."""

    def __init__(self) -> None:
        # By job: the epoch at which it is due, and how often it was.
        self._next: dict[str, tuple[float, int]] = {}

    def due(self, session: Session, time_s: float) -> list[tuple[JobState, dict[str, float]]]:
        """Running jobs that are due, with their forecasts."""
        if not session.policy_host.learns:
            return []
        for job_id in [job_id for job_id in self._next if job_id not in session.jobs]:
            del self._next[job_id]
        jobs = [job for job in session.jobs.values() if job.gpus and self._is_due(job, time_s)]
        if not jobs:
            return []
        alpha, beta = session.policy_host.forecast.beta(jobs, time_s)
        low, high = session.policy_host.forecast.band(jobs, time_s, BAND)
        values = zip((alpha / (alpha + beta)).tolist(), low.tolist(), high.tolist(), strict=True)
        return [
            (job, {"samples_done": job.samples_done(time_s), **_named(three)})
            for job, three in zip(jobs, values, strict=True)
        ]

    def _is_due(self, job: JobState, time_s: float) -> bool:
        size = job.epoch_samples
        if not size or not (job.predicted or job.total_samples is None):
            return False
        epochs = job.samples_done(time_s) / size
        next_epochs, times = self._next.get(job.id, (1.0, 0))
        if epochs < next_epochs:
            return False
        self._next[job.id] = (math.floor(epochs) + 1 + times // _DENSE, times + 1)
        return True


def _named(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), (round(value, _DIGITS) for value in values), strict=True))
