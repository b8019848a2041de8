"""What the log of a state directory says now, and whether it can be believed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.event_log import LogReader, Place
from pliant.schemas.file_io.files import read_failure
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.events import on_clock
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import Snapshot, read_snapshot
from pliant.tools.schedule.session.saved import Basis, SavedSession

_log = logging.getLogger("pliant")


class LogView:
    """The log, folded, and kept up to date; needs no lock. What a snapshot knows is not read again.

    :param keeps_events: of what was read, for :meth:`history`.
    """

    def __init__(self, dirs: StateDir, *, keeps_events: bool = False) -> None:
        self._dirs = dirs
        self._events: list[Event] | None = [] if keeps_events else None
        self._snapshot: Snapshot | None = None
        self._has_read = False
        self._until: int | None = None
        self.log = RunLog()

    def refresh(self, *, to_the_end: bool = False, until: int | None = None) -> RunLog:
        """Take up what was appended since the last call; a log that was replaced is read from its start.

        :param to_the_end: see :meth:`LogReader.read`.
        :param until: the number of bytes to look at.
        :raises BadInputError: the log is damaged; the one line of its message says how to repair it.
        """
        self._until = until
        try:
            if self._has_read:
                try:
                    self._read(to_the_end=to_the_end)
                except BadInputError:
                    self._has_read = False
            if not self._has_read:
                fits = self._begin()
                self._read(to_the_end=to_the_end)
                if not fits:
                    _log.warning("%s was cut or replaced: its snapshot is of another log", self._dirs.events)
        except FileNotFoundError:
            return self.log
        except OSError as error:
            raise read_failure(error, str(self._dirs.events)) from error
        except BadInputError as error:
            raise repairable(error, self._dirs.path) from error
        self._has_read = True
        return self.log

    @property
    def in_snapshot(self) -> tuple[int, int]:
        """How many bytes of the log its snapshot covers, and how many that has itself."""
        found = self._snapshot
        return (0, 0) if found is None else (found.place.bytes, found.size)

    def history(
        self, basis: Basis, now_s: float | None = None
    ) -> tuple[SavedSession | None, Iterable[Event]]:
        """What the session is rebuilt from that stands where :meth:`refresh` got to. To be asked once.

        :param now_s: nothing later counts (on the session's clock).
        :raises BadInputError: the log is damaged.
        """
        events, self._events = self._events, None
        kept = None if self._snapshot is None else self._snapshot.session
        if kept is not None and (kept.facts.basis != basis or (now_s is not None and kept.until_s > now_s)):
            kept = None
        if events is None or (kept is None and self._snapshot is not None):
            place = self._snapshot.place if self._snapshot is not None and kept is not None else Place()
            found = LogReader(self._dirs.events, place).read(to_the_end=True, until=self._until)
            events = [event for _, event in found]
        return kept, on_clock(events, basis.origin_s)

    def forget(self) -> None:
        """Keep no events any more."""
        self._events = None

    def _begin(self) -> bool:
        """Start with the snapshot, or from nothing; False: there is a snapshot, of another log."""
        self.log, place = RunLog(), Place()
        self._events = None if self._events is None else []
        found = read_snapshot(self._dirs)
        if found is not None and self._until is not None and found.place.bytes > self._until:
            found = None  # it was made after the moment that is looked at
        fits = found is not None and found.place.is_in(self._dirs.events)
        self._snapshot = found if fits else None
        if found is not None and fits:
            self.log, place = found.log, found.place
        self._reader = LogReader(self._dirs.events, place)
        return found is None or fits

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
            text = f"this {event.event!r} event cannot be understood: {_first_line(error)}"
            raise BadInputError.one(source, text, line=number) from error


def repairable(error: BadInputError, state: Path) -> BadInputError:
    """The one line that a command ends with where the log of its state directory is damaged."""
    first, *others = error.problems or (error,)
    more = f" (and {len(others)} more)" if others else ""
    return BadInputError(f"{first}{more}; repair it with: pliant log --repair --state {state}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
