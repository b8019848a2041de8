"""Packed files, known by their first bytes: gzip, bzip2, xz, zstd, lz4, and zip archives of one file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.limits import STREAM_BYTES, check_bytes, check_size

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE: Final = 1 << 14
"""Bytes unpacked at a time; then it is looked whether they are too many."""
_BLOCK: Final = 1 << 18
_LAYERS: Final = 2
"""As a gzipped file in a zip archive has."""
_TAR: Final = slice(257, 262)
"""Where a tar archive says what it is."""


def unpacked(stream: io.BufferedReader, source: str) -> io.BufferedReader:
    """The bytes of a file, or those that were packed in it, within the limits for what is read.

    :raises BadInputError: it is packed in a way that is not read here.
    """
    for layer in range(_LAYERS + 1):
        first = stream.peek(_TAR.stop)[: _TAR.stop]
        packing = next((each for each in _PACKINGS if first.startswith(each.begins)), None)
        if packing is None:
            break
        if layer == _LAYERS:
            raise BadInputError.one(source, f"is packed more than {_LAYERS} times: unpack it")
        counted = _Counted(stream)
        with _intact(source, packing.name):
            file = packing.open(counted, source)
        stream = io.BufferedReader(_Unpacked(file, counted, source, packing.name), _BLOCK)
    if first[_TAR] == b"ustar":
        raise BadInputError.one(source, "is a tar archive: unpack it, and name the files in it")
    return stream


def unpack(data: bytes, source: str) -> bytes:
    """As :func:`unpacked`, of a whole file."""
    if not is_packed(data):
        return data
    return unpacked(io.BufferedReader(io.BytesIO(data)), source).read()


def is_packed(data: bytes) -> bool:
    return any(data.startswith(packing.begins) for packing in _PACKINGS)


@contextmanager
def _intact(source: str, how: str) -> Iterator[None]:
    """:raises BadInputError: what is unpacked is damaged, for which each library has errors of its own."""
    try:
        yield
    except (BadInputError, MemoryError):
        raise
    except Exception:  # noqa: BLE001
        raise BadInputError.one(source, f"is {how}, and cut short or damaged") from None


class _Packing(NamedTuple):
    begins: bytes
    name: str
    open: Callable[[_Counted, str], Any]


def _gzip(packed: _Counted, _source: str) -> Any:
    import gzip

    return gzip.GzipFile(fileobj=packed)


def _bzip2(packed: _Counted, _source: str) -> Any:
    import bz2

    return bz2.BZ2File(packed)


def _xz(packed: _Counted, _source: str) -> Any:
    import lzma

    return lzma.LZMAFile(packed)  # type: ignore[arg-type]


def _by_arrow(codec: str) -> Callable[[_Counted, str], Any]:
    def open_with(packed: _Counted, _source: str) -> Any:
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), codec)

    return open_with


def _zip(packed: _Counted, source: str) -> Any:
    """:raises BadInputError: it holds no file, several or a locked one."""
    import zipfile

    archive = zipfile.ZipFile(packed.whole(source))
    files = [
        each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")
    ]
    if any(each.filename.startswith("xl/") for each in files):
        raise BadInputError.one(source, "is an Excel workbook, expected text: save its sheet as CSV")
    if len(files) != 1:
        text = f"is a zip archive of {len(files)} files, expected one: unpack it, and name the files in it"
        raise BadInputError.one(source, text)
    if files[0].flag_bits & 1:
        raise BadInputError.one(source, "is a zip archive with a password: unpack it first")
    return archive.open(files[0])


def _unknown(what: str) -> Callable[[_Counted, str], Any]:
    def refuse(_packed: _Counted, source: str) -> Any:
        text = f"is packed with {what}, which is not read (gzip, bzip2, xz, zstd, lz4 and zip are): unpack it"
        raise BadInputError.one(source, text)

    return refuse


_PACKINGS: Final = (
    _Packing(b"\x1f\x8b", "gzipped", _gzip),
    *(_Packing(b"BZh%d1AY&SY" % level, "packed with bzip2", _bzip2) for level in range(1, 10)),
    _Packing(b"\xfd7zXZ\x00", "packed with xz", _xz),
    _Packing(b"\x28\xb5\x2f\xfd", "packed with zstd", _by_arrow("zstd")),
    _Packing(b"\x04\x22\x4d\x18", "packed with lz4", _by_arrow("lz4")),
    _Packing(b"PK\x03\x04", "a zip archive", _zip),
    _Packing(b"PK\x05\x06", "a zip archive", _zip),
    _Packing(b"7z\xbc\xaf\x27\x1c", "7-Zip", _unknown("7-Zip")),
    _Packing(b"Rar!\x1a\x07", "RAR", _unknown("RAR")),
    _Packing(b"\x1f\x9d", "compress", _unknown("compress (.Z)")),
)


class _Unpacked(io.RawIOBase):
    """The bytes that were packed."""

    def __init__(self, file: Any, packed: _Counted, source: str, how: str) -> None:
        super().__init__()
        self._read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        self._packed, self._source, self._how = packed, source, how
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room: Any = memoryview(buffer)
        with _intact(self._source, self._how):
            data = self._read(min(len(room), _PIECE))
        room[: len(data)] = data
        self._bytes += len(data)
        check_bytes(self._bytes, self._packed.bytes, self._source, f"{self._bytes:,} bytes so far")
        return len(data)


class _Counted(io.RawIOBase):
    """A stream that counts what was read of it."""

    def __init__(self, stream: io.BufferedReader) -> None:
        super().__init__()
        self._stream = stream
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def whole(self, source: str) -> io.BufferedReader | io.BytesIO:
        """The stream, if it can be read in any order, else what it holds."""
        if self._stream.seekable():
            self.bytes = self._stream.seek(0, io.SEEK_END)
            return self._stream
        buffer = io.BytesIO()
        while data := self.read(_BLOCK):
            buffer.write(data)
            check_size(self.bytes, STREAM_BYTES, source)
        return buffer

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.bytes += len(data)
        return data
