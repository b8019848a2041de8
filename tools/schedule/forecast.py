"""How much work is left of jobs that do not state it: what a session predicts, and what policies ask.

A policy that works with distributions sets ``asks_forecast`` and asks ``snapshot.forecast`` wherever work is
unknown (``job.remaining_samples`` is None). With ``--demand predicted`` every other policy finds the expected
total in ``job.total_samples``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from pliant.schemas.predictor import Predictor
from pliant.tools.schedule.jobs import JobState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pliant.tools.profile.predictor.epochs import EndedJob, Epoch
    from pliant.tools.profile.predictor.predictor import ProgressPredictor

    Floats = NDArray[np.float64]

Demand = Literal["stated", "predicted"]
"""What policies see of the work of jobs."""
LEAST_PROGRESS: Final = 1e-3
"""What counts as progress where less is drawn: the work ahead stays finite."""
_UNKNOWN: Final = float("nan")


class WorkForecast:
    """A progress predictor, asked in terms of jobs. It is made, and NumPy loaded, when it is used first."""

    def __init__(self, made_of: Predictor | None = None, *, seed: int = 0) -> None:
        """:param seed: of what it learns, where there is no fitted file."""
        self._made_of = made_of or Predictor(seed=seed)
        self._made: ProgressPredictor | None = None
        self._learns = True

    @property
    def predictor(self) -> ProgressPredictor:
        """The model behind it."""
        if self._made is None:
            from pliant.tools.profile.predictor.predictor import ProgressPredictor

            self._made = ProgressPredictor(self._made_of)
        return self._made

    def document(self) -> Predictor:
        """All that it knows, as a file holds it."""
        return self._made_of if self._made is None else self._made.document()

    def beta(self, jobs: Sequence[JobState], time_s: float) -> tuple[Floats, Floats]:
        """(α, β) of the part of its work that each job has done: ρ ~ Beta(α, β), both at least 1.

        It looks at the progress of every job, also of those that state their work.
        """
        return self.predictor.beta([self._epoch(job, time_s) for job in jobs])

    def draw_remaining_samples(
        self, jobs: Sequence[JobState], time_s: float, rng: np.random.Generator, draws: int = 1
    ) -> Floats:
        """Samples still to train, shape (draws, jobs): for work that is stated exact, else drawn.

        The order of ``jobs`` decides which draw a job gets. NaN: nothing is known of the size of its epochs,
        and it has not begun.
        """
        alpha, beta = self.beta(jobs, time_s)
        return self._remaining(jobs, time_s, rng.beta(alpha, beta, size=(draws, len(jobs))))

    def remaining_samples(self, jobs: Sequence[JobState], time_s: float) -> Floats:
        """What is expected to be left of each job, at its mean progress; of stated work what is left."""
        alpha, beta = self.beta(jobs, time_s)
        found: Floats = self._remaining(jobs, time_s, (alpha / (alpha + beta))[None])[0]
        return found

    def band(self, jobs: Sequence[JobState], time_s: float, interval: float = 0.9) -> tuple[Floats, Floats]:
        """The central interval of each job's progress."""
        from scipy.special import betaincinv

        alpha, beta = self.beta(jobs, time_s)
        tail = (1 - interval) / 2
        low, high = betaincinv([alpha, alpha], [beta, beta], [[tail], [1 - tail]]).astype(float)
        return low, high

    def learn(self, finished: Sequence[JobState]) -> None:
        """Learn from jobs that finished, in this order."""
        if finished and self._learns:
            self.predictor.learn(map(_ended, finished))

    def learn_no_more(self) -> None:
        """What follows is looked ahead at, and does not happen."""
        self._learns = False

    def foresee(self, jobs: Iterable[JobState], time_s: float) -> None:
        """Give every job that states no work the total that is expected of it."""
        silent = [job for job in jobs if job.predicted or job.total_samples is None]
        if not silent:
            return
        for job in silent:
            job.predicted, job.total_samples = True, None
        for job, left in zip(silent, self.remaining_samples(silent, time_s).tolist(), strict=True):
            if math.isfinite(left):
                job.total_samples = job.samples_done(time_s) + left

    def _remaining(self, jobs: Sequence[JobState], time_s: float, progress: Floats) -> Floats:
        import numpy as np

        usual = self.predictor.usual_epoch_samples
        done = np.array([job.samples_done(time_s) for job in jobs])
        least = np.array([job.epoch_samples or usual or _UNKNOWN for job in jobs])
        stated = [None if job.predicted else job.remaining_samples(time_s) for job in jobs]
        known = np.array([_UNKNOWN if left is None else left for left in stated])
        # the progress of a job in its first epoch is that at the end of it
        reached = np.where(done > 0, np.fmax(done, least), least)
        left = reached / np.maximum(progress, LEAST_PROGRESS) - done
        found: Floats = np.where(np.isnan(known), left, known)
        return found

    def _epoch(self, job: JobState, time_s: float) -> Epoch:
        from pliant.tools.profile.predictor.epochs import Epoch

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
    """A job that has finished, at the ends of its epochs."""
    from pliant.tools.profile.predictor.epochs import EndedJob, Epoch, evenly

    size, initial, total = (
        job.epoch_samples or _UNKNOWN,
        _number(job.initial_loss),
        job.samples_done(math.inf),
    )
    if not job.epochs:
        return evenly(size, initial, total)
    ends = [(end.samples_done, _number(end.loss), _number(end.metric)) for end in job.epochs]
    return EndedJob([Epoch(size, initial, *end) for end in ends], total)
