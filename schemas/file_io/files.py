"""Reading and writing whole files: ``-`` for the pipes, one-line errors, and writes that happen or do not.

:func:`check_output` and :func:`check_folder` say before the work begins whether its product can be written;
they change nothing. Stdin and stdout may be closed, and the other end of a pipe may leave early.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import IO, BinaryIO, Final, Self, TextIO

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.limits import DOCUMENT_BYTES, STREAM_BYTES, check_size
from pliant.schemas.file_io.packing import unpack
from pliant.schemas.text import harmless

PARQUET_MAGIC: Final = b"PAR1"
TEMPORARY: Final = ".pliant-"
ARCHIVE_FOLDER: Final = "archive"
"""Folder of the archives of a log, beside it."""
_PROBE: Final = 65536
_PIECE: Final = 1 << 22
_OUT_OF_ORDER: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
PIPE: Final = "-"
WRITER_S: Final = 10.0
"""How long to wait for a process to open a named pipe for writing; an open pipe is read to its end."""


def source_name(path: str | Path) -> str:
    """What messages call an input, in one line."""
    return "<stdin>" if str(path) == PIPE else harmless(str(path))


def read_bytes(path: str | Path, *, most: int = DOCUMENT_BYTES) -> bytes:
    """All bytes of a file, or of stdin for ``-``, unpacked (:mod:`.packing`).

    :param most: bytes that it may have; a stream of unknown size may have ``STREAM_BYTES`` at most.
    :raises BadInputError: the file is missing, unreadable, a directory, empty, too large, or a pipe without
        a writer.
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
    return unpack(data, source)


def _read_all(stream: BinaryIO, most: int, source: str) -> bytes:
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
    """Returns None for pipes, devices and other streams."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def open_file(path: str | Path) -> BinaryIO:
    """Open a file for reading; wait at most :data:`WRITER_S` for the writer of a named pipe.

    :raises NoWriterError: no process has opened the pipe for writing.
    :raises OSError: it cannot be opened.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return Path(path).open("rb")
    opened: list[BinaryIO] = []
    failed: list[OSError] = []

    def wait() -> None:
        try:
            opened.append(Path(path).open("rb"))  # noqa: SIM115 - the caller closes it
        except OSError as error:
            failed.append(error)

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WRITER_S)
    if waiting.is_alive():
        with suppress(OSError):  # a writer that leaves at once ends the wait
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            waiting.join(WRITER_S)
        for stream in opened:
            stream.close()
        raise NoWriterError(f"is a pipe, and no process has opened it for writing within {WRITER_S:g} s")
    if failed:
        raise failed[0]
    return opened[0]


class NoWriterError(OSError):
    """A named pipe has no process at its other end."""


def open_stdin() -> BinaryIO:
    """:raises UsageError: stdin is closed."""
    if sys.stdin is None:
        raise UsageError("stdin is closed: pipe the input in, or name a file")
    return sys.stdin.buffer


def nothing_came_in() -> str:
    """What is wrong with an empty stdin. A failed command before this one has said why."""
    with suppress(OSError, ValueError, AttributeError):
        if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
            return "nothing came in: the command before this one wrote nothing; what it says is the cause"
    return "nothing came in"


def read_failure(error: OSError | ValueError, source: str) -> BadInputError:
    if isinstance(error, NoWriterError):
        return BadInputError.one(source, str(error))
    return BadInputError.one(source, f"cannot be read: {_reason(error)}")


def write_bytes(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a product: to stdout for ``-``, else atomically to a file.

    :raises UsageError: Parquet would go to a terminal, or the place cannot be written.
    :raises ServiceMissingError: the disk is full or broken; nothing is half-written.
    """
    write_chunks(path, (data,), mode=mode)


def write_chunks(path: str | Path, chunks: Iterable[bytes | memoryview], *, mode: int = 0o666) -> None:
    """As :func:`write_bytes`, without the whole product in memory."""
    if str(path) != PIPE:
        _write_file(path, chunks, mode)
        return
    try:
        for chunk in chunks:
            write_stdout(_for_a_terminal(bytes(chunk)) if stdout().isatty() else chunk)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(error, "<stdout>") from error


def _for_a_terminal(chunk: bytes) -> bytes:
    if chunk.startswith(PARQUET_MAGIC):
        raise UsageError("Parquet is not written to a terminal: give -o FILE or pipe into the next command")
    return harmless(chunk.decode(errors="backslashreplace"), keeps="\n\t").encode()


def stdout() -> TextIO:
    """:raises UsageError: stdout is closed."""
    if sys.stdout is None:
        raise UsageError("stdout is closed: leave it open, or name a file with -o")
    return sys.stdout


def write_stdout(data: bytes | memoryview) -> None:
    """Write a part of the product. After a failure stdout is abandoned, so that it fails only once.

    :raises OSError: it cannot be written.
    """
    stream = stdout()
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError:
        abandon(stream)
        raise


def abandon(stream: TextIO) -> None:
    """Point a stream at the null device: what it still buffers would fail again at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def atomic_write(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new bytes.

    The bytes go to a temporary file in the same folder, are forced to disk and renamed; then the folder is
    forced to disk. Devices and named pipes are written directly, symbolic links are followed.

    :param mode: of a new file, less the umask; an existing one keeps its own.
    """
    _write_file(path, (data,), mode)


def _write_file(path: str | Path, chunks: Iterable[bytes | memoryview], mode: int) -> None:
    target = Path(path)
    try:
        if _is_in_place(target):
            with target.open("wb") as stream:
                stream.writelines(chunks)
        else:
            _replace(target.resolve(), chunks, mode)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def write_with(path: str | Path, fill: Callable[[IO[bytes]], None], *, mode: int = 0o666) -> None:
    """As :func:`write_bytes`, for a product that is made in a file, which may be read, cut and written again.

    :param path: not stdout.
    :param fill: makes it in an empty file.
    """
    from tempfile import TemporaryFile

    target = Path(path)
    try:
        if _is_in_place(target):
            with TemporaryFile() as made:
                fill(made)
                made.seek(0)
                _write_file(path, iter(partial(made.read, _PIECE), b""), mode)
            return
        with Draft(target.resolve(), mode) as draft:
            with draft.stream() as stream:
                fill(stream)
            draft.publish()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def _is_in_place(target: Path) -> bool:
    """Whether it is a device or a named pipe, which nothing replaces."""
    return target.exists() and not target.is_file() and not target.is_dir()


def _replace(target: Path, chunks: Iterable[bytes | memoryview], mode: int) -> None:
    with Draft(target, mode) as draft:
        for chunk in chunks:
            draft.write(chunk)
        draft.publish()


class Draft:
    """A file under a temporary name; :meth:`publish` gives it its own, and leaving ``with`` drops the rest.

    :param mode: of a new file, less the umask; an existing one keeps its own.
    """

    def __init__(self, target: Path, mode: int) -> None:
        self.target = target
        self.path = target.parent / f"{TEMPORARY}{os.urandom(8).hex()}.tmp"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        if target.exists():
            os.fchmod(self._descriptor, stat.S_IMODE(target.stat().st_mode))

    def stream(self) -> IO[bytes]:
        """The file, to be filled and closed by the caller."""
        return os.fdopen(os.dup(self._descriptor), "r+b")

    def write(self, data: bytes | memoryview) -> None:
        """Hand every byte to the system, which may not have it on disk yet."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def publish(self) -> None:
        """Force the bytes to disk, replace the target, and force the folder to disk."""
        os.fsync(self._descriptor)
        self._close()
        self.path.replace(self.target)
        sync_folder(self.target.parent)

    def drop(self) -> None:
        """Remove what is not published."""
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte and force them to disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the entries of a folder to disk, so that a new name survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed writers left. No process may be writing there."""
    for left in folder.glob(f"{TEMPORARY}*.tmp"):
        left.unlink(missing_ok=True)


def make_folder(folder: Path, *, exist_ok: bool = True, mode: int = 0o777) -> None:
    """Make a folder, and those above it.

    :param mode: of each folder that is made, less the umask.
    :raises PliantError: it cannot be made, or exists and must not.
    """
    try:
        for above in reversed(folder.parents):
            if not above.exists():
                above.mkdir(mode, exist_ok=True)
        folder.mkdir(mode, exist_ok=exist_ok)
    except OSError as error:
        raise write_error(error, str(folder)) from error


def check_output(path: str | Path, *, makes_folder: bool = False) -> None:
    """Refuse a file that could not be written, without changing it.

    :param makes_folder: the writer makes missing folders.
    :raises UsageError: it is a directory, its folder is missing, or one may not write there.
    :raises ServiceMissingError: the disk is full or broken.
    """
    if str(path) == PIPE:
        stdout()
        return
    target = Path(path)
    try:
        mode = _mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory, expected a file")
        if mode is not None and not stat.S_ISREG(mode):  # a device or a named pipe is written in place
            if not os.access(target, os.W_OK):
                raise UsageError(f"{path}: cannot be written: permission denied")
            return
        folder = target.resolve().parent
        if not makes_folder and _mode(folder) is None:
            raise UsageError(f"{path}: the folder {target.parent} is missing, expected it to be there")
        _check_place(folder)
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def check_folder(path: str | Path) -> None:
    """Refuse a folder that could not be made or written to.

    :raises UsageError: there is a file of that name, or one may not write there.
    :raises ServiceMissingError: the disk is full or broken.
    """
    try:
        _check_place(Path(path).resolve())
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def _check_place(folder: Path) -> None:
    """Try to write into a folder, or into the nearest one above that exists."""
    there = next(place for place in (folder, *folder.parents) if _mode(place) is not None)
    make_and_remove(there)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def probe_room(folder: Path, size_bytes: int = _PROBE) -> None:
    """:raises ServiceMissingError: the disk has no room for that many bytes, or is broken."""
    try:
        make_and_remove(folder, size_bytes)
    except OSError as error:
        raise ServiceMissingError(f"{folder}: cannot be written: {_reason(error)}") from error


def make_and_remove(folder: Path, size_bytes: int = _PROBE) -> None:
    """:raises OSError: a file of that size cannot be written into the folder and removed."""
    temporary = folder / f"{TEMPORARY}{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, bytes(size_bytes))
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def write_error(error: OSError | ValueError, target: str, what: str = "cannot be written") -> PliantError:
    kind = ServiceMissingError if is_out_of_order(error) else UsageError
    return kind(f"{harmless(target)}: {what}: {_reason(error)}")


def is_out_of_order(error: BaseException) -> bool:
    """Whether an error or its cause says that a disk is full or broken."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OUT_OF_ORDER


def _reason(error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()
