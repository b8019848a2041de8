"""A state directory at one moment, as sessions: to be asked what is to come, and what was predicted before.

Nothing is locked and nothing is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogReader
from pliant.schemas.io import read_schedule
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.run.statedir.directory import StateDir, check_seen
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.log.worker_reports import measured_speeds
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import no_state_directory
from pliant.tools.run.watch.status import live_session, policy_in_use
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.from_log import SessionFold
from pliant.tools.schedule.predict_start import copy_of
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session


class PastMoment(NamedTuple):
    """What was known at a moment of the past."""

    time_s: float
    session: Session
    """To be used up."""
    measured: Mapping[str, float]


class LiveState:
    """What can be seen of a run, and of the jobs that it is to take up.

    :raises UsageError: no run has begun there, or it is not this user's to see.
    :raises BadInputError: the log is damaged.
    """

    def __init__(self, state: Path) -> None:
        self.path = state
        self._dirs = StateDir(state.resolve())
        if not (self._dirs.events.is_file() or self._dirs.spool.is_dir()):
            raise no_state_directory(state)
        check_seen(self._dirs)
        self._requests = Spool(self._dirs).requests()
        self._view = LogView(self._dirs)
        self.log: RunLog = self._view.refresh()
        if self.log.info is None:
            raise UsageError(f"{state} holds no run yet: there is nothing to predict from")
        self._schedule = read_schedule(self._dirs.schedule) if self._dirs.schedule.exists() else None
        self.now_s = max(time.time(), self.log.last_s)
        self.policy = policy_in_use(self.log.info, self._schedule)
        self.cluster: Cluster = self.log.info.cluster
        self.measured: Mapping[str, float] = {}
        """Samples per second of running jobs; known once a session was made."""
        self.profile: Profile | None = None
        self._events: list[Event] | None = None

    def session(self, question: Question | None = None, cluster: Cluster | None = None) -> Session:
        """The session as it stands; under another policy or on another cluster, if one is named.

        :raises UsageError: the policy or a parameter is unknown, or it needs a profile.
        """
        with redirect_stdout(sys.stderr):  # a policy may print, and stdout is for the answer
            session, self.profile = live_session(
                *(self._view, self._dirs, self._schedule, self._requests, self.now_s),
                question=question,
                cluster=cluster,
            )
        self.measured = measured_speeds(self.log)
        return session

    def coming(self) -> list[Job]:
        """Jobs that arrive later."""
        asked = [
            job for request in self._requests for job in request.jobs if not request.is_due(job, self.now_s)
        ]
        cancelled = {job_id for request in self._requests for job_id in request.cancelled}
        return [job for job in asked if job.id not in self.log.jobs and job.id not in cancelled]

    def events(self) -> list[Event]:
        """All events of the log."""
        if self._events is None:
            self._events = [event for _, event in LogReader(self._dirs.events).read(to_the_end=True)]
        return self._events

    def past(self, moments: int, session: Session) -> Iterator[PastMoment]:
        """What was known at that many moments, evenly spread over the time in which this policy has decided.

        :param session: of the present.
        """
        times = self._moments(moments)
        policy = make_policy(self.policy.policy, self.policy.parameters)
        new = Session(policy, session.cluster, session.speeds.throughput, seed=session.seed)
        fold, log = SessionFold(new, str(self._dirs.events)), RunLog()
        for event in self.events():
            while times and event.time > times[0]:
                yield PastMoment(times[0], _at(fold, times[0]), measured_speeds(log))
                del times[0]
            if not times:
                return
            fold.add(event)
            log.add(event)

    def _moments(self, count: int) -> list[float]:
        events = self.events()
        name, begins_s, ends_s = self.policy.policy, events[0].time, events[-1].time
        for event in events:
            if event.event == "decision" and str((event.detail or {}).get("policy", name)) != name:
                begins_s = event.time
        span_s = ends_s - begins_s
        return (
            [begins_s + span_s * (number + 1) / (count + 1) for number in range(count)] if span_s > 0 else []
        )


def _at(fold: SessionFold, time_s: float) -> Session:
    found = copy_of(fold.finish())
    found.carry(None)
    found.advance(time_s)
    return found
