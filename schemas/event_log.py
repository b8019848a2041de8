"""Read the event log of a state directory as it grows: from any place on, every checksum verified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pliant.schemas.bulk import garbage_collection_paused
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.events_io import read_event
from pliant.schemas.jsonlines import LineReader, is_torn
from pliant.schemas.jsontext import is_json, refuse_other_kind
from pliant.schemas.seals import FIRST, Seals

_BLOCK: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Place:
    """Between two lines of a log."""

    bytes: int = 0
    """From its start."""
    lines: int = 0
    """Before it."""
    link: str | None = FIRST.decode()
    """What the next line continues (see :mod:`pliant.schemas.seals`); None: unknown."""


class LogReader:
    """The events of a log that is appended to, each given out once.

    :param place: where to begin; the lines before it are not looked at.
    """

    def __init__(self, path: Path, place: Place | None = None) -> None:
        place = place or Place()
        self._path = path
        self._bytes = place.bytes
        self._seals = Seals(None if place.link is None else place.link.encode())
        self._lines = LineReader(
            str(path), EVENT.kind, read_event, seals=self._seals, first_line=place.lines + 1
        )

    @property
    def place(self) -> Place:
        """After the last line that was read."""
        link = None if self._seals.link is None else self._seals.link.decode()
        return Place(self._bytes, self._lines.number - 1, link)

    @garbage_collection_paused()
    def read(self, *, to_the_end: bool = False) -> list[tuple[int, Event]]:
        """The whole lines that came since the last call, with their line numbers.

        A last line without its line end waits for the next call: it may still be being written.

        :param to_the_end: there is no next call, so a last line counts that lacks no more than its line end.
        :raises BadInputError: a line is damaged or no event, or the file is shorter than it was. This reader
            is of no use any more.
        :raises OSError: the file cannot be read.
        """
        size = self._path.stat().st_size
        if size == self._bytes:
            return []
        if size < self._bytes:
            raise BadInputError.one(str(self._path), "is shorter than it was")
        rest = b""
        with self._path.open("rb") as file:
            file.seek(self._bytes)
            while block := file.read(_BLOCK):
                rest = self._take(rest + block)
        if to_the_end and is_json(rest):
            self._lines.feed([rest])
        elif rest and not is_torn(rest) and not is_json(rest):
            self._lines.feed([rest])  # whole but for a damaged end
        return self._given_out()

    def _take(self, data: bytes) -> bytes:
        """Read the whole lines, and return what is left."""
        if self._bytes == 0:
            refuse_other_kind(data, str(self._path), EVENT.kind)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            self._lines.feed(lines, schema_required=self._bytes == 0)
            self._bytes += len(data) - len(rest)
        return rest

    def _given_out(self) -> list[tuple[int, Event]]:
        if self._lines.problems:
            raise BadInputError(self._lines.problems)
        found, self._lines.records = self._lines.records, []
        return found
