"""Reading and writing whole files: ``-`` for the pipes, one-line errors, and writes that happen or do not."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.limits import DOCUMENT_BYTES, STREAM_BYTES, check_size
from pliant.schemas.file_io.pipes import (
    PIPE,
    NoWriterError,
    nothing_came_in,
    open_file,
    open_stdin,
    stdout,
    write_stdout,
)
from pliant.schemas.text.fitting import harmless

PARQUET_MAGIC: Final = b"PAR1"
TEMPORARY: Final = ".pliant-"
_PROBE: Final = 65536
_PIECE: Final = 1 << 22
_OUT_OF_ORDER: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def source_name(path: str | Path) -> str:
    """How messages call an input, in one line."""
    return "<stdin>" if str(path) == PIPE else harmless(str(path))


def read_bytes(path: str | Path, *, most: int = DOCUMENT_BYTES) -> bytes:
    """All bytes of a file, or of stdin for ``-``.

    :param most: bytes that it may have (:mod:`pliant.schemas.file_io.limits`); what does not say its size in
        advance may have no more than ``STREAM_BYTES``.
    :raises BadInputError: the file is missing, unreadable, a directory, empty, too large, or a pipe that no
        process writes to.
    :raises UsageError: stdin is wanted and closed.
    """
    source = source_name(path)
    try:
        with open_file(path) if str(path) != PIPE else nullcontext(open_stdin()) as stream:
            data = _read_all(stream, most, source)
    except FileNotFoundError:
        raise BadInputError.one(source, "no such file") from None
    except IsADirectoryError:
        raise BadInputError.one(source, "is a directory, expected a file") from None
    except (OSError, ValueError) as error:
        raise read_failure(error, source) from error
    if not data:
        raise BadInputError.one(source, "is empty" if str(path) != PIPE else nothing_came_in())
    return data


def _read_all(stream: BinaryIO, most: int, source: str) -> bytes:
    """All that is left of a stream."""
    size = _stated_bytes(stream)
    if size is not None:
        check_size(size, most, source)
        return stream.read()
    most, data = min(most, STREAM_BYTES), BytesIO()
    while piece := stream.read(_PIECE):
        data.write(piece)
        check_size(data.tell(), most, source)
    return data.getvalue()


def _stated_bytes(stream: BinaryIO) -> int | None:
    """The size of a file as the system states it; None: it is a pipe or a device, or not a file at all."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read_failure(error: OSError | ValueError, source: str) -> BadInputError:
    """The expected error that a failed reading of a file stands for."""
    if isinstance(error, NoWriterError):
        return BadInputError.one(source, str(error))
    return BadInputError.one(source, f"cannot be read: {_reason(error)}")


def write_bytes(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a product: to stdout for ``-``, else atomically to a file.

    :param mode: as for :func:`atomic_write`.
    :raises UsageError: Parquet would go to a terminal, or the place cannot be written.
    :raises ServiceMissingError: the disk is full or broken; nothing is half-written.
    """
    _write(path, (data,), mode)


def write_chunks(path: str | Path, chunks: Iterable[bytes], *, mode: int = 0o666) -> None:
    """Like :func:`write_bytes`, of a product that is made piece by piece and never whole in memory."""
    _write(path, chunks, mode)


def _write(path: str | Path, chunks: Iterable[bytes], mode: int) -> None:
    if str(path) != PIPE:
        _write_file(path, chunks, mode)
        return
    try:
        for chunk in chunks:
            _refuse_terminal(chunk)
            write_stdout(_shown(chunk) if stdout().isatty() else chunk)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(error, "<stdout>") from error


def _refuse_terminal(data: bytes) -> None:
    if data.startswith(PARQUET_MAGIC) and stdout().isatty():
        raise UsageError("Parquet is not written to a terminal: give -o FILE or pipe into the next command")


def atomic_write(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file by ``data`` so that a reader, or a crash, sees the old or the new bytes, never a mix.

    The bytes go to a temporary file in the same folder, are forced to disk and renamed; then the folder is
    forced to disk. A device or a named pipe is written directly, a symbolic link is followed.

    :param mode: who may do what with a new file, less the umask; one that is there keeps its own.
    """
    _write_file(path, (data,), mode)


def _shown(chunk: bytes) -> bytes:
    """What a terminal gets of a product: nothing in it acts on that."""
    return harmless(chunk.decode(errors="backslashreplace"), keeps="\n\t").encode()


def _write_file(path: str | Path, chunks: Iterable[bytes], mode: int) -> None:
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("wb") as stream:
                stream.writelines(chunks)
        else:
            _replace(target.resolve(), chunks, mode)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def make_folder(folder: Path, *, exist_ok: bool = True, mode: int = 0o777) -> None:
    """Make a folder, and those above it.

    :param mode: who may do what with each folder that is made, less the umask.
    :raises PliantError: it cannot be made, or must not be there and is.
    """
    try:
        for above in reversed(folder.parents):
            if not above.exists():
                above.mkdir(mode, exist_ok=True)
        folder.mkdir(mode, exist_ok=exist_ok)
    except OSError as error:
        raise write_error(error, str(folder)) from error


def write_error(error: OSError | ValueError, target: str, what: str = "cannot be written") -> PliantError:
    """The expected error that a failed write stands for."""
    kind = ServiceMissingError if is_out_of_order(error) else UsageError
    return kind(f"{harmless(target)}: {what}: {_reason(error)}")


def is_out_of_order(error: BaseException) -> bool:
    """Whether an error, or the one that it was made of, says that a disk is full or broken."""
    found = error if isinstance(error, OSError) else error.__cause__
    return isinstance(found, OSError) and found.errno in _OUT_OF_ORDER


def probe_room(folder: Path, size_bytes: int = _PROBE) -> None:
    """Write a little into a folder, and remove it: does its disk take that much?

    :raises ServiceMissingError: it does not.
    """
    try:
        make_and_remove(folder, size_bytes)
    except OSError as error:
        raise ServiceMissingError(f"{folder}: cannot be written: {_reason(error)}") from error


def make_and_remove(folder: Path, size_bytes: int = _PROBE) -> None:
    """Write a file of that size into a folder, and remove it.

    :raises OSError: one of the two cannot be done.
    """
    temporary = folder / f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, bytes(size_bytes))
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte and force them to disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder. No process may be writing a file of it."""
    for left in folder.glob(f"{TEMPORARY}*.tmp"):
        left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force a folder's own entries to disk, so that a new name survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, chunks: Iterable[bytes], mode: int) -> None:
    temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            for chunk in chunks:
                write_all(descriptor, chunk)
        finally:
            os.close(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _reason(error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()
