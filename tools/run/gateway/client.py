"""What commands ask of a state directory: of its files where it is their account's, else through its door.

A shared run of another account is asked the same questions as a state directory of one's own.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogReader, parse_events
from pliant.schemas.io import job_file
from pliant.schemas.job import Changes, Job, arriving_at
from pliant.tools.run.gateway import protocol as asked
from pliant.tools.run.gateway.munge_transport import munge_for, send
from pliant.tools.run.gateway.permissions import HISTORY, STACKS, STATUS, USES, with_active_jobs
from pliant.tools.run.gateway.protocol import (
    as_line,
    error_of,
    gateway_address,
    peer_of,
    pieces_from,
    value_in,
)
from pliant.tools.run.service import submit as own
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.service.stacks import WorkerStack
from pliant.tools.run.service.starters import settled
from pliant.tools.run.service.submit import Submitted
from pliant.tools.run.statedir.directory import ROOT, StateDir, holder_of
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Spool
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch import output
from pliant.tools.run.watch.attempt_code import CodeRecord, recorded_code
from pliant.tools.run.watch.job_page import Happened, error_lines, history
from pliant.tools.run.watch.job_status import EVERY_JOB, JobFilter, JobStatus, known_ids, statuses
from pliant.tools.run.watch.stacks import job_stacks
from pliant.tools.run.watch.status import Status, Watcher
from pliant.tools.run.watch.top import Use, UseMeter, measured

RESPONSE_TIMEOUT_S: Final = 60.0
"""An answer begins within this time, or the run hangs."""
POLL_INTERVAL_S: Final = 2.0
PATTERN: Final = re.compile(r"[*?\[]")
RETRY_TIMEOUT_S: Final = 10.0
"""A request that a limit of requests refuses is made again within this time."""


class _Ended(NamedTuple):
    """How a job ended."""

    id: str
    phase: str
    reason: str


class _Client:
    """Asks through the door of a state directory.

    :param state: the directory as its user names it.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._dirs = StateDir(state.resolve())
        # Set if the run is on another host, which letters reach.
        self._munge = munge_for(self._dirs)

    # Orders.

    def submit(self, jobs: Sequence[Job], source: str, *, numbered: bool) -> Submitted:
        """Submit jobs, whose folders are written out; durable when this returns."""
        said = self._value(asked.SubmitJobs(jobs=job_file(jobs).decode(), source=source, numbered=numbered))
        return Submitted(*(said[name] for name in asked.SUBMITTED_FIELDS))

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._value(asked.CancelJobs(jobs=tuple(job_ids)))

    def order_jobs(
        self, action: JobAction, job_ids: Sequence[str], **how: Any
    ) -> tuple[list[str], str | None]:
        """Returns the ids of those that have ended, and the policy if it ignores a priority."""
        said = self._value(asked.OrderJobs(action=action, jobs=tuple(job_ids), **how))
        return said["ended"], said["deaf"]

    def order_nodes(
        self, action: NodeAction, names: Sequence[str], *, reason: str, now: bool, within_s: float | None
    ) -> None:
        order = asked.OrderNodes(action=action, nodes=tuple(names), reason=reason, now=now, within_s=within_s)
        self._value(order)

    # Views.

    def look(self, *, ahead: bool = False) -> Status:
        found = STATUS.validate_json(self._answer(asked.Look(ahead=ahead)))
        with_active_jobs(found.log)
        return found

    def history(self, job_id: str) -> list[Happened]:
        return HISTORY.validate_python(self._value(asked.Describe(job=job_id))["history"])

    def errors(self, job: JobStatus) -> list[str]:
        found = self._value(asked.Describe(job=job.id))["errors"]
        return [str(line) for line in found]

    def use(self, job: JobStatus) -> tuple[float | None, int | None]:
        if not job.log.gpus:
            return None, None
        return next(((use.busy, use.memory) for use in self.uses()[1] if use.id == job.id), (None, None))

    def uses(self) -> tuple[RunLog, list[Use]]:
        log, uses = USES.validate_json(self._answer(asked.MeasureUse()))
        return with_active_jobs(log), list(uses)

    def stacks(self, job_id: str, within_s: float) -> list[WorkerStack]:
        wait_s = min(within_s, asked.MAX_STACKS_WAIT_S)
        return STACKS.validate_json(self._answer(asked.ReadStacks(job=job_id, within_s=wait_s)))

    def whatif(self, question: asked.WhatIfQuestion) -> bytes:
        """The answer as :mod:`pliant.cli.whatif_answer` writes it."""
        return self._answer(question)

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        if job.log.uid != os.geteuid():
            return None
        found = self._pieces(asked.ReadEvents(job=job.id))
        return [*parse_events(b"".join(found), str(self._state))]

    def code(self, job_id: str) -> list[CodeRecord]:
        found = self._value(asked.Describe(job=job_id)).get("code", ())
        return [CodeRecord.model_validate(each) for each in found]

    def output(self, question: asked.ReadOutput) -> Iterator[bytes]:
        return self._pieces(question)

    def events(self, last: int, *, follow: bool) -> Iterator[bytes]:
        return self._pieces(asked.ReadEvents(last=last, follow=follow))

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[_Ended | None]:
        """Each of the jobs as it ends, and None between looks."""
        if self._munge is not None:
            yield from self._ends_seen(job_ids)
            return
        for data in self._pieces(asked.AwaitEnds(jobs=tuple(job_ids))):
            yield _Ended(**json.loads(data)) if data else None

    def _ends_seen(self, job_ids: Sequence[str]) -> Iterator[_Ended | None]:
        left = list(dict.fromkeys(job_ids))
        while True:
            found = self.look()
            if unknown := [job_id for job_id in left if job_id not in (known := known_ids(found))]:
                raise no_such_job(self._state, unknown, known)
            jobs = found.log.jobs
            for job_id in [each for each in left if each in jobs and jobs[each].ended]:
                left.remove(job_id)
                yield _Ended(job_id, jobs[job_id].end, jobs[job_id].reason)
            if not left:
                return
            yield None
            time.sleep(POLL_INTERVAL_S)

    # The connection.

    def _value(self, request: asked.Asked) -> Any:
        return json.loads(self._answer(request))

    def _answer(self, request: asked.Asked) -> bytes:
        """The value of an answer, as JSON.

        :raises PliantError: the request was refused or could not be executed.
        """
        until_s = time.monotonic() + RETRY_TIMEOUT_S
        while True:
            line = self._line(request)
            if (value := value_in(line)) is not None:
                return value
            self._wait_or_raise(line, until_s)

    def _line(self, request: asked.Asked) -> bytes:
        if self._munge is not None:
            with gateway_address(self._dirs):  # the way there is looked at
                return send(self._dirs, as_line(request.model_dump(mode="json")), self._munge)
        with self._connected() as connection:
            return bytes(self._sent(connection, request).readline())

    def _wait_or_raise(self, line: bytes, until_s: float) -> None:
        """Wait if a limit lets the next request through in a moment; nothing was done then.

        :raises PliantError: the request was refused for good.
        """
        try:
            answer = json.loads(line)
        except ValueError:
            raise ServiceMissingError(f"{self._state}: its run ended before it answered") from None
        wait_s = answer.get("wait_s")
        if wait_s is None or time.monotonic() + wait_s > until_s:
            raise error_of(answer)
        time.sleep(wait_s)

    def _pieces(self, request: asked.Asked) -> Iterator[bytes]:
        if self._munge is not None:
            yield str(self._value(request)).encode("utf-8", "surrogateescape")
            return
        with self._connected() as connection:
            file = self._sent(connection, request)
            line = file.readline()
            if json.loads(line or b"{}").get("ok") is not True:
                self._wait_or_raise(line, 0.0)
            try:
                yield from pieces_from(file)
            except (EOFError, OSError) as error:
                raise ServiceMissingError(f"{self._state}: its run has ended meanwhile") from error

    def _sent(self, connection: socket.socket, request: asked.Asked) -> Any:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was refused at once, and says why
            connection.sendall(as_line(request.model_dump(mode="json")))
        return connection.makefile("rb")

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """A connection to the run of the directory, which is root's.

        :raises ServiceMissingError: no run serves it.
        :raises UsageError: another account listens there, or could.
        """
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.settimeout(RESPONSE_TIMEOUT_S)
            try:
                with gateway_address(self._dirs) as address:
                    connection.connect(address)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                text = f"no run serves {self._state} now, and nothing was asked: tell its operator"
                raise ServiceMissingError(text) from error
            except OSError as error:
                text = f"{self._state}: its door cannot be reached: {error.strerror or error}"
                raise ServiceMissingError(text) from error
            if (uid := peer_of(connection).uid) != ROOT:
                text = f"user {uid} listens at its door, and a run of root should: nothing was asked"
                raise UsageError(f"{self._state}: {text}")
            try:
                yield connection
            except TimeoutError as error:
                text = f"{self._state}: its run has not answered for {RESPONSE_TIMEOUT_S:g} s"
                raise ServiceMissingError(text) from error
            except ConnectionResetError as error:
                raise ServiceMissingError(f"{self._state}: its run ended before it answered") from error


def client_of(state: Path) -> _Client | None:
    """The way to ask for something in a state directory. Returns None if it is this account's own, or is not
    shared: then its files are used.
    """
    path = state.resolve()
    try:
        owner = os.lstat(path).st_uid
        other = os.geteuid() not in (ROOT, owner)
        return _Client(state) if other and os.lstat(StateDir(path).door) else None
    except OSError:
        return None


class Looking(Protocol):
    """Looks at a state directory again and again."""

    def look(self, *, ahead: bool = False) -> Status: ...
    def history(self, job_id: str) -> list[Happened]: ...
    def errors(self, job: JobStatus) -> list[str]: ...
    def use(self, job: JobStatus) -> tuple[float | None, int | None]: ...
    def code(self, job_id: str) -> list[CodeRecord]: ...

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        """What its cost is told from. Returns None if what the job did is another account's."""


class _OwnFiles:
    def __init__(self, state: Path) -> None:
        self._watcher = Watcher(state)

    def look(self, *, ahead: bool = False) -> Status:
        return self._watcher.look(ahead=ahead)

    def history(self, job_id: str) -> list[Happened]:
        return history(self._watcher.dirs, job_id)

    def errors(self, job: JobStatus) -> list[str]:
        return error_lines(self._watcher.dirs, job)

    def use(self, job: JobStatus) -> tuple[float | None, int | None]:
        return measured(self._watcher.dirs, job.log) if job.log.gpus else (None, None)

    def code(self, job_id: str) -> list[CodeRecord]:
        return recorded_code(self._watcher.dirs, job_id)

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        return [event for block in LogReader(self._watcher.dirs.events).read_all() for event in block]


class Measuring(Protocol):
    """Looks at what the jobs that run use, again and again."""

    def look(self) -> tuple[RunLog, list[Use]]: ...


class _UseFromDoor:
    def __init__(self, client: _Client) -> None:
        self._client = client

    def look(self) -> tuple[RunLog, list[Use]]:
        return self._client.uses()


def looking(state: Path) -> Looking:
    """:raises UsageError: there is no log and no submission, or they are not this user's to see."""
    return client_of(state) or _OwnFiles(state)


def measuring(state: Path) -> Measuring:
    """Raises as :func:`looking`."""
    client = client_of(state)
    return UseMeter(state) if client is None else _UseFromDoor(client)


def submit(
    state: Path,
    jobs: Sequence[Job],
    source: str,
    *,
    folder: Path,
    now_s: float,
    check_scripts: bool = True,
    numbered: bool = False,
    hidden: Mapping[str, str] | None = None,
) -> Submitted:
    """Ask for jobs to be run, all of them or none; durable when this returns.

    :param hidden: variables of all jobs whose values nothing else may hold.

    :param now_s: from this time on a ``submit_time`` counts.
    :param numbered: the one job, or the one array, gets a number if its name is in use, behind a door.
    :raises PliantError: they are refused.
    """
    client = client_of(state)
    if client is not None:
        if hidden:
            raise UsageError(f"{state}: jobs of several accounts run there, which have no secrets")
        listed = [own.in_utc(settled(at_home(job, folder))[0], now_s) for job in arriving_at(jobs, 0.0)]
        own.check_runnable(listed, source, check_scripts=check_scripts)
        return client.submit(listed, source, numbered=numbered)
    ids = own.submit(
        state, jobs, source, folder=folder, now_s=now_s, check_scripts=check_scripts, hidden=hidden
    )
    return Submitted.of(state, jobs, ids)


def cancel(state: Path, job_ids: Sequence[str]) -> None:
    """:raises PliantError: it is refused, or there is no such job; then nothing is asked for."""
    client = client_of(state)
    if client is None:
        own.cancel(state, job_ids)
    else:
        client.cancel(job_ids)


def order_jobs(
    state: Path,
    action: JobAction,
    job_ids: Sequence[str],
    *,
    priority: float | None = None,
    changes: Changes | None = None,
    from_start: bool = False,
) -> tuple[list[str], str | None]:
    """Order the same for several jobs, for all or none; durable when this returns.

    Returns the ids of those that have ended, for which nothing was ordered, and the policy that decides
    there if it ignores the priority.
    """
    client = client_of(state)
    if client is not None:
        return client.order_jobs(action, job_ids, priority=priority, changes=changes, from_start=from_start)
    ended = own.order_jobs(state, action, job_ids, priority=priority, changes=changes, from_start=from_start)
    return ended, None if priority is None else own.policy_ignoring_priority(state)


def order_nodes(
    state: Path,
    action: NodeAction,
    names: Sequence[str],
    *,
    reason: str = "",
    now: bool = False,
    within_s: float | None = None,
) -> None:
    client = client_of(state)
    if client is None:
        own.order_nodes(state, action, names, reason=reason, now=now, within_s=within_s)
    else:
        client.order_nodes(action, names, reason=reason, now=now, within_s=within_s)


def known_names(state: Path) -> own.Names:
    """What the jobs there are called; behind a door, those seen."""
    client = client_of(state)
    if client is None:
        dirs = StateDir(state.resolve())
        return own.known_names(dirs, Spool(dirs))
    found = client.look()
    asked_for = (job for job, _ in found.submitted)
    return own.Names.of(known_ids(found), found.log, asked_for, own.user_name())


def chosen(state: Path, names: Sequence[str], only: JobFilter = EVERY_JOB) -> list[str]:
    """Ids of the jobs that names mean, and that the filter lets through.

    A name is a job's, and means the newest one that was submitted with it, else that of an array, which means
    all its jobs, else a pattern of either; any other one is left to who is asked about it. Without names all
    jobs are meant, ended ones if states are named.

    :raises UsageError: nothing is named, or a pattern fits no job.
    """
    if not names and only == EVERY_JOB:
        raise UsageError("name jobs or arrays, or choose jobs with --user or --state-is")
    known = known_names(state) if names else own.Names(set(), {}, {})
    named = [job_id for name in names for job_id in _meant(state, name, known)]
    if only == EVERY_JOB:
        return list(dict.fromkeys(named))
    found = only.of(statuses(looking(state).look(), time.time()))
    if names:
        return [job.id for job in found if job.id in {*named}]
    return [job.id for job in found if only.states or not job.log.ended]


def _meant(state: Path, name: str, known: own.Names) -> list[str]:
    ids, arrays = known.ids, known.arrays
    if name in known.newest:
        return [known.newest[name]]
    if name in ids or name in arrays:
        return [name] if name in ids else arrays[name]
    if not PATTERN.search(name):
        return [name]
    of_arrays = [job_id for array in fnmatch.filter(arrays, name) for job_id in arrays[array]]
    if not (found := {*fnmatch.filter(ids, name), *of_arrays}):
        raise UsageError(f"{state} has no job and no array like {name}")
    return sorted(found)


def meant(state: Path, name: str) -> str:
    """The id of the one job that a name means; a name that is not known stays."""
    return known_names(state).newest.get(name, name)


def is_served(state: Path) -> bool:
    """Whether a run executes at once what is asked for there; behind a door, one that has just answered."""
    return client_of(state) is not None or holder_of(StateDir(state).lock) is not None


def last_events(state: Path, count: int) -> Iterator[bytes]:
    client = client_of(state)
    return output.last_events(state, count) if client is None else client.events(count, follow=False)


def events_to_come(state: Path, last: int = 0) -> Iterator[bytes]:
    client = client_of(state)
    return output.events_to_come(state, last) if client is None else client.events(last, follow=True)


def job_output(
    state: Path,
    job_id: str,
    *,
    follow: bool = False,
    lines: int | None = None,
    attempt: int | None = None,
    rank: int | None = None,
) -> Iterator[bytes]:
    client = client_of(state)
    if client is None:
        which = {"attempt": attempt, "rank": rank}
        return output.job_output(state, job_id, follow=follow, lines=lines, **which)
    return client.output(asked.ReadOutput(job=job_id, follow=follow, lines=lines, attempt=attempt, rank=rank))


def stacks(state: Path, job_id: str, within_s: float) -> list[WorkerStack]:
    """:raises PliantError: it does not run, or what it does is not this account's to see."""
    client = client_of(state)
    if client is None:
        return job_stacks(state, job_id, within_s=within_s)
    return client.stacks(job_id, within_s)


def ends_of(state: Path, job_ids: Sequence[str]) -> Iterator[_Ended | None]:
    """Each of these jobs once it has ended; None between looks, so that a reader can act."""
    client = client_of(state)
    if client is not None:
        yield from client.ends_of(job_ids)
        return
    for job in output.ends_of(state, job_ids):
        yield None if job is None else _Ended(job.job.id, job.end, job.reason)
