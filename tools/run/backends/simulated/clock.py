"""Clocks that go on when they are advanced, for simulated nodes and who drives them."""

import time
from typing import Final

BEGAN_S: Final = 1_700_000_000.0


class SimulatedClock:
    """A machine's two clocks: one that can be set, and one that cannot.

    :param runs: real time passes, too: what a launcher does takes its time.
    """

    def __init__(self, wall_s: float = BEGAN_S, *, runs: bool = False) -> None:
        self._skipped_s = 1000.0
        self._began_s = time.perf_counter() if runs else None
        self._ahead_s = wall_s - self._skipped_s

    def wall(self) -> float:
        return self.steady() + self._ahead_s

    def steady(self) -> float:
        passed_s = 0.0 if self._began_s is None else time.perf_counter() - self._began_s
        return self._skipped_s + passed_s

    def advance(self, seconds: float) -> None:
        self._skipped_s += seconds

    def set_forward(self, seconds: float) -> None:
        """Somebody sets the system's clock; back, where ``seconds`` is negative."""
        self._ahead_s += seconds
