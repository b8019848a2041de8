"""What the loop hears and asks: arriving jobs and orders, and the policy.

Jobs arrive with the schedule in their time, or are submitted; cancellations and orders come beside them. Then
the policy is asked, if there is a reason to.

Times are on the clock of the schedule. A policy that fails ends no service: what runs stays as it is, and
the policy is asked again later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pliant.schemas.errors import BadInputError, InfeasibleError, PliantError, ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.events import Rejected, Requeued, Updated
from pliant.schemas.job import Job, updated_if_valid
from pliant.schemas.schedule import Allocation, Schedule
from pliant.tools.run.service.submit import forget_secrets, in_teams
from pliant.tools.run.statedir.directory import Account
from pliant.tools.run.statedir.log.events import cancel_event, reject_event, submit_event
from pliant.tools.run.statedir.requests import Numbered, Spool, order_events, submitters_of, unrecorded
from pliant.tools.run.statedir.slot_faults import Faults
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import schedule_of
from pliant.tools.schedule.demand import JobCheck, submit_detail
from pliant.tools.schedule.from_log import follow
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import PolicyError, in_words
from pliant.tools.schedule.session.allocations import Transition, allocation_event
from pliant.tools.schedule.session.forecast_log import ForecastLog
from pliant.tools.schedule.session.idle_limit import IdleLimit, why_left
from pliant.tools.schedule.session.session import Session

T = TypeVar("T")
_NOT_OF_THE_POLICY: Final = (MemoryError, ServiceMissingError)
_LEFT_OUT: Final = "the schedule does without what it would have said"
_GOES_ON: Final = "what runs goes on as it is; the policy is asked again when something happens"
_log: Final = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """An answer of the policy."""

    schedule: Schedule
    seconds: float
    """Seconds that the policy took."""
    changed: frozenset[str]
    """Jobs whose GPUs or batch it has changed."""
    rejected: tuple[tuple[str, str], ...]
    """Jobs that are turned away, with the reasons."""

    def allocations(self, held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Allocations by job id, unchanged jobs included; ``held``: those before it."""
        given = {allocation.job: allocation for allocation in self.schedule.given()}
        kept = {
            job_id: _beside(given[job_id].beside, allocation) if job_id in given else allocation
            for job_id, allocation in held.items()
            if job_id not in self.changed
        }
        return kept | {job_id: each for job_id, each in given.items() if job_id in self.changed}


class Decisions:
    """A session and its policy.

    :param decided_s: when the policy was asked last.
    :param tolerates_errors: report an error of the policy and let what runs go on; otherwise raise it.
    """

    def __init__(self, session: Session, decided_s: float, *, tolerates_errors: bool) -> None:
        self.session = session
        self.decided_s = decided_s
        self._tolerates_errors = tolerates_errors
        # Counts decisions after which jobs are there, none runs and none is to come.
        self.idle_limit = IdleLimit()
        self._forecasts = ForecastLog()
        # Errors of the policy since its last answer: each is reported once.
        self._reported: set[str] = set()

    def next_decision_s(self) -> float:
        """When the policy is asked next if nothing happens."""
        session, interval_s = self.session, self.session.policy.traits.default_interval_s
        next_s = float("inf")
        if interval_s is not None and session.jobs:
            quiet_until_s = float("-inf") if session.changes.has_news else session.decided.quiet_until_s
            next_s = max(self.decided_s + interval_s, quiet_until_s)
        wishes = (session.quarantine.next_s, session.decided.due_s)
        return min([next_s, *(wish for wish in wishes if wish is not None and wish > self.decided_s)])

    def decide(
        self, now_s: float, held: Mapping[str, Allocation], prepare: Callable[[PolicyAnswer], T]
    ) -> T | str:
        """Ask the policy; returns what follows from its answer, or why that cannot be used.

        :param held: what jobs hold now, and keep if it fails.
        :param prepare: turns an answer into what is to be recorded and done, or fails if it cannot be used.
        """
        self.decided_s = now_s
        done: Sequence[Transition] = ()
        try:
            began = time.perf_counter()
            done = self.session.decide(now_s)
            seconds = time.perf_counter() - began
            outcome = prepare(self._answer(done, seconds, now_s))
        except Exception as error:
            if not self._tolerates_errors:
                raise
            reason = self._report(error, _GOES_ON)
            self._rollback(held, now_s)
            self.session.book.rejections.update(_rejected(done))
            return reason
        self._reported.clear()
        return outcome

    def _answer(self, done: Sequence[Transition], seconds: float, now_s: float) -> PolicyAnswer:
        schedule = self.schedule_of(done, now_s)
        changed = frozenset(transition.job.id for transition in done)
        return PolicyAnswer(schedule, seconds, changed, _rejected(done))

    def forecasts(self, now_s: float) -> dict[str, Any]:
        """The predictions that are due to be logged, by job id."""
        return {job.id: forecast for job, forecast in self._forecasts.due(self.session, now_s)}

    def admissions(self, origin_s: float) -> dict[str, dict[str, Any]]:
        """What the policy said of jobs that it admitted or rejected, by id; times on the log's clock."""
        return {
            job_id: {
                name: value + origin_s if name == "end_s" else value for name, value in statement.items()
            }
            for job_id, statement in self.session.decided.admissions.items()
        }

    def schedule_of(self, done: Iterable[Transition], now_s: float) -> Schedule:
        return schedule_of(self.session, done, now_s, on_error=lambda error: self._report(error, _LEFT_OUT))

    def check_progress(self) -> None:
        """:raises InfeasibleError: jobs wait, none runs or is to come, and the policy leaves them waiting."""
        if self.idle_limit.is_reached or self.next_decision_s() == float("inf"):
            left = sorted(self.session.in_play.values(), key=lambda job: job.arrival)
            name = self.session.policy.name
            raise InfeasibleError("; ".join(f'job "{job.id}" is left: {why_left(name, job)}' for job in left))

    def _report(self, error: Exception, what_follows: str) -> str:
        """Report an error of the policy, once until its next answer; returns it in one line.

        :raises Exception: the error itself, if memory, the disk or another service is at fault.
        """
        if isinstance(error, _NOT_OF_THE_POLICY):
            raise error
        text = str(error).partition("\n")[0] if isinstance(error, PliantError) else in_words(error)
        reason = text if isinstance(error, PolicyError) else f'policy "{self.session.policy.name}": {text}'
        if reason not in self._reported:
            _log.warning("%s; %s", reason, what_follows)
            _log.debug("%s", reason, exc_info=error)
        self._reported.add(reason)
        return reason

    def _rollback(self, held: Mapping[str, Allocation], now_s: float) -> None:
        """Undo a decision that came to nothing: jobs hold what they held."""
        changed = []
        for job in self.session.jobs.values():
            before = held.get(job.id)
            place, batch, beside = (
                ((), None, None) if before is None else (before.placement, before.cut[0], before.beside)
            )
            if (job.placement, job.global_batch, job.beside) != (place, batch or job.global_batch, beside):
                changed.append(
                    allocation_event(
                        job, place, now_s, global_batch=batch, servers=job.servers, beside=beside
                    )
                )
        self.session.rollback(changed, now_s)


def _rejected(done: Iterable[Transition]) -> tuple[tuple[str, str], ...]:
    return tuple((one.job.id, one.reason) for one in done if one.step == "reject")


def _beside(other: str | None, held: Allocation) -> Allocation:
    return held if held.beside == other else held.model_copy(update={"beside": other})


class Arrivals:
    """The jobs that a run does not know yet.

    A job that cannot be served is submitted and rejected at once, with the reason.

    :param session: takes up the jobs that arrive.
    :param ahead: jobs of the schedule whose time has not come; their times are on its clock.
    :param follow: more jobs may be submitted at any time.
    :param takes_reloads: else orders to change the cluster wait for a loop that takes them.
    """

    def __init__(
        self,
        state: State,
        session: Session,
        clock: Callable[[], float],
        origin_s: float,
        ahead: Iterable[Job] = (),
        *,
        follow: bool = False,
        takes_reloads: bool = True,
    ) -> None:
        self.takes_reloads = takes_reloads
        self._state = state
        self._follow = follow
        self._session = session
        self._clock = clock
        self._origin_s = origin_s
        # Jobs of the schedule that are still to come, in order of their times.
        self.ahead = sorted(ahead, key=lambda job: (job.submit_time, job.id))
        self._check = JobCheck(
            session.cluster.spec, session.cluster.speeds, session.policy, session.policy_host.demand
        )
        # Jobs that could not be taken up for an error, with the reasons.
        self._refused: dict[str, str] = {}
        self._faults = Faults(state.dirs.path, self._refused.setdefault)
        self._spool = Spool(state.dirs)
        self._awaited = bool(self._spool.requests())
        # The cluster that the run is to go on with, before what was requested after it.
        self.reload: Numbered | None = None
        # Jobs that the last requests have changed.
        self.updated: list[str] = []
        # The accounts that submitted the jobs of the requests at hand, where several share the run.
        self._submitters: dict[str, int] = {}

    @property
    def more_to_come(self) -> bool:
        """Whether more jobs may arrive, or there are requests that the log lacks."""
        return self._follow or self._awaited or bool(self.ahead)

    def poll_requests(self, until_s: float) -> tuple[bool, list[str]]:
        """Record what was submitted, cancelled and ordered; jobs not due at ``until_s`` (UTC) wait.

        Returns whether anything was recorded, and the jobs that are to give up what they hold.
        """
        requests = self._spool.requests()
        self.updated.clear()
        self.reload = None
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
        self._submitters, cancellers = submitters_of(requests)
        for found in unrecorded(requests, log, until_s, ahead):
            if isinstance(found, str):
                events.append(self._cancel(found, cancellers.get(found)))
                cancelled.append(found)
            elif isinstance(found, Job):
                events += self._admit(self._in_team(self._on_own_clock(found)))
            elif found.order.changes_cluster:
                if self.takes_reloads:
                    self.reload = found
                    break
            else:
                made = self._order(found, now)
                events += made
                cancelled += [event.job for event in made if event.event == Requeued.name and event.job]
                self.updated += [event.job for event in made if event.event == Updated.name and event.job]
        self._state.record(events)
        for event in events:
            if event.event == Rejected.name and event.job is not None:
                forget_secrets(self._state.dirs, event.job)
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
                self._spool.request_run(later)

    def in_utc(self, job: Job) -> Job:
        return job.model_copy(update={"submit_time": self._origin_s + job.submit_time})

    def submit_event(self, state: JobState) -> Event:
        """The event of a job that the session has taken up, or turned away on arrival."""
        known = state.id not in self._session.book.rejections
        return self._event(state.spec, self._detail(state) if known else None)

    def _detail(self, state: JobState) -> dict[str, Any]:
        detail = submit_detail(state, self._session.cluster.speeds)
        rates = self._session.policy.promised_rates(state, self._session.cluster.speeds)
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
        shares = self._session.cluster.spec.shares
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
        now, session, refusal = self._clock(), self._session, None
        with self._faults.of(job.id):
            state = session.submit_accepted(job, now - self._origin_s)
            refusal = self._refused.get(job.id) or self._check.refusal(job)
            if state is not None and refusal is None:
                return [self.submit_event(state)]
        known = session.book.rejections.pop(job.id, "")
        rejected = reject_event(job.id, now, self._refused.pop(job.id, "") or known or refusal or "")
        if job.id in session.jobs:
            follow(session, rejected, self._origin_s)
        return [self._event(job), rejected]

    def _order(self, given: Numbered, now: float) -> list[Event]:
        """The events of an order; a schedule may cover a part of the cluster, the log gets all orders."""
        rigid, given = self._session.policy.traits.elasticity == "none", self._feasible(given)
        order = given.order
        events = order_events(*given, now, self._state.log, rigid=rigid)
        if order.node is None or any(node.name == order.node for node in self._session.cluster.nodes):
            for event in events:
                follow(self._session, event, self._origin_s)
        if order.from_start and order.job is not None:
            self._state.dirs.job(order.job).begin_at_the_start()
        return events

    def _feasible(self, given: Numbered) -> Numbered:
        """The order; of an update that makes no sense on the cluster any more, one that changes nothing."""
        order, job = given.order, self._session.jobs.get(given.order.job or "")
        if job is None or not order.changes:
            return given
        if self._session.book.state_as(updated_if_valid(job.spec, order.changes)) is not None:
            return given
        _log.warning("job %s stays as it is, the cluster cannot run what an update asks for", job.id)
        return given._replace(order=order.model_copy(update={"changes": {}}))

    def _cancel(self, job_id: str, uid: int | None) -> Event:
        event = cancel_event(job_id, self._clock(), by=None if uid is None else Account.of(uid))
        if job_id in self._session.jobs:
            follow(self._session, event, self._origin_s)
        return event
