"""The progress predictor of ONES: how much of its work a job has done, as a Beta distribution.

After Bian et al., "Online Evolutionary Batch Size Orchestration for Scheduling Deep Learning Workloads in GPU
Clusters", SC'21, section 3.2.1: progress ρ ~ Beta(α, β), α the epochs done and β = max(A·x + b, 1) those to
go. A and b have the largest likelihood on the epochs of jobs that ended; it is fitted again as jobs end, on a
bounded uniform sample. The published distribution is too narrow for jobs that it has not seen, so it is
widened as those jobs demand (:mod:`.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from pliant.schemas.predictor import Predictor, ProgressFit
from pliant.tools.profile.predictor.calibration import inside, narrowed, trust_of
from pliant.tools.profile.predictor.epochs import (
    EndedJob,
    Epoch,
    Floats,
    epochs_done,
    features,
    rounded,
    rows_of,
)
from pliant.tools.profile.predictor.likelihood import epochs_to_go, fitted
from pliant.tools.profile.predictor.sample import Sample

FEWEST_JOBS: Final = 5
"""Before as many jobs have ended, progress is uniform between 0 and 1: as much again is expected to come."""
_EVERY_JOB_UNTIL: Final = 50
"""Up to this number of jobs it is fitted again at every end, then whenever there are 2 % more."""
_FOLDS: Final = 20


class ProgressPredictor:
    """Predicts by what it was made of, and learns from jobs that end. Equal calls, equal predictions."""

    def __init__(self, made_of: Predictor | None = None, *, seed: int = 0) -> None:
        """Without a fitted file, it knows nothing yet.

        :param seed: of the sample, where there is no file.
        """
        known = made_of or Predictor(seed=seed)
        self.jobs = known.jobs
        """Finished jobs that it learned from."""
        self.fit: ProgressFit | None = known.fit
        self._fitted_jobs = known.fitted_jobs
        self._sample = Sample(known.seed, known.rows, known.rows_seen)

    def beta(self, epochs: Iterable[Epoch]) -> tuple[Floats, Floats]:
        """(α, β) of the progress of each job, both at least 1, in the order given."""
        known = features(epochs)
        alpha = epochs_done(known[:, 0], known[:, 2])
        if self.fit is None:
            return np.ones(len(known)), np.ones(len(known))
        return narrowed(alpha, epochs_to_go(self.fit, known), self.fit.trust)

    @property
    def usual_epoch_samples(self) -> float | None:
        """What an epoch of the jobs that ended has on average; None: none has ended."""
        return float(self._sample.features[:, 0].mean()) if len(self._sample) else None

    def learn(self, ended: Iterable[EndedJob]) -> None:
        """Learn from jobs that ended, in this order; those without an epoch to learn from add nothing."""
        before = self.jobs
        for job in ended:
            rows = rows_of(job)
            if len(rows):
                self._sample.add(rows, self._unseen(rows), self.jobs)
                self.jobs += 1
        if self.jobs > before and self._is_due():
            self._fit()

    def coverage(self) -> float:
        """How much of the sample lies in the 90 % intervals, as predicted before its job was learned from.

        :raises ValueError: nothing is fitted yet.
        """
        if self.fit is None:
            raise ValueError("nothing is fitted yet")
        sample = self._sample
        at = narrowed(sample.alpha, sample.held_out, self.fit.trust)
        return float(inside(*at, sample.progress).mean())

    def document(self) -> Predictor:
        """All that it knows, as a file holds it."""
        return Predictor(
            seed=self._sample.seed,
            jobs=self.jobs,
            rows_seen=self._sample.rows_seen,
            fitted_jobs=self._fitted_jobs,
            fit=self.fit,
            rows=self._sample.to_rows(),
        )

    def _unseen(self, rows: Floats) -> Floats:
        """The epochs to go of a job that was not learned from; NaN: nothing can be predicted yet."""
        if self.fit is None:
            return np.full(len(rows), np.nan)
        return rounded(epochs_to_go(self.fit, rows[:, :-1]))

    def _is_due(self) -> bool:
        if self.fit is None:
            return self.jobs >= FEWEST_JOBS
        more = 1 if self.jobs <= _EVERY_JOB_UNTIL else self._fitted_jobs // _EVERY_JOB_UNTIL
        return self.jobs >= self._fitted_jobs + more

    def _fit(self) -> None:
        sample = self._sample
        found = fitted(sample.features, sample.alpha, sample.progress, self.fit)
        self._predict_without(found)
        trust = trust_of(sample.alpha, sample.held_out, sample.progress)
        self.fit, self._fitted_jobs = found.model_copy(update={"trust": trust}), self.jobs

    def _predict_without(self, found: ProgressFit) -> None:
        """Predict rows of which nothing was predicted before, each by a fit to other jobs than its own."""
        sample = self._sample
        fold = sample.job.astype(int) % _FOLDS
        missing = np.isnan(sample.held_out)
        for number in np.unique(fold[missing]):
            others, these = fold != number, missing & (fold == number)
            known = (sample.features[others], sample.alpha[others], sample.progress[others])
            fit = fitted(*known, found) if others.any() else found
            sample.predict_held_out(these, rounded(epochs_to_go(fit, sample.features[these])))
