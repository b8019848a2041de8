"""The stages of a stop of one attempt: save and leave, SIGTERM, SIGKILL, and how long each may last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pliant.tools.run.backends.protocol import StopLevel
from pliant.tools.run.service.drain_notices import Notice
from pliant.tools.run.statedir.contract.liveness import Life
from pliant.tools.run.statedir.contract.stacks import DUMP_GRACE_S

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


class StopStages:
    """Which stage an attempt is in, and until when.

    On a node that has to be left by a time the stages end with that time instead of after their own.

    :param send: sends the signal of a stage to all its processes.
    """

    def __init__(self, timeouts: Timeouts, send: Callable[[StopLevel], None]) -> None:
        # The present stage; None: it is not stopped.
        self.stage: Stage | None = None
        self._timeouts = timeouts
        self._send = send
        self._notice: Notice | None = None
        self._deadline_s = self._stacks_s = float("inf")

    def enter(self, stage: Stage, now_s: float, seconds: float | None = None) -> None:
        """:param seconds: time of this stage; None for the usual one."""
        self.stage = stage
        self._deadline_s = until_s = self._limit_s(stage, now_s) if seconds is None else now_s + seconds
        lasts_s = until_s - now_s
        self._stacks_s = now_s + max(lasts_s - DUMP_GRACE_S, lasts_s / 2)
        if stage != "abort":
            self._send(stage)

    def go_on(self, now_s: float) -> None:
        """Enter the next stage; the last one is repeated."""
        self.enter("term" if self.stage == "abort" else "kill", now_s)

    def is_due(self, now_s: float) -> bool:
        """Whether the time of the present stage is over."""
        return now_s >= self._deadline_s

    def is_due_for_stacks(self, now_s: float) -> bool:
        """Whether workers that do not leave should show their stacks now."""
        return self.stage is not None and now_s >= self._stacks_s

    def apply_notice(self, notice: Notice | None, now_s: float) -> None:
        """Leave by a time: it takes the place of the limits of a stop, be they shorter or longer."""
        if notice == self._notice:
            return
        self._notice = notice
        if self.stage is not None:
            self._deadline_s = self._limit_s(self.stage, now_s)

    def _limit_s(self, stage: Stage, now_s: float) -> float:
        """When the next stage is due."""
        if self._notice is not None and stage != "kill":
            return max(now_s, self._notice.term_s if stage == "abort" else self._notice.over_s)
        return now_s + self._timeouts.of(stage)
