"""What the log of a state directory says now, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.event_log import LogReader
from pliant.schemas.files import read_failure
from pliant.tools.run.fold import RunLog
from pliant.tools.run.layout import StateDir


class LogView:
    """The log, folded, and kept up to date; needs no lock."""

    def __init__(self, dirs: StateDir) -> None:
        self._dirs = dirs
        self._begin()

    def _begin(self) -> None:
        self.log = RunLog()
        self._reader = LogReader(self._dirs.events)
        self._has_read = False

    def refresh(self, *, to_the_end: bool = False) -> RunLog:
        """Take up what was appended since the last call; a log that was replaced is read from its start.

        :param to_the_end: see :meth:`LogReader.read`.
        :raises BadInputError: the log is damaged; the one line of its message says how to repair it.
        """
        try:
            self._read(to_the_end=to_the_end)
        except BadInputError:
            if not self._has_read:
                raise
            self._begin()
            self._read(to_the_end=to_the_end)
        self._has_read = True
        return self.log

    def _read(self, *, to_the_end: bool) -> None:
        path = self._dirs.events
        try:
            take_up(self.log, self._reader.read(to_the_end=to_the_end), str(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise read_failure(error, str(path)) from error
        except BadInputError as error:
            raise repairable(error, self._dirs.path) from error


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
