"""The progress predictor of ONES: how much of its work a job has done, as a Beta distribution.

After Bian et al., "Online Evolutionary Batch Size Orchestration for Scheduling Deep Learning Workloads in GPU
Clusters", SC'21, section 3.2.1: progress ρ ~ Beta(α, β), α the epochs done and β = max(A·x + b, 1) those to
go. A and b have the largest likelihood (:func:`fitted`) on the epochs of jobs that ended (:func:`ended_jobs`
reads these from event files). The fit is repeated as jobs end, on a bounded uniform sample of their epochs
(:class:`Sample`). The published distribution is too narrow for new jobs, so it is widened by a trust
(:func:`narrowed`, :func:`trust_of`) measured on jobs to which it was not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pliant.schemas.event import Event
from pliant.schemas.events import Ended, EpochEnded, Finished, Submitted, TypedEvent, typed
from pliant.schemas.file_io.record import MOST
from pliant.schemas.job import EpochWork
from pliant.schemas.predictor import MOST_ROWS, Predictor, ProgressFit, SampleRow

Floats = NDArray[np.float64]
FEWEST_JOBS: Final = 5
"""Until this number of jobs has ended, progress is uniform between 0 and 1."""
MOST_EPOCHS: Final = 64
"""Most rows of one job; those of longer jobs are spread evenly."""
RIDGE: Final = 1e-4
"""Weight of the squared normalised coefficients; it keeps undetermined ones small."""
FARTHEST: Final = 4.0
"""Features are clamped to this many standard deviations, so that the line is not extrapolated."""
INTERVAL: Final = 0.9
"""The central interval that is calibrated: the fraction of cases that it should cover."""
_EVERY_JOB_UNTIL: Final = 50
"""Up to this number of jobs the fit is repeated at every end, then at 2 % more."""
_FOLDS: Final = 20
_DIGITS: Final = 9
"""Significant digits of kept values, so that writing and reading changes nothing."""
_MOST_STEPS: Final = 300
_HALVINGS: Final = 20
_FEATURES: Final = 5
_TOTAL: Final = 5
_HELD_OUT: Final = 6
_JOB: Final = 7
_WIDTH: Final = 8


class ProgressPredictor:
    """Predicts progress, and learns from jobs that end. Equal calls give equal predictions."""

    def __init__(self, made_of: Predictor | None = None, *, seed: int = 0) -> None:
        """:param made_of: what a file holds; without it nothing is known yet.
        :param seed: of the sample, without a file.
        """
        known = made_of or Predictor(seed=seed)
        # Finished jobs that it learned from.
        self.jobs = known.jobs
        self.fit: ProgressFit | None = known.fit
        self._fitted_jobs = known.fitted_jobs
        self._widened = known.widened
        self._sample = Sample(known.seed, known.rows, known.rows_seen)

    def beta(self, epochs: Iterable[Epoch]) -> tuple[Floats, Floats]:
        """(α, β) of the progress of each job, both at least 1, in the order given."""
        known = features(epochs)
        alpha = whole_epochs(known[:, 0], known[:, 2])
        if self.fit is None:
            return np.ones(len(known)), np.ones(len(known))
        return narrowed(alpha, epochs_to_go(self.fit, known), self.fit.trust)

    @property
    def usual_epoch_samples(self) -> float | None:
        """Mean samples of an epoch of the jobs that ended; None if none has."""
        return float(self._sample.features[:, 0].mean()) if len(self._sample) else None

    def learn(self, ended: Iterable[EndedJob]) -> None:
        """Learn from jobs that ended, in this order; those without a usable epoch add nothing."""
        before = self.jobs
        for job in ended:
            rows = rows_of(job)
            if len(rows):
                self._sample.add(rows, self._unseen(rows), self.jobs)
                self.jobs += 1
        if self.jobs > before and self._is_due():
            self._fit()

    def coverage(self) -> float:
        """The fraction of the sample inside its 90 % interval, as predicted before its job was learned from.

        :raises ValueError: nothing is fitted yet.
        """
        if self.fit is None:
            raise ValueError("nothing is fitted yet")
        sample = self._sample
        at = narrowed(sample.alpha, sample.held_out, self.fit.trust)
        return float(inside(*at, sample.progress).mean())

    def document(self) -> Predictor:
        return Predictor(
            seed=self._sample.seed,
            jobs=self.jobs,
            rows_seen=self._sample.rows_seen,
            fitted_jobs=self._fitted_jobs,
            widened=self._widened,
            fit=self.fit,
            rows=self._sample.to_rows(),
        )

    def _unseen(self, rows: Floats) -> Floats:
        """The epochs to go of a job not yet learned from; NaN while nothing is fitted."""
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
        fit = fitted(sample.features, sample.alpha, sample.progress, self.fit)
        self._predict_without(fit)
        trust = trust_of(sample.alpha, sample.held_out, sample.progress) if self._widened else 1.0
        self.fit, self._fitted_jobs = fit.model_copy(update={"trust": trust}), self.jobs

    def _predict_without(self, whole_fit: ProgressFit) -> None:
        """Predict the rows without a prediction, each by a fit to jobs other than its own."""
        sample = self._sample
        fold = sample.job.astype(int) % _FOLDS
        missing = np.isnan(sample.held_out)
        for number in np.unique(fold[missing]):
            others, these = fold != number, missing & (fold == number)
            known = (sample.features[others], sample.alpha[others], sample.progress[others])
            fit = fitted(*known, whole_fit) if others.any() else whole_fit
            sample.predict_held_out(these, rounded(epochs_to_go(fit, sample.features[these])))


class Epoch(NamedTuple):
    """A job at one moment; NaN for what is not known."""

    epoch_samples: float
    """‖D‖: samples of an epoch."""
    initial_loss: float
    """Training loss before training, or the first known one."""
    samples_done: float
    loss: float
    """Training loss at the last end of an epoch."""
    metric: float


class EndedJob(NamedTuple):
    """A job that did all of its work, at the ends of its epochs."""

    epochs: Sequence[Epoch]
    total_samples: float


def evenly(epoch_samples: float, initial_loss: float, total_samples: float) -> EndedJob:
    """A job of which only the work is known."""
    whole = math.ceil(total_samples / epoch_samples) - 1 if epoch_samples > 0 else 0
    ends = range(1, whole + 1, max(1, whole // MOST_EPOCHS))
    nan = math.nan
    return EndedJob(
        [Epoch(epoch_samples, initial_loss, end * epoch_samples, nan, nan) for end in ends], total_samples
    )


def rows_of(job: EndedJob) -> Floats:
    """The rows to learn from: features and, last, all samples of the job.

    Without the end of the job itself, which teaches nothing, and epochs of unknown size.
    """
    epoch_features = features(job.epochs)
    rows = rounded(np.column_stack([epoch_features, np.full(len(epoch_features), float(job.total_samples))]))
    rows = rows[(rows[:, 0] > 0) & (rows[:, 2] > 0) & (rows[:, 2] < rows[:, -1])]
    if len(rows) > MOST_EPOCHS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_EPOCHS).round().astype(int)]
    return rows


def features(epochs: Iterable[Epoch]) -> Floats:
    """One row a moment: the features in the order of ``pliant.schemas.predictor.FEATURES``.

    Useless values, such as the loss of a diverging training, count as unknown.
    """
    table = np.array(list(epochs), dtype=float).reshape(-1, len(Epoch._fields))
    initial = table[:, 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        table[:, 3] = 1 - table[:, 3] / initial
    table[~(np.abs(table) <= MOST)] = np.nan
    return table


def whole_epochs(epoch_samples: Floats, samples_done: Floats) -> Floats:
    """α: epochs done, at least 1; 1 if the size of an epoch is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        done: Floats = np.fmax(samples_done / epoch_samples, 1.0)
    return done


def rounded(values: Floats) -> Floats:
    short = [float(f"{value:.{_DIGITS}g}") for value in values.ravel()]
    return np.array(short).reshape(values.shape)


def epochs_to_go(fit: ProgressFit, features: Floats) -> Floats:
    """β of each row, at least 1. An unknown feature counts as its mean."""
    normalised = _normalised(features, np.array(fit.mean), np.array(fit.scale))
    epochs: Floats = np.maximum((normalised * np.array(fit.weights)).sum(axis=1) + fit.bias, 1.0)
    return epochs


def fitted(
    features: Floats, alpha: Floats, progress: Floats, start: ProgressFit | None = None
) -> ProgressFit:
    """The fit with the largest likelihood of ``progress``, between 0 and 1, at ``alpha`` epochs done.

    :param start: where the search begins; its trust is kept.
    """
    from scipy.optimize import minimize

    mean, scale = _moments(features)
    normalised = _normalised(features, mean, scale)
    begin = np.zeros(features.shape[1] + 1)
    if start is None:
        begin[-1] = max(2.0, float(np.mean(alpha * (1 / progress - 1))))
    else:
        begin[:-1], begin[-1] = _carried(start, mean, scale)
    logs = np.log(progress), np.log1p(-progress)
    rows = (normalised, alpha, *logs)
    # truncated Newton: L-BFGS-B calls BLAS, whose waiting threads cost twenty times the fit
    optimum = minimize(_loss, begin, rows, jac=True, method="TNC", options={"maxfun": _MOST_STEPS})
    return ProgressFit(
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(optimum.x[:-1].tolist()),
        bias=float(optimum.x[-1]),
        trust=1.0 if start is None else start.trust,
    )


def _moments(features: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature's known values; 0 and 1 without any."""
    known = np.isfinite(features)
    counts = np.maximum(known.sum(axis=0), 1)
    values = np.where(known, features, 0.0)
    mean = values.sum(axis=0) / counts
    spread = np.sqrt((np.where(known, features - mean, 0.0) ** 2).sum(axis=0) / counts)
    return mean, np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-12), spread, 1.0)


def _normalised(features: Floats, mean: Floats, scale: Floats) -> Floats:
    return np.clip(np.nan_to_num((features - mean) / scale), -FARTHEST, FARTHEST)


def _carried(fit: ProgressFit, mean: Floats, scale: Floats) -> tuple[Floats, float]:
    """The same line under another normalisation."""
    slopes = np.array(fit.weights) / np.array(fit.scale)
    return slopes * scale, fit.bias + float(slopes @ (mean - np.array(fit.mean)))


def _loss(
    line: Floats, features: Floats, alpha: Floats, log_done: Floats, log_left: Floats
) -> tuple[float, Floats]:
    """The mean negative log-likelihood with its penalty, and the gradient."""
    from scipy.special import betaln, digamma

    weights = line[:-1]
    epochs = (features * weights).sum(axis=1) + line[-1]  # not by BLAS: its threads cost more than this
    beta = np.maximum(epochs, 1.0)
    likelihood = (alpha - 1) * log_done + (beta - 1) * log_left - betaln(alpha, beta)
    slope = np.where(epochs > 1, log_left - digamma(beta) + digamma(alpha + beta), 0.0) / len(alpha)
    gradient = np.append(2 * RIDGE * weights - (features * slope[:, None]).sum(axis=0), -slope.sum())
    return RIDGE * float(weights @ weights) - float(likelihood.mean()), gradient


def narrowed(alpha: Floats, beta: Floats, trust: float) -> tuple[Floats, Floats]:
    """Beta(α, β) with its density raised to the power of ``trust``: uniform at 0, unchanged at 1.

    The mode stays, and both parameters stay at least 1.
    """
    return 1 + trust * (alpha - 1), 1 + trust * (beta - 1)


def inside(alpha: Floats, beta: Floats, progress: Floats, interval: float = INTERVAL) -> Floats:
    """Whether each value lies in the central interval of its Beta distribution: 1 or 0."""
    from scipy.special import betainc

    tail = (1 - interval) / 2
    below = betainc(alpha, beta, progress)
    return ((below >= tail) & (below <= 1 - tail)).astype(float)


def trust_of(alpha: Floats, beta: Floats, progress: Floats) -> float:
    """The trust with the largest likelihood, which is concave in the trust for any rows.

    :param beta: epochs to go, predicted without the row's own job.
    """
    from scipy.special import digamma

    done, to_go = alpha - 1, beta - 1
    seen = float((done * np.log(progress) + to_go * np.log1p(-progress)).mean())

    def slope(trust: float) -> float:
        a, b = narrowed(alpha, beta, trust)
        expected = done * digamma(a) + to_go * digamma(b) - (done + to_go) * digamma(a + b)
        return seen - float(expected.mean())

    if slope(1.0) >= 0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return low


class Sample:
    """At most :data:`MOST_ROWS` rows of all added jobs, each kept with the same probability."""

    def __init__(self, seed: int, rows: Iterable[SampleRow] = (), rows_seen: int = 0) -> None:
        self.seed = seed
        self.rows_seen = rows_seen
        known = [[np.nan if value is None else float(value) for value in row] for row in rows]
        self._rows = np.array(known).reshape(-1, _WIDTH)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def features(self) -> Floats:
        return self._rows[:, :_FEATURES]

    @property
    def alpha(self) -> Floats:
        return whole_epochs(self._rows[:, 0], self._rows[:, 2])

    @property
    def progress(self) -> Floats:
        """The fraction of the job's work done."""
        shares: Floats = self._rows[:, 2] / self._rows[:, _TOTAL]
        return shares

    @property
    def held_out(self) -> Floats:
        """Epochs to go, predicted without the row's job; NaN if not predicted yet."""
        return self._rows[:, _HELD_OUT]

    @property
    def job(self) -> Floats:
        return self._rows[:, _JOB]

    def add(self, rows: Floats, held_out: Floats, job: int) -> None:
        added = np.column_stack([rows, held_out, np.full(len(rows), float(job))])
        free = MOST_ROWS - len(self._rows)
        self._rows = np.vstack([self._rows, added[:free]])
        self.rows_seen += min(free, len(added))
        rng = np.random.default_rng([self.seed, job]) if len(added) > free else None
        for row in added[free:]:
            self.rows_seen += 1
            place = int(rng.integers(self.rows_seen)) if rng is not None else 0
            if place < MOST_ROWS:
                self._rows[place] = row

    def predict_held_out(self, job: Floats, epochs: Floats) -> None:
        self._rows[job, _HELD_OUT] = epochs

    def to_rows(self) -> tuple[SampleRow, ...]:
        rows = [[None if np.isnan(value) else value for value in row] for row in self._rows.tolist()]
        return tuple(cast("SampleRow", (*row[:_JOB], int(row[_JOB] or 0))) for row in rows)


def ended_jobs(events: Iterable[Event]) -> list[EndedJob]:
    """The jobs that finished, in the order of their ends, if something can be learned from them."""
    jobs: dict[str, _JobHistory] = {}
    ended: list[EndedJob] = []
    for event in map(typed, events):
        if event.job is None:
            continue
        job = jobs.setdefault(event.job, _JobHistory())
        _apply(job, event)
        if isinstance(event, Ended):
            del jobs[event.job]
            if isinstance(event, Finished):
                ended.append(job.ended())
    return [job for job in ended if job.epochs]


@dataclass(slots=True)
class _JobHistory:
    epoch_samples: float = math.nan
    initial_loss: float = math.nan
    samples_done: float = 0.0
    ends: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """Samples done, loss and metric by epoch."""

    def ended(self) -> EndedJob:
        size = self.epoch_samples
        if math.isnan(size) and self.ends:
            last = max(self.ends)
            size = self.ends[last][0] / last
        if not self.ends:
            return evenly(size, self.initial_loss, self.samples_done)
        return EndedJob(
            [Epoch(size, self.initial_loss, *self.ends[epoch]) for epoch in sorted(self.ends)],
            self.samples_done,
        )


def _apply(job: _JobHistory, event: TypedEvent) -> None:
    if isinstance(event, Submitted):
        job.epoch_samples = _stated_size(event)
    if event.loss is not None and math.isnan(job.initial_loss):
        job.initial_loss = event.loss
    if event.samples_done is not None:
        job.samples_done = event.samples_done
    if isinstance(event, EpochEnded) and event.samples_done is not None:
        number = event.epochs_done or 1 + max(job.ends, default=0)
        job.ends = {epoch: end for epoch, end in job.ends.items() if epoch < number}
        job.ends[number] = (event.samples_done, _number(event.loss), _number(event.metric))


def _stated_size(event: Submitted) -> float:
    try:
        work = event.submission().job.work
    except ValidationError:
        return math.nan
    return (isinstance(work, EpochWork) and work.dataset_size) or math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else value
