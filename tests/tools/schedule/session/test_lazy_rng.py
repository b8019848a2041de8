from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np

from pliant.tools.schedule.session.session import lazy_rng


def test_lots_are_those_of_the_seed() -> None:
    drawn, expected = lazy_rng(7), np.random.default_rng(7)
    assert [drawn.random() for _ in range(3)] == [expected.random() for _ in range(3)]
    assert drawn.permutation(9).tolist() == expected.permutation(9).tolist()


def test_a_copy_goes_on_by_itself() -> None:
    drawn = lazy_rng(7)
    fresh = copy.deepcopy(drawn)
    drawn.random()
    used = copy.deepcopy(drawn)
    assert fresh.random() == lazy_rng(7).random()
    assert used.random() == drawn.random()


def test_who_draws_none_does_not_wait_for_numpy() -> None:
    script = (
        "import sys; from pliant.tools.schedule.session.session import lazy_rng; "
        "lazy_rng(1); print('numpy' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
