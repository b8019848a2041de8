"""Mixed-integer programs of policies, solved by HiGHS."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt


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

    :param whole: [variable] 1 where it is a whole number.
    :param options: of ``milp``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    with _stdout_kept():
        return milp(
            costs,
            integrality=whole,
            bounds=Bounds(0, most),
            constraints=LinearConstraint(rows, low, high),
            options=cast(Any, options),
        )


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
