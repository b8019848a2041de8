"""Columns in temporary files: they take no memory while they grow, and are mapped into it to be read.

What is mapped is the system's to keep or to drop, unless temporary files are in memory themselves, and
processes that are forked share it.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Mapping
from os import SEEK_CUR
from typing import IO, Any, Final, TypeAlias

Values: TypeAlias = "array[Any] | bytearray"
_ALIGNED: Final = 8
"""Bytes of the largest value."""
_PIECE: Final = 1 << 20


class StoredColumns:
    """Columns by name, each of values of one type."""

    def __init__(self, typecodes: Mapping[str, str]) -> None:
        """:param typecodes: by the name of the column, as of :mod:`array`; "B" is a ``bytearray``."""
        self._typecodes = typecodes
        self._files: dict[str, IO[bytes]] = {}
        self._bytes = dict.fromkeys(typecodes, 0)
        self._map: mmap.mmap | None = None

    def __bool__(self) -> bool:
        """Whether there are any values."""
        return any(self._bytes.values())

    def add(self, columns: Mapping[str, Values]) -> None:
        """Add values at the end of each column.

        :raises OSError: temporary files find no room; nothing is added.
        """
        from tempfile import TemporaryFile  # most traces are short and need none

        sizes = dict(self._bytes)
        for name, values in columns.items():
            if name not in self._files:
                self._files[name] = TemporaryFile(buffering=0)  # noqa: SIM115 - closed at the end
            self._files[name].seek(self._bytes[name])
            with memoryview(values) as typed, typed.cast("B") as left:
                sizes[name] += len(left)
                at = 0
                while at < len(left):
                    at += self._files[name].write(left[at:])
        self._bytes = sizes

    def mapped(self) -> dict[str, memoryview]:
        """All values by column, of which no more can be added. They are in one file: a map keeps it open.

        :raises OSError: the file finds no room, or memory cannot be mapped.
        """
        from shutil import copyfileobj
        from tempfile import TemporaryFile

        begins = {}
        with TemporaryFile() as whole:
            for name, file in self._files.items():
                begins[name] = whole.seek(-whole.tell() % _ALIGNED, SEEK_CUR)
                file.seek(0)
                copyfileobj(file, whole, _PIECE)
            whole.flush()
            self._map = mmap.mmap(whole.fileno(), 0)
        self._close()
        view: Any = memoryview(self._map)
        return {
            name: view[begin : begin + self._bytes[name]].cast(self._typecodes[name])
            for name, begin in begins.items()
        }

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    __del__ = _close

    def in_memory(self) -> dict[str, Values]:
        """All values by column, read back before they are mapped.

        :raises OSError: they cannot be read.
        """
        found: dict[str, Values] = {}
        for name, file in self._files.items():
            file.seek(0)
            read = bytearray()
            while len(read) < self._bytes[name]:
                if not (piece := file.read(self._bytes[name] - len(read))):
                    raise OSError(f"a temporary file ends after {len(read):,} bytes")
                read += piece
            typecode = self._typecodes[name]
            found[name] = read if typecode == "B" else array(typecode, bytes(read))
        return found

    def release(self) -> None:
        """What was read until now need not stay in memory."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
