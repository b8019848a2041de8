from collections.abc import Sequence
from math import inf

import numpy as np

from pliant.tools.schedule.policies.elastic_dp.curves import GRID, Gains
from pliant.tools.schedule.policies.elastic_dp.optimizer import Optimizer

Curve = list[float]
"""[GPUs] what they are worth; the first is for none and not read."""


def gains_of(curve: Sequence[float]) -> Gains | None:
    return Gains.of(np.array(curve, dtype=float))


def optimizer(
    gpus: int, curves: Sequence[Curve], users: Sequence[str] = (), quota: int | None = None
) -> Optimizer | None:
    """None: these jobs do not fit together."""
    result = Optimizer(gpus, quota)
    for curve, user in zip(curves, users or [""] * len(curves), strict=True):
        gains = gains_of(curve)
        if gains is None or not result.add(gains, user):
            return None
    return result


def sizes(gpus: int, *curves: Curve, users: Sequence[str] = (), quota: int | None = None) -> list[int]:
    return optimizer(gpus, curves, users, quota).sizes()


def test_what_does_not_fit_changes_nothing_and_ties_keep_order() -> None:
    result = optimizer(4, [[0, 1, 2], [0, -inf, 1]])
    assert not result.add(gains_of([0, -inf, 1]))
    assert (result.left, result.sizes()) == (1, [2, 2])
    assert result.add(gains_of([0, 1]))
    assert result.sizes() == [1, 2, 1]

    assert sizes(4) == []
    assert gains_of([0, -inf, -inf]) is None
    assert optimizer(0, [[0, 1]]) is None
    # Of equal jobs those added first get more.
    assert sizes(20, [0, 1, 1, 2, 2, 1], [0, 3, 3, 3], [0, 1, 2, 2]) == [3, 1, 2], "no GPU that gains nothing"

    assert sizes(5, *[[0, 1, 2]] * 3) == [2, 2, 1]
    assert sizes(8, *[[0, 1, 1, 3]] * 3) == [3, 3, 1]

    steady, jump = [0, 1, 2, 3], [0, 1, 1, 3]
    assert sizes(4, jump, steady) == sizes(4, steady, jump)[::-1] == [1, 3]


def test_quotas_of_users_and_gains_on_the_grid() -> None:
    fast, slow = [0, 2, 4, 6, 8], [0, 1, 2, 3, 4]
    assert sizes(8, fast, fast, slow, users=["ann", "ann", "bob"]) == [4, 3, 1]
    assert sizes(8, fast, fast, slow, users=["ann", "ann", "bob"], quota=5) == [4, 1, 3]
    # Jobs without a user have no quota.
    assert sizes(8, fast, fast, slow, users=["", "", "bob"], quota=5) == [4, 3, 1]
    # A quota with no room for one more refuses it.
    result = Optimizer(8, quota=2)
    one = gains_of([0, 1, 2])
    assert one is not None
    assert [result.add(one, user) for user in ("ann", "ann", "ann", "bob")] == [True, True, False, True]
    assert [result.left_for(user) for user in ("ann", "bob", "eve")] == [0, 1, 2]
    assert result.left_for() == 5
    assert result.sizes() == [1, 1, 2]
    # No earlier offer exceeds the quota of a user.
    result = Optimizer(8, quota=5)
    jump, fixed = gains_of([0, 1, 1, 1, 4]), gains_of([0, -inf, 1])
    assert jump is not None
    assert fixed is not None
    assert result.add(jump, "ann")
    assert result.sizes() == [4]
    assert result.add(fixed, "ann")
    assert result.sizes() == [1, 2]
    # Gains are on the grid and without what fewer GPUs reach.
    gains = gains_of([0, -inf, 0.1, 0.3, 0.2, 0.35, 0.35])
    assert (gains.least, gains.base, gains.concave) == (2, 0.1, False)
    assert gains.by_extra[2] == -inf
    assert len(gains.by_extra) == 4
    assert np.all(gains.by_extra[[0, 1, 3]] / GRID % 1 == 0)

    thirds = gains_of([0.0, *(size / 3 for size in range(1, 200))])
    assert thirds.concave
    assert np.allclose(thirds.by_extra, np.arange(199) / 3, rtol=1e-9)
