"""How a worker says what it ended by."""

from __future__ import annotations

import pytest

from pliant.tools.run.elastic.membership.exit import described
from pliant.tools.run.statedir.contract.plan import LOST_PEER

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("too large\nby far"), "ValueError: too large"),
        (KeyError(), "KeyError"),
        (RuntimeError("in loading Net:\n\tsize mismatch"), "RuntimeError: in loading Net: size mismatch"),
        (
            RuntimeError("a/gloo/pair.cc: closed by peer"),
            f"{LOST_PEER}: RuntimeError: a/gloo/pair.cc: closed by peer",
        ),
        (RuntimeError("a/gloo/pair.cc: 8 vs 4"), "RuntimeError: a/gloo/pair.cc: 8 vs 4"),
    ],
)
def test_the_reason_of_a_crash_is_one_line_that_says_something(error: Exception, words: str) -> None:
    assert described(type(error), error, alone=False) == words
