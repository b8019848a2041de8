"""The fit of the epochs to go: ρ ~ Beta(α, β) with β = max(A·x + b, 1), by maximum likelihood."""

from __future__ import annotations

from typing import Final

import numpy as np

from pliant.schemas.predictor import ProgressFit
from pliant.tools.profile.predictor.epochs import Floats

RIDGE: Final = 1e-4
"""Weight of the squared normalised coefficients: what the rows do not decide stays small."""
FARTHEST: Final = 4.0
"""Standard deviations up to which a feature counts: beyond what was seen, the line is not followed."""
_MOST_STEPS: Final = 300


def epochs_to_go(fit: ProgressFit, features: Floats) -> Floats:
    """β of each row, at least 1. A feature that is not known counts as its mean."""
    normalised = _normalised(features, np.array(fit.mean), np.array(fit.scale))
    found: Floats = np.maximum((normalised * np.array(fit.weights)).sum(axis=1) + fit.bias, 1.0)
    return found


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
    found = minimize(_loss, begin, rows, jac=True, method="TNC", options={"maxfun": _MOST_STEPS})
    return ProgressFit(
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(found.x[:-1].tolist()),
        bias=float(found.x[-1]),
        trust=1.0 if start is None else start.trust,
    )


def _moments(features: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of what is known of each feature; 0 and 1 where nothing is."""
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
    """The mean negative log-likelihood with its penalty, and its gradient."""
    from scipy.special import betaln, digamma

    weights = line[:-1]
    epochs = (features * weights).sum(axis=1) + line[-1]  # not by BLAS: its threads cost more than this
    beta = np.maximum(epochs, 1.0)
    likelihood = (alpha - 1) * log_done + (beta - 1) * log_left - betaln(alpha, beta)
    slope = np.where(epochs > 1, log_left - digamma(beta) + digamma(alpha + beta), 0.0) / len(alpha)
    gradient = np.append(2 * RIDGE * weights - (features * slope[:, None]).sum(axis=0), -slope.sum())
    return RIDGE * float(weights @ weights) - float(likelihood.mean()), gradient
