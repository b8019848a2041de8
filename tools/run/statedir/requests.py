"""Requests to a state directory, a file each: to run jobs, to cancel them, to hold them, to drain nodes.

``spool/NUMBER.ASKED.jobs.jsonl`` is a job file whose ``submit_time`` is UTC; ASKED is the time of the
submission, in nanoseconds by the submitter's clock. ``spool/NUMBER.cancel.json`` is a list of ids,
``spool/NUMBER.order.json`` one :class:`Order` about a job or a node. Where several accounts share the run,
their names say who asked: ``NUMBER.ASKED.uid1001.jobs.jsonl``. A request counts once its file bears that
name, on disk. The run of the directory writes it into the log and only then removes the file. Meeting it
twice does no harm: the log knows the ids of jobs and the numbers of executed orders.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from pliant.schemas.checks import constraint_of
from pliant.schemas.cluster import Cluster, NodeReservation
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.events import (
    Drained,
    Held,
    Ordered,
    Prioritized,
    Reloaded,
    Requeued,
    TypedEvent,
    Undrained,
    Unheld,
    Updated,
    row_of,
    typed,
)  # fmt: skip
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.file_io.files import atomic_write, remove_temporaries, sync_folder
from pliant.schemas.file_io.record import (
    BoundedFloat,
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    PlainText,
    PositiveFloat,
    Record,
    problems_of,
)
from pliant.schemas.io import write_jobs
from pliant.schemas.job import Changes, Job, updated
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir, make_own, read_own, unusable
from pliant.tools.run.statedir.log.events import cancel_event, submit_event
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.statedir.slot_faults import may_pass

JobAction = Literal["hold", "release", "priority", "update", "requeue"]
NodeAction = Literal["drain", "resume"]
ClusterAction = Literal["reload", "reserve", "unreserve"]
_EVENTS: Final[Mapping[JobAction | NodeAction | ClusterAction, type[Ordered | Requeued]]] = {
    "hold": Held,
    "release": Unheld,
    "priority": Prioritized,
    "update": Updated,
    "requeue": Requeued,
    "drain": Drained,
    "resume": Undrained,
    "reload": Reloaded,
    "reserve": Reloaded,
    "unreserve": Reloaded,
}

_ABOUT: Final = {
    "drain": "node",
    "resume": "node",
    "reload": "cluster",
    "reserve": "reservation",
    "unreserve": "name",
}
_JOBS: Final = ".jobs.jsonl"
_CANCEL: Final = ".cancel.json"
_ORDER: Final = ".order.json"
_UID: Final = ".uid"
_ENDINGS: Final = (_JOBS, _CANCEL, _ORDER)
AT_ONCE_S: Final = 0.1
"""Seconds by which times of files may lag behind the clock."""
_IDS: Final = TypeAdapter(tuple[str, ...])
_log = logging.getLogger("pliant")


class Order(Record):
    """One order, as it lies in the spool."""

    schema_: Literal["pliant.order/1"] = Field(default="pliant.order/1", alias="schema")
    action: JobAction | NodeAction | ClusterAction
    job: Identifier | None = None
    node: PlainText | None = None
    """The job or the node that it is about."""
    user: str
    uid: NonNegativeInt | None = None
    """The account that gave it, where several share the run."""
    asked_s: NonNegativeFloat
    """UTC seconds, by the clock of that time."""
    priority: BoundedFloat | None = None
    """The new one, of ``priority``."""
    changes: Changes | None = None
    """Changes of ``update``."""
    from_start: bool = False
    """Whether it forgets its checkpoints, of ``requeue``."""
    reason: PlainText = ""
    """Reason of ``drain``."""
    now: bool = False
    """Jobs leave the node at the next decision, of ``drain``."""
    within_s: PositiveFloat | None = None
    """Nothing may run on the node after this time, of ``drain``."""
    cluster: Cluster | None = None
    """The new cluster, of ``reload``; ``now`` is about the nodes that leave."""
    source: PlainText = ""
    """Name of its file."""
    reservation: NodeReservation | None = None
    """The one of ``reserve``."""
    name: PlainText | None = None
    """Name of the reservation that ends, of ``unreserve``."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        about = _ABOUT.get(self.action, "job")
        subjects = dict.fromkeys(("job", *_ABOUT.values()))
        if [name for name in subjects if getattr(self, name) is not None] != [about]:
            raise ValueError(f"{self.action!r} is about a {about}")
        if (self.priority is None) == (self.action == "priority"):
            raise ValueError("an order of a priority, and no other one, states a priority")
        if (self.changes is None) == (self.action == "update"):
            raise ValueError("an order to update a job, and no other one, states changes")
        return self

    @property
    def changes_cluster(self) -> bool:
        """Whether the run goes on with another cluster: another session takes its place."""
        return self.action in ("reload", "reserve", "unreserve")

    @property
    def words(self) -> str:
        """The end of "alice has ordered to …"."""
        if self.reservation is not None:
            return f"reserve nodes as {self.reservation.name}"
        if self.name is not None:
            return f"end reservation {self.name}"
        if self.priority is not None:
            return f"give it priority {self.priority:g}"
        if self.cluster is not None:
            return f"go on with the cluster of {self.source}"
        start = " from the start" if self.from_start else ""
        return f"{self.action} {'it' if self.node is None else f'node {self.node}'}{start}"


def submitted_jobs(
    text: str | bytes, source: str, defaults: Mapping[str, Any] | None = None
) -> tuple[Job, ...]:
    """The jobs of a submission, wherever its text came from: a file, options, another account, the spool.

    :param source: what messages call it.
    :param defaults: fields of jobs that do not state them.
    :raises BadInputError: it is not a job file.
    """
    return parse_jobs(text.encode() if isinstance(text, str) else text, source, defaults)


class Numbered(NamedTuple):
    """An order with the number of its file."""

    number: int
    order: Order


_SAID: Final = {"user", "uid", "node", "priority", "reason", "now", "changes", "from_start"}


def order_event(number: int, order: Order, time_s: float) -> Event:
    """The event that executes an order; ``number`` is that of its file."""
    return row_of(_executed(number, order, time_s))


def _executed(number: int, order: Order, time_s: float) -> TypedEvent:
    said = order.model_dump(include=_SAID, exclude_defaults=True)
    name = _EVENTS[order.action].name
    event = typed(Event(time_s, name, order.job, detail={**said, "order": number}))
    if isinstance(event, Drained) and order.within_s is not None:
        return replace(event, until=order.asked_s + order.within_s)
    if isinstance(event, Requeued):
        reason = f"requeued by {order.user}{' to begin at the start' if order.from_start else ''}"
        samples = 0.0 if order.from_start else None
        return replace(event, gpus=0, placement=(), samples_done=samples, reason=reason)
    return event


def order_events(
    number: int, order: Order, time_s: float, log: RunLog, *, rigid: bool = False
) -> list[Event]:
    """As :func:`order_event`; a job that cannot go on as it runs is stopped before an update.

    :param rigid: the policy gives each job the GPUs that it requests.
    """
    event, job_log = _executed(number, order, time_s), log.jobs.get(order.job or "")
    if not isinstance(event, Updated) or order.changes is None or job_log is None:
        return [row_of(event)]
    try:
        job = updated(job_log.job, order.changes)
    except ValidationError as error:  # it has changed since the order was checked
        what = str(problems_of(error, job_log.job.id)[0])
        _log.warning("job %s stays as it is, an update no longer fits: %s", job_log.job.id, what)
        return [row_of(replace(event, changes={}))]
    as_asked = not rigid or job_log.held_gpus == job.gpus.requested
    if not job_log.gpus or (as_asked and _goes_on(job_log, job, log)):
        return [row_of(event)]
    reason = f"updated by {order.user}: it starts again as it is to be now"
    return [row_of(Requeued(time_s, event.job, 0, (), reason=reason)), row_of(event)]


def _goes_on(found: JobLog, job: Job, log: RunLog) -> bool:
    """Whether a running job may keep what it holds after an update."""
    same = (job.batch, job.resources) == (found.job.batch, found.job.resources)
    if not same or found.held_gpus not in job.sizes(found.held_gpus):
        return False
    nodes = [] if log.info is None else log.info.cluster.expanded()
    constraint = constraint_of(job, {node.gpu_type for node in nodes})
    held = dict(found.placement)
    return constraint is None or all(constraint.allows(node) for node in nodes if node.name in held)


@dataclass(frozen=True, slots=True)
class Request:
    """One submission, one cancellation, or one order."""

    path: Path
    jobs: tuple[Job, ...] = ()
    """Submitted jobs; their ``submit_time`` is UTC."""
    cancelled: tuple[str, ...] = ()
    """Ids of jobs to end."""
    order: Order | None = None
    asked_s: float = 0.0
    """Time of writing, by the clock of that time."""
    uid: int | None = None
    """The account that asked, where several share the run."""
    seen_s: float = field(default_factory=time.monotonic)
    """Time at which this process first saw it, by a clock that cannot be set."""

    def is_due(self, job: Job, now_s: float) -> bool:
        """Whether a job of it has arrived: at its time of day, or once this process has waited for as long
        as it was to wait. So a clock that was set back makes no job wait longer.
        """
        wait_s = job.submit_time - self.asked_s
        return job.submit_time <= now_s or wait_s <= AT_ONCE_S + time.monotonic() - self.seen_s

    @property
    def has_content(self) -> bool:
        return bool(self.jobs or self.cancelled or self.order)

    @property
    def number(self) -> int:
        return int(self.path.name.partition(".")[0])

    def is_settled(self, log: RunLog) -> bool:
        """Whether the log holds all of it, or its job has ended."""
        if self.order is not None:
            job_id = self.order.job
            has_ended = job_id is not None and job_id in log.jobs and job_id not in log.active
            return self.number in log.executed or (has_ended and self.order.action != "requeue")
        return all(job.id in log.jobs for job in self.jobs) and not any(
            job_id in log.active for job_id in self.cancelled
        )


class Spool:
    """The requests of one state directory."""

    def __init__(self, dirs: StateDir) -> None:
        self._dirs = dirs
        self._folder = dirs.spool
        self._read: dict[str, Request] = {}
        self._has_listed = False
        self.all_read = True

    def requests(self) -> list[Request]:
        """All requests that are not settled, in the order in which they were made.

        A file that is not a request is warned of once and left where it is. If the folder cannot be listed
        for a moment, the last look stands.

        :raises OSError: the folder cannot be listed, and never was.
        """
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(_ENDINGS))
        except FileNotFoundError:
            names = []
        except OSError as error:
            if not (self._has_listed and may_pass(error)):
                raise
            names = list(self._read)
        self._has_listed = True
        by_name = {name: self._read.get(name) or self._request(name) for name in names}
        self.all_read = None not in by_name.values()
        self._read = {name: request for name, request in by_name.items() if request is not None}
        return [request for request in self._read.values() if request.has_content]

    def settle(self, log: RunLog, to_come: Container[str] = ()) -> None:
        """Remove the requests that the log holds, and orders about jobs that no longer exist.

        While a request cannot be read, no order and no cancellation of a job that the log does not know is
        removed: the job may be in there. A cancellation stays until its job has arrived, and what follows a
        requeue that the log lacks as long as that.

        :param to_come: jobs that were not submitted here and have not arrived.
        """
        requests = self.requests()
        asked = {job.id for request in requests for job in request.jobs}
        requeued = set[str | None]()
        for request in requests:
            job_id = request.order.job if request.order is not None else None
            is_unknown = not any(job_id in jobs for jobs in (log.jobs, asked, to_come))
            lost = job_id is not None and is_unknown and self.all_read
            if lost:
                _log.warning("%s: dropped, there is no job %s any more", request.path, job_id)
            awaits = any(
                each not in log.jobs and (not self.all_read or each in asked or each in to_come)
                for each in request.cancelled
            )
            awaits |= request.number not in log.executed and not requeued.isdisjoint(
                (job_id, *request.cancelled)
            )
            if lost or (request.is_settled(log) and not awaits):
                request.path.unlink(missing_ok=True)
            elif request.order is not None and request.order.action == "requeue":
                requeued.add(job_id)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from making requests; makes the state directory if it is missing.

        :raises UsageError: it cannot be made or used, or is not this user's alone.
        :raises ServiceMissingError: its disk is full or broken.
        """
        make_own(self._dirs)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._folder / "lock", flags, PRIVATE)
        except OSError as error:
            raise unusable(self._folder.parent, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            remove_temporaries(self._folder)
            yield
        finally:
            os.close(descriptor)

    def request_run(self, jobs: Iterable[Job], uid: int | None = None) -> None:
        """Write a submission; on disk when this returns. Call it while :meth:`locked`."""
        write_jobs(jobs, self._next(f".{time.time_ns()}{_by(uid)}{_JOBS}"), mode=PRIVATE)
        sync_folder(self._folder.parent)

    def request_cancel(self, job_ids: Iterable[str], uid: int | None = None) -> None:
        """Write a cancellation; on disk when this returns. Call it while :meth:`locked`."""
        atomic_write(
            self._next(f"{_by(uid)}{_CANCEL}"), json.dumps(sorted(job_ids)).encode() + b"\n", mode=PRIVATE
        )
        sync_folder(self._folder.parent)

    def give(self, orders: Iterable[Order]) -> None:
        """Write orders; on disk when this returns. Call it while :meth:`locked`."""
        for number, order in enumerate(orders, self._number()):
            data = order.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
            atomic_write(self._folder / f"{number:020d}{_by(order.uid)}{_ORDER}", data, mode=PRIVATE)
        sync_folder(self._folder.parent)

    def ordered_cluster(self) -> Cluster | None:
        """The cluster that the run is to go on with, by the last order about it that it has not executed."""
        with suppress(FileNotFoundError):
            for name in sorted(
                (name for name in os.listdir(self._folder) if name.endswith(_ORDER)), reverse=True
            ):
                request = self._request(name)
                if request is not None and request.order is not None and request.order.cluster is not None:
                    return request.order.cluster
        return None

    def bytes_of(self, uid: int) -> int:
        """How many bytes the requests of an account take."""
        marked = [name for name in os.listdir(self._folder) if f"{_by(uid)}." in name]
        total = 0
        for name in marked:
            with suppress(FileNotFoundError):
                total += os.stat(self._folder / name).st_size
        return total

    def withdraw(self, job_ids: Collection[str]) -> set[str]:
        """Before the first run, take jobs and orders about them out. Call it while :meth:`locked`.

        Jobs that were to start after one of them had finished go with it; others need not wait for it.
        Returns the ids of all that are gone.
        """
        gone = {*job_ids}
        waiting = [job for request in self.requests() for job in request.jobs if job.after]
        while more := {job.id for job in waiting if _needs(job, gone)} - gone:
            gone |= more
        for request in self.requests():
            if request.order is not None and request.order.job in gone:
                request.path.unlink()
            kept = [_without(job, gone) for job in request.jobs if job.id not in gone]
            if kept and kept != [*request.jobs]:
                write_jobs(kept, request.path)
            elif request.jobs and not kept:
                request.path.unlink()
        self._read.clear()
        return gone

    def take_back(self, job_ids: Collection[str]) -> None:
        """Forget cancellations of ids that are about to be used again. Call it while :meth:`locked`."""
        for request in self.requests():
            kept = [job_id for job_id in request.cancelled if job_id not in job_ids]
            if kept and len(kept) < len(request.cancelled):
                atomic_write(request.path, json.dumps(kept).encode() + b"\n", mode=PRIVATE)
            elif request.cancelled and not kept:
                request.path.unlink()
        self._read.clear()

    def _next(self, ending: str) -> Path:
        return self._folder / f"{self._number():020d}{ending}"

    def _number(self) -> int:
        """A number after all others, even if the clock was set back."""
        return max([time.time_ns(), *(request.number + 1 for request in self.requests())])

    def _request(self, name: str) -> Request | None:
        """What a file asks for. Returns None if it cannot be read at the moment."""
        path = self._folder / name
        try:
            int(name.partition(".")[0])
            if name.endswith(_JOBS):
                jobs = submitted_jobs(read_own(path), str(path))
                return Request(path, jobs=jobs, asked_s=int(name.split(".")[1]) / 1e9, uid=_uid_in(name))
            if name.endswith(_ORDER):
                order = Order.model_validate_json(read_own(path))
                return Request(path, order=order, asked_s=order.asked_s, uid=order.uid)
            return Request(path, cancelled=_IDS.validate_json(read_own(path)), uid=_uid_in(name))
        except (BadInputError, OSError, ValueError) as error:
            if may_pass(error):
                return None
            if os.path.lexists(path):  # else another process has settled it between two looks
                _log.warning("%s: left aside, it is not a request: %s", path, error)
            return Request(path)


def _needs(job: Job, gone: Container[str]) -> bool:
    return any(other in gone for other, awaited in job.after.items() if awaited == "ok")


def _without(job: Job, gone: Container[str]) -> Job:
    """A job that does not wait for those that are gone."""
    left = {other: awaited for other, awaited in job.after.items() if other not in gone}
    return job if left == job.after else job.model_copy(update={"after": left})


def _by(uid: int | None) -> str:
    return "" if uid is None else f"{_UID}{uid}"


def _uid_in(name: str) -> int | None:
    _, marked, after = name.partition(_UID)
    return int(after.partition(".")[0]) if marked else None


def submitters_of(requests: Iterable[Request]) -> tuple[dict[str, int], dict[str, int]]:
    """The accounts that submitted jobs, and those that cancelled some, by the ids of the jobs."""
    submitters, cancellers = dict[str, int](), dict[str, int]()
    for request in requests:
        if request.uid is not None:
            submitters |= dict.fromkeys((job.id for job in request.jobs), request.uid)
            cancellers = dict.fromkeys(request.cancelled, request.uid) | cancellers
    return submitters, cancellers


def unrecorded(
    requests: Iterable[Request], log: RunLog, until_s: float, to_come: Mapping[str, Job] | None = None
) -> Iterator[Job | str | Numbered]:
    """What the log lacks, in the order of the requests: jobs that arrive, ids of jobs to cancel, orders.

    A job that is cancelled before its time arrives first, so that the log knows it. An order waits for its
    job to arrive.

    :param until_s: jobs with a later ``submit_time`` (UTC) have not arrived (see :meth:`Request.is_due`).
    :param to_come: jobs that were not submitted here and have not arrived.
    """
    arrived, cancelled = set[str](), set[str]()
    ahead = dict(to_come or {})
    for request in requests:
        for job in sorted(request.jobs, key=lambda job: (job.submit_time, job.id)):
            if job.id in log.jobs or job.id in arrived or job.id in ahead:
                continue
            if not request.is_due(job, until_s):
                ahead[job.id] = job
                continue
            arrived.add(job.id)
            yield job
        for job_id in request.cancelled:
            if job_id in ahead:
                arrived.add(job_id)
                yield ahead.pop(job_id)
            if (job_id in log.active or job_id in arrived) and job_id not in cancelled:
                cancelled.add(job_id)
                yield job_id
        order = request.order
        if order is None or request.number in log.executed or order.job in cancelled:
            continue
        may_have_ended = order.action == "requeue" and order.job in log.jobs
        if order.job is None or order.job in log.active or order.job in arrived or may_have_ended:
            if order.job is not None:  # what follows a requeue finds it there
                arrived.add(order.job)
            yield Numbered(request.number, order)


def requested(requests: Iterable[Request], log: RunLog, now_s: float, *, rigid: bool = False) -> list[Event]:
    """What the next run will write into the log of what was asked for until ``now_s``."""
    return [
        event for it in unrecorded(requests, log, now_s) for event in _events(it, log, now_s, rigid=rigid)
    ]


def _events(asked: Job | str | Numbered, log: RunLog, now_s: float, *, rigid: bool) -> list[Event]:
    if isinstance(asked, Job):
        return [submit_event(asked, min(now_s, asked.submit_time))]
    if isinstance(asked, str):
        return [cancel_event(asked, now_s)]
    if asked.order.changes_cluster:  # what it leads to, the run says
        return []
    return order_events(*asked, now_s, log, rigid=rigid)
