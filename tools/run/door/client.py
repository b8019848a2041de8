"""Asking a shared run of another account: the same questions as of a state directory of one's own."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import parse_events
from pliant.schemas.io import job_file
from pliant.schemas.job import Job
from pliant.tools.run.door import protocol as asked
from pliant.tools.run.door.letters import munge_for, send
from pliant.tools.run.door.place import door_address, peer_of
from pliant.tools.run.door.protocol import as_line, error_of, pieces_from, value_in
from pliant.tools.run.door.views import HISTORY, STACKS, STATUS, USES, filled_in
from pliant.tools.run.service.stacks import WorkerStack
from pliant.tools.run.service.submit import Submitted
from pliant.tools.run.statedir.directory import ROOT, StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.job_status import JobStatus, known_ids
from pliant.tools.run.watch.status import Status
from pliant.tools.run.watch.top import Use

ANSWER_S: Final = 60.0
"""An answer begins within this time, or the run hangs."""
POLL_S: Final = 2.0
PATIENCE_S: Final = 10.0
"""A request that a limit of requests refuses is made again within this time."""


class Ended(NamedTuple):
    """How a job ended."""

    id: str
    phase: str
    reason: str


class Client:
    """Asks through the door of a state directory.

    :param state: the directory as its user names it.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._dirs = StateDir(state.resolve())
        self._munge = munge_for(self._dirs)
        """Set if the run is on another host, which letters reach."""

    # Orders.

    def submit(self, jobs: Sequence[Job], source: str, *, numbered: bool) -> Submitted:
        """Submit jobs, whose folders are written out; durable when this returns."""
        said = self._value(asked.SubmitJobs(jobs=job_file(jobs).decode(), source=source, numbered=numbered))
        return Submitted(**said)

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._value(asked.CancelJobs(jobs=tuple(job_ids)))

    def order_jobs(
        self, action: JobAction, job_ids: Sequence[str], priority: float | None = None
    ) -> tuple[list[str], str | None]:
        """Returns the ids of those that have ended, and the policy if it ignores a priority."""
        said = self._value(asked.OrderJobs(action=action, jobs=tuple(job_ids), priority=priority))
        return said["ended"], said["deaf"]

    def order_nodes(
        self, action: NodeAction, names: Sequence[str], *, reason: str, now: bool, within_s: float | None
    ) -> None:
        order = asked.OrderNodes(action=action, nodes=tuple(names), reason=reason, now=now, within_s=within_s)
        self._value(order)

    # Views.

    def look(self, *, ahead: bool = False) -> Status:
        found = STATUS.validate_json(self._answer(asked.Look(ahead=ahead)))
        filled_in(found.log)
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
        return filled_in(log), list(uses)

    def stacks(self, job_id: str, within_s: float) -> list[WorkerStack]:
        wait_s = min(within_s, asked.LONGEST_STACKS_S)
        return STACKS.validate_json(self._answer(asked.ReadStacks(job=job_id, within_s=wait_s)))

    def foresee(self, question: asked.Foresee) -> bytes:
        """The answer as :mod:`pliant.cli.ahead` writes it."""
        return self._answer(question)

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        if job.log.uid != os.geteuid():
            return None
        found = self._pieces(asked.ReadEvents(job=job.id))
        return [*parse_events(b"".join(found), str(self._state))]

    def output(self, job_id: str, *, follow: bool, lines: int | None) -> Iterator[bytes]:
        return self._pieces(asked.ReadOutput(job=job_id, follow=follow, lines=lines))

    def events(self, last: int, *, follow: bool) -> Iterator[bytes]:
        return self._pieces(asked.ReadEvents(last=last, follow=follow))

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[Ended | None]:
        """Each of the jobs as it ends, and None between looks."""
        if self._munge is not None:
            yield from self._ends_seen(job_ids)
            return
        for data in self._pieces(asked.AwaitEnds(jobs=tuple(job_ids))):
            yield Ended(**json.loads(data)) if data else None

    def _ends_seen(self, job_ids: Sequence[str]) -> Iterator[Ended | None]:
        left = list(dict.fromkeys(job_ids))
        while True:
            found = self.look()
            if unknown := [job_id for job_id in left if job_id not in (known := known_ids(found))]:
                raise no_such_job(self._state, unknown, known)
            jobs = found.log.jobs
            for job_id in [each for each in left if each in jobs and jobs[each].ended]:
                left.remove(job_id)
                yield Ended(job_id, jobs[job_id].phase, jobs[job_id].reason)
            if not left:
                return
            yield None
            time.sleep(POLL_S)

    # The connection.

    def _value(self, request: asked.Asked) -> Any:
        return json.loads(self._answer(request))

    def _answer(self, request: asked.Asked) -> bytes:
        """The value of an answer, as JSON.

        :raises PliantError: the request was refused or could not be executed.
        """
        until_s = time.monotonic() + PATIENCE_S
        while True:
            line = self._line(request)
            if (value := value_in(line)) is not None:
                return value
            self._wait_or_raise(line, until_s)

    def _line(self, request: asked.Asked) -> bytes:
        if self._munge is not None:
            with door_address(self._dirs):  # the way there is looked at
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
            connection.settimeout(ANSWER_S)
            try:
                with door_address(self._dirs) as address:
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
                text = f"{self._state}: its run has not answered for {ANSWER_S:g} s"
                raise ServiceMissingError(text) from error
            except ConnectionResetError as error:
                raise ServiceMissingError(f"{self._state}: its run ended before it answered") from error


def client_of(state: Path) -> Client | None:
    """The way to ask for something in a state directory. Returns None if it is this account's own, or is not
    shared: then its files are used.
    """
    path = state.resolve()
    try:
        owner = os.lstat(path).st_uid
        other = os.geteuid() not in (ROOT, owner)
        return Client(state) if other and os.lstat(StateDir(path).door) else None
    except OSError:
        return None
