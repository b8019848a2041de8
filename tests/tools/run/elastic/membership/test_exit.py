"""How a worker says what it ended by, and what errors of an exchange mean."""

from __future__ import annotations

import pytest

from pliant.tools.run.elastic.membership.membership import Recurrence, described
from pliant.tools.run.elastic.membership.process_group import released
from pliant.tools.run.elastic.state.training import IN_EPOCH, Cursor
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


class TestRecurrence:
    place, later = Cursor(0, 7, IN_EPOCH), Cursor(0, 8, IN_EPOCH)
    error = RuntimeError("gloo")

    def test_an_error_that_comes_again_though_all_live_is_raised(self) -> None:
        found = Recurrence()
        found.check(self.error, (0, 1), (0, 1), self.place)
        with pytest.raises(RuntimeError, match="gloo") as raised:
            found.check(self.error, (0, 1), (0, 1), self.place)
        assert raised.value is self.error
        assert "all workers are alive" in raised.value.__notes__[0]

    def test_a_step_that_was_trained_meanwhile_forgives_it(self) -> None:
        found = Recurrence()
        for place in (self.place, self.later, self.place):
            found.check(self.error, (0, 1), (0, 1), place)

    def test_the_loss_of_a_worker_explains_it_each_time(self) -> None:
        found = Recurrence()
        for number in range(3, 9):
            found.check(self.error, tuple(range(number)), tuple(range(number - 1)), self.place)


def test_what_an_error_remembers_holds_no_connection() -> None:
    class Connection:
        pass

    def fails() -> None:
        connection = Connection()
        raise RuntimeError(f"{type(connection).__name__} closed by peer")

    try:
        fails()
    except RuntimeError as caught:
        error = released(caught)
    trace = error.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    assert trace.tb_next.tb_frame.f_code.co_name == "fails"
    assert trace.tb_next.tb_frame.f_locals == {}
