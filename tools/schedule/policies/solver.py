"""Mixed-integer programs of policies, solved by HiGHS."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

_TOLERANCE: Final = 1e-5
"""Part of a limit by which a solution may break it; HiGHS allows a tenth of it."""


def solved(
    costs: npt.NDArray[np.float64],
    rows: Any,
    low: Any,
    high: Any,
    *,
    whole: npt.NDArray[np.int64],
    most: Any = 1.0,
    **options: Any,
) -> Any:
    """Least costs for 0 <= x <= ``most``, ``low`` <= ``rows`` @ x <= ``high``: a result of scipy's ``milp``.

    A solution that breaks a limit or its own bound is sought again without presolve.

    :param whole: [variable] 1 where it is a whole number.
    :param options: of ``milp``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    limits, bounds = LinearConstraint(rows, low, high), Bounds(0, most)
    for presolve in ({}, {"presolve": False}):
        chosen = cast(Any, options | presolve)
        with _stdout_kept():
            result = milp(costs, integrality=whole, bounds=bounds, constraints=limits, options=chosen)
        if result.x is None or _is_right(result, limits, bounds, whole):
            break
    return result


def _is_right(result: Any, limits: Any, bounds: Any, whole: npt.NDArray[np.int64]) -> bool:
    """Whether a solution keeps its limits, has whole numbers where it must, and does not beat its bound."""
    least, parts = result.mip_dual_bound, np.abs(result.x - np.rint(result.x))
    return (
        _is_within(result.x, bounds.lb, bounds.ub)
        and _is_within(limits.A @ result.x, limits.lb, limits.ub)
        and _is_within(parts * whole, 0.0, 0.0)
        and (least is None or _is_within(np.array([result.fun]), least, np.inf))
    )


def _is_within(values: npt.NDArray[np.float64], low: Any, high: Any) -> bool:
    below, above = _TOLERANCE * (1 + np.abs(low)), _TOLERANCE * (1 + np.abs(high))
    return bool(((values >= low - below) & (values <= high + above)).all())


@contextmanager
def _stdout_kept() -> Iterator[None]:
    """What native code prints goes to stderr: now and then HiGHS prints a line, whatever it was told."""
    library = ctypes.CDLL(None)
    library.fflush(None)
    try:
        kept = os.dup(1)
    except OSError:  # there is no stdout
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
