"""How patient a launcher is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pliant.tools.run.statedir.contract.presence import Life

Stage = Literal["abort", "term", "kill"]
"""Of a stop: the plan says so, then SIGTERM, then SIGKILL."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each stage of a stop is given before the next one, and other patience."""

    abort_s: float = 60.0
    term_s: float = 30.0
    kill_s: float = 5.0
    broken_s: float = 5.0
    """For SIGTERM to the rest of a gang that lost a worker: it only waits for the lost one."""
    silent_s: float = 30.0
    """For a worker to show that it runs, before it is killed; the script may hold the interpreter long."""
    dead_s: float = 10.0
    """For a worker and the keeper of its unit, before their host counts as dead."""
    exit_s: float = 10.0
    """For a launcher to end after its worker has."""
    linger_s: float = 300.0
    """For a worker to end after it has written its outcome."""

    def to_end(self) -> float:
        """Seconds of all stages together."""
        return self.abort_s + self.term_s + self.kill_s

    def of(self, stage: Stage) -> float:
        """Seconds of one stage."""
        return {"abort": self.abort_s, "term": self.term_s, "kill": self.kill_s}[stage]

    def of_idle(self, life: Life, *, ended: bool, needed: bool) -> float | None:
        """Seconds for a unit to end that has nothing to do any more; None: it has.

        :param life: of its worker.
        :param ended: the worker has written how it ended.
        :param needed: a plan that is in force, or may come into force, names the worker.
        """
        if life == "gone" or (ended and life == "absent"):
            return self.exit_s
        if ended:
            return self.linger_s
        return None if needed else self.abort_s
