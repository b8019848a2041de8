from __future__ import annotations

from itertools import pairwise

from pliant.tools.run.statedir.clock import Clock, origin


def test_a_trace_starts_when_it_is_run() -> None:
    assert origin(100.0, 1_700_000_000.0) == 1_699_999_900.0


def test_a_schedule_in_utc_is_on_the_clock_already() -> None:
    assert origin(1_700_000_000.0, 1_700_000_005.0) == 0.0
    assert origin(1_700_000_000.0, 1_700_000_005.0, known_s=7.0) == 0.0


def test_later_schedules_of_a_trace_are_on_the_clock_of_the_first() -> None:
    assert origin(130.0, 1_700_000_000.0, known_s=1_699_999_900.0) == 1_699_999_900.0


class Machine:
    """Two clocks: one that people set, one that nobody sets."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 2e9, 50.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.steady_s)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_the_clock_follows_the_systems_after_a_suspend_or_a_step_forward() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(10.0)
    assert clock() == 2e9 + 10
    machine.wall_s += 3600.0
    assert clock() == 2e9 + 3610


def test_a_clock_that_was_set_back_is_caught_up_with_and_neither_goes_back_nor_stands_still() -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock()
    machine.wall_s -= 60.0
    shown = [before, clock()]
    for _ in range(13):
        machine.passes(10.0)
        shown.append(clock())
    assert shown[1] == before
    assert all(later > sooner for sooner, later in pairwise(shown[1:]))
    assert shown[-1] == machine.wall_s


def test_the_clock_goes_on_from_what_was_written_down_though_the_system_says_less() -> None:
    """Calls of the cron form after the clock was set back: each goes on from the last, at half speed."""
    machine = Machine()
    clock = machine.clock()
    clock.not_before(machine.wall_s + 600.0, written_s=machine.wall_s + 600.0)
    first, written_s = clock(), machine.wall_s
    assert first == 2e9 + 600
    machine.passes(60.0)
    clock = machine.clock()
    clock.not_before(first, written_s)
    assert clock() == first + 30.0
    machine.passes(2000.0)
    clock = machine.clock()
    clock.not_before(first + 30.0, written_s + 60.0)
    assert clock() == machine.wall_s
