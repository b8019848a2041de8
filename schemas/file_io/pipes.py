"""Stdin and stdout: either may be closed, and the other end of a pipe may leave early."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import Final, TextIO

from pliant.schemas.errors import UsageError

PIPE: Final = "-"
"""What stands for stdin or stdout where a file is named."""


def read_stdin() -> bytes:
    """All that comes in.

    :raises UsageError: stdin is closed.
    """
    if sys.stdin is None:
        raise UsageError("stdin is closed: pipe the input in, or name a file")
    return sys.stdin.buffer.read()


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
