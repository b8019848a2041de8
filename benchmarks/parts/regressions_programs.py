"""Integer programs of policies, solved a second time by another version of HiGHS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.optimize

from tests.tools.replay.test_digests import replayed

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

POLICIES: Final = ("dorm", "oasis-offline", "shockwave", "sia")
"""Those that solve integer programs."""
_FIRST: Final = 3000
"""Number of the first replay that is drawn: the digests have those before."""
_TOLERANCE: Final = 1e-5


class Program(NamedTuple):
    """A program as :func:`scipy.optimize.milp` gets it, and its result."""

    costs: Any
    given: dict[str, Any]
    result: OptimizeResult


def wrong_programs(policy: str, count: int) -> int:
    """How many of the first ``count`` programs of random replays have a wrong result.

    Wrong is what breaks a constraint, or costs more than highspy's optimum by more than the program allows.
    """
    programs = _programs(policy)
    return sum(_is_wrong(next(programs)) for _ in range(count))


def _programs(policy: str) -> Iterator[Program]:
    """The programs of one replay after the other."""
    solve = scipy.optimize.milp
    number = _FIRST
    while True:
        programs: list[Program] = []

        def recorded(costs: Any, **given: Any) -> OptimizeResult:
            programs.append(Program(costs, given, solve(costs, **given)))  # noqa: B023 - called in this round
            return programs[-1].result  # noqa: B023

        with patch("scipy.optimize.milp", recorded):
            replayed(policy, number)
        yield from programs
        number += 1


def _is_wrong(program: Program) -> bool:
    x, limits, least = program.result.x, program.given["constraints"], _optimum(program)
    if x is None or least is None:
        return (x is None) != (least is None)
    rows = limits.A @ x
    is_broken = (rows < limits.lb - _TOLERANCE).any() or (rows > limits.ub + _TOLERANCE).any()
    allowed = program.given["options"].get("mip_rel_gap", 1e-4) * abs(least) + _TOLERANCE
    return bool(is_broken or program.result.fun > least + allowed)


def _optimum(program: Program) -> float | None:
    """The least costs; None where there is no solution."""
    import highspy
    from scipy.sparse import csc_array

    rows = csc_array(program.given["constraints"].A)
    height, width = rows.shape

    def full(values: Any, length: int) -> Any:
        return np.broadcast_to(np.asarray(values, float), length).copy()

    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = height, width
    model.col_cost_ = np.asarray(program.costs, float)
    model.col_lower_ = full(program.given["bounds"].lb, width)
    model.col_upper_ = full(program.given["bounds"].ub, width)
    model.row_lower_ = full(program.given["constraints"].lb, height)
    model.row_upper_ = full(program.given["constraints"].ub, height)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = rows.indptr, rows.indices
    model.a_matrix_.value_ = rows.data
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    model.integrality_ = [kinds[int(whole)] for whole in program.given["integrality"]]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.passModel(model)
    solver.run()
    is_optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getObjectiveValue()) if is_optimal else None
