"""What was predicted of jobs, as it is kept for reports: seldom, and bounded for each job."""

from __future__ import annotations

import math
from typing import Any, Final

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.session import Session

INTERVAL: Final = 0.9
"""The band that is kept."""
_DIGITS: Final = 6
_DENSE: Final = 32
"""Predictions of one job that are kept at every epoch; later ones at ever more epochs."""


class ForecastLog:
    """Says when a job's progress is to be noted: once an epoch at most, where its work is not stated."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[float, int]] = {}
        """Epochs at which a job is due, and how often it was."""

    def due(self, session: Session, time_s: float) -> list[tuple[JobState, dict[str, Any]]]:
        """Jobs that run and are due, and the detail of an event about each."""
        if not session.learns:
            return []
        for job_id in [job_id for job_id in self._next if job_id not in session.jobs]:
            del self._next[job_id]
        jobs = [job for job in session.jobs.values() if job.gpus and self._is_due(job, time_s)]
        if not jobs:
            return []
        alpha, beta = session.forecast.beta(jobs, time_s)
        low, high = session.forecast.band(jobs, time_s, INTERVAL)
        values = zip((alpha / (alpha + beta)).tolist(), low.tolist(), high.tolist(), strict=True)
        return [
            (job, {"progress": {"samples_done": job.samples_done(time_s), **_named(three)}})
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
