"""The client that uses the files of a state directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from pliant.schemas.cluster import NodeReservation
from pliant.schemas.event import Event
from pliant.schemas.file_io.archives import all_events, archived_ids, archives_of
from pliant.schemas.file_io.events import LOG_HEADER, event_lines
from pliant.schemas.io import cluster_of
from pliant.schemas.job import Job
from pliant.tools.run.gateway.client import JobEnd, JobOrder, NodeOrder, OutputPart, SubmitOptions
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.reload import ClusterFile, order_reload, order_reservation
from pliant.tools.run.statedir.contract.stacks import WorkerStack
from pliant.tools.run.statedir.directory import StateDir, check_seen, holder_of
from pliant.tools.run.statedir.log.archive import events_about
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Spool
from pliant.tools.run.statedir.state import no_state_directory
from pliant.tools.run.watch import output
from pliant.tools.run.watch.attempt_code import CodeRecord, recorded_code
from pliant.tools.run.watch.job_page import Happened, error_lines, history
from pliant.tools.run.watch.job_stacks import job_stacks
from pliant.tools.run.watch.job_status import JobStatus
from pliant.tools.run.watch.status import Status, Watcher
from pliant.tools.run.watch.top import Use, UseMeter, measured

if TYPE_CHECKING:
    from pliant.tools.run.gateway.protocol import WhatIfQuestion


class OwnClient:
    """See :class:`~pliant.tools.run.gateway.client.Client`."""

    numbers_jobs = False

    def __init__(self, state: Path) -> None:
        self.state = state
        self._dirs = StateDir(state.resolve())

    @cached_property
    def _watcher(self) -> Watcher:
        return Watcher(self.state)

    @cached_property
    def _meter(self) -> UseMeter:
        return UseMeter(self.state)

    @property
    def is_served(self) -> bool:
        return holder_of(self._dirs.lock) is not None

    @property
    def has_begun(self) -> bool:
        return self._dirs.cluster.exists() and self._dirs.events.is_file()

    def submit(
        self, jobs: Sequence[Job], source: str, *, numbered: bool, **options: Unpack[SubmitOptions]
    ) -> requests.SubmissionResult:
        ids = requests.submit(self.state, jobs, source, **options)
        return requests.SubmissionResult.of(self.state, jobs, ids)

    def cancel(self, job_ids: Sequence[str]) -> None:
        requests.cancel(self.state, job_ids)

    def order_jobs(
        self, action: JobAction, job_ids: Sequence[str], **order: Unpack[JobOrder]
    ) -> tuple[list[str], str | None]:
        ended = requests.order_jobs(self.state, action, job_ids, **order)
        return ended, requests.policy_ignoring_priority(self.state) if "priority" in order else None

    def order_nodes(self, action: NodeAction, names: Sequence[str], **order: Unpack[NodeOrder]) -> None:
        requests.order_nodes(self.state, action, names, **order)

    def reload(self, cluster: bytes, source: str, *, now: bool, dry_run: bool) -> list[str]:
        text = cluster.decode(errors="replace")
        file = ClusterFile(cluster_of(cluster, source), source, text, now=now)
        return order_reload(self.state, file, dry_run=dry_run)

    def reserve(self, change: NodeReservation | str, *, dry_run: bool) -> list[str]:
        return order_reservation(self.state, change, dry_run=dry_run)

    def names(self) -> requests.Names:
        return requests.known_names(self._dirs, Spool(self._dirs))

    def used_ids(self) -> set[str]:
        folders = {path.name for path in self._dirs.jobs.glob("*")} | archived_ids(self._dirs.events)
        return requests.known_ids(self._dirs, Spool(self._dirs)) | folders

    def status(self, *, ahead: bool = False, archived: Sequence[str] = ()) -> Status:
        return self._watcher.look(ahead=ahead, archived=archived)

    def usage(self) -> tuple[RunLog, list[Use]]:
        return self._meter.look()

    def usage_of(self, job: JobStatus) -> tuple[float | None, int | None]:
        return measured(self._dirs, job.log) if job.log.gpus else (None, None)

    def history(self, job_id: str) -> list[Happened]:
        return history(self._dirs, job_id)

    def errors(self, job: JobStatus) -> list[str]:
        return error_lines(self._dirs, job)

    def code(self, job_id: str) -> list[CodeRecord]:
        return recorded_code(self._dirs, job_id)

    def cost_events(self, job: JobStatus) -> list[Event] | None:
        return [event for block in events_about(self._dirs, job.id) for event in block]

    def stacks(self, job_id: str, within_s: float) -> list[WorkerStack]:
        return job_stacks(self.state, job_id, within_s=within_s)

    def output(self, job_id: str, **part: Unpack[OutputPart]) -> Iterator[bytes]:
        return output.job_output(self.state, job_id, **part)

    def events(self, last: int, *, follow: bool) -> Iterator[bytes]:
        return output.events_to_come(self.state, last) if follow else output.last_events(self.state, last)

    def whole_log(self) -> Iterator[bytes]:
        if not self._dirs.events.is_file():
            raise no_state_directory(self.state)
        check_seen(self._dirs)
        if archives_of(self._dirs.events):
            yield LOG_HEADER
            for block in all_events(self._dirs.events):
                yield from event_lines(block).splitlines(keepends=True)
            return
        with self._dirs.events.open("rb") as file:
            yield from file

    def ends_of(self, job_ids: Sequence[str]) -> Iterator[JobEnd | None]:
        for job in output.ends_of(self.state, job_ids):
            yield None if job is None else JobEnd(job.job.id, job.end, job.reason)

    def whatif(self, question: WhatIfQuestion) -> bytes | None:
        return None
