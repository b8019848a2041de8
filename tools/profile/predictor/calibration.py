"""How far a fitted Beta distribution is to be trusted, measured on jobs that it was not fitted to."""

from __future__ import annotations

from typing import Final

import numpy as np

from pliant.tools.profile.predictor.epochs import Floats

INTERVAL: Final = 0.9
"""The interval that is calibrated, and how much of what happens it is to cover."""
_HALVINGS: Final = 20


def narrowed(alpha: Floats, beta: Floats, trust: float) -> tuple[Floats, Floats]:
    """Between the uniform distribution (trust 0) and Beta(α, β) (trust 1): the density to the power of trust.

    Its mode stays, and both parameters stay at least 1.
    """
    return 1 + trust * (alpha - 1), 1 + trust * (beta - 1)


def inside(alpha: Floats, beta: Floats, progress: Floats, interval: float = INTERVAL) -> Floats:
    """Whether each value lies in the central interval of its Beta distribution: 1 or 0."""
    from scipy.special import betainc

    tail = (1 - interval) / 2
    below = betainc(alpha, beta, progress)
    return ((below >= tail) & (below <= 1 - tail)).astype(float)


def trust_of(alpha: Floats, beta: Floats, progress: Floats) -> float:
    """The trust under which what happened has the largest likelihood.

    That likelihood is concave in the trust, whatever the rows are.

    :param beta: epochs to go, predicted without the job that a row is of.
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
