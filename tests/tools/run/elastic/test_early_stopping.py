from __future__ import annotations

import math

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic import EarlyStopping


def ends_after(stopping: EarlyStopping, *metrics: float) -> int | None:
    """The epoch, from 1, after which it says that it is enough."""
    return next((epoch for epoch, metric in enumerate(metrics, 1) if stopping.reached(metric)), None)


def test_a_target_ends_the_training_when_it_is_reached() -> None:
    assert ends_after(EarlyStopping(target=0.9), 0.5, 0.89, 0.9, 0.95) == 3
    assert ends_after(EarlyStopping(target=0.1, lower_is_better=True), 0.5, 0.2, 0.1) == 3


def test_patience_counts_epochs_in_a_row_without_a_better_metric() -> None:
    assert ends_after(EarlyStopping(patience=2), 0.5, 0.5, 0.6, 0.6, 0.6, 0.7) == 5
    assert ends_after(EarlyStopping(patience=2, least_gain=0.2), 0.5, 0.6, 0.69) == 3
    assert ends_after(EarlyStopping(patience=2), math.nan, math.nan) == 2


def test_a_resize_forgets_nothing() -> None:
    first, second = EarlyStopping(patience=2), EarlyStopping(patience=2)
    assert not first.reached(0.8)
    assert not first.reached(0.7)
    second.load_state_dict(first.state_dict())
    assert second.reached(0.75)


@pytest.mark.parametrize("arguments", [{}, {"patience": 0}])
def test_nothing_to_stop_at_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="EarlyStopping"):
        EarlyStopping(**arguments)
