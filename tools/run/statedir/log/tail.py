"""Follow an event file that somebody else appends to, such as the workers of an attempt."""

from __future__ import annotations

import logging
import os
from collections.abc import Container
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogReader

WORKER_EVENTS: Final = frozenset({"progress", "epoch", "checkpoint"})
_log = logging.getLogger("pliant")


class Tail:
    """Events of a growing file, each given out once.

    :param only: the names of the events to give out.
    :param skip: how many of its first events are in the log already (a launcher before this one saw them).
    """

    def __init__(self, path: Path, skip: int = 0, only: Container[str] = WORKER_EVENTS) -> None:
        self._path = path
        self._reader: LogReader | None = LogReader(path)
        self._skip = skip
        self._only = only
        self._name = str(path)
        self._size = -1

    def read(self) -> list[Event]:
        """Whole lines that came since the last call; a file that is not an event file is warned of once."""
        if self._reader is None:
            return []
        try:
            size = os.stat(self._name).st_size
            if size == self._size:
                return []
            found = [event for _, event in self._reader.read() if event.event in self._only]
        except OSError:
            return []
        except BadInputError as error:
            _log.warning("%s: not followed any more: %s", self._path, error)
            self._reader = None
            return []
        self._size = size
        skipped = min(self._skip, len(found))
        self._skip -= skipped
        return found[skipped:]
