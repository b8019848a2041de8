from __future__ import annotations

import pytest

from pliant.tools.run.clock import Clock, origin


def test_a_trace_starts_when_it_is_run() -> None:
    assert origin(100.0, 1_700_000_000.0) == 1_699_999_900.0


def test_a_schedule_in_utc_is_on_the_clock_already() -> None:
    assert origin(1_700_000_000.0, 1_700_000_005.0) == 0.0
    assert origin(1_700_000_000.0, 1_700_000_005.0, known_s=7.0) == 0.0


def test_later_schedules_of_a_trace_are_on_the_clock_of_the_first() -> None:
    assert origin(130.0, 1_700_000_000.0, known_s=1_699_999_900.0) == 1_699_999_900.0


def test_the_clock_never_shows_less_than_what_was_written_down() -> None:
    clock = Clock()
    future = clock() + 1000.0
    clock.not_before(future)
    assert clock() >= future
    clock.not_before(0.0)
    assert clock() == pytest.approx(future, abs=60)
