"""Arrivals: jobs of the schedule in their time, submitted jobs, cancellations and orders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.service.submit import in_teams
from pliant.tools.run.statedir.account import Account
from pliant.tools.run.statedir.fault import Faults
from pliant.tools.run.statedir.log.events import cancel_event, reject_event, submit_event
from pliant.tools.run.statedir.requests import Numbered, Spool, askers, order_event, unheard
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.demand import JobCheck, submit_detail
from pliant.tools.schedule.from_log import apply_events
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.session import Session

_log: Final = logging.getLogger("pliant")


class Arrivals:
    """The jobs that a run does not know yet.

    A job that cannot be served is submitted and rejected at once, with the reason.

    :param session: takes up the jobs that arrive.
    :param ahead: jobs of the schedule whose time has not come; their times are on its clock.
    """

    def __init__(
        self,
        state: State,
        session: Session,
        clock: Callable[[], float],
        origin_s: float,
        ahead: Iterable[Job] = (),
    ) -> None:
        self._state = state
        self._session = session
        self._clock = clock
        self._origin_s = origin_s
        self.ahead = sorted(ahead, key=lambda job: (job.submit_time, job.id))
        """Jobs of the schedule that are still to come, in order of their times."""
        self._check = JobCheck(session.cluster, session.speeds, session.policy, session.demand)
        self._refused: dict[str, str] = {}
        """Jobs that could not be taken up for an error, with the reasons."""
        self._faults = Faults(state.dirs.path, self._refused.setdefault)
        self._spool = Spool(state.dirs)
        self._awaited = bool(self._spool.requests())
        self._submitters: dict[str, int] = {}
        """The accounts that submitted the jobs of the requests at hand, where several share the run."""

    @property
    def more_to_come(self) -> bool:
        """Whether there are jobs that have not arrived, or requests that the log lacks."""
        return self._awaited or bool(self.ahead)

    def hear(self, until_s: float) -> tuple[bool, list[str]]:
        """Record what was submitted, cancelled and ordered; jobs not due at ``until_s`` (UTC) wait.

        Returns whether anything was recorded, and the jobs that shall hold nothing any more.
        """
        requests = self._spool.requests()
        if not requests:
            self._awaited = False
            return False, []
        log = self._state.log
        if any(request.order for request in requests):  # the log names the last orders only
            self._spool.settle(log, {job.id for job in self.ahead})
            requests = self._spool.requests()
        asked = {job.id for request in requests for job in request.jobs}
        ahead = {job.id: self.in_utc(job) for job in self.ahead if job.id not in asked}
        events: list[Event] = []
        cancelled: list[str] = []
        now = self._clock()
        self._submitters, cancellers = askers(requests)
        for found in unheard(requests, log, until_s, ahead):
            if isinstance(found, str):
                events.append(self._cancel(found, cancellers.get(found)))
                cancelled.append(found)
            elif isinstance(found, Job):
                events += self._admit(self._in_team(self._on_own_clock(found)))
            else:
                events.append(self._order(found, now))
        self._state.record(events)
        self._spool.settle(log, ahead)
        self._awaited = bool(self._spool.requests())
        return bool(events), cancelled

    def arrive(self, holding: Container[str] = ()) -> list[Event]:
        """The schedule's jobs whose time has come, and those that are given GPUs already."""
        now_s = self._clock() - self._origin_s
        if not self.ahead or (not holding and self.ahead[0].submit_time > now_s):
            return []
        here = [job for job in self.ahead if job.submit_time <= now_s or job.id in holding]
        self.ahead = [job for job in self.ahead if job not in here]
        return [event for job in here for event in self._admit(job)]

    def keep_for_later(self) -> None:
        """Turn the jobs that are still to come into submissions, for the next process."""
        with self._spool.locked():
            asked = {job.id for request in self._spool.requests() for job in request.jobs}
            later = [self.in_utc(job) for job in self.ahead if job.id not in asked]
            if later:
                self._spool.ask_to_run(later)

    def in_utc(self, job: Job) -> Job:
        return job.model_copy(update={"submit_time": self._origin_s + job.submit_time})

    def submit_event(self, state: JobState) -> Event:
        """The event of a job that the session has taken up, or turned away on arrival."""
        known = state.id not in self._session.turned_away
        return self._event(state.spec, self._detail(state) if known else None)

    def _detail(self, state: JobState) -> dict[str, Any]:
        detail = submit_detail(state, self._session.speeds)
        rates = self._session.policy.promised_rates(state, self._session.speeds)
        return {**detail, "rates": rates} if rates else detail

    def _event(self, job: Job, detail: Mapping[str, Any] | None = None) -> Event:
        if (uid := self._submitters.get(job.id)) is not None:
            detail = {**(detail or {}), "uid": uid}
        return submit_event(job, min(self._clock(), self._origin_s + job.submit_time), detail)

    def _on_own_clock(self, job: Job) -> Job:
        """A submitted job, or one of the schedule that is cancelled before its time."""
        own = next((ahead for ahead in self.ahead if ahead.id == job.id), None)
        if own is not None:
            self.ahead.remove(own)
            return own
        now_s = self._clock() - self._origin_s
        time_s = min(now_s, job.submit_time - self._origin_s)
        return job.model_copy(update={"submit_time": max(0.0, time_s)})

    def _in_team(self, job: Job) -> Job:
        """A job that was submitted before there was a cluster here joins the team of its user now."""
        shares = self._session.cluster.shares
        if shares is None or job.id in self._submitters:
            return job
        try:
            return in_teams([job], shares, "jobs")[0]
        except BadInputError as error:
            self._refused[job.id] = error.problems[0].message
        except ServiceMissingError as error:  # no fault of the job, which is this account's own
            _log.warning("job %s counts for the team that it names: %s", job.id, error)
        return job

    def _admit(self, job: Job) -> list[Event]:
        now, session = self._clock(), self._session
        now_s = now - self._origin_s
        with self._faults.of(job.id):
            state = session.take_up(job, now_s)
            reason = self._refused.get(job.id) or self._check.refusal(job)
            if state is not None and reason is None:
                return [self.submit_event(state)]
            if state is not None:
                session.turn_away(job.id, now_s, str(reason))
        reason = self._refused.pop(job.id, None) or session.turned_away.pop(job.id, "")
        if job.id in session.jobs:
            session.end(job.id, now_s, "rejected")
        return [self._event(job), reject_event(job.id, now, reason)]

    def _order(self, given: Numbered, now: float) -> Event:
        """The event of an order; a schedule may cover a part of the cluster, the log gets all orders."""
        event = order_event(*given, now)
        if given.order.node is None or any(node.name == given.order.node for node in self._session.nodes):
            apply_events(self._session, [replace(event, time=now - self._origin_s)])
        return event

    def _cancel(self, job_id: str, uid: int | None) -> Event:
        now = self._clock()
        if job_id in self._session.jobs:
            self._session.end(job_id, now - self._origin_s, "cancelled")
        return cancel_event(job_id, now, by=None if uid is None else Account.of(uid))
