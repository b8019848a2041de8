"""Ending a training early: it has reached a target, or has not become better for some epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pliant.schemas.errors import UsageError


class EarlyStopping:
    """Says after each epoch whether to go on; register it with the job, so that a resize keeps its state::

        stopping = elastic.EarlyStopping(target=0.9, patience=5)
        job.register(stopping=stopping)
        for epoch in job.epochs(90):
            …
            job.log(metric=accuracy)
            if stopping.reached(accuracy):
                break

    Every worker must ask with the same value: evaluate on all of the validation data, or reduce the metric.

    :param target: a metric at least this good ends the training.
    :param patience: this number of epochs in a row without a better metric ends it.
    :param least_gain: what counts as better.
    :param lower_is_better: the metric is a loss.
    """

    def __init__(
        self,
        target: float | None = None,
        patience: int | None = None,
        *,
        least_gain: float = 0.0,
        lower_is_better: bool = False,
    ) -> None:
        if target is None and patience is None:
            raise UsageError("EarlyStopping needs a target, a patience, or both")
        if patience is not None and patience < 1:
            raise UsageError(f"EarlyStopping: patience is {patience}, expected 1 or more epochs")
        self._sign = -1.0 if lower_is_better else 1.0
        self._target = None if target is None else self._sign * target
        self._patience = patience
        self._least_gain = least_gain
        self._best = -math.inf
        self._waited = 0

    def reached(self, metric: float) -> bool:
        """Whether the training is to end after the epoch that had this metric; NaN is never better."""
        value = self._sign * float(metric)
        if value > self._best + self._least_gain:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._target is not None and value >= self._target:
            return True
        return self._patience is not None and self._waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """What a later attempt, or a worker that joins, needs to know."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take that over."""
        self._best, self._waited = state_dict["best"], state_dict["waited"]
