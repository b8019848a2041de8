"""Discrete events around a session: arrivals, completions, node failures, and the policy's decisions.

Between two events each running job advances at a constant rate, so its next event is computed and nothing
is stepped. All events of one moment happen before the policy is asked, in the order (time, kind, id).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pliant.schemas.event import EventName
from pliant.schemas.events import (
    Cancelled,
    Decided,
    Finished,
    Moved,
    NodeDown,
    NodeUp,
    Progressed,
    Rejected,
    Requeued,
    Submitted,
)
from pliant.schemas.job import Job
from pliant.tools.replay.engine.due import DecisionTimes, TraceJobs
from pliant.tools.replay.engine.log import Detail, EventLog, compact_json
from pliant.tools.replay.engine.running import (
    FINISH,
    LATE_FINISH,
    LATE_SEGMENT_END,
    NODE_DOWN,
    NODE_UP,
    ONE_MOMENT,
    SEGMENT_END,
    Agenda,
    RunningJobs,
)
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.forecast_log import ForecastLog
from pliant.tools.schedule.session.idle_limit import IdleLimit
from pliant.tools.schedule.session.session import Session

Advance = Callable[[int, int | None], None]
"""Called with (jobs done, jobs of the trace) now and then."""
Describe = Callable[[JobState], Detail]

_OF_A_CHANGE: Final = ("team", "user", "own", "entitled", "held", "waiting_jobs")
_RESIZED: Final = frozenset(("start", "resume", "grow", "shrink", "preempt"))
"""Changes of the number of a job's GPUs."""
_PATIENCE: Final = 1000
"""Decisions in a row without an arrival, an end or a failure, after which to look for a standstill."""


@dataclass(slots=True)
class EngineCounters:
    """What the engine counts about itself."""

    decisions: int = 0
    unasked: int = 0
    """Those of them that were known to change nothing."""
    decision_seconds: float = 0.0
    finished: int = 0
    rejected: int = 0
    cancelled: int = 0
    """Jobs that were to start after others which did not finish."""


class Engine:
    """One replay of a trace under the policy of a session; :meth:`run` runs it to its end.

    It ends when nothing more can happen; the jobs that are then in ``session.jobs`` are unfinished.
    """

    def __init__(
        self,
        session: Session,
        jobs: Sequence[Job],
        simulated: SimulatedCluster | None = None,
        *,
        interval_s: float | None = None,
        describe: Describe | None = None,
        advance: Advance | None = None,
        reveals_work: bool = False,
        correct: Callable[[Sequence[Transition]], None] | None = None,
        log: EventLog | None = None,
    ) -> None:
        """
        :param interval_s: ask the policy at multiples of it only; None: at every change.
        :param reveals_work: policies see at which progress each job ends, whatever it states.
        :param correct: is shown what a decision changed before it takes effect, to correct the speeds.
        :param log: is written to; None: a new one.
        """
        self.session = session
        self.simulated = simulated or SimulatedCluster()
        self.log = EventLog() if log is None else log
        self.counters = EngineCounters()
        # Whether the replay ended because the policy moves jobs more often than they can pay for.
        self.stands_still = False
        self._describe = describe
        self._advance = advance
        self._correct = correct
        self._trace = TraceJobs(jobs)
        self._agenda = Agenda()
        for event in self.simulated.node_events:
            self._agenda.add(event.time_s, NODE_UP if event.up else NODE_DOWN, event.node)
        self._node_events_ahead = len(self.simulated.node_events)
        self._due = DecisionTimes(session, self._agenda, interval_s, self.simulated.quirks.first_round)
        self._running = RunningJobs(
            session, self.simulated, self._agenda, self.log, interval_s, reveals_work=reveals_work
        )
        self._now_s = 0.0
        self._idle_limit = IdleLimit()
        self._forecasts = ForecastLog() if session.policy_host.learns else None
        self._quiet_decisions = 0
        self._last_look: tuple[float, float] = (-math.inf, -1.0)
        self._teams: list[dict[str, Any]] = []

    def carry_on(self, now_s: float) -> None:
        """Begin at this time with the jobs that the session has already, before :meth:`run`."""
        self._now_s = now_s
        self._due.at_once = True
        for job in self.session.jobs.values():
            row = self.log.add(now_s, "progress", job.id, gpus=job.log_gpus, placement=job.placement)
            self._running.take_over(job, row, now_s)

    def decide_after(self, changes: int) -> None:
        """From now on, ask the policy once so much has changed, or where else nothing would happen."""
        self._due.least_changes = changes

    def run(self, goes_on: Callable[[float], bool] | None = None) -> None:
        """:param goes_on: is asked before each moment whether to go there; None: to the end."""
        agenda, running, session = self._agenda, self._running, self.session
        due, trace = self._due, self._trace
        jobs, hidden = session.jobs, session.hidden
        slowed, interfere = session.allocator.slowed, running.interfere
        while (trace.coming is not None or jobs) and (
            now_s := due.next_s(self._now_s, trace.coming_s)
        ) < math.inf:
            if goes_on is not None and not goes_on(now_s):
                break
            self._now_s = now_s
            self._happen(now_s)
            if hidden.unsatisfiable:
                self._cancel_unsatisfiable(now_s)
            if slowed or interfere:
                running.apply_interference(now_s)
            if due.is_due(now_s):
                self._decide(now_s)
                self._quiet_decisions += 1
                if self._quiet_decisions % _PATIENCE == 0 and self._stands_still(now_s):
                    self.stands_still = True
                    break
                if trace.coming is None and self._is_given_up():
                    break
            due.ended_late = False
            if agenda.first_s <= now_s * ONE_MOMENT:
                self._happen_late(now_s)
            if slowed or interfere:
                running.apply_interference(now_s)
        if self._advance:
            self._advance(self._ended(), trace.count)

    def _is_given_up(self) -> bool:
        """All jobs have come, none will end, and the policy is not asked again or was asked often enough."""
        idle = self._agenda.next_s() == math.inf
        self._idle_limit.count(idle=idle)
        return idle and (self._idle_limit.is_reached or not self._due.come_again)

    def _stands_still(self, now_s: float) -> bool:
        """No job has trained since the last look, none is about to, and nothing comes from outside."""
        looked_s, had_done = self._last_look
        done = math.fsum(job.samples_done(now_s) for job in self.session.jobs.values())
        self._last_look = (now_s, done)
        if self._trace.coming is not None or self._node_events_ahead:
            return False
        return done == had_done and self._running.began_since(looked_s)

    # What happens.

    def _happen(self, now_s: float) -> None:
        agenda, until_s = self._agenda, now_s * ONE_MOMENT
        while agenda.first_s <= until_s and (entry := agenda.pop(now_s)) is not None:
            _, kind, subject, _ = entry
            if kind == FINISH:
                self._finish(subject, now_s)
            elif kind == SEGMENT_END:
                self._running.next_segment(subject, now_s)
            else:
                self._node_event(subject, now_s, up=kind == NODE_UP)
        while self._trace.coming_s <= now_s and (job := self._trace.coming) is not None:
            self._submit(job, now_s)

    def _happen_late(self, now_s: float) -> None:
        """What is noticed only after this moment's decision."""
        while (entry := self._agenda.pop(now_s, LATE_SEGMENT_END)) is not None:
            _, kind, subject, _ = entry
            if kind in (FINISH, LATE_FINISH):
                self._due.ended_late = True
                self._finish(subject, now_s)
            else:
                self._running.next_segment(subject, now_s)

    def _submit(self, spec: Job, now_s: float) -> None:
        self._trace.look_ahead()
        self._quiet_decisions = 0
        session = self.session
        state = session.submit(spec, now_s)
        self._running.arrive(state)
        if (order := self.simulated.quirks.order) is not None:
            state.arrival = order(spec)
        if state.id in session.hidden.held:
            session.admission.release(state.id, now_s)
        detail = self._describe(state) if self._describe else None
        self.log.add(now_s, Submitted.name, state.id, detail=detail)

    def _finish(self, job_id: str, now_s: float) -> None:
        self._quiet_decisions = 0
        self.counters.finished += 1
        trained = self._running.finish(job_id)
        job = self.session.end(job_id, now_s)
        job.report_progress(now_s, trained)
        self.log.add(now_s, Finished.name, job_id, gpus=0, samples_done=trained)
        self._report_progress()

    def _cancel_unsatisfiable(self, now_s: float) -> None:
        self._quiet_decisions = 0
        for job_id, reason in self.session.end_unsatisfiable(now_s).items():
            self.counters.cancelled += 1
            self.log.append(Cancelled(now_s, job_id, 0, reason=reason))
            self._report_progress()

    def _node_event(self, node: str, now_s: float, *, up: bool) -> None:
        self._quiet_decisions = 0
        self._node_events_ahead -= 1
        self.log.append(NodeUp(now_s, node=node) if up else NodeDown(now_s, node=node))
        if up:
            self.session.maintenance.node_up(node, now_s)
            return
        saved = self._running.saved_samples(now_s)
        for job in self.session.maintenance.node_down(node, now_s):
            self._running.leave(job.id, now_s)
            job.report_progress(now_s, saved[job.id])
            self.log.add(now_s, Requeued.name, job.id, gpus=0, samples_done=job.samples_done(now_s))
            self._running.follow_regimes(job, now_s)

    # What the policy makes of it.

    def _decide(self, now_s: float) -> None:
        session = self.session
        self._due.decided_s, self._due.at_once = now_s, False
        self.counters.decisions += 1
        if session.leaves_unasked(now_s):
            self.counters.unasked += 1
            return
        started = time.perf_counter()
        transitions = session.decide(now_s)
        self.counters.decision_seconds += time.perf_counter() - started
        if self._correct is not None:
            self._correct(transitions)
        for transition in transitions:
            self._apply(transition, now_s)
        pause_s = self.simulated.quirks.stop_all_s
        if pause_s and any(each.step in _RESIZED for each in transitions):
            self._running.stop_all(pause_s, now_s, but={each.job.id for each in transitions})
        if session.usage is not None:
            self._note_teams(now_s)
        for job_id, said in session.decided.admissions.items():
            if (job := session.jobs.get(job_id)) is not None:  # a rejection says it by itself
                self.log.append(Progressed(now_s, job_id, job.log_gpus, admission=said))
        if session.hidden.unsatisfiable:
            self._cancel_unsatisfiable(now_s)
        if self._forecasts is not None:
            for job, forecast in self._forecasts.due(session, now_s):
                self.log.append(Progressed(now_s, job.id, job.log_gpus, progress=forecast))

    def _note_teams(self, now_s: float) -> None:
        """Log how teams stand, where that has changed."""
        standings = [
            each.model_dump(exclude_defaults=True) for each in self.session.policy_host.standings(now_s)
        ]
        seen = [{name: value for name, value in each.items() if name in _OF_A_CHANGE} for each in standings]
        if seen != self._teams:
            self._teams = seen
            self.log.append(Decided(now_s, teams=standings))

    def _apply(self, transition: Transition, now_s: float) -> None:
        job, step, before, reason = transition
        done = job.samples_done(now_s)
        left = self._running.leave(job.id, now_s) if before else None
        if step == "reject":
            self.counters.rejected += 1
            said = self.session.decided.admissions.get(job.id) or None
            event = Rejected(now_s, job.id, 0, samples_done=done, reason=reason, admission=said)
            self.log.append(event)
            self._report_progress()
            return
        name: EventName = Moved.name if step == "rebatch" else step
        if not job.gpus:
            self.log.add(now_s, name, job.id, gpus=0, samples_done=done)
            return
        cost_s = self._running.cost_s(transition, left, now_s)
        row = self.log.add(
            now_s,
            name,
            job.id,
            gpus=job.log_gpus,
            placement=job.placement,
            global_batch=job.global_batch,
            samples_done=done,
            overhead_s=cost_s,
            detail=_company(job) if job.servers or job.beside is not None else None,
        )
        self._running.begin(job, row, cost_s, done, now_s)

    def _ended(self) -> int:
        return self.counters.finished + self.counters.rejected + self.counters.cancelled

    def _report_progress(self) -> None:
        if self._advance is None:
            return
        step = self._trace.count // 200 or 1
        if self._ended() % step == 0:
            self._advance(self._ended(), self._trace.count)


def _company(job: JobState) -> str:
    """What a job has beside its GPUs: parameter servers, and a job that shares them."""
    details = {"servers": job.servers or None, "beside": job.beside}
    return compact_json({name: value for name, value in details.items() if value is not None})
