"""A state directory as a bystander sees it, without the lock: the log, what was asked for, who runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pliant.schemas.errors import PliantError, UsageError
from pliant.schemas.io import read_schedule
from pliant.schemas.job import Job
from pliant.tools.run.fold import RunLog
from pliant.tools.run.layout import StateDir
from pliant.tools.run.log_view import LogView
from pliant.tools.run.private import check_seen
from pliant.tools.run.refine import Reports
from pliant.tools.run.spool import Spool
from pliant.tools.run.state import holder_of


@dataclass(frozen=True, slots=True)
class Sight:
    """What there is to see at one moment."""

    log: RunLog
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why jobs wait, as the policy said last."""
    submitted: tuple[Job, ...] = ()
    """Jobs that no run has taken up yet."""
    cancelled: frozenset[str] = frozenset()
    """Jobs that shall be cancelled."""
    holder: int | None = None
    """The process that runs it; None: nobody does."""
    asked_s: Mapping[str, float] = field(default_factory=dict)
    """When the submitted jobs were submitted, by the system's clock of then."""


class Bystander:
    """Looks at a state directory again and again; what it has read of the log it does not read twice."""

    def __init__(self, state: Path) -> None:
        """:raises UsageError: there is no log and no submission, or they are not this user's to see."""
        self.dirs = StateDir(state.resolve())
        self._spool = Spool(self.dirs)
        if not (self.dirs.events.is_file() or self.dirs.spool.is_dir()):
            raise UsageError(f"{state}: no state directory (it has no {self.dirs.events.name})")
        check_seen(self.dirs)
        self._view = LogView(self.dirs)
        self._reports = Reports(self.dirs)

    def look(self) -> Sight:
        """What there is to see now. The spool is read before the log: a job moves only that way.

        :raises BadInputError: the log is damaged.
        """
        requests = self._spool.requests()
        log = self._view.refresh()
        self._reports.lay_over(log)
        asked = [job for request in requests for job in request.jobs if job.id not in log.jobs]
        cancelled = frozenset(job_id for request in requests for job_id in request.cancelled)
        asked_s = {job.id: request.asked_s for request in requests for job in request.jobs}
        return Sight(log, self._reasons(), tuple(asked), cancelled, holder_of(self.dirs.lock), asked_s)

    def _reasons(self) -> dict[str, str]:
        try:
            return {verdict.job: verdict.reason for verdict in read_schedule(self.dirs.schedule).waiting}
        except PliantError:
            return {}


def run_line(sight: Sight, state: Path) -> str:
    """Who runs the directory, or how to go on."""
    if sight.holder is None:
        return f"nobody runs {state}; go on with: pliant run --follow --state {state}"
    return f"process {sight.holder or '?'} runs {state}"
