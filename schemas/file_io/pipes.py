"""Stdin and stdout: either may be closed, and the other end of a pipe may leave early."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import BinaryIO, Final, TextIO

from pliant.schemas.errors import UsageError

PIPE: Final = "-"
"""What stands for stdin or stdout where a file is named."""
WRITER_S: Final = 10.0
"""For so long a named pipe is waited for that no process has opened for writing. One that is open for writing
is read to its end, however slowly that comes, and so is a process substitution."""


class NoWriterError(OSError):
    """A named pipe has no process at its other end."""


def open_stdin() -> BinaryIO:
    """What comes in.

    :raises UsageError: stdin is closed.
    """
    if sys.stdin is None:
        raise UsageError("stdin is closed: pipe the input in, or name a file")
    return sys.stdin.buffer


def open_file(path: str | Path) -> BinaryIO:
    """A file as ``open`` gives it; a named pipe is waited for :data:`WRITER_S` and no longer.

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


def nothing_came_in() -> str:
    """What is wrong with an empty stdin; who wrote nothing into a pipe has said why before it closed it."""
    with suppress(OSError, ValueError, AttributeError):
        if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
            return "nothing came in: the command before this one wrote nothing; what it says is the cause"
    return "nothing came in"


def stdout() -> TextIO:
    """The stream of the product.

    :raises UsageError: it is closed.
    """
    if sys.stdout is None:
        raise UsageError("stdout is closed: leave it open, or name a file with -o")
    return sys.stdout


def write_stdout(data: bytes) -> None:
    """Write a part of the product; what stdout refuses, it refuses once.

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
    """Point a stream at nothing: what it still buffers would fail once more at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
