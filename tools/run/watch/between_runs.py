"""A state directory between two runs: all that a decision needs, from one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.directory import Lock, size_and_time
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.refine import measured_speeds
from pliant.tools.run.statedir.log.view import LogView
from pliant.tools.run.statedir.private import check_seen
from pliant.tools.run.statedir.requests import Request, Spool
from pliant.tools.schedule.decide import History
from pliant.tools.schedule.session.saved import Basis, SavedSession


@dataclass(frozen=True, slots=True)
class Glance:
    """What was there at one moment, when no run wrote."""

    dirs: StateDir
    log: RunLog
    schedule: Schedule | None
    """The last one."""
    requests: tuple[Request, ...]
    view: LogView
    written_s: float
    """When the log was written last, by the system's clock of then; 0: there is none."""

    def history(self, now_s: float, asked: Sequence[Event]) -> History:
        """What happened until now.

        :param asked: what the next run will add to the log before it does anything else.
        """

        def since(basis: Basis) -> tuple[SavedSession | None, Iterable[Event]]:
            kept, events = self.view.history(basis, now_s)
            return kept, (*events, *asked)

        return History(self.log.info, self.log.origin_s or 0.0, since, measured_speeds(self.log))


def look_at(state: Path, *, wait_s: float = 0.0) -> Glance:
    """Look at a state directory that no run writes to meanwhile.

    The lock is held for as long as it takes to read the small files and the length of the log: the log only
    grows, so what is read of it later is what was there.

    :raises LockedError: a run still holds it after ``wait_s``.
    :raises BadInputError: the log is damaged, or another file cannot be read.
    """
    dirs = StateDir(state.resolve())
    if dirs.path.exists():
        check_seen(dirs)
    with Lock(dirs.lock).shared(wait_s=wait_s):
        requests = tuple(Spool(dirs).requests())
        schedule = read_schedule(dirs.schedule) if dirs.schedule.exists() else None
        size, written_s = size_and_time(dirs)
    view = LogView(dirs, keeps_events=True)
    log = view.refresh(to_the_end=True, until=size) if size else view.log
    return Glance(dirs, log, schedule, requests, view, written_s)
