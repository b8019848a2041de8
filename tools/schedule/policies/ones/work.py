"""What remains of each job: exact where the job states its work, else drawn from a Beta distribution.

ONES (SC '21), section 3.2.1: the progress ρ of a job has the distribution Be(α, β), and what remains is
Y = Y_processed (1/ρ − 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ones.genome import Floats

if TYPE_CHECKING:
    from pliant.tools.schedule.forecast import WorkForecast

if TYPE_CHECKING:
    pass

_LEAST_PROGRESS: Final = 1e-3
"""What counts as progress where less is drawn: the work ahead stays finite."""


@dataclass(frozen=True)
class Work:
    """Remaining samples of jobs, in the order of a search."""

    exact: Floats
    """Remaining samples; NaN where they are not known."""
    processed: Floats
    """Samples trained so far; of a job in its first epoch, those of one epoch."""
    alpha: Floats
    beta: Floats

    def draws(self, rng: np.random.Generator, count: int) -> Floats:
        """Remaining samples by [draw, job]."""
        found = np.broadcast_to(self.exact, (count, len(self.exact))).copy()
        unknown = np.flatnonzero(np.isnan(self.exact))
        if len(unknown):
            drawn = rng.beta(self.alpha[unknown], self.beta[unknown], size=(count, len(unknown)))
            found[:, unknown] = self.processed[unknown] * (1.0 / np.maximum(drawn, _LEAST_PROGRESS) - 1.0)
        return found

    def expected(self) -> Floats:
        """Remaining samples at the mean of the progress."""
        return np.where(np.isnan(self.exact), self.processed * self.beta / self.alpha, self.exact)

    def only(self, rows: Sequence[int]) -> Work:
        """Those of some jobs."""
        return Work(self.exact[rows], self.processed[rows], self.alpha[rows], self.beta[rows])


def work_of(jobs: Sequence[JobState], epochs: Sequence[float], time_s: float, forecast: WorkForecast) -> Work:
    """What remains of these jobs; only where it is not known is the forecast asked.

    :param epochs: samples of an epoch of each.
    """
    left = [job.remaining_samples(time_s) for job in jobs]
    exact = np.array([np.nan if samples is None else samples for samples in left], dtype=np.float64)
    done = np.array([job.samples_done(time_s) for job in jobs])
    alpha, beta = np.ones(len(jobs)), np.ones(len(jobs))
    if unknown := np.flatnonzero(np.isnan(exact)).tolist():
        alpha[unknown], beta[unknown] = forecast.beta([jobs[row] for row in unknown], time_s)
    return Work(exact, np.maximum(done, epochs), alpha, beta)


def known_work(samples: Sequence[float]) -> Work:
    """Jobs whose remaining samples are known."""
    ones = np.ones(len(samples))
    return Work(np.asarray(samples, dtype=np.float64), ones, ones, ones)
