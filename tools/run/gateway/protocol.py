"""Protocol of the gateway: one request a connection, a line of JSON, and its answer.

The answer begins with a line: ``{"ok": true, "value": …}``, or ``{"ok": false, "exit": 2, "error": "…"}``
with the exit code and the line that the command ends with. After ``{"ok": true, "pieces": true}`` come pieces
of bytes, each behind its length, and empty ones while there is nothing new; the last one says how it ended.

The kernel says who is at the other end of a UNIX socket (``SO_PEERCRED``): the account that connected, and to
the client the one that listens. The folder of the socket is opened once, part by part without links, and the
socket is reached through that descriptor, so a folder that is swapped meanwhile changes nothing, and the
length of the path does not matter.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter

from pliant.schemas.cluster import NodeReservation
from pliant.schemas.errors import (
    BadInputError,
    InfeasibleError,
    JobsFailedError,
    LockedError,
    PliantError,
    ServiceMissingError,
    UsageError,
)
from pliant.schemas.file_io.record import BoundedFloat, Identifier, PlainText, PositiveFloat, Record
from pliant.schemas.job import Changes
from pliant.tools.run.statedir.directory import ROOT, StateDir
from pliant.tools.run.statedir.requests import JobAction, NodeAction

REQUEST_TIMEOUT_S: Final = 10.0
"""Seconds from a connection to the end of its request."""
SEND_TIMEOUT_S: Final = 30.0
"""Send timeout; after it the client counts as gone."""
MAX_STACKS_WAIT_S: Final = 30.0
"""Maximum seconds to wait for the workers of a job."""
_LENGTH: Final = struct.Struct(">I")
_LAST: Final = 0xFFFFFFFF
_VALUE: Final = b'{"ok":true,"value":'
_END: Final = b"}\n"
_ERRORS: Final[Mapping[int, type[PliantError]]] = {
    each.exit_code: each
    for each in (
        *(UsageError, BadInputError, InfeasibleError),
        *(JobsFailedError, ServiceMissingError, LockedError),
    )
}
SUBMITTED_FIELDS: Final = ("ids", "deaf_to_priorities", "overlooked_deadlines", "deaf_to_weights")
"""Names of the fields of a :class:`~pliant.tools.run.service.submit.SubmissionResult` in a reply."""
_Ids = Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=100_000)]


class GatewayRequest(Record):
    """Of an account, for a state directory."""

    counts_as: ClassVar[int] = 1
    """Requests, before it is done: what it takes is charged at its end, while others may be made."""


class SubmitJobs(GatewayRequest):
    """All of these jobs are to run, or none."""

    ask: Literal["submit"] = "submit"
    jobs: str
    """Text of a job file."""
    source: PlainText = "jobs"
    """Name of the text in messages."""
    numbered: bool = False
    """Give the one job, or the one array, a number where its id is in use."""


class CancelJobs(GatewayRequest):
    """These jobs are to end."""

    ask: Literal["cancel"] = "cancel"
    jobs: _Ids


class OrderJobs(GatewayRequest):
    """The same order for several jobs."""

    ask: Literal["jobs"] = "jobs"
    action: JobAction
    jobs: _Ids
    priority: BoundedFloat | None = None
    changes: Changes | None = None
    from_start: bool = False


class OrderNodes(GatewayRequest):
    """The same order for several nodes."""

    ask: Literal["nodes"] = "nodes"
    action: NodeAction
    nodes: Annotated[tuple[PlainText, ...], Field(min_length=1, max_length=100_000)]
    reason: Annotated[PlainText, Field(max_length=1000)] = ""
    now: bool = False
    within_s: PositiveFloat | None = None


class ReloadCluster(GatewayRequest):
    """The run is to go on with another cluster."""

    counts_as: ClassVar[int] = 5
    ask: Literal["reload"] = "reload"
    cluster: str
    """Text of a cluster file."""
    source: PlainText = "cluster"
    """Name of the text in messages."""
    now: bool = False
    dry_run: bool = False


class ReserveNodes(GatewayRequest):
    """Nodes are to be reserved, or a reservation is to end."""

    counts_as: ClassVar[int] = 5
    ask: Literal["reserve"] = "reserve"
    reservation: NodeReservation | None = None
    cancel: PlainText = ""
    """Name of the one that ends, if none is made."""
    dry_run: bool = False


class Look(GatewayRequest):
    """Where the jobs stand."""

    ask: Literal["look"] = "look"
    ahead: bool = False
    archived: Annotated[tuple[PlainText, ...], Field(max_length=1000)] = ()
    """Ids or names of jobs to look for in archives, too; "*" for all."""


class Describe(GatewayRequest):
    """What happened to one job, and its last error lines."""

    ask: Literal["describe"] = "describe"
    job: Identifier


class MeasureUse(GatewayRequest):
    """What the jobs that run use."""

    ask: Literal["use"] = "use"


class ReadOutput(GatewayRequest):
    """What a job printed."""

    ask: Literal["output"] = "output"
    job: Identifier
    follow: bool = False
    lines: Annotated[int, Field(ge=0)] | None = None
    attempt: Annotated[int, Field(ge=1)] | None = None
    rank: Annotated[int, Field(ge=0)] | None = None


class ReadEvents(GatewayRequest):
    """The log, as far as it is for all."""

    ask: Literal["events"] = "events"
    last: Annotated[int, Field(ge=0)] = 0
    follow: bool = False
    job: Identifier | None = None
    """Those alone that the cost of this job is told from."""


class AwaitEnds(GatewayRequest):
    """How these jobs end."""

    ask: Literal["ends"] = "ends"
    jobs: _Ids


class WhatIfQuestion(GatewayRequest):
    """What would become of the jobs that the account sees if something were different."""

    counts_as: ClassVar[int] = 20
    ask: Literal["foresee"] = "foresee"
    jobs: str = ""
    """Text of a job file: jobs to add."""
    source: PlainText = "jobs"
    """Name of the text in messages."""
    add_nodes: Annotated[PlainText, Field(max_length=200)] | None = None
    remove: Annotated[tuple[PlainText, ...], Field(max_length=10_000)] = ()
    """Nodes."""
    cancel: Annotated[tuple[Identifier, ...], Field(max_length=100_000)] = ()
    """Jobs."""
    cluster: str = ""
    """Text of a cluster file; ``source`` names it."""
    policy: Annotated[PlainText, Field(max_length=4096)] | None = None
    parameters: dict[str, str] = Field(default_factory=dict)
    """Parameters of that policy; other accounts get its defaults, as a parameter may name a file."""


class ReadStacks(GatewayRequest):
    """Where the workers of a job are."""

    counts_as: ClassVar[int] = 5
    ask: Literal["stacks"] = "stacks"
    job: Identifier
    within_s: Annotated[PositiveFloat, Field(le=MAX_STACKS_WAIT_S)] = MAX_STACKS_WAIT_S


AnyRequest = (
    SubmitJobs
    | CancelJobs
    | OrderJobs
    | OrderNodes
    | ReloadCluster
    | ReserveNodes
    | Look
    | Describe
    | MeasureUse
    | ReadOutput
    | ReadEvents
) | (AwaitEnds | ReadStacks | WhatIfQuestion)
REQUEST: Final = TypeAdapter[AnyRequest](Annotated[AnyRequest, Field(discriminator="ask")])


def error_document(error: PliantError) -> dict[str, Any]:
    return {"ok": False, "exit": error.exit_code, "error": str(error)}


def error_of(answer: Mapping[str, Any]) -> PliantError:
    return _ERRORS.get(int(answer.get("exit", 0)), PliantError)(str(answer.get("error", "")))


def as_line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def with_value(value: bytes) -> bytes:
    """The answer that brings a value, given as JSON."""
    return _VALUE + value + _END


def value_in(answer: bytes) -> bytes | None:
    """The value that an answer brings, as JSON. Returns None if it is a refusal."""
    whole = answer.startswith(_VALUE) and answer.endswith(_END)
    return answer[len(_VALUE) : -len(_END)] if whole else None


def read_line(connection: socket.socket, most: int, within_s: float) -> bytes:
    """The line that a client sends.

    :raises TimeoutError: it is not there in time, however slowly it comes.
    :raises ValueError: it is longer than that many bytes, or does not end.
    """
    line, until_s = bytearray(), time.monotonic() + within_s
    while not line.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(min(1 << 16, most + 1 - len(line)))
        if not data:
            raise ValueError("the request breaks off")
        line += data
        if len(line) > most:
            raise ValueError(f"the request has more than {most:,} bytes")
    return bytes(line)


def piece(data: bytes) -> bytes:
    """Bytes behind their length; none stand for nothing new."""
    return _LENGTH.pack(len(data)) + data


def last_piece(error: PliantError | None = None) -> bytes:
    text = as_line({"ok": True} if error is None else error_document(error))
    return _LENGTH.pack(_LAST) + piece(text)


def pieces_from(file: Any) -> Iterator[bytes]:
    """The pieces that the gateway passes on.

    :raises PliantError: it ended with an error.
    :raises EOFError: it broke off.
    """
    while (length := _length(file)) != _LAST:
        yield _exactly(file, length)
    answer = json.loads(_exactly(file, _length(file)))
    if not answer["ok"]:
        raise error_of(answer)


def _length(file: Any) -> int:
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    return int(length)


def _exactly(file: Any, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return bytes(data)


SOCKET: Final = "socket"
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def gateway_address(dirs: StateDir) -> Iterator[str]:
    """The socket's address, through a descriptor of its folder.

    :raises UsageError: the folder, or one above it, is not as only root and its owner could have made it.
    :raises OSError: it cannot be opened.
    """
    check_path_owners(dirs.door, os.lstat(dirs.path).st_uid)
    folder = os.open(dirs.door, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid != ROOT or status.st_mode & _WRITABLE:
            raise UsageError(f"{dirs.door}: expected a folder of root's that no other account can write in")
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def check_path_owners(folder: Path, owner: int) -> None:
    """Make sure that no other account can have put something else in the place of a folder.

    :param folder: without links; :meth:`Path.resolve`.
    :raises UsageError: one on the way to it is neither root's nor the owner's, or others can rename in it.
    """
    for path in (folder, *folder.parents):
        try:
            status = os.lstat(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be looked at: {error.strerror}") from error
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{path}: is a symbolic link, expected a folder")
        if status.st_uid not in (ROOT, owner):
            raise UsageError(f"{path}: belongs to user {status.st_uid}, who could replace what lies in it")
        if status.st_mode & _WRITABLE and not status.st_mode & stat.S_ISVTX:
            raise UsageError(f"{path}: other accounts can replace what lies in it: chmod go-w {path}")
