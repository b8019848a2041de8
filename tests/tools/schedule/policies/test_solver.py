import ctypes
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.parts import regressions_programs
from pliant.tools.schedule.policies import solver


def test_the_best_whole_numbers_are_found() -> None:
    """Of 3 x + 2 y with 2 x + y <= 5 and each at most 2: x = 2, y = 1; with parts x = 1.5, y = 2."""
    costs, rows = np.array([-3.0, -2.0]), np.array([[2.0, 1.0]])
    result = solver.solved(costs, rows, -np.inf, 5.0, whole=np.ones(2, dtype=np.int64), most=2.0)
    assert result.x.round(6).tolist() == [2.0, 1.0]
    result = solver.solved(costs, rows, -np.inf, 5.0, whole=np.zeros(2, dtype=np.int64), most=2.0)
    assert result.x.round(6).tolist() == [1.5, 2.0]


@pytest.mark.parametrize(("x", "bound"), [([3.0, 1.0], None), ([1.5, 2.0], None), ([0.0, 0.0], 1.0)])
def test_a_wrong_solution_is_sought_again(x: list[float], bound: float | None, monkeypatch, capfd) -> None:
    library, right, asked = ctypes.CDLL(None), SimpleNamespace(x=None), []

    def milp(*_args: object, options: dict[str, object], **_options: object) -> SimpleNamespace:
        library.printf(b"a line of the solver\n")
        asked.append(options)
        return right if len(asked) > 1 else SimpleNamespace(x=np.array(x), fun=0.0, mip_dual_bound=bound)

    monkeypatch.setattr("scipy.optimize.milp", milp)
    whole, rows = np.ones(2, dtype=np.int64), np.array([[2.0, 1.0]])
    assert solver.solved(np.zeros(2), rows, -np.inf, 5.0, whole=whole, most=2.0) is right
    assert asked == [{}, {"presolve": False}]
    print("data", flush=True)
    assert capfd.readouterr() == ("data\n", 2 * "a line of the solver\n")


@pytest.mark.parametrize("policy", regressions_programs.POLICIES)
def test_a_second_solver_finds_the_same_optima(policy: str) -> None:
    assert regressions_programs.wrong_programs(policy, 10) == 0


def test_programs_are_solved_without_a_stdout_too() -> None:
    script = (
        "import os, numpy as np; from pliant.tools.schedule.policies.solver import solved; os.close(1); "
        "found = solved(np.array([-1.0]), np.ones((1, 1)), 0, 1, whole=np.ones(1, dtype=np.int64)); "
        "os.write(2, str(found.x.tolist()).encode())"
    )
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == "[1.0]"
