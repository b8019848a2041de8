"""``pliant run --follow --detach``: the loop in a process of its own, in a session of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pliant.schemas.file_io.files import write_error

Body = Callable[[Callable[[], None]], int]
"""What the process does: it gets a function to call once all is well, and returns an exit code."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was left in the background, or that did not get so far."""

    pid: int
    failed: int | None = None
    """Exit code of one that ended before all was well."""
    said: str = ""
    """What that one said."""


def in_background(body: Body, log: Path) -> Started:
    """Run ``body`` in the background; returns once all is well there, or not. What it says goes to ``log``.

    :param log: in a folder that is there.
    :raises PliantError: the log cannot be written.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        words = os.open(log, flags, 0o600)
    except OSError as error:
        raise write_error(error, str(log)) from error
    said_before = os.fstat(words).st_size
    reader, writer = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else this process cannot learn how it ends
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be(body, words, writer)
    os.close(writer)
    os.close(words)
    with os.fdopen(reader, "rb") as news:
        if news.read():
            return Started(pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with log.open("rb") as lines:
        lines.seek(said_before)
        return Started(pid, code, lines.read().decode(errors="replace"))


def _be(body: Body, words: int, writer: int) -> NoReturn:
    """Live as the process in the background."""

    def ready() -> None:
        nonlocal writer
        if writer >= 0:
            _point_at_nothing(0)
            os.write(writer, b"!")
            os.close(writer)
            writer = -1

    code = 1
    try:
        os.setsid()
        os.dup2(words, 2)
        _point_at_nothing(1)
        code = body(ready)
    finally:
        os._exit(code)


def _point_at_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)
