"""A state directory as a bystander sees it, without the lock: the log, what was asked for, who runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError, UsageError
from pliant.schemas.io import read_schedule
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.directory import holder_of
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.refine import Reports
from pliant.tools.run.statedir.log.view import LogView
from pliant.tools.run.statedir.private import check_seen
from pliant.tools.run.statedir.requests import Request, Spool
from pliant.tools.run.watch.outlook import outlook
from pliant.tools.schedule.prediction import Prediction

AHEAD_S: Final = 5.0
"""A watcher that sees nothing new asks the policy ahead again after this time, for speeds change."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What there is to see at one moment."""

    log: RunLog
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why jobs hold what they hold, or wait, as the policy said last."""
    submitted: tuple[Job, ...] = ()
    """Jobs that no run has taken up yet."""
    cancelled: frozenset[str] = frozenset()
    """Jobs that shall be cancelled."""
    holder: int | None = None
    """The process that runs it; None: nobody does."""
    asked_s: Mapping[str, float] = field(default_factory=dict)
    """When the submitted jobs were submitted, by the system's clock of then."""
    outlook: Mapping[str, Prediction] | None = None
    """When jobs start and end; None: it was not looked for."""


class Bystander:
    """Looks at a state directory again and again; what it has read of the log it does not read twice."""

    def __init__(self, state: Path) -> None:
        """:raises UsageError: there is no log and no submission, or they are not this user's to see."""
        self.dirs = StateDir(state.resolve())
        self._spool = Spool(self.dirs)
        if not (self.dirs.events.is_file() or self.dirs.spool.is_dir()):
            raise UsageError(f"{state}: no state directory (it has no {self.dirs.events.name})")
        check_seen(self.dirs)
        self._view = LogView(self.dirs, keeps_events=True)
        self._outlook: Mapping[str, Prediction] = {}
        self._looked_ahead: tuple[float, object] = (float("-inf"), None)
        self._reports = Reports(self.dirs)

    def look(self, *, ahead: bool = False) -> Sight:
        """What there is to see now. The spool is read before the log: a job moves only that way.

        :param ahead: predict when jobs start and end.
        :raises BadInputError: the log is damaged.
        """
        requests = self._spool.requests()
        log = self._view.refresh()
        self._reports.lay_over(log)
        schedule = self._schedule()
        asked = [job for request in requests for job in request.jobs if job.id not in log.jobs]
        cancelled = frozenset(job_id for request in requests for job_id in request.cancelled)
        asked_s = {job.id: request.asked_s for request in requests for job in request.jobs}
        holder = holder_of(self.dirs.lock)
        expected = self._look_ahead(schedule, requests) if ahead else None
        self._view.forget()
        return Sight(log, _reasons(schedule), tuple(asked), cancelled, holder, asked_s, expected)

    def _look_ahead(self, schedule: Schedule | None, requests: Sequence[Request]) -> Mapping[str, Prediction]:
        """Predict once more where something has happened, or measured speeds have had time to change."""
        log, began_s = self._view.log, time.monotonic()
        seen = (log.last_s, len(requests), None if schedule is None else schedule.time)
        since_s, known = self._looked_ahead
        if seen != known or began_s - since_s >= AHEAD_S:
            now_s = max(time.time(), log.last_s)
            self._outlook = outlook(self._view, self.dirs, schedule, requests, now_s)
            self._looked_ahead = (began_s, seen)
        return self._outlook

    def _schedule(self) -> Schedule | None:
        """The last decision; it is not there yet, or cannot be read."""
        try:
            return read_schedule(self.dirs.schedule)
        except PliantError:
            return None


def _reasons(schedule: Schedule | None) -> dict[str, str]:
    if schedule is None:
        return {}
    held = {given.job: given.reason for given in schedule.allocations}
    return held | {verdict.job: verdict.reason for verdict in schedule.waiting}


def run_line(sight: Sight, state: Path) -> str:
    """Who runs the directory, or how to go on."""
    if sight.holder is None:
        return f"nobody runs {state}; go on with: pliant run --follow --state {state}"
    return f"process {sight.holder or '?'} runs {state}"
