"""The loop of ``--until-done`` and ``--follow``: processes here, the policy there, the log between them.

Times inside are on the clock of the schedule, the one that ``submit_time`` is on; times in the log are UTC.
Whatever is decided is in the log before it is done, so a loop that dies is carried on by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pliant.schemas.errors import InfeasibleError
from pliant.schemas.event import OF_SLOTS, Event
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.service.allocation.steps import StopJob
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.options import RETRIES
from pliant.tools.run.service.policy_fault import PolicyFaults, put_back
from pliant.tools.run.service.reports import (
    Ended,
    Hindered,
    Progressed,
    Proven,
    Report,
    change_event,
    progress_event,
    report_events,
)
from pliant.tools.run.statedir.directory import State
from pliant.tools.run.statedir.fault import Faults
from pliant.tools.run.statedir.log.events import (
    cancel_event,
    decision_event,
    give_up_event,
    interruption_event,
    reject_event,
    release_event,
    submit_event,
)
from pliant.tools.run.statedir.requests import Spool, unheard
from pliant.tools.run.statedir.schedule_file import ScheduleFile
from pliant.tools.run.statedir.share import Share, shares_of
from pliant.tools.schedule.decide import schedule_of
from pliant.tools.schedule.from_log import correct, tell_slot, tell_wait
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.schedulable import JobCheck
from pliant.tools.schedule.session.idle_limit import IdleLimit, why_left
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.transitions import Holding, Transition
from pliant.tools.schedule.submit_detail import submit_detail


@dataclass(frozen=True, slots=True)
class Parts:
    """What a live run is made of."""

    state: State
    schedule: Schedule
    """The last one: policy, cluster, profile, and the jobs still to come."""
    session: Session
    executor: Executor
    clock: Callable[[], float]
    origin_s: float
    retries: int = RETRIES
    follow: bool = False
    """Whether more jobs may be submitted, for ever."""


class LiveRun:
    """One run until all its jobs have ended, or until it is interrupted; with ``follow`` the latter alone."""

    def __init__(self, parts: Parts, future: Iterable[Job]) -> None:
        self.state = parts.state
        self.session = parts.session
        self.executor = parts.executor
        self.executor.suspects = parts.state.log.suspects
        self._schedule = parts.schedule
        self._schedule_file = ScheduleFile(self.state.dirs.schedule)
        self.clock = parts.clock
        self._origin_s = parts.origin_s
        self._retries = parts.retries
        self._follow = parts.follow
        self._future = sorted(future, key=lambda job: (job.submit_time, job.id), reverse=True)
        self._spool = Spool(self.state.dirs)
        self._job_check = JobCheck(self.session.cluster, self.session.speeds, self.session.policy)
        self._faults = Faults(self.state.dirs.path, self._give_up)
        self._policy_faults = PolicyFaults(self.session.policy.name)
        self._given_up: dict[str, str] = {}
        """Reasons by job, until they are in the log."""
        self._awaited = bool(self._spool.requests())
        self._shares: dict[str, Share] = {}
        self._asked_s = parts.schedule.time
        self._looked_s = 0.0
        self._ask = False
        self._idle_limit = IdleLimit()
        self._drained: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if self.executor.gangs:
            return False
        return self.drained or not (self.session.jobs or self._more_to_come)

    @property
    def _more_to_come(self) -> bool:
        return self._follow or self._awaited or bool(self._future)

    @property
    def _idle(self) -> bool:
        """Whether jobs are there, none runs and none is to come."""
        busy = self.executor.targets or self.executor.gangs or self._more_to_come
        return bool(self.session.jobs) and not busy

    @property
    def drained(self) -> bool:
        """Whether it was told to stop all jobs."""
        return self._drained is not None

    def begin(self) -> None:
        """Execute the schedule's own decision; the session stands right after it."""
        now, found = self.clock(), self._schedule
        decision = decision_event(now, self._origin_s, found.policy.name, found.decision_seconds)
        rejected = [reject_event(verdict.job, now, verdict.reason) for verdict in found.rejected]
        known = (*self.session.jobs.values(), *self.session.ended.values())
        submitted = [self._submit_event(job, now) for job in sorted(known, key=lambda job: job.arrival)]
        self.session.turned_away.clear()  # the schedule's own verdicts say so
        self._change(shares_of(found), now, [decision, *submitted, *rejected])
        self._idle_limit.count(idle=self._idle)

    def carry_on(self) -> None:
        """Take over what an earlier process left: the log says who holds what, the executor adopted it."""
        self._shares = {job_id: target.share for job_id, target in self.executor.targets.items()}
        lost = [job_id for job_id in self.state.log.active if job_id not in self.session.jobs]
        for job_id in lost:
            self._give_up(job_id, self.session.turned_away.pop(job_id, "it cannot be taken up again"))
        self._end_given_up()
        self._ask = True

    def step(self) -> None:
        """One turn: look, record, decide where something happened. Never waits."""
        self._schedule_file.catch_up()
        happened, self._ask = self._ask, False
        since_s, self._looked_s = self._looked_s, self.clock()
        for report in self.executor.tick():
            happened |= self._take(report, since_s)
        happened |= self._end_given_up()
        self._release()
        if self.drained:
            return
        happened |= self._arrive()
        happened |= self._heed()
        happened |= self._end_given_up()
        if happened or self._now() >= self._ask_at():
            self._decide()
            self._idle_limit.count(idle=self._idle)
        self._check_hope()

    def drain(self, reason: str) -> None:
        """Stop all jobs, checkpoints first; they go on when the run is taken up again.

        :raises ServiceMissingError: it cannot be written down; the jobs are stopped all the same.
        """
        if self.drained:
            return
        self._drained = reason
        now = self.clock()
        held = sorted(self._shares)
        self._shares.clear()
        self.executor.apply(self.executor.steps_to({}))
        for job_id in held:
            self.session.lose(job_id, self._now())
        self.state.record(interruption_event(job_id, now, reason) for job_id in held)
        self._keep(self._schedule_of((), self._now()), None)
        self._schedule_file.write(self._schedule)

    def _now(self) -> float:
        """Now on the clock of the schedule."""
        return self.clock() - self._origin_s

    def _ask_at(self) -> float:
        interval = self.session.policy.default_interval_s
        quiet_until_s = float("-inf") if self.session.changes else self.session.quiet_until_s
        rounds = float("inf")
        if interval is not None and self.session.jobs:
            rounds = max(self._asked_s + interval, quiet_until_s)
        if self.session.withheld.next_s > self._asked_s:
            rounds = min(rounds, self.session.withheld.next_s)
        again = self.session.ask_again_s
        return rounds if again is None or again <= self._asked_s else min(rounds, again)

    def _heed(self) -> bool:
        """Take up what was submitted and cancelled since the last look; True: the policy shall be asked."""
        requests = self._spool.requests()
        if not requests:
            self._awaited = False
            return False
        to_come = {job.id: job for job in self._future}
        events: list[Event] = []
        for found in unheard(requests, self.state.log, self.clock(), to_come):
            if isinstance(found, str):
                events.append(self._cancelled(found))
            else:
                events += self._joins(self._on_own_clock(found))
        self.state.record(events)
        self._spool.settle(self.state.log)
        self._awaited = bool(self._spool.requests())
        return bool(events)

    def _on_own_clock(self, job: Job) -> Job:
        """A job from the spool, or one to come that is cancelled before its time."""
        own = next((ahead for ahead in self._future if ahead.id == job.id), None)
        if own is not None:
            self._future = [ahead for ahead in self._future if ahead is not own]
            return own
        time_s = min(self._now(), job.submit_time - self._origin_s)
        return job.model_copy(update={"submit_time": max(0.0, time_s)})

    def _joins(self, job: Job) -> list[Event]:
        """A job arrives now; one that cannot be served is out at once, with the reason."""
        now = self.clock()
        with self._faults.of(job.id):
            state, reason = self.session.take_up(job, self._now()), self._job_check.refusal(job)
            if state is not None and reason is None:
                return [self._submit_event(state, now)]
            if state is not None:
                self.session.turn_away(job.id, self._now(), str(reason))
        reason = self._given_up.pop(job.id, None) or self.session.turned_away.pop(job.id, "")
        if job.id in self.session.jobs:
            self.session.reject(job.id, self._now())
        return [self._bare_submit_event(job, now), reject_event(job.id, now, reason)]

    def _cancelled(self, job_id: str) -> Event:
        """Give up a job and what it holds."""
        self.session.end(job_id, self._now(), "cancelled")
        self._stop(job_id)
        return cancel_event(job_id, self.clock())

    def _submit_event(self, state: JobState, now: float) -> Event:
        if state.id in self.session.turned_away:
            return self._bare_submit_event(state.spec, now)
        return self._bare_submit_event(state.spec, now, submit_detail(state, self.session.speeds))

    def _bare_submit_event(self, job: Job, now: float, detail: Mapping[str, Any] | None = None) -> Event:
        return submit_event(job, min(now, self._origin_s + job.submit_time), detail)

    def _arrive(self) -> bool:
        events: list[Event] = []
        while self._future and self._future[-1].submit_time <= self._now():
            events += self._joins(self._future.pop())
        self.state.record(events)
        return bool(events)

    def _give_up(self, job_id: str, reason: str) -> None:
        """There was an error in the work for a job, which ends it."""
        self._given_up.setdefault(job_id, reason)

    def _release(self) -> None:
        """Write down of which of the jobs that were broken off nothing is left."""
        released = self.executor.released(self.state.log.broken_off)
        self.state.record(release_event(job_id, self.clock()) for job_id in released)

    def _end_given_up(self) -> bool:
        """End the jobs that errors were found in; True: the policy shall be asked."""
        given_up, self._given_up = self._given_up, {}
        for job_id, reason in given_up.items():
            if job_id in self.executor.gangs:
                self.executor.condemn(job_id, reason)
                continue
            if job_id in self.state.log.active:
                self.state.record([give_up_event(job_id, self.clock(), reason)])
            self._shares.pop(job_id, None)
            self.executor.targets.pop(job_id, None)
            if job_id in self.session.jobs:
                self.session.end(job_id, self._now(), "failed")
        return bool(given_up)

    def _take(self, report: Report, since_s: float) -> bool:
        """Write a report down and tell the session; True: the policy shall be asked."""
        if isinstance(report, Progressed):
            with self._faults.of(report.job_id):
                self._refine(report)
            return False
        events: list[Event] = []
        with self._faults.of(report.job_id):
            events = report_events(report, self.state.log, self.clock(), self._retries, since_s)
        self.state.record(events)
        for event in events:
            with self._faults.of(report.job_id):
                self._tell(event, report.job_id)
        if isinstance(report, Hindered) and report.job_id in self._shares:
            self._shares[report.job_id] = report.share
        return isinstance(report, Ended | Hindered | Proven) and bool(events)

    def _refine(self, report: Progressed) -> None:
        """Let the session know how far a job is; the log holds it when something happens to the job."""
        job = self.state.log.jobs.get(report.job_id)
        if job is not None and not job.ended:
            self.state.log.newest[report.job_id] = report.progress
            self._tell(progress_event(report, job, self.clock()), report.job_id)

    def _tell(self, event: Event, job_id: str) -> None:
        job, time_s = self.session.jobs[job_id], event.time - self._origin_s
        if event.event in OF_SLOTS:
            tell_slot(self.session, replace(event, time=time_s))
            return
        if event.event == "shrink":
            placement, batch = event.placement or (), event.global_batch
            self.session.adopt([Holding(job_id, placement, batch)], time_s)
        correct(job, replace(event, time=time_s))
        if event.event in ("requeue", "fail", "finish"):
            self._shares.pop(job_id, None)
        if event.event == "requeue":
            self.session.lose(job_id, time_s)
        elif event.event in ("fail", "finish"):
            self.session.end(job_id, time_s, "finished" if event.event == "finish" else "failed")
        if job_id in self.session.jobs:
            tell_wait(self.session, replace(event, time=time_s))

    def _decide(self) -> None:
        began, now = time.perf_counter(), self.clock()
        self._asked_s = now - self._origin_s
        try:
            transitions = self.session.decide(self._asked_s)
            seconds = time.perf_counter() - began
            found = self._schedule_of(transitions, self._asked_s)
            given = shares_of(found)
        except Exception as error:
            if not self._follow:
                raise
            self._keep_to_the_plan(error, now)
            return
        self._policy_faults.answered()
        decision = decision_event(now, self._origin_s, self.session.policy.name, seconds)
        rejected = [reject_event(e.job.id, now, e.reason) for e in transitions if e.step == "reject"]
        changed = {transition.job.id for transition in transitions}
        kept = {job_id: share for job_id, share in self._shares.items() if job_id not in changed}
        given = {job_id: share for job_id, share in given.items() if job_id in changed}
        self._keep(found, seconds)
        self._change({**kept, **given}, now, [decision, *rejected])

    def _schedule_of(self, transitions: Iterable[Transition], time_s: float) -> Schedule:
        """The session as a schedule; what the policy cannot say of it is left out."""
        left_out = "the schedule does without what it would have said"
        return schedule_of(
            self.session,
            transitions,
            time_s,
            forgive=lambda error: self._policy_faults.of(error, left_out),
        )

    def _keep_to_the_plan(self, error: Exception, now: float) -> None:
        """The policy has failed: nothing changes, but for jobs that it has turned away before it did."""
        goes_on = "what runs goes on as it is; the policy is asked again when something happens"
        reason = self._policy_faults.of(error, goes_on)
        put_back(self.session, self._shares, now - self._origin_s)
        name = self.session.policy.name
        self.state.record([decision_event(now, self._origin_s, name, None, error=reason)])
        out = self.state.log.active.keys() - self.session.jobs.keys()
        for job_id in sorted(out):
            self._stop(job_id)
            self.state.record([reject_event(job_id, now, self.session.turned_away.pop(job_id, reason))])

    def _stop(self, job_id: str) -> None:
        """A job shall hold nothing any more; its workers are stopped by the next ticks."""
        self._shares.pop(job_id, None)
        if (held := self.executor.targets.get(job_id)) is not None:
            self.executor.apply([StopJob(held)])

    def _change(self, shares: dict[str, Share], now: float, before: Iterable[Event]) -> None:
        """Write down what was decided and what shall run, then make it so."""
        reasons = _reasons(self._schedule)
        started = [job_id for job_id, job in self.state.log.active.items() if job.started_s is not None]
        steps = self.executor.steps_to(shares, started)
        changes = [change_event(step, now, reasons.get(step.job_id, "")) for step in steps]
        self.state.record([*before, *changes])
        self._schedule_file.write(self._schedule)
        self._shares = shares
        self.executor.apply(steps)

    def _keep(self, found: Schedule, seconds: float | None) -> None:
        """The decision becomes the last one, complete with the jobs still to come."""
        self._schedule = found.model_copy(
            update={
                "jobs": (*found.jobs, *reversed(self._future)),
                "profile": self._schedule.profile,
                "decision_seconds": seconds,
            }
        )

    def _check_hope(self) -> None:
        if self._idle and (self._idle_limit.is_reached or self._ask_at() == float("inf")):
            left = sorted(self.session.jobs.values(), key=lambda job: job.arrival)
            name = self.session.policy.name
            raise InfeasibleError("; ".join(f'job "{job.id}" is left: {why_left(name, job)}' for job in left))


def _reasons(schedule: Schedule) -> dict[str, str]:
    told = {verdict.job: verdict.reason for verdict in schedule.waiting}
    return {**told, **{allocation.job: allocation.reason for allocation in schedule.allocations}}
