"""When the next job arrives, and when the policy is to be asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pliant.schemas.job import Job
from pliant.schemas.job_table import in_order
from pliant.tools.replay.engine.running import Agenda, RoundTimes
from pliant.tools.schedule.session.session import Session


class TraceJobs:
    """The jobs of a trace, one after the other."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.count = len(jobs)
        self._jobs = iter(in_order(jobs))
        # The next job to arrive. None: all have arrived.
        self.coming: Job | None = None
        self.coming_s = math.inf
        self.look_ahead()

    def look_ahead(self) -> None:
        """The next job has arrived; another one is coming."""
        self.coming = next(self._jobs, None)
        self.coming_s = math.inf if self.coming is None else self.coming.submit_time


class DecisionTimes:
    """The times at which a replay asks its policy."""

    def __init__(
        self, session: Session, agenda: Agenda, interval_s: float | None, first_round: int = 0
    ) -> None:
        """:param interval_s: at multiples of it only; None: at every change."""
        self.decided_s = -math.inf
        # Whether the policy has to be asked at once, as the replay begins with jobs.
        self.at_once = False
        # Whether a job ended at this moment after the decision: it took less time than clocks resolve.
        self.ended_late = False
        # Changes after which the policy is asked; 0: it is asked as often as it is to be.
        self.least_changes = 0
        self._session = session
        self._agenda = agenda
        self._rounds = RoundTimes(interval_s, first_round) if interval_s else None

    def next_s(self, now_s: float, coming_s: float) -> float:
        """When something happens next, or the policy is asked.

        :param coming_s: when the next job arrives.
        """
        if self.at_once or (self.ended_late and self._rounds is None):
            return now_s  # nothing else might lead to another decision
        next_s = coming_s
        if self._agenda.first_s < next_s and (due_s := self._agenda.next_s()) < next_s:
            next_s = due_s
        if not self._session.jobs or (self.least_changes and next_s < math.inf):
            return next_s
        again_s = self._session.decided.due_s
        if again_s is not None and again_s > self.decided_s:
            next_s = min(next_s, max(again_s, now_s))
        return next_s if self._rounds is None else min(next_s, self._next_round_s(self._rounds, now_s))

    def _next_round_s(self, rounds: RoundTimes, now_s: float) -> float:
        session = self._session
        quiet_until_s = -math.inf if session.changes.has_news else session.decided.quiet_until_s
        return math.inf if quiet_until_s == math.inf else rounds.next_s(max(now_s, quiet_until_s))

    def is_due(self, now_s: float) -> bool:
        """Whether the policy is asked now."""
        if self.at_once:
            return True
        session = self._session
        if self.least_changes:
            return len(session.changes.entries) >= self.least_changes or self._agenda.next_s() == math.inf
        if self._rounds is None and session.changes.has_news:
            return True
        again_s = session.decided.due_s
        wished = again_s is not None and self.decided_s < again_s <= now_s and bool(session.jobs)
        if self._rounds is None:
            return wished
        if session.jobs and self._rounds.next_s(now_s) <= now_s:
            self._rounds.hold(now_s)  # held or left out: what comes late at this moment waits for the next
            return wished or session.changes.has_news or now_s >= session.decided.quiet_until_s
        return wished

    @property
    def come_again(self) -> bool:
        """Whether the policy will be asked though nothing happens."""
        return self._rounds is not None or self._session.decided.due_s is not None
