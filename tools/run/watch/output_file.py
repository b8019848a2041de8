"""Read a file that a job prints to, in pieces, though its oldest bytes are taken from the disk meanwhile.

What a keeper takes away is a hole at the file's beginning (see ``backends/keep.py``): places in the file stay
what they were.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Gone:
    """Bytes that were printed and are not on the disk any more."""

    count: int


class OutputFile:
    """Gives out each byte once; what is gone before it was read is said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def skip_all_but(self, lines: int) -> None:
        """Begin with the last lines that are there now, one that has no end yet included."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            self._at = _last_lines(descriptor, lines)
        finally:
            os.close(descriptor)

    def rest(self) -> Iterator[bytes | Gone]:
        """What was printed since the last call, up to what there was when this one began."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            yield from self._pieces(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def _pieces(self, descriptor: int, end: int) -> Iterator[bytes | Gone]:
        while self._at < end:
            data = os.pread(descriptor, min(PIECE, end - self._at), self._at)
            kept = min(end, _first_kept(descriptor, self._at))  # asked after reading: what is gone reads as 0
            if kept > self._at:
                yield Gone(kept - self._at)
                self._at = kept
            elif data:
                self._at += len(data)
                yield data
            else:
                return


def _last_lines(descriptor: int, lines: int) -> int:
    """Where the last lines begin; read from the end on, in pieces."""
    size = os.fstat(descriptor).st_size
    first, at = min(size, _first_kept(descriptor, 0)), size
    if lines == 0:
        return size
    while at > first:
        begin = max(first, at - PIECE)
        data = os.pread(descriptor, at - begin, begin)
        end = len(data)
        while (end := data.rfind(b"\n", 0, end)) >= 0:
            lines -= begin + end < size - 1  # the last line's own end begins no line
            if lines == 0:
                return begin + end + 1
        at = begin
    return first


def _first_kept(descriptor: int, place: int) -> int:
    """The first place from ``place`` on that is on the disk; the end of the file where there is none."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else place
