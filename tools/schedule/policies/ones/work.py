"""What remains of each job: exact where the job states its work, else drawn from a Beta distribution.

ONES (SC '21), section 3.2.1: the progress ρ of a job has the distribution Be(α, β), and what remains is
Y = Y_processed (1/ρ − 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ones.genome import Floats

_LEAST_PROGRESS: Final = 1e-3
"""What counts as progress where less is drawn: the work ahead stays finite."""
INTERVAL: Final = 0.9
"""The band that is shown."""


class Predictor(Protocol):
    """Predicts how far jobs are."""

    def beta(self, jobs: Sequence[JobState], time_s: float) -> tuple[Floats, Floats]:
        """(α, β) of each job's progress, both at least 1."""
        ...


class Uniform:
    """Knows nothing: all progress is equally likely."""

    def beta(self, jobs: Sequence[JobState], time_s: float) -> tuple[Floats, Floats]:
        """α = β = 1."""
        del time_s
        return np.ones(len(jobs)), np.ones(len(jobs))


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

    def band(self, row: int) -> tuple[float, float]:
        """The central interval of a job's progress."""
        from scipy.special import betaincinv

        tail = (1 - INTERVAL) / 2
        low, high = (float(betaincinv(self.alpha[row], self.beta[row], part)) for part in (tail, 1 - tail))
        return low, high


def work_of(jobs: Sequence[JobState], epochs: Sequence[float], time_s: float, predictor: Predictor) -> Work:
    """What remains of these jobs; only where it is not known is the predictor asked.

    :param epochs: samples of an epoch of each.
    """
    left = [job.remaining_samples(time_s) for job in jobs]
    exact = np.array([np.nan if samples is None else samples for samples in left], dtype=np.float64)
    done = np.array([job.samples_done(time_s) for job in jobs])
    alpha, beta = np.ones(len(jobs)), np.ones(len(jobs))
    if unknown := np.flatnonzero(np.isnan(exact)).tolist():
        alpha[unknown], beta[unknown] = predictor.beta([jobs[row] for row in unknown], time_s)
    return Work(exact, np.maximum(done, epochs), alpha, beta)


def known_work(samples: Sequence[float]) -> Work:
    """Jobs whose remaining samples are known."""
    ones = np.ones(len(samples))
    return Work(np.asarray(samples, dtype=np.float64), ones, ones, ones)
