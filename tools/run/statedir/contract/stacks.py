"""How workers are asked where they are, and how they answer: by files in the attempt's folder alone.

A question is a mark in one file, which takes the place of the one before; it is there from the launch on,
since a host may learn late of files that are new. Each worker answers it in a file of its own
(:class:`StackAnswer`). A worker whose interpreter is held up by one long call cannot answer: then a thread of
C dumps its stacks into another file, which is empty again once it goes on.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.record import Record
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_in, files_of
from pliant.tools.run.statedir.contract.folders import PRIVATE, AttemptDir

MOST_BYTES: Final = 1 << 20
"""Of an answer; scripts could write longer ones."""
LEAST_BYTES: Final = 1 << 16
_ALL_BYTES: Final = 4 << 20
MOST_FRAMES: Final = 200
OWN_THREADS: Final = "pliant-"
"""Names of the library's threads begin so; they are left out."""
_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]+(?: \[(?P<name>[^\]]*)\])?")
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d{1,9}) in (?P<function>.*)')


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    function: str


class ThreadStack(Record):
    """One thread: its calls, the newest first."""

    name: str
    frames: tuple[Frame, ...] = ()


class StackAnswer(Record):
    """Where the threads of a worker are, the main thread first."""

    question: str
    threads: tuple[ThreadStack, ...]


def ask_for_stacks(attempt: AttemptDir) -> str:
    """Ask the workers of an attempt; returns the mark that their answers bear.

    :raises PliantError: the question cannot be written.
    """
    mark = secrets.token_hex(8)
    _put(attempt, f"{mark}\n".encode())
    return mark


def question(attempt: AttemptDir) -> str:
    """The mark of the newest question; empty if there is none."""
    return _text(attempt.stacks, 100).strip()


def answer(attempt: AttemptDir, worker: int, found: StackAnswer) -> None:
    """:raises PliantError: the answer cannot be written."""
    atomic_write(attempt.stack(worker), found.model_dump_json().encode() + b"\n", mode=PRIVATE)


def bytes_of_each(workers: int) -> int:
    """The most that is read of each worker: in memory it takes fifty times that, which scripts can misuse."""
    return min(MOST_BYTES, max(LEAST_BYTES, _ALL_BYTES // max(1, workers)))


def read_answer(attempt: AttemptDir, worker: int, mark: str, most: int = MOST_BYTES) -> StackAnswer | None:
    """What a worker answered to this question. Returns None as long as it has not."""
    try:
        found = StackAnswer.model_validate_json(_text(attempt.stack(worker), most))
    except ValidationError:
        return None
    return found if found.question == mark else None


def read_dump(attempt: AttemptDir, worker: int, most: int = MOST_BYTES) -> tuple[ThreadStack, ...]:
    """The stacks of a worker whose interpreter is held up; empty if it is not."""
    return parse_dump(_text(attempt.held_stack(worker), most))


def parse_dump(text: str) -> tuple[ThreadStack, ...]:
    """The threads in what ``faulthandler`` wrote, which names the main thread last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if begins := _THREAD.match(line):
            threads.append((begins["name"] or "", []))
        elif threads and (call := _FRAME.fullmatch(line)):
            threads[-1][1].append(Frame(call["file"], int(call["line"]), call["function"]))
    if threads:
        threads[-1] = ("MainThread", threads[-1][1])
    found = [
        ThreadStack(name=name, frames=tuple(frames[:MOST_FRAMES]))
        for name, frames in reversed(threads)
        if frames and not _is_own(name, frames)
    ]
    return tuple(found)


def _is_own(name: str, frames: list[Frame]) -> bool:
    """Whether it is a thread of the library; Python before 3.14 does not name threads."""
    parts = ("pliant/tools/run/elastic/stacks.py", "statedir/contract/liveness.py")
    return name.startswith(OWN_THREADS) or any(frame.file.endswith(parts) for frame in frames)


def _text(path: Path, most: int) -> str:
    """The beginning of a plain file; empty without one. It follows no link and never waits."""
    with suppress(OSError):
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(as_user.opened(path, flags), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(most).decode(errors="replace")
    return ""


def open_dump(path: Path) -> int:
    """A file for the dumps of a worker, empty, open for as long as it lives.

    :raises OSError: it cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, PRIVATE)


def offer_stacks(attempt: AttemptDir) -> None:
    """Make the file of questions, empty, before workers look for it; without it they answer late."""
    with suppress(PliantError):
        _put(attempt, b"")


def _put(attempt: AttemptDir, data: bytes) -> None:
    """Root may ask about a job in another user's own directory, whose workers must be able to read it."""
    with files_of(attempt) if attempt.kept is not None else files_in(attempt.path):
        as_user.write(attempt.stacks, data, PRIVATE)
