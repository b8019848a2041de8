"""The one loop of ``pliant run``: look at what runs, write down what happened, decide, take the next step.

``run.py`` turns it until its stop condition holds: what runs is as the schedule says (once), all jobs have
ended (until done), or a signal has come (follow). A run that makes one schedule true asks no policy; the
others have one, with a session.

Times inside are on the clock of the schedule, as ``submit_time`` is; times in the log are UTC. Decisions are
in the log before they are carried out, so the next loop carries on one that dies.

:class:`RunOptions` are what the command line says about a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Preemptible
from pliant.schemas.event import ENDS, Event
from pliant.schemas.events import EpochEnded
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.job import Job
from pliant.schemas.schedule import Allocation, Schedule
from pliant.tools.run.backends.protocol import ProcessLimits
from pliant.tools.run.service.allocation import Assignment, startable
from pliant.tools.run.service.decisions import Arrivals, Decisions, PolicyAnswer
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.job_rules import JobRules
from pliant.tools.run.service.reload import (
    ClusterFile,
    cluster_without_left_nodes,
    file_with_slurms,
    ordered_file,
)
from pliant.tools.run.service.reports import (
    Lost,
    NewProgress,
    Report,
    WorkerEvents,
    change_event,
    in_turns,
    progress_event,
    report_events,
)
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import (
    abort_event,
    cancel_event,
    decision_event,
    interruption_event,
    node_event,
    reject_event,
    release_event,
)
from pliant.tools.run.statedir.log.fold import jobs_of_spent_arrays, unsatisfiable_jobs
from pliant.tools.run.statedir.log.snapshot import spec_on_clock
from pliant.tools.run.statedir.slot_faults import Faults
from pliant.tools.run.statedir.state import ScheduleFile, Sink, State
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.from_log import apply_events, follow
from pliant.tools.schedule.registry import label_of
from pliant.tools.schedule.session.saved import states_kept_small
from pliant.tools.schedule.session.session import Session

STATE_NAME: Final = "pliant-state"
RETRIES: Final = 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run is, what it executes, and by which rules."""

    state: Path
    """The state directory; it need not be there."""
    schedule: str | None = None
    """File of the schedule; None for what the state directory goes on with, or stdin."""
    question: Question | None = None
    """Policy that decides from now on; None for that of the schedule."""
    cluster: str | None = None
    """File of the cluster, if a run begins with a policy and without a schedule."""
    profile: str | None = None
    """File of the profile, likewise; None for speeds in proportion to the GPUs."""
    backend: str | None = None
    """Backend; None for that of the cluster."""
    preemptible: Preemptible | None = None
    """Whose GPUs policies may take; None for what the cluster says."""
    wait_s: float = 0.0
    """Seconds to wait for a state directory that another process writes to."""
    restored: bool = False
    """The user says that no job runs any more in the directory that this is a copy of."""
    shared: bool = False
    """Several accounts submit jobs, which run as these; then root has to run it."""
    allow_root_jobs: bool = False
    """True to start jobs of root in a shared run."""
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    """Limits of the jobs of one account in a shared run."""
    retries: int = RETRIES
    timeouts: Timeouts = field(default_factory=Timeouts)
    log_bytes: int | None = None
    """Maximum bytes on disk of each output file of a worker; None for the default."""
    beside: Callable[[StateDir], AbstractContextManager[None]] | None = None
    """Entered once the directory is this run's, and left with it."""
    sinks: tuple[Sink, ...] = ()
    """Sinks of every event as it is written; unless the run follows, past events first."""
    sinks_of_news: tuple[Sink, ...] = ()
    """Sinks that never get past events."""
    metrics: Path | None = None
    """File for the operator's monitoring."""


def free_state_name(folder: Path) -> Path:
    """The first of pliant-state, pliant-state-2, … in ``folder`` that is not there yet."""
    names = chain([STATE_NAME], (f"{STATE_NAME}-{number}" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


REFUSED_S: Final = 60.0
"""Seconds until a cluster that was refused is tried again for nodes that are empty."""


_Change = tuple[Schedule, Sequence[Event], Mapping[str, Assignment | None]]
"""A decision, its events, and by job that gets other slots what it has then; None: nothing."""


class Loop:
    """What runs, on its way to what shall run."""

    def __init__(
        self,
        state: State,
        schedule: Schedule,
        session: Session,
        executor: Executor,
        *,
        clock: Callable[[], float],
        origin_s: float,
        retries: int = RETRIES,
        asks: bool = True,
        follow: bool = False,
        ahead: Iterable[Job] = (),
    ) -> None:
        """:param schedule: the last one: policy, cluster, profile, and the jobs still to come.
        :param session: without jobs if the policy is not asked; then it says which jobs can be served.
        :param asks: whether the policy decides as things happen.
        :param follow: more jobs may be submitted at any time, and an error of the policy ends nothing.
        :param ahead: jobs of the schedule that the log does not know.
        """
        self.state = state
        self.session = session
        self.executor = executor
        self.executor.targets.slot_faults = state.log.slot_faults
        if executor.submitters is not None:
            executor.submitters.log = state.log
        self.clock = clock
        # The last decision.
        self.schedule = schedule
        self._schedule_file = ScheduleFile(state.dirs.schedule)
        self.origin_s = origin_s
        session.windows.set_origin(origin_s)
        self.follows = follow
        spec_of = partial(spec_on_clock, state.log, origin_s=origin_s)
        session.book.ended = self._ended = states_kept_small(session.book.ended, spec_of)
        self._retries = retries
        self._arrivals = Arrivals(state, session, clock, origin_s, ahead, follow=follow, takes_reloads=asks)
        self._decisions = Decisions(session, schedule.time, tolerates_errors=follow) if asks else None
        # Jobs that an error ends, with the reasons, until the log has them.
        self._broken_jobs: dict[str, str] = {}
        self._faults = Faults(state.dirs.path, self._broken_jobs.setdefault)
        self._looked_s = 0.0
        self._rules = JobRules(schedule.cluster, session, executor, clock, moves=asks)
        self._must_decide = False
        # All jobs were asked to stop.
        self.drained = False
        # The cluster to go on with: the loop turns no further, and another one takes its place.
        self.reload: ClusterFile | None = None
        # When a cluster that was refused is looked at again.
        self.again_s = 0.0

    # Stop conditions.

    @property
    def unsettled(self) -> list[str]:
        """What is not yet as decided: jobs, or the copy of the schedule."""
        jobs = [f"job {job_id}" for job_id in sorted(self.executor.unsettled)]
        return [*jobs, "schedule.json"] if self._schedule_file.is_behind else jobs

    @property
    def finished(self) -> bool:
        if self.executor.running:
            return False
        return self.drained or not (self.session.jobs or self._arrivals.more_to_come)

    # How it begins.

    def begin(self) -> None:
        """Execute the schedule's own decision, right after which the session stands."""
        now, schedule = self.clock(), self.schedule
        known = (*self.session.jobs.values(), *self.session.book.ended.values())
        submitted = [self._arrivals.submit_event(job) for job in sorted(known, key=lambda job: job.arrival)]
        self.session.book.rejections.clear()  # the schedule's own verdicts say so
        rejected = [reject_event(verdict.job, now, verdict.reason) for verdict in schedule.rejected]
        before = [self._schedules_decision(now), *submitted, *rejected]
        given = {allocation.job: allocation for allocation in schedule.given()}
        self._carry_out(*self._change_to(schedule, given, now, before))
        if self._decisions is not None:
            self._decisions.idle_limit.count(idle=self._idle)

    def carry_on(self) -> None:
        """Take over what an earlier process left and the executor has adopted."""
        lost = [job_id for job_id in self.state.log.active if job_id not in self.session.jobs]
        for job_id in lost:
            self._broken_jobs[job_id] = self.session.book.rejections.pop(
                job_id, "it cannot be taken up again"
            )
        self._end_broken_jobs()
        self._must_decide = True

    def reconcile(self) -> None:
        """Take over what runs, and record what ended meanwhile and what shall run by the schedule.

        Requests come first, in the order in which ``pliant schedule --state`` saw them: the policy's state
        depends on that.
        """
        schedule, log = self.schedule, self.state.log
        _, stopped = self._poll_requests(self.origin_s + schedule.time)
        self.executor.adopt(log)
        self.executor.end_attempts(stopped)
        self._see_nodes()
        self._record(self.executor.look(), 0.0)
        self._end(self._rules.timeouts(log))
        self._cancel(jobs_of_spent_arrays(log))
        self._cancel_unsatisfiable()
        now = self._looked_s = self.clock()
        here = self._arrivals.arrive({allocation.job for allocation in schedule.allocations})
        self.state.record([self._schedules_decision(now), *here])
        self._arrivals.keep_for_later()
        now = self.clock()
        rejected = [verdict for verdict in schedule.rejected if verdict.job in log.active]
        self.state.record(reject_event(verdict.job, now, verdict.reason) for verdict in rejected)
        self._carry_out(*self._change_to(schedule, startable(log, schedule, now), now))

    # One turn.

    def step(self) -> None:
        """Look, record, decide if something happened. Never waits."""
        self._schedule_file.catch_up()
        happened, self._must_decide = self._must_decide, False
        since_s, self._looked_s = self._looked_s, self.clock()
        happened |= self._see_nodes()
        late = self.executor.apply_notices(self.state.log.drained, self.clock())
        happened |= bool(late) and self._record(self.executor.targets.evict(late), 0.0)
        happened |= self._end(self._rules.timeouts(self.state.log))
        happened |= self._apply_rules()
        happened |= self._record(self.executor.tick(), since_s)
        if happened:
            self._cancel(jobs_of_spent_arrays(self.state.log))
        if self._decisions is None and happened:
            self._cancel_unsatisfiable()
        if self._decisions is None or self.drained:
            return
        here = self._arrivals.arrive()
        self.state.record(here)
        happened |= bool(here)
        happened |= self._poll_requests(self.clock())[0]
        if self.reload is not None:
            return
        if self.session.hidden.unsatisfiable:
            self._cancel_unsatisfiable()
        if happened or self._now() >= self._decisions.next_decision_s():
            self._decide(self._decisions)
            self._decisions.idle_limit.count(idle=self._idle)
        if self._idle:
            self._decisions.check_progress()

    def drain(self, reason: str) -> None:
        """Stop all jobs, checkpoints first; they go on when the run is taken up again.

        :raises ServiceMissingError: it cannot be recorded; the jobs are stopped all the same.
        """
        if self.drained:
            return
        self.drained = True
        now, targets = self.clock(), self.executor.targets
        held = sorted(targets)
        targets.clear()
        self._happen([interruption_event(job_id, now, reason) for job_id in held])
        if self._decisions is not None:
            self.schedule = self._complete(self._decisions.schedule_of((), self._now()), None)
        self._schedule_file.write(self.schedule)

    # What happened.

    def _record(self, reports: Iterable[Report], since_s: float) -> bool:
        """Record reports and inform the policy; returns whether it shall be asked."""
        happened = False
        for together in in_turns(reports):
            happened |= self._take(together, since_s)
        happened |= self._end_broken_jobs()
        alive = self.executor.alive
        released = [job_id for job_id in self.state.log.broken_off if job_id not in alive]
        self.state.record(release_event(job_id, self.clock()) for job_id in released)
        return happened

    def _take(self, reports: Iterable[Report], since_s: float) -> bool:
        """Take up reports of different jobs, in one write to the log."""
        recorded: list[tuple[str, Event]] = []
        happened = False
        for report in reports:
            events: list[Event] = []
            with self._faults.of(report.job_id):
                if isinstance(report, NewProgress):
                    self._refine(report)
                else:
                    events = report_events(report, self.state.log, self.clock(), self._retries, since_s)
            recorded += [(report.job_id, event) for event in events]
            happened |= not isinstance(report, WorkerEvents | NewProgress | Lost) and bool(events)
        self._happen([event for _, event in recorded], [job_id for job_id, _ in recorded])
        at_epochs = self.session.policy.traits.decides_at_epochs
        return happened or (at_epochs and any(event.event == EpochEnded.name for _, event in recorded))

    def _see_nodes(self) -> bool:
        """Take jobs off nodes that went down, and record which went and came; returns whether any did."""
        down = self.executor.down_nodes()
        known = self.state.log.down
        if down is None or down.keys() == known.keys():
            return False
        self._record(
            self.executor.targets.evict({name: f"is down: {why}" for name, why in down.items()}), 0.0
        )
        went = [node_event(name, self.clock(), why) for name, why in down.items() if name not in known]
        came = [node_event(name, self.clock(), None) for name in known if name not in down]
        self._happen([*went, *came])
        return True

    def _apply_rules(self) -> bool:
        """Warn of jobs, end, shrink or move them by the cluster's rules; returns whether any was changed."""
        happened = False
        for result in self._rules.apply(self.state.log):
            self.state.record(result.notes)
            happened |= self._end([] if result.end is None else [result.end])
            happened |= result.report is not None and self._record([result.report], 0.0)
        return happened

    def _end(self, events: Sequence[Event]) -> bool:
        """Record the ends of jobs, which give up what they hold; returns whether there is any."""
        self._happen(events)
        for event in events:
            self.executor.targets.pop(event.job or "", None)
        return bool(events)

    def _cancel(self, reasons: Mapping[str, str]) -> None:
        now = self.clock()
        self._end([cancel_event(job_id, now, reason) for job_id, reason in reasons.items()])

    def _refine(self, report: NewProgress) -> None:
        """Inform the policy how far a job is; the log records it when something happens to the job."""
        job = self.state.log.jobs.get(report.job_id)
        if job is not None and not job.ended:
            self.state.log.newest[report.job_id] = report.progress
            if self._decisions is not None:
                apply_events(self.session, [progress_event(report, job, self._now())])

    def _happen(self, events: Sequence[Event], about: Sequence[str | None] | None = None) -> None:
        """Write events to the log; the session follows them.

        :param about: the job that an error ends, for each; where it is not given, that of the event.
        """
        self.state.record(events)
        jobs = [event.job for event in events] if about is None else about
        for event, job_id in zip(events, jobs, strict=True):
            ends = event.event in ENDS and event.job in self.session.jobs
            if self._decisions is None and not ends:
                continue
            with nullcontext() if job_id is None else self._faults.of(job_id):
                follow(self.session, event, self.origin_s)

    def _end_broken_jobs(self) -> bool:
        """End the jobs with errors; returns whether the policy shall be asked."""
        broken = dict(self._broken_jobs)
        self._broken_jobs.clear()
        for job_id, reason in broken.items():
            if job_id in self.executor.gangs:
                self.executor.kill_later(job_id, reason)
                if self._decisions is not None and job_id not in self.session.jobs:  # nobody starts it again
                    self._broken_jobs[job_id] = reason
                continue
            if job_id in self.state.log.active:
                self._happen([abort_event(job_id, self.clock(), reason)])
            elif job_id in self.session.jobs:
                self.session.end(job_id, self._now(), "failed")
            self.executor.targets.pop(job_id, None)
        return broken.keys() != self._broken_jobs.keys()

    def _cancel_unsatisfiable(self) -> None:
        """Cancel the jobs that were to start after jobs which have not finished; they hold nothing yet."""
        while reasons := unsatisfiable_jobs(self.state.log):
            self._cancel(reasons)

    def _poll_requests(self, until_s: float) -> tuple[bool, Sequence[str]]:
        """Take up what was submitted, cancelled and ordered.

        Returns whether the policy shall be asked, and the jobs that give up all.
        """
        happened, stopped = self._arrivals.poll_requests(until_s)
        for job_id in stopped:
            self.executor.targets.pop(job_id, None)
        self.executor.end_attempts(stopped)
        self.executor.targets.update_specs(
            self.state.log.jobs[job_id].job for job_id in self._arrivals.updated
        )
        log, ordered = self.state.log, self._arrivals.reload
        own = log.next_cluster or (None if log.info is None else log.info.cluster)
        if self.reload is None and ordered is not None and own is not None:
            self.reload = ordered_file(ordered, own)
        may_reload = self.reload is None and self._decisions is not None and self.clock() >= self.again_s
        if may_reload and log.next_cluster is not None:
            self.reload = cluster_without_left_nodes(log, log.next_cluster, self.executor.busy_nodes)
        if may_reload and self.reload is None:
            self.reload = file_with_slurms(self.executor.backend, log)
        return happened, stopped

    def take_over(self, before: Loop) -> None:
        """Go on in the place of a loop with another cluster; both have the executor."""
        self._broken_jobs.update(before._broken_jobs)
        self._looked_s, self._must_decide = before._looked_s, True
        self._schedule_file.write(self.schedule)

    # What shall run.

    def _decide(self, decisions: Decisions) -> None:
        now = self.clock()
        prepare = partial(self._prepare, decisions, now=now)
        outcome = decisions.decide(now - self.origin_s, self.executor.targets.allocations, prepare)
        self._put_ended_away()
        if not isinstance(outcome, str):
            self._carry_out(*outcome)
            return
        name = self.session.policy.name
        self.state.record([decision_event(now, self.origin_s, name, None, error=outcome)])
        self._end_rejected(outcome, now)

    def _prepare(self, decisions: Decisions, answer: PolicyAnswer, now: float) -> _Change:
        """What follows from a decision; nothing is recorded or done yet.

        :raises ValueError: no log can hold what the policy said.
        """
        admissions = decisions.admissions(self.origin_s)
        waiting = {job_id: each for job_id, each in admissions.items() if job_id in self.session.jobs}
        event = partial(decision_event, now, self.origin_s, self.session.policy.name, answer.seconds)
        rejected = [
            reject_event(job_id, now, reason, admissions.get(job_id)) for job_id, reason in answer.rejected
        ]
        event_lines([event(admissions=waiting), *rejected])
        allocations = answer.allocations(self.executor.targets.allocations)
        schedule, changes, slots = self._change_to(
            self._complete(answer.schedule, answer.seconds), allocations, now
        )
        forecasts = decisions.forecasts(now - self.origin_s)  # last: these jobs count as noted from here on
        decision = event(forecasts=forecasts, admissions=waiting, teams=answer.schedule.teams)
        return schedule, [decision, *rejected, *changes], slots

    def _put_ended_away(self) -> None:
        """Keep ended jobs as text, except those whose end the policy has not seen."""
        unseen = {change.job.id for change in self.session.changes.entries if change.job is not None}
        self._ended.put_away(self._ended.made() - unseen)

    def _end_rejected(self, reason: str, now: float) -> None:
        """Reject the jobs that the policy rejected before it failed."""
        for job_id in sorted(self.state.log.active.keys() - self.session.jobs.keys()):
            self.executor.targets.pop(job_id, None)
            self.state.record([reject_event(job_id, now, self.session.book.rejections.pop(job_id, reason))])

    def _change_to(
        self,
        schedule: Schedule,
        allocations: Mapping[str, Allocation],
        now: float,
        before: Iterable[Event] = (),
    ) -> _Change:
        """:raises InfeasibleError: the nodes have too few slots for these allocations."""
        reasons, targets, log = _reasons(schedule), self.executor.targets, self.state.log
        jobs = {job.id: job for job in schedule.jobs}
        slots = targets.changes_to(allocations, jobs, self.executor.nodes)
        changes = [
            change_event(job_id, targets.get(job_id), after, log, now, reason=reasons.get(job_id, ""))
            for job_id, after in slots.items()
        ]
        return schedule, [*before, *changes], slots

    def _carry_out(
        self, schedule: Schedule, events: Sequence[Event], slots: Mapping[str, Assignment | None]
    ) -> None:
        self.schedule = schedule
        self.state.record(events)
        self._schedule_file.write(schedule)
        self.executor.targets.apply(slots)
        self.executor.expect_jobs(waiting=bool(schedule.waiting))

    def _complete(self, schedule: Schedule, seconds: float | None) -> Schedule:
        """A decision's schedule, with the jobs still to come."""
        return schedule.model_copy(
            update={
                "jobs": (*schedule.jobs, *self._arrivals.ahead),
                "profile": self.schedule.profile,
                "decision_seconds": seconds,
            }
        )

    def _schedules_decision(self, now: float) -> Event:
        schedule = self.schedule
        name, once = label_of(schedule.policy.name), self._decisions is None
        return decision_event(
            now, self.origin_s, name, schedule.decision_seconds, once=once, teams=schedule.teams
        )

    def _now(self) -> float:
        return self.clock() - self.origin_s

    @property
    def _idle(self) -> bool:
        """Whether jobs wait, none runs and none is to come."""
        busy = self.executor.targets or self.executor.gangs or self._arrivals.more_to_come
        return bool(self.session.in_play) and not busy


def _reasons(schedule: Schedule) -> dict[str, str]:
    waits = {verdict.job: verdict.reason for verdict in schedule.waiting}
    return {**waits, **{allocation.job: allocation.reason for allocation in schedule.allocations}}
