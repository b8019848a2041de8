import ctypes
import subprocess
import sys

import numpy as np

from pliant.tools.schedule.policies import solver


def test_the_best_whole_numbers_are_found() -> None:
    """Of 3 x + 2 y with 2 x + y <= 5 and each at most 2: x = 2, y = 1; with parts x = 1.5, y = 2."""
    costs, rows = np.array([-3.0, -2.0]), np.array([[2.0, 1.0]])
    result = solver.solved(costs, rows, -np.inf, 5.0, whole=np.ones(2, dtype=np.int64), most=2.0)
    assert result.x.round(6).tolist() == [2.0, 1.0]
    result = solver.solved(costs, rows, -np.inf, 5.0, whole=np.zeros(2, dtype=np.int64), most=2.0)
    assert result.x.round(6).tolist() == [1.5, 2.0]


def test_what_native_code_prints_does_not_come_to_stdout(monkeypatch, capfd) -> None:
    library = ctypes.CDLL(None)

    def milp(*_args: object, **_options: object) -> str:
        library.printf(b"a line of the solver\n")
        return "solved"

    monkeypatch.setattr("scipy.optimize.milp", milp)
    assert solver.solved(np.zeros(1), np.ones((1, 1)), 0, 1, whole=np.ones(1, dtype=np.int64)) == "solved"
    print("data", flush=True)
    assert capfd.readouterr() == ("data\n", "a line of the solver\n")


def test_programs_are_solved_without_a_stdout_too() -> None:
    script = (
        "import os, numpy as np; from pliant.tools.schedule.policies.solver import solved; os.close(1); "
        "found = solved(np.array([-1.0]), np.ones((1, 1)), 0, 1, whole=np.ones(1, dtype=np.int64)); "
        "os.write(2, str(found.x.tolist()).encode())"
    )
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == "[1.0]"
