"""What an attempt reports: events of its workers, how far they are, what its script does at its end."""

from __future__ import annotations

from itertools import chain, islice

from pliant.schemas.event import Event
from pliant.schemas.events import Trained, typed
from pliant.schemas.job import Job
from pliant.tools.run.backends.protocol import Handle
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.plan import Plan, Progress, ProgressFile, request_stop, write_progress
from pliant.tools.run.statedir.log.worker_reports import ScriptReports, Tail


class AttemptReports:
    """Reports of workers that use the elastic library: they write their events themselves.

    :param plan: the attempt's newest.
    :param seen: how many of its workers' events were read before.
    :param trains: whether workers train already.
    """

    def __init__(self, handle: Handle, plan: Plan, seen: int, *, trains: bool) -> None:
        self._handle = handle
        self._progress = ProgressFile(handle.job_files.progress)
        self._tail = Tail(handle.files.progress, skip=seen)
        # The newest generation that a worker's event names.
        self._generation = 0 if trains else plan.generation
        before = Tail(handle.files.progress)
        for event in islice(chain.from_iterable(iter(before.read, [])), seen):
            self.settles(event, plan)

    def new_events(self) -> list[Event]:
        """What its workers have reported since the last call."""
        with files_of(self._handle.files):
            return self._tail.read()

    def newest(self) -> Progress | None:
        """Their newest report, if there is a new one."""
        with files_of(self._handle.files):
            return self._progress.fresh()

    def settles(self, event: Event, plan: Plan) -> bool:
        """Note a worker's event; returns whether this plan was in force then."""
        report = typed(event)
        if isinstance(report, Trained) and report.generation is not None:
            self._generation = max(self._generation, report.generation)
        return self._generation >= plan.generation

    def script_events(self, progress: Progress) -> list[Event]:
        """The events of a new report, if its script writes none of its own."""
        del progress
        return []

    def lost_work(self) -> tuple[Progress, Event] | None:
        """The report and the event that put a script back to its last save. Returns None if nothing is lost.

        :raises OSError: the report cannot be written.
        """
        return None

    @property
    def samples_done(self) -> float | None:
        """Samples by the reports of a script that writes no outcome."""
        return None

    def leaves(self, job: Job, *, asked: bool, signalled: bool) -> bool:
        """Whether its script can go on although it ended well.

        :param signalled: it was asked to leave by a signal.
        """
        del job, asked, signalled
        return False

    def request_leave(self) -> bool:
        """Ask the script to save and leave, beside the plan. Returns whether it can know of that."""
        return True


class AnyScriptReports(AttemptReports):
    """Reports of a script that may use the library, report its progress in a file, or report nothing."""

    def __init__(self, handle: Handle, plan: Plan, seen: int, *, trains: bool) -> None:
        super().__init__(handle, plan, seen, trains=trains)
        before = None if seen else ProgressFile(handle.job_files.progress).fresh()
        self._script = ScriptReports(plan, started=seen > 0, before=before)

    def script_events(self, progress: Progress) -> list[Event]:
        with files_of(self._handle.files):
            if self._handle.files.progress.exists():
                return []
            return self._script.events(progress, self._progress.written_s or 0.0)

    def lost_work(self) -> tuple[Progress, Event] | None:
        left = self._script.rewound()
        if left is None:
            return None
        with files_of(self._handle.files):
            write_progress(self._handle.job_files.progress, left)
        return left, self._script.loss(left, self._progress.written_s or 0.0)

    @property
    def samples_done(self) -> float | None:
        return self._script.samples_done

    def leaves(self, job: Job, *, asked: bool, signalled: bool) -> bool:
        return self._script.leaves(job, asked=asked, signalled=signalled)

    def request_leave(self) -> bool:
        newest = self._progress.newest or ProgressFile(self._handle.job_files.progress).fresh()
        if self._script.watches_stop(newest):
            request_stop(self._handle.files.stop)
            return True
        return self._handle.files.progress.exists()
