"""Sessions rebuilt from an event log or from a schedule: nothing else is the truth.

How the log is read: ``submit`` carries the job in its detail, held from then on if it says ``hold``;
``start``, ``resume``, ``grow``, ``shrink`` and ``move`` carry the placement from then on, ``preempt`` takes
it away; ``requeue`` means that the job lost its GPUs without the policy's doing and waits again; ``finish``,
``fail``, ``cancel`` and ``reject`` end it;
``node_down`` and ``node_up`` name the node in their detail. From ``hold`` to ``unhold`` the policy does not
see a job (``user`` in the detail says who asked for it); ``priority`` gives it another one. From ``drain`` to
``undrain`` a node gets no work (``now``: its jobs leave). ``slot_down`` names a slot and the ``seconds`` for
which its job does not get it (without a job: no job does); ``slot_up`` ends that. Where the detail of a job's
event has ``wait_seconds``, the job gets no further GPU for that time. Changes of GPUs at one time are one
decision. Any event of a job may correct its progress.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ALLOCATION_EVENTS, ENDS, OF_NODES, OF_SLOTS, ORDERS, Event, epochs_done
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Job, updated_if_valid
from pliant.schemas.schedule import Allocation, ForecastState, PolicyState, Schedule
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.forecast import Demand
from pliant.tools.schedule.jobs import EpochEnd, JobState, NodeGpus, Observation
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.allocations import AllocationUpdate
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
    fold = SessionFold(session_for_run(policy, cluster, throughput, seed), source, saved)
    for event in events:
        if now_s is None or event.time <= now_s:
            fold.add(event)
    session = fold.finish()
    session.predict(carried.demand, carried.forecast)
    session.carry(carried.policy_state)
    return session


class SessionFold:
    """Applies the events of a log to a session without jobs, one after the other.

    :param saved: where to begin, instead of the log's beginning.
    """

    def __init__(self, session: Session, source: str, saved: SavedSession | None = None) -> None:
        self._session = session
        self._source = source
        self._together: list[Event] = []
        self._events = 0
        if saved is not None:
            from pliant.tools.schedule.session.saved import take_up

            self._together = take_up(session, saved)
            self._events = saved.facts.events

    def add(self, event: Event) -> None:
        """The next event. Changes of GPUs at one time are one decision, so they are applied together.

        :raises BadInputError: it contradicts those before it or the cluster.
        """
        first = next(iter(self._together), None)
        if first is None or (event.time, event.event in ALLOCATION_EVENTS) != (first.time, True):
            self._flush()
        self._together.append(event)
        self._events += 1
        if event.event not in ALLOCATION_EVENTS:
            self._flush()

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
        (session.take_up if job.id in out else session.submit)(job, schedule.time)
    updates = [_update_of(given) for given in schedule.allocations]
    try:
        for job_id in out:
            if job_id not in session.turned_away:
                session.end(job_id, schedule.time, "rejected")
        session.adopt(updates, schedule.time)
    except (KeyError, ValueError) as error:
        raise BadInputError.one("schedule", f"it contradicts itself: {_text(error)}") from error
    seen = {"changes_seen": len(session.changes)}  # absorbed is all that this session begins with
    state, forecast = schedule.policy_state, schedule.forecast
    session.predict(schedule.demand, None if forecast is None else forecast.model_copy(update=seen))
    if state is not None:
        session.carry(state.model_copy(update=seen))
    return session


def _update_of(given: Allocation) -> AllocationUpdate:
    batch = None if given.batch is None else given.batch.global_
    return AllocationUpdate(given.job, given.placement, batch, given.servers, given.beside)


def arrivals_until(jobs: Iterable[Job], time_s: float, out: Container[str] = ()) -> list[Job]:
    """Jobs submitted by ``time_s``, in order of (submit_time, id).

    :param out: ids of jobs that are rejected whenever they arrive; they count as submitted.
    """
    arrived = (job for job in jobs if job.submit_time <= time_s or job.id in out)
    return sorted(arrived, key=lambda job: (job.submit_time, job.id))


def apply_events(session: Session, events: Sequence[Event]) -> None:
    """Apply one event, or changes of GPUs that were decided together.

    :raises KeyError: a job or a node is not known.
    :raises ValueError: the events contradict what the session knows.
    """
    event = events[0]
    if event.event in ALLOCATION_EVENTS:
        _apply_holdings(session, [each for each in events if each.job not in session.ended])
    elif event.event == "submit":
        session.take_up(_job(event), event.time)
    elif event.event in OF_NODES:
        node = str((event.detail or {})["node"])
        change = session.node_down if event.event == "node_down" else session.node_up
        change(node, event.time)
    elif event.event == "decision":
        session.advance(event.time)
    elif event.event in OF_SLOTS:
        _apply_slot(session, event)
    elif event.event in ORDERS:
        _apply_order(session, event)
    elif event.job is not None:
        _apply_job(session, event, event.job)


def _apply_order(session: Session, event: Event) -> None:
    job_id, detail = event.job or "", event.detail or {}
    if event.event == "drain":
        session.drain(str(detail["node"]), event.time, now=bool(detail.get("now")))
    elif event.event == "undrain":
        session.resume(str(detail["node"]), event.time)
    if job_id not in session.jobs:
        return
    if event.event == "hold":
        session.hold_back(job_id, event.time, str(detail.get("user", "")))
    elif event.event == "unhold":
        session.let_go(job_id, event.time)
    elif event.event == "update":
        spec = updated_if_valid(session.jobs[job_id].spec, detail["changes"])
        session.update(job_id, event.time, spec)
    else:
        session.prioritize(job_id, event.time, float(detail["priority"]))


def _apply_slot(session: Session, event: Event) -> None:
    detail = event.detail or {}
    slot = str(detail["slot"])
    if event.event == "slot_up":
        session.restore(slot, event.time)
        if event.job is not None:
            session.quarantine.release(event.job)
        return
    until_s = event.time + float(detail["seconds"])
    if event.job is None:
        session.withdraw(slot, event.time, until_s)
    else:
        session.quarantine.bar(event.job, slot, until_s)


def _apply_holdings(session: Session, events: Sequence[Event]) -> None:
    session.adopt(
        [
            AllocationUpdate(
                event.job or "",
                event.placement or (),
                event.global_batch,
                _servers(event),
                (event.detail or {}).get("beside"),
            )
            for event in events
        ],
        events[0].time if events else 0.0,
    )
    for event in events:
        correct(session.jobs[event.job or ""], event)
        _apply_wait(session, event)


def _servers(event: Event) -> NodeGpus:
    return tuple((name, count) for name, count in (event.detail or {}).get("servers", ()))


def _apply_job(session: Session, event: Event, job_id: str) -> None:
    if event.event in ENDS:
        session.turned_away.pop(job_id, None)
    if job_id in session.ended and event.event == "requeue" and "order" in (event.detail or {}):
        session.revive(job_id, event.time)
    if job_id in session.ended:
        return  # a straggler: its workers wrote a last line after it ended
    job = session.jobs[job_id]
    if event.event == "requeue":
        session.lose(job_id, event.time)
        _apply_wait(session, event)
    correct(job, event)
    if event.event == "progress" and event.global_batch is not None and job.spec.batch.regimes:
        session.take_batch(job_id, event.global_batch, job.samples_done(event.time), event.time)
    if event.event in ENDS:
        session.end(job_id, event.time, ENDS[event.event])


def _apply_wait(session: Session, event: Event) -> None:
    seconds = (event.detail or {}).get("wait_seconds")
    if seconds is not None and event.job is not None:
        session.quarantine.hold(event.job, event.time + float(seconds))


def correct(job: JobState, event: Event) -> None:
    """Correct a job by what was measured: progress, loss, speed, noise, overhead."""
    if event.samples_done is not None:
        job.report_progress(event.time, event.samples_done)
    if event.loss is not None:
        job.report_loss(event.loss)
    measured = event.detail or {}
    if event.event == "epoch":
        _end_epoch(job, event)
    if (seen := measured.get("observed")) is not None:
        place, local, accum = tuple(seen["placement"]), seen["local_batch"], seen["accum"]
        job.observe(Observation(place, local, accum, seen["step_seconds"], None, job.gpu_type))
    if (noise_scale := measured.get("noise_scale")) is not None:
        job.noise_scale = float(noise_scale)
    if event.event in ALLOCATION_EVENTS and job.gpus and event.overhead_seconds:
        job.train_from(event.time + event.overhead_seconds, job.samples_per_second)


def _end_epoch(job: JobState, event: Event) -> None:
    if event.samples_done is not None:
        number = epochs_done(event) or 1 + (job.epochs[-1].epoch if job.epochs else 0)
        job.end_epoch(EpochEnd(number, event.samples_done, event.loss, event.metric))


def _job(event: Event) -> Job:
    from pliant.schemas.runinfo import SubmitDetail

    try:
        return SubmitDetail.model_validate(event.detail, strict=False).job
    except ValidationError as error:
        raise ValueError(str(problems_of(error, "detail")[0])) from error


def _text(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is not known at this point"
    return str(error)
