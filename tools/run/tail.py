"""Follow an event file that somebody else appends to, such as the workers of an attempt."""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.events_io import parse_events
from pliant.schemas.jsonlines import header

WORKER_EVENTS: Final = frozenset({"progress", "epoch", "checkpoint"})
_log = logging.getLogger("pliant")


class Tail:
    """Events of a growing file, each given out once.

    :param only: the names of the events to give out.
    :param skip: how many of its first events are in the log already (a launcher before this one saw them).
    """

    def __init__(self, path: Path, skip: int = 0, only: Container[str] = WORKER_EVENTS) -> None:
        self._path = path
        self._offset = 0
        self._skip = skip
        self._only = only
        self._broken = False

    def read(self) -> list[Event]:
        """Whole lines that came since the last call; a file that is no event file is warned of once."""
        if self._broken:
            return []
        try:
            if self._path.stat().st_size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        return self._fresh(whole) if whole else []

    def _fresh(self, lines: bytes) -> list[Event]:
        data = lines if self._offset == 0 else header("event") + lines
        try:
            found = [event for event in parse_events(data, str(self._path)) if event.event in self._only]
        except BadInputError as error:
            _log.warning("%s: not followed any more: %s", self._path, error)
            self._broken = True
            return []
        self._offset += len(lines)
        skipped = min(self._skip, len(found))
        self._skip -= skipped
        return found[skipped:]
