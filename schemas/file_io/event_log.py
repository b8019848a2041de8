"""Read the event log of a state directory as it grows: from any place on, every checksum verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.bulk import garbage_collection_paused
from pliant.schemas.file_io.events import read_event
from pliant.schemas.file_io.jsonlines import LineReader, is_torn
from pliant.schemas.file_io.jsontext import is_json, refuse_other_kind
from pliant.schemas.file_io.seals import FIRST, Seals

_BLOCK: Final = 1 << 24
_LOOK: Final = 1 << 18
"""Bytes that are only looked at, at one time. A writer looks at all of its log for as long as it lives: with
blocks as large as those that are read, it would come to need memory for such a block."""


@dataclass(frozen=True, slots=True)
class Place:
    """Between two lines of a log."""

    bytes: int = 0
    """From its start."""
    lines: int = 0
    """Before it."""
    link: str | None = FIRST.decode()
    """What the next line continues (see :mod:`pliant.schemas.file_io.seals`); None: unknown."""
    crc: int = 0
    """CRC-32 of all bytes before it."""

    def is_in(self, path: Path) -> bool:
        """Whether the bytes before it are those of this file, all of which are read.

        :raises OSError: the file cannot be read.
        """
        crc, left = 0, self.bytes
        with path.open("rb") as file:
            while left and (block := file.read(min(left, _LOOK))):
                crc, left = crc32(block, crc), left - len(block)
        return not left and crc == self.crc


class LogReader:
    """The events of a log that is appended to, each given out once.

    :param place: where to begin; the lines before it are not looked at.
    """

    def __init__(self, path: Path, place: Place | None = None) -> None:
        self._path = path
        self.place = place = place or Place()
        """After the last line that was read."""
        self._seals = Seals(None if place.link is None else place.link.encode())
        self._lines = LineReader(
            str(path), EVENT.kind, read_event, seals=self._seals, first_line=place.lines + 1
        )

    @garbage_collection_paused()
    def read(self, *, to_the_end: bool = False, until: int | None = None) -> list[tuple[int, Event]]:
        """The whole lines that came since the last call, with their line numbers.

        A last line without its line end waits for the next call: it may still be being written.

        :param to_the_end: there is no next call, so a last line counts that lacks no more than its line end.
        :param until: the number of bytes to look at.
        :raises BadInputError: a line is damaged or no event, or the file is shorter than it was. This reader
            is of no use any more.
        :raises OSError: the file cannot be read.
        """
        size = self._path.stat().st_size
        left = (size if until is None else min(size, until)) - self.place.bytes
        if left == 0:
            return []
        if left < 0:
            raise BadInputError.one(str(self._path), "is shorter than it was")
        rest = b""
        with self._path.open("rb") as file:
            file.seek(self.place.bytes)
            while left and (block := file.read(min(left, _BLOCK))):
                left -= len(block)
                rest = self._take(rest + block)
        if (to_the_end and is_json(rest)) or (rest and not is_torn(rest) and not is_json(rest)):
            self._lines.feed([rest])  # it lacks no more than its line end, or that was damaged
        return self._given_out()

    def _take(self, data: bytes) -> bytes:
        """Read the whole lines, and return what is left."""
        begins = self.place.bytes == 0
        if begins:
            refuse_other_kind(data, str(self._path), EVENT.kind)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            self._lines.feed(lines, schema_required=begins)
            whole = data[: len(data) - len(rest)]
            link = None if self._seals.link is None else self._seals.link.decode()
            crc = crc32(whole, self.place.crc)
            self.place = Place(self.place.bytes + len(whole), self._lines.number - 1, link, crc)
        return rest

    def read_all(self) -> Iterator[list[Event]]:
        """The whole lines, block by block."""
        size, until = self._path.stat().st_size, self.place.bytes
        while until < size:
            until += _BLOCK
            yield [event for _, event in self.read(until=until)]

    def _given_out(self) -> list[tuple[int, Event]]:
        if self._lines.problems:
            raise BadInputError(self._lines.problems)
        found, self._lines.records = self._lines.records, []
        return found
