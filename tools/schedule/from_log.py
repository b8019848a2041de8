"""Sessions rebuilt from an event log or from a schedule: nothing else is the truth.

``pliant.schemas.events`` says what each kind of event is. Changes of GPUs at one time are one decision. Any
event of a job may correct its progress.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, assert_never

from pydantic import ValidationError

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ALLOCATION_EVENTS, ENDS, Event
from pliant.schemas.events import (
    Cancelled,
    Checkpointed,
    Decided,
    Drained,
    Ended,
    EpochEnded,
    Failed,
    Finished,
    Held,
    Moved,
    NodeDown,
    NodeUp,
    Placed,
    Preempted,
    Prioritized,
    Progressed,
    Rejected,
    Released,
    Reloaded,
    Requeued,
    Resized,
    RunBegan,
    SlotCleared,
    SlotQuarantined,
    Started,
    Submitted,
    Trained,
    TypedEvent,
    Undrained,
    Unheld,
    Updated,
    checked,
    typed,
)  # fmt: skip
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Job, updated_if_valid
from pliant.schemas.schedule import Allocation, ForecastState, PolicyState, Schedule
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.forecast import Demand
from pliant.tools.schedule.jobs import EpochEnd, JobState, Observation, with_end
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.allocations import AllocationEvent, allocation_event
from pliant.tools.schedule.session.reload import session_on
from pliant.tools.schedule.session.session import Session

if TYPE_CHECKING:
    from pliant.tools.schedule.session.saved import Basis, SavedSession, SessionFacts


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """What a schedule carries to the next decision, besides allocations."""

    policy_state: PolicyState | None = None
    """Where the policy resumes; None, or a state that does not fit: it sees the whole history."""
    demand: Demand = "stated"
    forecast: ForecastState | None = None

    @classmethod
    def by(cls, schedule: Schedule) -> CarriedOver:
        return cls(schedule.policy_state, schedule.demand, schedule.forecast)


NOTHING: Final = CarriedOver()


def session_for_run(policy: Policy, cluster: Cluster, throughput: Throughput, seed: int = 0) -> Session:
    """A session without jobs, of a cluster that runs: what cannot save keeps its GPUs, unless the cluster
    file says otherwise.
    """
    who = cluster.preemptible or "stated"
    return Session(policy, cluster, throughput, seed=seed, preemptible=who)


def session_from_events(
    events: Iterable[Event],
    policy: Policy,
    cluster: Cluster,
    throughput: Throughput,
    carried: CarriedOver = NOTHING,
    *,
    now_s: float | None = None,
    seed: int = 0,
    source: str = "events",
    saved: SavedSession | None = None,
) -> Session:
    """The session to which the events lead, up to ``now_s``, ready for its next decision.

    :param saved: what came before the events, on the same cluster and with the same throughput.
    :raises BadInputError: the events contradict each other or the cluster; messages call them ``source``.
    """
    events = list(events)
    reloads = any(event.event == Reloaded.name for event in events)
    new = session_for_run(policy, cluster, throughput, seed)
    fold = SessionFold(new, source, saved, reloads=reloads)
    for event in events:
        if now_s is None or event.time <= now_s:
            fold.add(event)
    session = fold.finish()
    if reloads and session.cluster.spec != cluster:
        session, carried = session_on(session, cluster), CarriedOver(demand=carried.demand)
    session.policy_host.predict(carried.demand, carried.forecast)
    session.restore_state(carried.policy_state)
    return session


class SessionFold:
    """Applies the events of a log to a session without jobs, one after the other.

    :param session: on the cluster where the log ends.
    :param saved: where to begin, instead of the log's beginning.
    :param reloads: the cluster has changed since the log began; its first event names the first one.
    """

    def __init__(
        self, session: Session, source: str, saved: SavedSession | None = None, *, reloads: bool = False
    ) -> None:
        self._session = session
        self._begins = reloads and saved is None
        self._source = source
        self._together: list[Event] = []
        self._events = 0
        if saved is not None:
            from pliant.tools.schedule.session.saved import resume

            self._together = resume(session, saved)
            self._events = saved.facts.events

    def add(self, event: Event) -> None:
        """The next event. Changes of GPUs at one time are one decision, so they are applied together.

        :raises BadInputError: it contradicts those before it or the cluster.
        """
        first = next(iter(self._together), None)
        if self._begins and event.event == RunBegan.name:
            self._begins = False
            began = typed(event)
            if isinstance(began, RunBegan):
                self._session = session_on(self._session, began.info().cluster)
        if event.event == Reloaded.name:
            self._reload(event)
            return
        if first is None or (event.time, event.event in ALLOCATION_EVENTS) != (first.time, True):
            self._flush()
        self._together.append(event)
        self._events += 1
        if event.event not in ALLOCATION_EVENTS:
            self._flush()

    def _reload(self, row: Event) -> None:
        self._flush()
        self._events += 1
        event = checked(row)
        if isinstance(event, Reloaded) and event.error is None:
            self._session = reloaded(self._session, event)

    def finish(self) -> Session:
        """The session after all events. Raises as :meth:`add`."""
        self._flush()
        return self._session

    def keep(self, basis: Basis) -> tuple[SessionFacts, dict[str, bytes]]:
        """The facts and job states to save; more events may follow."""
        from pliant.tools.schedule.session.saved import facts_of, states_of

        return facts_of(self._session, basis, self._together, self._events), states_of(self._session)

    def _flush(self) -> None:
        events, self._together = self._together, []
        if not events:
            return
        try:
            apply_events(self._session, events)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            number = self._events - len(events) + 1
            text = f"event {number} ({events[0].event}): {_text(error)}"
            raise BadInputError.one(self._source, text) from error


def session_from_schedule(schedule: Schedule, policy: Policy, throughput: Throughput) -> Session:
    """The session right after the decision that a schedule records.

    Later arrivals and all that follows are left to the caller.

    :raises BadInputError: the allocations do not fit the cluster.
    """
    session = session_for_run(policy, schedule.cluster, throughput, schedule.policy.seed)
    out = {verdict.job: verdict.reason for verdict in schedule.rejected}
    for job in arrivals_until(schedule.jobs, schedule.time, out):
        (session.submit_accepted if job.id in out else session.submit)(job, schedule.time)
    try:
        for job_id in out:
            if job_id not in session.book.rejections:
                session.end(job_id, schedule.time, "rejected")
        events = [_held_by(session.jobs[given.job], given, schedule.time) for given in schedule.allocations]
        session.set_allocations(events, schedule.time)
    except (KeyError, ValueError) as error:
        raise BadInputError.one("schedule", f"it contradicts itself: {_text(error)}") from error
    seen = {"changes_seen": len(session.changes.entries)}  # absorbed is all that this session begins with
    state, forecast = schedule.policy_state, schedule.forecast
    session.policy_host.predict(
        schedule.demand, None if forecast is None else forecast.model_copy(update=seen)
    )
    if state is not None:
        session.restore_state(state.model_copy(update=seen))
    return session


def _held_by(job: JobState, given: Allocation, time_s: float) -> AllocationEvent:
    batch, place = None if given.batch is None else given.batch.global_, given.placement
    return allocation_event(
        job, place, time_s, global_batch=batch, servers=given.servers, beside=given.beside
    )


def arrivals_until(jobs: Iterable[Job], time_s: float, out: Container[str] = ()) -> list[Job]:
    """Jobs submitted by ``time_s``, in order of (submit_time, id).

    :param out: ids of jobs that are rejected whenever they arrive; they count as submitted.
    """
    arrived = (job for job in jobs if job.submit_time <= time_s or job.id in out)
    return sorted(arrived, key=lambda job: (job.submit_time, job.id))


def follow(session: Session, event: Event, origin_s: float) -> None:
    """Apply an event of a live log, whose clock shows ``origin_s`` when the session's shows 0.

    Raises as :func:`apply_events`.
    """
    apply_events(session, [replace(event, time=event.time - origin_s)])


def apply_events(session: Session, rows: Sequence[Event]) -> None:
    """Apply one event, or changes of GPUs that were decided together.

    :raises KeyError: a job or a node is not known.
    :raises ValueError: the events contradict what the session knows.
    """
    event = checked(rows[0])
    match event:
        case Started() | Resized() | Moved() | Preempted():
            _apply_allocations(session, [checked(row) for row in rows if row.job not in session.book.ended])
        case Submitted():
            session.submit_accepted(_job(event), event.time)
        case NodeDown() | NodeUp():
            change = (
                session.maintenance.node_up if isinstance(event, NodeUp) else session.maintenance.node_down
            )
            change(event.node, event.time)
        case RunBegan() | Decided():
            session.cluster.at(event.time)
            _restore(session, event)
        case SlotQuarantined() | SlotCleared():
            _apply_slot(session, event)
        case Drained():
            session.maintenance.drain(event.node, event.time, now=bool(event.now))
        case Undrained():
            session.maintenance.undrain(event.node, event.time)
        case Held() | Unheld() | Updated() | Prioritized():
            _apply_order(session, event)
        case Requeued() | Finished() | Failed() | Cancelled() | Rejected():
            _stop(session, event)
        case Progressed() | Checkpointed() | EpochEnded():
            _apply_report(session, event)
        case Released() | Reloaded():  # a reload makes another session
            pass
        case _:
            assert_never(event)


def _restore(session: Session, event: RunBegan | Decided) -> None:
    """Take over what jobs did that are in archives."""
    from pliant.tools.schedule.session.saved import restore_usage

    restored = (event.restored if isinstance(event, Decided) else None) or {}
    if "archived" in restored:
        ends = restored["archived"].items()
        session.book.state.archived = {job_id: (end, array) for job_id, (end, array) in ends}
    if (carried := restored.get("session")) is None:
        return
    changes = session.changes
    changes.state.before = carried["changes"] - len(changes.past) - len(changes.entries)
    if session.usage is not None and carried["usage"] is not None:
        restore_usage(session.usage, carried["usage"], event.time)


def reloaded(
    session: Session, event: Reloaded, throughput: Throughput | None = None, policy: Policy | None = None
) -> Session:
    """The session that goes on after a reload; the one before stays as it is.

    :param throughput: None: as before; so is the policy, which must not have been asked then.
    :raises ValueError: the event does not state a cluster that fits what jobs hold.
    """
    try:
        cluster, _ = event.clusters()
    except ValidationError as error:
        raise ValueError(str(problems_of(error, "detail")[0])) from error
    found, time_s = session_on(session, cluster, event.time, throughput, policy), event.time
    for name in map(str, event.back or ()):
        found.maintenance.undrain(name, time_s)
    for name in map(str, event.leaving or ()):
        found.maintenance.drain(name, time_s, now=bool(event.now))
    return found


def _apply_order(session: Session, event: Held | Unheld | Updated | Prioritized) -> None:
    job_id, time_s = event.job, event.time
    if job_id not in session.jobs:
        return
    match event:
        case Held():
            session.admission.hold(job_id, time_s, event.user or "")
        case Unheld():
            session.admission.release(job_id, time_s)
        case Updated():
            session.update(job_id, time_s, updated_if_valid(session.jobs[job_id].spec, event.changes))
        case Prioritized():
            session.admission.prioritize(job_id, time_s, float(event.priority))


def _apply_slot(session: Session, event: SlotQuarantined | SlotCleared) -> None:
    if isinstance(event, SlotCleared):
        session.cluster.restore_slot(event.slot, event.time)
        if event.job is not None:
            session.quarantine.release(event.job)
        return
    until_s = event.time + event.seconds
    if event.job is None:
        session.cluster.withdraw(event.slot, event.time, until_s)
    else:
        session.quarantine.bar(event.job, event.slot, until_s)


def _apply_allocations(session: Session, events: Sequence[TypedEvent]) -> None:
    changes = [_without_archived(event, session) for event in events if isinstance(event, Placed | Preempted)]
    session.set_allocations(changes, changes[0].time if changes else 0.0)
    for event in changes:
        job = session.jobs[event.job]
        correct(session, job, event)
        if job.gpus and event.overhead_seconds:
            job.train_from(event.time + event.overhead_seconds, job.samples_per_second)
        _apply_wait(session, event)


def _without_archived(event: Placed | Preempted, session: Session) -> Placed | Preempted:
    """A job in an archive shares no GPUs here."""
    if isinstance(event, Preempted) or event.beside is None:
        return event
    known = event.beside in session.jobs or event.beside in session.book.ended
    return event if known else replace(event, beside=None)


def _stop(session: Session, event: Requeued | Ended) -> None:
    """A job waits again, or ends."""
    job_id = event.job
    if not isinstance(event, Requeued):
        session.book.rejections.pop(job_id, None)
    elif job_id in session.book.ended and event.order is not None:
        session.revive(job_id, event.time)
    if job_id in session.book.ended:
        return
    job = session.jobs[job_id]
    if isinstance(event, Requeued):
        session.maintenance.lose(job_id, event.time)
        _apply_wait(session, event)
        correct(session, job, event)
    else:
        correct(session, job, event)
        session.end(job_id, event.time, ENDS[event.name])


def _apply_wait(session: Session, event: Placed | Preempted | Requeued) -> None:
    if event.wait_seconds is not None and event.job is not None:
        session.quarantine.hold(event.job, event.time + event.wait_seconds)


def _apply_report(session: Session, event: Trained) -> None:
    job_id = event.job
    if job_id in session.book.ended:
        return  # its workers wrote a last line after it ended
    job = session.jobs[job_id]
    correct(session, job, event)
    if isinstance(event, Progressed) and event.global_batch is not None and job.spec.batch.regimes:
        session.take_batch(job_id, event.global_batch, job.samples_done(event.time), event.time)


def correct(session: Session, job: JobState, event: TypedEvent) -> None:
    """Correct a job by what was measured: progress, loss, speed, noise."""
    if event.samples_done is not None:
        job.report_progress(event.time, event.samples_done)
    if job.initial_loss is None:
        job.initial_loss = event.loss
    if not isinstance(event, Trained):
        return
    if isinstance(event, EpochEnded) and event.samples_done is not None:
        number = event.epochs_done or 1 + (job.epochs[-1].epoch if job.epochs else 0)
        job.epochs = with_end(job.epochs, EpochEnd(number, event.samples_done, event.loss, event.metric))
    if (seen := event.observed) is not None:
        place, local, accum = tuple(seen["placement"]), seen["local_batch"], seen["accum"]
        observation = Observation(place, local, accum, seen["step_seconds"], None, job.gpu_type)
        session.observe(job, observation, event.time)
    if event.noise_scale is not None:
        job.noise_scale = float(event.noise_scale)


def _job(event: Submitted) -> Job:
    try:
        return event.submission().job
    except ValidationError as error:
        raise ValueError(str(problems_of(error, "detail")[0])) from error


def _text(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is not known at this point"
    return str(error)
