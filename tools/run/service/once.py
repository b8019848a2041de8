"""One reconciliation, for cron: record what ended, make a schedule's decision what runs, leave it running."""

from __future__ import annotations

from collections.abc import Callable

from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.service.allocation.steps import Step
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.reports import Progressed, Report, change_event, report_events
from pliant.tools.run.statedir.directory import State
from pliant.tools.run.statedir.fault import Faults
from pliant.tools.run.statedir.log.events import (
    cancel_event,
    decision_event,
    give_up_event,
    reject_event,
    release_event,
    submit_event,
)
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool, unheard
from pliant.tools.run.statedir.schedule_file import ScheduleFile
from pliant.tools.run.statedir.share import shares_of
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.schedulable import JobCheck
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.submit_detail import submit_detail


class Once:
    """The schedule's decision, executed on top of whatever the state directory holds."""

    def __init__(
        self,
        state: State,
        executor: Executor,
        schedule: Schedule,
        session: Session,
        clock: Callable[[], float],
        *,
        origin_s: float,
        retries: int,
    ) -> None:
        """:param session: an empty one of the policy on the cluster, which says what jobs can be served."""
        self._state = state
        self._executor = executor
        self._schedule = schedule
        self._schedule_file = ScheduleFile(state.dirs.schedule)
        self._speeds = session.speeds
        self._job_check = JobCheck(session.cluster, session.speeds, session.policy)
        self._faults = Faults(state.dirs.path, self._give_up)
        self._given_up: dict[str, str] = {}
        self._clock = clock
        self._origin_s = origin_s
        self._retries = retries
        self._looked_s = 0.0

    @property
    def unsettled(self) -> list[str]:
        """What is not yet as the schedule says: jobs, or the copy of the schedule."""
        jobs = [f"job {job_id}" for job_id in sorted(self._executor.unsettled)]
        return [*jobs, "schedule.json"] if self._schedule_file.is_behind else jobs

    def begin(self) -> None:
        """Take over what runs, write down what ended meanwhile and what shall run from now on.

        What people asked for comes first, in the order in which ``pliant schedule --state`` has seen it: the
        policy's state counts on that.
        """
        spool = Spool(self._state.dirs)
        self._heed(spool)
        self._executor.adopt(self._state.log)
        self._record(self._executor.look())
        self._looked_s = self._clock()
        now, found = self._clock(), self._schedule
        self._state.record(
            [
                decision_event(now, self._origin_s, found.policy.name, found.decision_seconds),
                *(
                    event
                    for job in found.jobs
                    if self._arrives(job, now)
                    for event in self._submit(self._in_utc(job), now)
                ),
            ]
        )
        self._keep_the_rest(spool)
        self._reject(now)
        self._change(now)

    def step(self) -> None:
        """One turn towards the schedule. Never waits."""
        self._schedule_file.catch_up()
        since_s, self._looked_s = self._looked_s, self._clock()
        self._record(self._executor.tick(), since_s)

    def _record(self, reports: list[Report], since_s: float = 0.0) -> None:
        for report in reports:
            if isinstance(report, Progressed):
                self._state.log.newest[report.job_id] = report.progress
            events: list[Event] = []
            with self._faults.of(report.job_id):
                events = report_events(report, self._state.log, self._clock(), self._retries, since_s)
            self._state.record(events)
        given_up, self._given_up = self._given_up, {}
        for job_id, reason in given_up.items():
            if job_id in self._executor.gangs:
                self._executor.condemn(job_id, reason)
            elif job_id in self._state.log.active:
                self._state.record([give_up_event(job_id, self._clock(), reason)])
        released = self._executor.released(self._state.log.broken_off)
        self._state.record(release_event(job_id, self._clock()) for job_id in released)

    def _give_up(self, job_id: str, reason: str) -> None:
        """There was an error in the work for a job, which ends it."""
        self._given_up.setdefault(job_id, reason)

    def _heed(self, spool: Spool) -> None:
        """Write down what was submitted and cancelled by the time of the decision."""
        now, until_s = self._clock(), self._origin_s + self._schedule.time
        events: list[Event] = []
        requests = spool.requests()
        known = {job.id for request in requests for job in request.jobs} | self._state.log.jobs.keys()
        planned = {job.id: self._in_utc(job) for job in self._schedule.jobs if job.id not in known}
        for each in unheard(requests, self._state.log, until_s, planned):
            events += [cancel_event(each, now)] if isinstance(each, str) else self._submit(each, now)
        self._state.record(events)
        spool.settle(self._state.log)

    def _keep_the_rest(self, spool: Spool) -> None:
        """Jobs of the schedule that arrive later are kept as submissions: the next call finds them."""
        with spool.locked():
            asked = {job.id for request in spool.requests() for job in request.jobs}
            rest = [job for job in self._schedule.jobs if job.id not in asked | self._state.log.jobs.keys()]
            if rest:
                spool.ask_to_run(self._in_utc(job) for job in rest)

    def _in_utc(self, job: Job) -> Job:
        return job.model_copy(update={"submit_time": self._origin_s + job.submit_time})

    def _arrives(self, job: Job, now: float) -> bool:
        held = any(found.job == job.id for found in self._schedule.allocations)
        return job.id not in self._state.log.jobs and (held or self._origin_s + job.submit_time <= now)

    def _submit(self, job: Job, now: float) -> list[Event]:
        """A job arrives; one that cannot be served is out at once. ``job``: with its submit_time in UTC."""
        time_s = min(now, job.submit_time)
        with self._faults.of(job.id):
            reason = self._job_check.refusal(job)
            if reason is None:
                return [submit_event(job, time_s, submit_detail(job_state(job, self._speeds), self._speeds))]
            self._give_up(job.id, reason)
        return [submit_event(job, time_s), reject_event(job.id, now, self._given_up.pop(job.id))]

    def _reject(self, now: float) -> None:
        active = self._state.log.active
        turned_away = [verdict for verdict in self._schedule.rejected if verdict.job in active]
        self._state.record(reject_event(verdict.job, now, verdict.reason) for verdict in turned_away)

    def _change(self, now: float) -> None:
        reasons = {found.job: found.reason for found in self._schedule.allocations}
        steps = steps_between(self._state.log, self._schedule, self._executor, now)
        self._state.record(change_event(step, now, reasons.get(step.job_id, "")) for step in steps)
        self._schedule_file.write(self._schedule)
        self._executor.apply(steps)


def steps_between(log: RunLog, schedule: Schedule, executor: Executor, now_s: float) -> list[Step]:
    """What takes the executor's targets to the schedule's decision.

    Jobs that have ended stay ended, and those that failed lately are left out until their time has come.
    """
    waiting = {job_id for job_id, job in log.active.items() if (job.retry_s or 0.0) > now_s}
    out = (log.jobs.keys() - log.active.keys()) | waiting
    shares = {job_id: share for job_id, share in shares_of(schedule).items() if job_id not in out}
    started = [job_id for job_id, job in log.active.items() if job.started_s is not None]
    return executor.steps_to(shares, started)
