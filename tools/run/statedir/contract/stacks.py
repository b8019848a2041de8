"""The stacks of a job's workers: how workers are asked where they are, answer, and are shown.

By files in the attempt's folder alone, so on any host and backend. A question is a mark in one file, which
takes the place of the one before; it is there from the launch on, since a host may learn late of files that
are new. Each worker answers it in a file of its own (:class:`StackAnswer`). A worker whose interpreter is
held up by one long call cannot answer: then a thread of C dumps its stacks into another file, which is empty
again once it goes on. The launcher keeps the stacks of workers that it has to end (:class:`LastStacks`).
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.record import Record
from pliant.schemas.text import counted, fitted, harmless
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_in, files_of, opened
from pliant.tools.run.statedir.contract.folders import PRIVATE, AttemptDir
from pliant.tools.run.statedir.contract.liveness import life

_log = logging.getLogger("pliant")
MOST_BYTES: Final = 1 << 20
"""Most bytes that are read of an answer; scripts could write longer ones."""
LEAST_BYTES: Final = 1 << 16
_ALL_BYTES: Final = 4 << 20
MOST_FRAMES: Final = 200
RESPONSE_TIMEOUT_S: Final = 20.0
"""Seconds in which a worker answers, or the stacks of an interpreter that is held up are written."""
DUMP_GRACE_S: Final = 3.0
"""Seconds after which a dump counts although the worker may still answer."""
POLL_INTERVAL_S: Final = 0.1
_KEPT_BYTES: Final = 4 << 20
_LONGEST_PATH: Final = 40
_SHORTENED: Final = ("site-packages", "dist-packages")
OWN_THREADS: Final = "pliant-"
"""Beginning of the names of the library's threads, which are left out."""
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


def request_stacks(attempt: AttemptDir) -> str:
    """Ask the workers of an attempt; returns the mark that their answers bear.

    :raises PliantError: the question cannot be written.
    """
    mark = secrets.token_hex(8)
    _put(attempt, f"{mark}\n".encode())
    return mark


def question(attempt: AttemptDir) -> str:
    """The mark of the newest question; empty if there is none."""
    return _text(attempt.stacks, 100).strip()


def answer(attempt: AttemptDir, worker: int, given: StackAnswer) -> None:
    """:raises PliantError: the answer cannot be written."""
    atomic_write(attempt.stack(worker), given.model_dump_json().encode() + b"\n", mode=PRIVATE)


def bytes_of_each(workers: int) -> int:
    """The most that is read of each worker: in memory it takes fifty times that, which scripts can misuse."""
    return min(MOST_BYTES, max(LEAST_BYTES, _ALL_BYTES // max(1, workers)))


def read_answer(attempt: AttemptDir, worker: int, mark: str, most: int = MOST_BYTES) -> StackAnswer | None:
    """What a worker answered to this question. Returns None as long as it has not."""
    try:
        reply = StackAnswer.model_validate_json(_text(attempt.stack(worker), most))
    except ValidationError:
        return None
    return reply if reply.question == mark else None


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
    parsed = [
        ThreadStack(name=name, frames=tuple(frames[:MOST_FRAMES]))
        for name, frames in reversed(threads)
        if frames and not _is_own(name, frames)
    ]
    return tuple(parsed)


def _is_own(name: str, frames: list[Frame]) -> bool:
    """Whether it is a thread of the library; Python before 3.14 does not name threads."""
    parts = ("pliant/tools/run/elastic/stack_watch.py", "statedir/contract/liveness.py")
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


@dataclass(frozen=True, slots=True)
class WorkerStack:
    """One worker, and where it is."""

    slot: str
    threads: tuple[ThreadStack, ...] = ()
    """The main thread first; empty if they are not known."""
    remark: str = ""
    """Why they are not known, or what else there is to say."""


def worker_stacks(
    attempt: AttemptDir,
    slots: Mapping[int, str],
    *,
    within_s: float = RESPONSE_TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> list[WorkerStack]:
    """Ask the workers of an attempt where they are, and wait until all have answered or cannot.

    :param slots: the slot of each worker, by number.
    :raises PliantError: they cannot be asked.
    """
    mark, began_s = request_stacks(attempt), time.monotonic()
    while True:
        looked_s = time.monotonic()
        waited_s, most = looked_s - began_s, bytes_of_each(len(slots))
        stacks = {worker: found_stack(attempt, worker, slot, mark, most) for worker, slot in slots.items()}
        settled = waited_s >= DUMP_GRACE_S
        open_ones = [
            worker
            for worker, each in stacks.items()
            if not _is_gone(attempt, worker) and (not each.threads or (each.remark and not settled))
        ]
        if not open_ones or waited_s >= within_s:
            return [*stacks.values()]
        sleep(max(POLL_INTERVAL_S, time.monotonic() - looked_s))  # long answers keep at most half a core busy


def found_stack(
    attempt: AttemptDir, worker: int, slot: str, mark: str, most: int = MOST_BYTES
) -> WorkerStack:
    """What a worker has answered so far, or what is known without its answer.

    :param most: bytes that are read of it.
    """
    with files_of(attempt):
        said, threads = read_answer(attempt, worker, mark, most), read_dump(attempt, worker, most)
    if said is not None:
        return WorkerStack(slot, said.threads)
    if threads:
        return WorkerStack(slot, threads, "one long call holds up its interpreter")
    if _is_gone(attempt, worker):
        return WorkerStack(slot, (), "it has ended")
    if not answers_questions(attempt, [worker]):
        return WorkerStack(slot, (), "its script has not called elastic.init yet")
    return WorkerStack(slot, (), "no answer: its process or its host stands still")


def _is_gone(attempt: AttemptDir, worker: int) -> bool:
    with files_of(attempt):
        return os.path.lexists(attempt.exit_code(worker)) or life(attempt.presence(worker)) == "gone"


def answers_questions(attempt: AttemptDir, workers: Iterable[int]) -> bool:
    """Whether any of these workers has begun to use the elastic library."""
    with files_of(attempt):
        return any(os.path.lexists(attempt.held_stack(worker)) for worker in workers)


def grouped(stacks: Sequence[WorkerStack]) -> list[list[WorkerStack]]:
    """Workers whose main threads are at one place, the largest group first; those without stacks last."""
    groups: dict[object, list[WorkerStack]] = {}
    for each in stacks:
        groups.setdefault((_main(each), each.remark), []).append(each)
    return sorted(groups.values(), key=lambda group: (not group[0].threads, -len(group)))


def _main(stack: WorkerStack) -> tuple[Frame, ...]:
    return stack.threads[0].frames if stack.threads else ()


def stacks_text(stacks: Sequence[WorkerStack], width: int | None = None, *, threads: bool = False) -> str:
    """A headline for each group and the calls of its main thread, the newest first.

    :param threads: show the other threads, too.
    """
    lines: list[str] = []
    for group in grouped(stacks):
        slots = " ".join(each.slot for each in group)
        remark = f": {group[0].remark}" if group[0].remark else ""
        lines += [*([""] if lines else []), f"{counted(len(group), 'worker')} ({slots}){remark}"]
        lines += map(_words, _main(group[0]))
        if threads:
            lines += _other_threads(group)
    return "".join(f"{line}\n" for line in fitted(map(harmless, lines), width))


def _other_threads(group: Sequence[WorkerStack]) -> Iterable[str]:
    """The other threads of a group, equal ones once."""
    places: dict[tuple[str, tuple[Frame, ...]], int] = {}
    for thread in (thread for each in group for thread in each.threads[1:]):
        places[thread.name, thread.frames] = places.get((thread.name, thread.frames), 0) + 1
    for (name, frames), count in places.items():
        yield f"  thread {name}" + (f" of {counted(count, 'worker')}" if len(group) > 1 else "")
        yield from map(partial(_words, indent="    "), frames)


def _words(frame: Frame, indent: str = "  ") -> str:
    return f"{indent}{frame.function} ({_short(frame.file)}:{frame.line})"


def _short(file: str) -> str:
    """A path without what says only where packages are installed; of a long one the end."""
    parts = Path(file).parts
    place = max((at for at, part in enumerate(parts) if part in _SHORTENED), default=None)
    short = file if place is None else str(Path(*parts[place + 1 :]))
    return short if len(short) <= _LONGEST_PATH else str(Path("…", *parts[-2:]))


def keep_stacks(attempt: AttemptDir, stacks: Sequence[WorkerStack], why: str) -> Path | None:
    """Append what is known to the attempt's file, which ``pliant log`` prints.

    Returns None if nothing is known, or the file cannot be written.
    """
    known = [each for each in stacks if each.threads]
    if not known:
        return None
    path = attempt.kept_stacks
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with files_of(attempt), os.fdopen(opened(path, flags, PRIVATE), "w", encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_size < _KEPT_BYTES:
                file.write(f"{why}\n\n{stacks_text(known, threads=True)}\n")
    except OSError:
        return None
    return path


class LastStacks:
    """Asks workers that are soon to be ended where they are, and keeps what they say.

    :param where: the slot of each worker.
    :param answers: whether workers answer; else none is asked.
    """

    def __init__(self, attempt: AttemptDir, where: Callable[[int], str], *, answers: bool = True) -> None:
        self._attempt, self._where = attempt, where
        self.answers = answers
        self._mark = ""
        # The file that holds them.
        self.kept: Path | None = None

    def ask(self) -> None:
        """Ask once; a failure costs the stacks and nothing else."""
        if self.answers and not self._mark:
            try:
                self._mark = request_stacks(self._attempt)
            except Exception:  # noqa: BLE001 - it must not keep workers from being ended
                self._mark = "-"

    def keep_answers(self, workers: Iterable[int], why: str) -> str:
        """As :meth:`keep`, of workers that were asked; empty if none answers."""
        return self.keep(workers, why) if self.answers else ""

    def keep(self, workers: Iterable[int], why: str) -> str:
        """Keep the stacks of workers that are ended now; returns where they are, as the end of a sentence."""
        listed, mark = sorted(workers), self._mark
        self._mark, most = "", bytes_of_each(len(listed))
        try:
            stacks = [
                found_stack(self._attempt, worker, self._where(worker), mark, most) for worker in listed
            ]
        except Exception as error:  # noqa: BLE001 - it must not keep workers from being ended
            _log.warning("the stacks of %s are not kept: %r", self._attempt.path, error)
            return ""
        if (path := keep_stacks(self._attempt, stacks, why)) is None:
            return ""
        self.kept = path
        return self.words

    @property
    def words(self) -> str:
        """The end of a reason; empty if nothing was kept."""
        if self.kept is None:
            return ""
        return f"; its stacks: {'/'.join(self.kept.parts[-6:])}"
