"""How many GPUs each job gets: one size a job, the largest sum of values within the GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints

_HALVINGS: Final = 50
_FILLS: Final = 8
"""Jobs that grow one after the other into what is left."""


def exact(values: Sequence[Floats], gpus: int) -> list[int]:
    """Sizes by job, ``values[job][k]`` that of k GPUs; the first of equal ones. O(jobs · K · sizes).

    Infeasible sizes are -inf; the least of the others fit together.
    """
    padded = np.full(2 * gpus + 1, -np.inf)
    padded[gpus:] = 0.0
    step = padded.strides[0]
    shape = (gpus + 1, gpus + 1)
    left = np.lib.stride_tricks.as_strided(padded[gpus:], shape, (step, -step), writeable=False)
    rows = np.arange(gpus + 1)
    chosen: list[Ints] = []
    for value in values:
        made = left[:, : len(value)] + value
        pick = made.argmax(axis=1)
        chosen.append(pick)
        padded[gpus:] = made[rows, pick]
    sizes = [0] * len(values)
    spare = gpus
    for index in range(len(values) - 1, -1, -1):
        sizes[index] = int(chosen[index][spare])
        spare -= sizes[index]
    return sizes


def by_price(values: Floats, sizes: Ints, gpus: int) -> Ints:
    """Positions of sizes by job: the largest values at one price of a GPU, the rest filled up.

    At the least price at which all sizes fit, no other sizes of as many GPUs are worth more. What is left
    goes to those that would have more at a price just below. Close to the best for many jobs.

    :param values: [job, size].
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)

    def at(price: float) -> Ints:
        found: Ints = (values - price * sizes).argmax(axis=1)
        return found

    finite = values[np.isfinite(values)]
    low, high = 0.0, float(finite.max() - finite.min()) + 1.0
    chosen = at(low)
    if sizes[chosen].sum() <= gpus:
        return chosen
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sizes[at(middle)].sum() <= gpus else (middle, high)
    return _filled(values, sizes, at(high), at(low), gpus)


def _filled(values: Floats, sizes: Ints, chosen: Ints, wished: Ints, gpus: int) -> Ints:
    """Jobs get what they would have at a price just below, in turn, while it fits; then what gains most."""
    rows = np.arange(len(values))
    spare = gpus - int(sizes[chosen].sum())
    for row in np.flatnonzero(sizes[wished] > sizes[chosen]).tolist():
        step = int(sizes[wished[row]] - sizes[chosen[row]])
        if step <= spare:
            chosen[row], spare = wished[row], spare - step
    for _ in range(_FILLS):
        more = sizes - sizes[chosen][:, None]
        gains = values - values[rows, chosen][:, None]
        gains = np.where((more > 0) & (more <= spare) & (gains > 0), gains / np.maximum(more, 1), 0.0)
        row, size = divmod(int(gains.argmax()), len(sizes))
        if not gains[row, size] > 0:
            break
        spare -= int(more[row, size])
        chosen[row] = size
    return chosen
