"""How long the launcher waits for what: the stages of a stop, silent workers, launchers that end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pliant.tools.run.statedir.contract.liveness import Life

Stage = Literal["abort", "term", "kill"]
"""Stages of a stop: the plan asks, then SIGTERM, then SIGKILL."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds of each stage of a stop, and of other waits."""

    abort_s: float = 60.0
    term_s: float = 30.0
    kill_s: float = 5.0
    broken_s: float = 5.0
    """Seconds before SIGTERM to the rest of a gang that waits for a lost worker."""
    silent_s: float = 30.0
    """Seconds without a heartbeat before a worker is killed; scripts may block the interpreter."""
    dead_s: float = 10.0
    """Seconds without heartbeats of worker and supervisor before their host counts as dead."""
    exit_s: float = 10.0
    """Seconds for a launcher to end after its worker."""
    linger_s: float = 300.0
    """Seconds for a worker to end after it has written its outcome."""

    def to_end(self) -> float:
        return self.abort_s + self.term_s + self.kill_s

    def of(self, stage: Stage) -> float:
        return {"abort": self.abort_s, "term": self.term_s, "kill": self.kill_s}[stage]

    def of_idle(self, life: Life, *, ended: bool, needed: bool) -> float | None:
        """Seconds for a unit to end that has nothing to do any more. Returns None if it has.

        :param life: of its worker.
        :param ended: the worker has written how it ended.
        :param needed: a plan that is in force, or may come into force, names the worker.
        """
        if life == "gone" or (ended and life == "absent"):
            return self.exit_s
        if ended:
            return self.linger_s
        return None if needed else self.abort_s
