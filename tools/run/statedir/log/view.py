"""What the log of a state directory says now, and whether it is whole; read without the lock."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogPlace, LogReader
from pliant.schemas.file_io.files import read_failure
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import on_clock
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.snapshot import (
    LogSnapshot,
    bytes_behind,
    is_past_of,
    read_snapshot,
    restoring,
)
from pliant.tools.schedule.session.saved import Basis, SavedSession

_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Misfit:
    """How a log and the snapshot beside it do not go together."""

    kind: Literal["cut", "lost", "replaced"]
    """``cut``: the log lacks its end, and the snapshot knows what it led to; ``lost``: it lacks its end, and
    the snapshot cannot be used; ``replaced``: they are of different runs.
    """
    bytes: int = 0
    """Of the log that are missing, at least."""

    @property
    def words(self) -> str:
        if self.kind == "replaced":
            return "was cut or replaced: its snapshot is of another log, and is not used"
        was = "was cut" + (f" by {self.bytes:,} bytes" if self.bytes else "")
        if self.kind == "cut":
            return f"{was}: what is missing is taken from its snapshot"
        return f"{was}, and its snapshot cannot be used: jobs that it shows as active may have ended since"

    def advice(self, state: Path) -> str:
        return f"{'repair it' if self.kind == 'cut' else 'go on without it'} with: {repair_command(state)}"


class LogView:
    """The log, folded, and kept up to date; needs no lock. What a snapshot knows is not read again.

    What a log that was cut has lost is taken from its snapshot.

    :param keeps_events: of what was read, for :meth:`history`.
    """

    def __init__(self, dirs: StateDir, *, keeps_events: bool = False) -> None:
        self._dirs = dirs
        self._events: list[Event] | None = [] if keeps_events else None
        self._snapshot: LogSnapshot | None = None
        self._has_read = False
        self._until: int | None = None
        self.log = RunLog()
        self.misfit: Misfit | None = None
        """How the snapshot differs from the log; None if it does not, or there is none."""
        self.stale = False
        """Whether the snapshot is of no use any more, with this log."""
        self._lost: list[Event] = []
        """What the log has lost, made from the snapshot."""

    def refresh(self, *, to_the_end: bool = False, until: int | None = None) -> RunLog:
        """Take up what was appended since the last call; a log that was replaced is read from its start.

        :param to_the_end: see :meth:`LogReader.read`.
        :param until: the number of bytes to look at.
        :raises BadInputError: the log is damaged; its one line says how to repair it.
        """
        self._until = until
        self._has_read = self._has_read and not self._lost
        try:
            if self._has_read:
                try:
                    self._read(to_the_end=to_the_end)
                except BadInputError:
                    self._has_read = False
            if not self._has_read:
                other = self._begin()
                self._read(to_the_end=to_the_end)
                self._compare(other)
        except FileNotFoundError:
            return self.log
        except OSError as error:
            raise read_failure(error, str(self._dirs.events)) from error
        except BadInputError as error:
            raise repairable(error, self._dirs.path) from error
        self._has_read = True
        return self.log

    def start_again(self) -> None:
        """Read all of it at the next call."""
        self._has_read = False
        self._events = []

    @property
    def in_snapshot(self) -> tuple[int, int]:
        """How many bytes of the log its snapshot covers, and the snapshot's own size."""
        found = self._snapshot
        return (0, 0) if found is None else (found.place.bytes, found.size)

    def history(
        self, basis: Basis, now_s: float | None = None
    ) -> tuple[SavedSession | None, Iterable[Event]]:
        """What the session as of the last :meth:`refresh` is rebuilt from. Call it once.

        :param now_s: nothing later counts (on the session's clock).
        :raises BadInputError: the log is damaged.
        """
        events, self._events = self._events, None
        if events is None and self._lost:
            events = self._all_events()
        kept = None if self._snapshot is None else self._snapshot.session
        if kept is not None and (kept.facts.basis != basis or (now_s is not None and kept.until_s > now_s)):
            kept = None
        if events is None or (kept is None and self._snapshot is not None):
            place = self._snapshot.place if self._snapshot is not None and kept is not None else LogPlace()
            found = LogReader(self._dirs.events, place).read(to_the_end=True, until=self._until)
            events = [event for _, event in found]
        return kept, on_clock(events, basis.origin_s)

    def forget(self) -> None:
        self._events = None

    def _begin(self) -> LogSnapshot | None:
        """Start with the snapshot, or from nothing; returns the snapshot if it is not of this log."""
        self.log, place = RunLog(), LogPlace()
        self._events = None if self._events is None else []
        self._lost = []
        found = read_snapshot(self._dirs)
        fits = found is not None and found.place.is_in(self._dirs.events)
        if fits and found is not None and self._until is not None and found.place.bytes > self._until:
            found = None  # it was made after the moment that is looked at
        self._snapshot = found if fits else None
        if found is not None and fits:
            self.log, place = found.log, found.place
        self._reader = LogReader(self._dirs.events, place)
        return None if fits else found

    def _compare(self, other: LogSnapshot | None) -> None:
        """See how the snapshot and the log differ; take what the log has lost from ``other``."""
        before, self.misfit = self.misfit, None
        behind, size = bytes_behind(self._dirs), self._dirs.events.stat().st_size
        if other is not None and is_past_of(self.log, other.log):
            events = self._all_events()
            self._lost = restoring(events, other.log)
            if self._lost:
                self.log = fold([*events, *self._lost])
                self._events = None if self._events is None else [*events, *self._lost]
                self.misfit = Misfit("cut", max(0, other.place.bytes - size))
        elif other is not None:
            self.misfit = Misfit("replaced")
        elif self._snapshot is None and (short := behind - size) > 0:
            self.misfit = Misfit("lost", short)
        self.stale = other is not None or self.misfit is not None
        if self.misfit is not None and self.misfit != before:
            words, advice = self.misfit.words, self.misfit.advice(self._dirs.path)
            _log.warning("%s %s; %s", self._dirs.events, words, advice)

    def _all_events(self) -> list[Event]:
        found = LogReader(self._dirs.events).read(to_the_end=True, until=self._until)
        return [*(event for _, event in found), *self._lost]

    def _read(self, *, to_the_end: bool) -> None:
        found = self._reader.read(to_the_end=to_the_end, until=self._until)
        take_up(self.log, found, str(self._dirs.events))
        if self._events is not None:
            self._events += [event for _, event in found]


def take_up(log: RunLog, events: Iterable[tuple[int, Event]], source: str) -> None:
    """Fold further events, given with their line numbers.

    :raises BadInputError: one does not say what the fold needs.
    """
    for number, event in events:
        try:
            log.add(event)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            what = str(error).partition("\n")[0]
            text = f"this {event.event!r} event cannot be understood: {what}"
            raise BadInputError.one(source, text, line=number) from error


def repair_command(state: Path) -> str:
    return f"pliant log --repair --state {state}"


def repairable(error: BadInputError, state: Path) -> BadInputError:
    """The one line that a command ends with where the log of its state directory is damaged."""
    first, *others = error.problems or (error,)
    more = f" (and {len(others)} more)" if others else ""
    return BadInputError(f"{first}{more}; repair it with: {repair_command(state)}")
