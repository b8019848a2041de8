"""The decision of ``pliant schedule --state``: all that it needs, from one moment at which no run writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_cluster, read_profile, read_schedule
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.clock import Clock, passed_since
from pliant.tools.run.statedir.directory import size_and_time
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.lock import Lock
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.refine import measured_speeds, reported
from pliant.tools.run.statedir.log.view import LogView
from pliant.tools.run.statedir.private import check_seen
from pliant.tools.run.statedir.requests import Request, Spool, requested
from pliant.tools.schedule.decide import History, Question, decide_from_history
from pliant.tools.schedule.session.saved import Basis, SavedSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BetweenRuns:
    """A state directory at one moment, when no run wrote."""

    dirs: StateDir
    log: RunLog
    schedule: Schedule | None
    """The last one."""
    requests: tuple[Request, ...]
    view: LogView
    quiet_s: float
    """Seconds since the log was written."""


def decide_between_runs(
    state: str,
    question: Question,
    now_s: float | None = None,
    *,
    wait_s: float = 0.0,
    cluster: str | None = None,
    profile: str | None = None,
) -> Schedule:
    """The next decision of a state directory that no run holds.

    :param now_s: decide at this time; None: by the clock, with the newest reports of workers.
    :param wait_s: how long to wait for a run that holds it.
    :param cluster: file to begin a run with, as ``profile``.
    :raises LockedError: a run still holds it.
    :raises UsageError: something else is named than what the run there began with.
    """
    clock, found = Clock(), look_at(Path(state), wait_s=wait_s)
    at, log, begun = found.dirs, found.log, found.log.info is not None
    if not begun and not log.jobs and cluster is None:
        if at.events.exists():
            raise BadInputError.one(
                str(at.events), "has no events, expected a run: nothing was started here yet"
            )
        raise UsageError(f"{state} holds no run: name its --cluster to begin one")
    clock.not_before(log.last_s, found.quiet_s)
    at_s = clock() if now_s is None else now_s
    asked = requested(found.requests, log, at_s)
    newest = reported(at, log, at_s) if now_s is None else []

    def read_rows(path: str | Path) -> tuple[ProfileRow, ...]:
        return read_profile(path).rows

    rows = _own(at.profile, profile, read_rows, begun=begun)
    return decide_from_history(
        history(found.view, at_s, [*newest, *asked]),
        question,
        now_s=at_s,
        cluster=_own(at.cluster, cluster, read_cluster, begun=begun),
        profile=None if rows is None else Profile(rows),
        previous=found.schedule,
        new=[event.job for event in asked if event.event == "submit" and event.job],
        source=str(at.events),
    )


def history(view: LogView, now_s: float, more: Iterable[Event]) -> History:
    """What happened until now.

    :param more: what the next run will add to the log before it does anything else.
    """

    def since(basis: Basis) -> tuple[SavedSession | None, Iterable[Event]]:
        kept, events = view.history(basis, now_s)
        return kept, (*events, *more)

    return History(view.log.info, view.log.origin_s or 0.0, since, measured_speeds(view.log))


def look_at(state: Path, *, wait_s: float = 0.0) -> BetweenRuns:
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
        quiet_s = passed_since(dirs.events)
    view = LogView(dirs, keeps_events=True)
    log = view.refresh(to_the_end=True, until=size) if written_s else view.log
    return BetweenRuns(dirs, log, schedule, requests, view, quiet_s)


def _own(kept: Path, named: str | None, read: Callable[[str | Path], T], *, begun: bool) -> T | None:
    """What the run of a state directory goes on with; what is named, for one that is to begin.

    :raises UsageError: something else is named than what is there.
    """
    own = read(kept) if begun and kept.exists() else None
    asked = None if named is None else read(named)
    if begun and asked is not None and own != asked:
        there = f"differs from {kept}" if own is not None else f"is not used, for there is no {kept}"
        raise UsageError(f"{named} {there}: the run there goes on with what it began with; leave it out")
    return asked if own is None else own
