"""Clients that ask the gateway of a shared run: over its socket, or over munge from another host."""

from __future__ import annotations

import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Unpack

from pliant.schemas.cluster import NodeReservation
from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import parse_events
from pliant.schemas.io import cluster_of, job_file
from pliant.schemas.job import Job, arriving_at
from pliant.tools.run.gateway import protocol as asked
from pliant.tools.run.gateway.caller import peer_of
from pliant.tools.run.gateway.client import JobEnd, JobOrder, NodeOrder, OutputPart, SubmitOptions
from pliant.tools.run.gateway.munge_transport import Munge, send
from pliant.tools.run.gateway.permissions import HISTORY, STACKS, STATUS, USES, with_active_jobs
from pliant.tools.run.gateway.protocol import (
    as_line,
    error_of,
    gateway_address,
    pieces_from,
    value_in,
)
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.service.starters import settled
from pliant.tools.run.statedir.contract.stacks import WorkerStack
from pliant.tools.run.statedir.directory import ROOT, StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch.attempt_code import CodeRecord
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.job_status import JobStatus, known_ids
from pliant.tools.run.watch.status import Status
from pliant.tools.run.watch.top import Use

RESPONSE_TIMEOUT_S: Final = 60.0
"""Response timeout; after it the run counts as hung."""
MAX_EVENTS: Final = 2_000_000
"""Maximum events of a log that is summed up here: the gateway holds all of them at once."""
POLL_INTERVAL_S: Final = 2.0
RETRY_TIMEOUT_S: Final = 10.0
"""Seconds in which a request that a rate limit refused is repeated."""


class _GatewayClient(ABC):
    """See :class:`~pliant.tools.run.gateway.client.Client`."""

    numbers_jobs = True
    is_served = True
    """True, as the gateway has just answered an order."""
    has_begun = True

    def __init__(self, state: Path) -> None:
        self.state = state
        self._dirs = StateDir(state.resolve())

    def submit(
        self, jobs: Sequence[Job], source: str, *, numbered: bool, **options: Unpack[SubmitOptions]
    ) -> requests.SubmissionResult:
        if options.get("hidden"):
            raise UsageError(f"{self.state}: jobs of several accounts run there, which have no secrets")
        folder, now_s = options["folder"], options["now_s"]
        listed = [requests.in_utc(settled(at_home(job, folder))[0], now_s) for job in arriving_at(jobs, 0.0)]
        requests.check_runnable(listed, source, check_scripts=options.get("check_scripts", True))
        request = asked.SubmitJobs(jobs=job_file(listed).decode(), source=source, numbered=numbered)
        reply = self._value(request)
        return requests.SubmissionResult(*(reply[name] for name in asked.SUBMITTED_FIELDS))

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._value(asked.CancelJobs(jobs=tuple(job_ids)))

    def order_jobs(
        self, action: JobAction, job_ids: Sequence[str], **order: Unpack[JobOrder]
    ) -> tuple[list[str], str | None]:
        reply = self._value(asked.OrderJobs(action=action, jobs=tuple(job_ids), **order))
        return reply["ended"], reply["deaf"]

    def order_nodes(self, action: NodeAction, names: Sequence[str], **order: Unpack[NodeOrder]) -> None:
        self._value(asked.OrderNodes(action=action, nodes=tuple(names), **order))

    def reload(self, cluster: bytes, source: str, *, now: bool, dry_run: bool) -> list[str]:
        cluster_of(cluster, source)
        text = cluster.decode()
        lines = self._value(asked.ReloadCluster(cluster=text, source=source, now=now, dry_run=dry_run))
        return [str(line) for line in lines]

    def reserve(self, change: NodeReservation | str, *, dry_run: bool) -> list[str]:
        request = (
            asked.ReserveNodes(cancel=change, dry_run=dry_run)
            if isinstance(change, str)
            else asked.ReserveNodes(reservation=change, dry_run=dry_run)
        )
        return [str(line) for line in self._value(request)]

    def names(self) -> requests.Names:
        status = self.status()
        submitted = (job for job, _ in status.submitted)
        return requests.Names.of(known_ids(status), status.log, submitted, requests.user_name())

    def used_ids(self) -> set[str]:
        return self.names().ids

    def status(self, *, ahead: bool = False, archived: Sequence[str] = ()) -> Status:
        look = asked.Look(ahead=ahead, archived=tuple(archived))
        status = STATUS.validate_json(self._answer(look))
        with_active_jobs(status.log)
        return status

    def usage(self) -> tuple[RunLog, list[Use]]:
        log, uses = USES.validate_json(self._answer(asked.MeasureUse()))
        return with_active_jobs(log), list(uses)

    def usage_of(self, job: JobStatus) -> tuple[float | None, int | None]:
        if not job.log.gpus:
            return None, None
        return next(((use.busy, use.memory) for use in self.usage()[1] if use.id == job.id), (None, None))

    def history(self, job_id: str) -> list[Happened]:
        return HISTORY.validate_python(self._value(asked.Describe(job=job_id))["history"])

    def errors(self, job: JobStatus) -> list[str]:
        return [str(line) for line in self._value(asked.Describe(job=job.id))["errors"]]

    def code(self, job_id: str) -> list[CodeRecord]:
        records = self._value(asked.Describe(job=job_id)).get("code", ())
        return [CodeRecord.model_validate(each) for each in records]

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        if job.log.uid != os.geteuid():
            return None
        pieces = self._pieces(asked.ReadEvents(job=job.id))
        return [*parse_events(b"".join(pieces), str(self.state))]

    def stacks(self, job_id: str, within_s: float) -> list[WorkerStack]:
        wait_s = min(within_s, asked.MAX_STACKS_WAIT_S)
        return STACKS.validate_json(self._answer(asked.ReadStacks(job=job_id, within_s=wait_s)))

    def output(self, job_id: str, **part: Unpack[OutputPart]) -> Iterator[bytes]:
        return self._pieces(asked.ReadOutput(job=job_id, **part))

    def events(self, last: int, *, follow: bool) -> Iterator[bytes]:
        return self._pieces(asked.ReadEvents(last=last, follow=follow))

    def whole_log(self) -> Iterator[bytes]:
        pieces = self.events(MAX_EVENTS + 1, follow=False)
        lines = (line for piece in pieces for line in piece.splitlines(keepends=True))
        for number, line in enumerate(lines):  # the first is the header
            if number > MAX_EVENTS:
                text = f"its log has more than {MAX_EVENTS:,} events, and its gateway sends no more"
                raise UsageError(f"{self.state}: {text}: run it as root")
            yield line

    @abstractmethod
    def ends_of(self, job_ids: Sequence[str]) -> Iterator[JobEnd | None]: ...

    def whatif(self, question: asked.WhatIfQuestion) -> bytes | None:
        return self._answer(question)

    @abstractmethod
    def _exchange(self, request: asked.AnyRequest) -> bytes:
        """Send a request; returns the line that answers it."""

    @abstractmethod
    def _pieces(self, request: asked.AnyRequest) -> Iterator[bytes]:
        """Send a request; yields the answer piece by piece."""

    def _value(self, request: asked.AnyRequest) -> Any:
        return json.loads(self._answer(request))

    def _answer(self, request: asked.AnyRequest) -> bytes:
        """The value of an answer, as JSON.

        :raises PliantError: the request was refused or could not be executed.
        """
        until_s = time.monotonic() + RETRY_TIMEOUT_S
        while True:
            line = self._exchange(request)
            if (value := value_in(line)) is not None:
                return value
            self._wait_or_raise(line, until_s)

    def _wait_or_raise(self, line: bytes, until_s: float) -> None:
        """Wait if a rate limit refused the request and soon lets the next one through.

        :raises PliantError: the request was refused for good.
        """
        try:
            answer = json.loads(line)
        except ValueError:
            raise ServiceMissingError(f"{self.state}: its run ended before it answered") from None
        wait_s = answer.get("wait_s")
        if wait_s is None or time.monotonic() + wait_s > until_s:
            raise error_of(answer)
        time.sleep(wait_s)


class MungeClient(_GatewayClient):
    """Asks from another host than the run's; see :mod:`pliant.tools.run.gateway.munge_transport`."""

    def __init__(self, state: Path, munge: Munge) -> None:
        super().__init__(state)
        self._munge = munge

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[JobEnd | None]:
        left = list(dict.fromkeys(job_ids))
        while True:
            status = self.status()
            known = known_ids(status)
            if unknown := [job_id for job_id in left if job_id not in known]:
                raise no_such_job(self.state, unknown, known)
            jobs = status.log.jobs
            for job_id in [each for each in left if each in jobs and jobs[each].ended]:
                left.remove(job_id)
                yield JobEnd(job_id, jobs[job_id].end, jobs[job_id].reason)
            if not left:
                return
            yield None
            time.sleep(POLL_INTERVAL_S)

    def _exchange(self, request: asked.AnyRequest) -> bytes:
        with gateway_address(self._dirs):  # checks the folders on the way
            return send(self._dirs, as_line(request.model_dump(mode="json")), self._munge)

    def _pieces(self, request: asked.AnyRequest) -> Iterator[bytes]:
        yield str(self._value(request)).encode("utf-8", "surrogateescape")


class SocketClient(_GatewayClient):
    """Asks over the socket of the gateway, one request a connection."""

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[JobEnd | None]:
        for data in self._pieces(asked.AwaitEnds(jobs=tuple(job_ids))):
            yield JobEnd(**json.loads(data)) if data else None

    def _exchange(self, request: asked.AnyRequest) -> bytes:
        with self._connected() as connection:
            return bytes(self._sent(connection, request).readline())

    def _pieces(self, request: asked.AnyRequest) -> Iterator[bytes]:
        with self._connected() as connection:
            file = self._sent(connection, request)
            line = file.readline()
            if json.loads(line or b"{}").get("ok") is not True:
                self._wait_or_raise(line, 0.0)
            try:
                yield from pieces_from(file)
            except (EOFError, OSError) as error:
                raise ServiceMissingError(f"{self.state}: its run has ended meanwhile") from error

    def _sent(self, connection: socket.socket, request: asked.AnyRequest) -> Any:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused at once; the answer says why
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
                text = f"no run serves {self.state} now, and nothing was asked: tell its operator"
                raise ServiceMissingError(text) from error
            except OSError as error:
                text = f"{self.state}: its gateway cannot be reached: {error.strerror or error}"
                raise ServiceMissingError(text) from error
            if (uid := peer_of(connection).uid) != ROOT:
                text = f"user {uid} listens at its gateway, expected root: nothing was asked"
                raise UsageError(f"{self.state}: {text}")
            try:
                yield connection
            except TimeoutError as error:
                text = f"{self.state}: its run has not answered for {RESPONSE_TIMEOUT_S:g} s"
                raise ServiceMissingError(text) from error
            except ConnectionResetError as error:
                raise ServiceMissingError(f"{self.state}: its run ended before it answered") from error
