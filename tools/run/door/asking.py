"""What commands ask of a state directory: of its files where it is their account's, else through its door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogReader
from pliant.schemas.job import Job, arriving_at
from pliant.tools.run.door.client import Client, Ended, client_of
from pliant.tools.run.service import submit as own
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.service.stacks import WorkerStack
from pliant.tools.run.service.submit import Submitted
from pliant.tools.run.statedir.directory import StateDir, holder_of
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Spool
from pliant.tools.run.watch import output
from pliant.tools.run.watch.job_page import Happened, error_lines, history
from pliant.tools.run.watch.job_status import JobStatus, known_ids
from pliant.tools.run.watch.stacks import job_stacks
from pliant.tools.run.watch.status import Status, Watcher
from pliant.tools.run.watch.top import Use, UseMeter, measured


class Looking(Protocol):
    """Looks at a state directory again and again."""

    def look(self, *, ahead: bool = False) -> Status: ...
    def history(self, job_id: str) -> list[Happened]: ...
    def errors(self, job: JobStatus) -> list[str]: ...
    def use(self, job: JobStatus) -> tuple[float | None, int | None]: ...

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

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        return [event for block in LogReader(self._watcher.dirs.events).read_all() for event in block]


class Measuring(Protocol):
    """Looks at what the jobs that run use, again and again."""

    def look(self) -> tuple[RunLog, list[Use]]: ...


class _UseFromDoor:
    def __init__(self, client: Client) -> None:
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
) -> Submitted:
    """Ask for jobs to be run, all of them or none; durable when this returns.

    :param now_s: from this time on a ``submit_time`` counts.
    :param numbered: the one job, or the one array, gets a number if its name is in use, behind a door.
    :raises PliantError: they are refused.
    """
    client = client_of(state)
    if client is not None:
        listed = [own.in_utc(at_home(job, folder), now_s) for job in arriving_at(jobs, 0.0)]
        own.check_runnable(listed, source, check_scripts=check_scripts)
        return client.submit(listed, source, numbered=numbered)
    ids = own.submit(state, jobs, source, folder=folder, now_s=now_s, check_scripts=check_scripts)
    return Submitted.of(state, jobs, ids)


def cancel(state: Path, job_ids: Sequence[str]) -> None:
    """:raises PliantError: it is refused, or there is no such job; then nothing is asked for."""
    client = client_of(state)
    if client is None:
        own.cancel(state, job_ids)
    else:
        client.cancel(job_ids)


def order_jobs(
    state: Path, action: JobAction, job_ids: Sequence[str], *, priority: float | None = None
) -> tuple[list[str], str | None]:
    """Order the same for several jobs, for all or none; durable when this returns.

    Returns the ids of those that have ended, for which nothing was ordered, and the policy that decides
    there if it ignores the priority.
    """
    client = client_of(state)
    if client is not None:
        return client.order_jobs(action, job_ids, priority)
    ended = own.order_jobs(state, action, job_ids, priority=priority)
    return ended, None if priority is None else own.deaf_to_priorities(state)


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


def known_names(state: Path) -> tuple[set[str], dict[str, list[str]]]:
    """The ids of the jobs there, and those of each array by its name; behind a door, of those seen."""
    client = client_of(state)
    if client is None:
        dirs = StateDir(state.resolve())
        spool = Spool(dirs)
        return own.known_ids(dirs, spool), own.array_jobs(dirs, spool)
    found = client.look()
    jobs = [*(job for job, _ in found.submitted), *(each.job for each in found.log.jobs.values())]
    return {*known_ids(found)}, own.by_array(jobs)


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
    state: Path, job_id: str, *, follow: bool = False, lines: int | None = None
) -> Iterator[bytes]:
    client = client_of(state)
    if client is None:
        return output.job_output(state, job_id, follow=follow, lines=lines)
    return client.output(job_id, follow=follow, lines=lines)


def stacks(state: Path, job_id: str, within_s: float) -> list[WorkerStack]:
    """:raises PliantError: it does not run, or what it does is not this account's to see."""
    client = client_of(state)
    if client is None:
        return job_stacks(state, job_id, within_s=within_s)
    return client.stacks(job_id, within_s)


def ends_of(state: Path, job_ids: Sequence[str]) -> Iterator[Ended | None]:
    """Each of these jobs once it has ended; None between looks, so that a reader can act."""
    client = client_of(state)
    if client is not None:
        yield from client.ends_of(job_ids)
        return
    for job in output.ends_of(state, job_ids):
        yield None if job is None else Ended(job.job.id, job.phase, job.reason)
