"""The log as it grows, for the next program in a pipe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.file_io.jsonlines import header

_log = logging.getLogger("pliant")


class EventStream:
    """A sink that writes JSON Lines. A reader that has had enough or a full disk ends it, not the run."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write: Callable[[bytes], None] | None = write
        self._started = False

    def __call__(self, events: Sequence[Event]) -> None:
        """Write events, after a header line the first time."""
        lines = event_lines(events)
        if self._write is None or not lines:
            return
        try:
            self._write(lines if self._started else header("event") + lines)
        except BrokenPipeError:
            self._write = None
        except OSError as error:
            self._write = None
            _log.warning("no more events on stdout: %s; the log is complete", error.strerror or error)
        self._started = True
