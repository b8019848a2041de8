"""Clients: what commands ask of a run or of its state directory.

:func:`~pliant.tools.run.gateway.connect.client_for` chooses one, once for each command:

- :class:`~pliant.tools.run.gateway.own_client.OwnClient` uses the files of the directory, where they belong
  to this account or no other account may ask.
- :class:`~pliant.tools.run.gateway.remote_client.SocketClient` asks the gateway of a shared run on its host.
- :class:`~pliant.tools.run.gateway.remote_client.MungeClient` asks it from the other hosts of a cluster.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NotRequired, Protocol, TypedDict, Unpack

from pliant.schemas.cluster import NodeReservation
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.job import Changes, Job
from pliant.tools.run.service.submit import Names, SubmissionResult
from pliant.tools.run.statedir.contract.stacks import WorkerStack
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction
from pliant.tools.run.watch.attempt_code import CodeRecord
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.job_status import EVERY_JOB, JobFilter, JobStatus, statuses
from pliant.tools.run.watch.status import Status
from pliant.tools.run.watch.top import Use

if TYPE_CHECKING:
    from pliant.tools.run.gateway.protocol import WhatIfQuestion

PATTERN: Final = re.compile(r"[*?\[]")


class JobEnd(NamedTuple):
    """How a job ended."""

    id: str
    phase: str
    reason: str


class SubmitOptions(TypedDict):
    """Options of a submission, as of :func:`pliant.tools.run.service.submit.submit`."""

    folder: Path
    now_s: float
    check_scripts: NotRequired[bool]
    hidden: NotRequired[Mapping[str, str]]


class JobOrder(TypedDict, total=False):
    """Values of an order for jobs, by its action: ``priority``, ``update`` and ``requeue`` have one."""

    priority: float
    changes: Changes
    from_start: bool


class NodeOrder(TypedDict, total=False):
    """Values of an order for nodes: the reason, and by when a drain takes effect."""

    reason: str
    now: bool
    within_s: float | None


class OutputPart(TypedDict, total=False):
    """Part of a job's output: the last lines, one attempt, one rank; ``follow`` waits for more."""

    follow: bool
    lines: int | None
    attempt: int | None
    rank: int | None


class Client(Protocol):
    """Requests about the jobs and nodes of one state directory.

    Orders are durable when a method returns, and hold for all that are named or for none. Every method raises
    a ``PliantError`` where a request is refused or nothing answers. Iterators that follow something yield an
    empty piece, or None, between two polls, so that the caller can act.
    """

    @property
    def state(self) -> Path:
        """The directory, as its user names it."""

    @property
    def numbers_jobs(self) -> bool:
        """Whether a job whose name is in use gets a number when it is submitted."""

    @property
    def is_served(self) -> bool:
        """Whether a run executes requests at once."""

    @property
    def has_begun(self) -> bool:
        """Whether a run has ever used the directory."""

    def submit(
        self, jobs: Sequence[Job], source: str, *, numbered: bool, **options: Unpack[SubmitOptions]
    ) -> SubmissionResult:
        """Submit jobs.

        :param numbered: the one job, or the one array, may get a number (:attr:`numbers_jobs`).
        """

    def cancel(self, job_ids: Sequence[str]) -> None: ...

    def order_jobs(
        self, action: JobAction, job_ids: Sequence[str], **order: Unpack[JobOrder]
    ) -> tuple[list[str], str | None]:
        """Returns the ids of jobs that have ended, and the policy if it ignores the priority."""

    def order_nodes(self, action: NodeAction, names: Sequence[str], **order: Unpack[NodeOrder]) -> None: ...

    def reload(self, cluster: bytes, source: str, *, now: bool, dry_run: bool) -> list[str]:
        """Have the run go on with another cluster, given as its file; see
        :func:`~pliant.tools.run.service.reload.order_reload`.
        """

    def reserve(self, change: NodeReservation | str, *, dry_run: bool) -> list[str]:
        """Have nodes reserved, or the reservation of this name end; see
        :func:`~pliant.tools.run.service.reload.order_reservation`.
        """

    def names(self) -> Names:
        """Names of the jobs that this account sees."""

    def used_ids(self) -> set[str]:
        """Ids that a new job cannot have."""

    def status(self, *, ahead: bool = False, archived: Sequence[str] = ()) -> Status:
        """:param ahead: predict when jobs start and end."""

    def usage(self) -> tuple[RunLog, list[Use]]:
        """What running jobs use."""

    def usage_of(self, job: JobStatus) -> tuple[float | None, int | None]:
        """Busy share and memory of one job."""

    def history(self, job_id: str) -> list[Happened]: ...

    def errors(self, job: JobStatus) -> list[str]:
        """Last lines of the errors of a job."""

    def code(self, job_id: str) -> list[CodeRecord]: ...

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        """Events that the cost of a job follows from. Returns None for a job of another account."""

    def stacks(self, job_id: str, within_s: float) -> list[WorkerStack]: ...

    def output(self, job_id: str, **part: Unpack[OutputPart]) -> Iterator[bytes]: ...

    def events(self, last: int, *, follow: bool) -> Iterator[bytes]:
        """The last events of the log, as an event file; with ``follow`` each new one, too."""

    def whole_log(self) -> Iterator[bytes]:
        """The lines of the log, as far as this account sees them.

        :raises UsageError: it is too long for a gateway.
        """

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[JobEnd | None]: ...

    def whatif(self, question: WhatIfQuestion) -> bytes | None:
        """The answer as :mod:`pliant.cli.whatif_answer` encodes it. Returns None if that can compute it."""


def chosen(client: Client, names: Sequence[str], only: JobFilter = EVERY_JOB) -> list[str]:
    """Ids of the jobs that names mean and that a filter lets through.

    A name means the newest job that was submitted with it, else all jobs of an array, else is a pattern of
    either; an unknown one stays as it is. Without names all jobs are meant, ended ones only if the filter
    names states.

    :raises UsageError: nothing is named, or a pattern fits no job.
    """
    if not names and only == EVERY_JOB:
        raise UsageError("name jobs or arrays, or choose jobs with --user or --state-is")
    known = client.names() if names else Names(set(), {}, {})
    named = [job_id for name in names for job_id in _ids_of(client, name, known)]
    if only == EVERY_JOB:
        return list(dict.fromkeys(named))
    matches = only.of(statuses(client.status(), time.time()))
    if names:
        return [job.id for job in matches if job.id in {*named}]
    return [job.id for job in matches if only.states or not job.log.ended]


def _ids_of(client: Client, name: str, known: Names) -> list[str]:
    ids, arrays = known.ids, known.arrays
    if name in known.newest:
        return [known.newest[name]]
    if name in ids or name in arrays:
        return [name] if name in ids else arrays[name]
    if not PATTERN.search(name):
        return [name]
    of_arrays = [job_id for array in fnmatch.filter(arrays, name) for job_id in arrays[array]]
    if not (matches := {*fnmatch.filter(ids, name), *of_arrays}):
        raise UsageError(f"{client.state} has no job and no array like {name}")
    return sorted(matches)


def id_of(client: Client, name: str) -> str:
    """The id of the newest job with a name; an unknown name stays as it is."""
    return client.names().newest.get(name, name)
