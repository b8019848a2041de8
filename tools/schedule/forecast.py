"""How much work is left of jobs that do not state it: what a session predicts, and what policies ask.

A policy that works with distributions sets ``uses_forecast`` and asks ``snapshot.forecast`` wherever work is
unknown (``job.remaining_samples`` is None). With ``--demand predicted`` every other policy finds the expected
total in ``job.total_samples``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from pliant.tools.schedule.jobs import JobState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pliant.schemas.predictor import Predictor
    from pliant.tools.profile.predictor import EndedJob, Epoch, ProgressPredictor
    from pliant.tools.schedule.remaining_work import RemainingWork

    Floats = NDArray[np.float64]

Demand = Literal["stated", "predicted"]
"""Work of jobs as policies see it."""
_MOST_WAITING: Final = 1000
"""Finished jobs kept before they are learned from, to bound memory."""
_UNKNOWN: Final = float("nan")


class WorkForecast:
    """A progress predictor, asked in terms of jobs.

    It is made, NumPy is loaded and finished jobs are learned from on the first question: where all jobs state
    their work, nothing is ever fitted.
    """

    def __init__(self, made_of: Predictor | None = None, *, seed: int = 0) -> None:
        """:param seed: of the sample, if there is no fitted file."""
        self._made_of = made_of
        self._seed = seed
        self._made: ProgressPredictor | None = None
        self._learns = True
        # Jobs yet to be learned from, grouped as they finished.
        self._finished: list[Sequence[JobState]] = []
        self._waiting = 0

    @property
    def predictor(self) -> ProgressPredictor:
        if self._made is None:
            from pliant.tools.profile.predictor import ProgressPredictor

            self._made = ProgressPredictor(self._basis())
        for finished in self._finished:
            self._made.learn(map(_ended, finished))
        self._finished, self._waiting = [], 0
        return self._made

    def document(self) -> Predictor:
        """The predictor as a file record, with all epochs learned so far."""
        unused = self._made is None and not self._finished
        return self._basis() if unused else self.predictor.document()

    def _basis(self) -> Predictor:
        from pliant.schemas.predictor import Predictor

        return self._made_of or Predictor(seed=self._seed)

    def beta(self, jobs: Sequence[JobState], time_s: float) -> tuple[Floats, Floats]:
        """(α, β) of each job's progress ρ ~ Beta(α, β), both at least 1; of stated work, too."""
        return self.predictor.beta([self._epoch(job, time_s) for job in jobs])

    def ahead(
        self, jobs: Sequence[JobState], time_s: float, epochs: Sequence[float | None] = ()
    ) -> RemainingWork:
        """What is left of each job; NaN if it is unknown and no epoch has begun.

        :param epochs: samples of an epoch of each job; empty: as known.
        """
        import numpy as np

        from pliant.tools.schedule.remaining_work import RemainingWork

        stated = [None if job.predicted else job.remaining_samples(time_s) for job in jobs]
        exact = np.array([_number(left) for left in stated])
        done = np.array([job.samples_done(time_s) for job in jobs])
        reached, alpha, beta = done.copy(), np.ones(len(jobs)), np.ones(len(jobs))
        if unknown := np.flatnonzero(np.isnan(exact)).tolist():
            asked = [jobs[row] for row in unknown]
            alpha[unknown], beta[unknown] = self.beta(asked, time_s)
            usual = self.predictor.usual_epoch_samples
            sizes = [epochs[row] for row in unknown] if epochs else [job.epoch_samples for job in asked]
            least = np.array([size or usual or _UNKNOWN for size in sizes])
            # the progress of a job in its first epoch is that at the end of it
            reached[unknown] = np.where(done[unknown] > 0, np.fmax(done[unknown], least), least)
        return RemainingWork(exact, reached, reached - done, alpha, beta)

    def remaining_samples(self, jobs: Sequence[JobState], time_s: float) -> Floats:
        """Expected samples left of each job, at its mean progress; exact for stated work."""
        return self.ahead(jobs, time_s).expected()

    def band(self, jobs: Sequence[JobState], time_s: float, interval: float = 0.9) -> tuple[Floats, Floats]:
        from scipy.special import betaincinv

        alpha, beta = self.beta(jobs, time_s)
        tail = (1 - interval) / 2
        low, high = betaincinv([alpha, alpha], [beta, beta], [[tail], [1 - tail]]).astype(float)
        return low, high

    def learn(self, finished: Sequence[JobState]) -> None:
        if not finished or not self._learns:
            return
        self._finished.append(finished)
        self._waiting += len(finished)
        if self._waiting > _MOST_WAITING:
            _ = self.predictor

    def learn_no_more(self) -> None:
        """What follows is a look ahead, which must not be learned from."""
        self._learns = False

    def foresee(self, jobs: Iterable[JobState], time_s: float) -> None:
        """Set the expected total of every job that states no work."""
        silent = [job for job in jobs if job.predicted or job.total_samples is None]
        if not silent:
            return
        for job in silent:
            job.predicted, job.total_samples = True, None
        for job, left in zip(silent, self.remaining_samples(silent, time_s).tolist(), strict=True):
            if math.isfinite(left):
                job.total_samples = job.samples_done(time_s) + left

    def _epoch(self, job: JobState, time_s: float) -> Epoch:
        from pliant.tools.profile.predictor import Epoch

        size = job.epoch_samples or self.predictor.usual_epoch_samples or _UNKNOWN
        last = job.epochs[-1] if job.epochs else None
        return Epoch(
            size,
            _number(job.initial_loss),
            job.samples_done(time_s),
            _number(last and last.loss),
            _number(last and last.metric),
        )


def _number(value: float | None) -> float:
    return _UNKNOWN if value is None else value


def _ended(job: JobState) -> EndedJob:
    from pliant.tools.profile.predictor import EndedJob, Epoch, evenly

    size, initial, total = (
        job.epoch_samples or _UNKNOWN,
        _number(job.initial_loss),
        job.samples_done(math.inf),
    )
    if not job.epochs:
        return evenly(size, initial, total)
    ends = [(end.samples_done, _number(end.loss), _number(end.metric)) for end in job.epochs]
    return EndedJob([Epoch(size, initial, *end) for end in ends], total)
