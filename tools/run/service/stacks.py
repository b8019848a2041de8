"""The stacks of a job's workers: asked for, read, grouped, in words, and kept before workers are ended.

Workers of the elastic library answer by files (``contract/stacks.py``), on any host and backend.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.text import counted, fitted, harmless
from pliant.tools.run.statedir.contract.as_user import files_of, opened
from pliant.tools.run.statedir.contract.folders import PRIVATE, AttemptDir
from pliant.tools.run.statedir.contract.liveness import life
from pliant.tools.run.statedir.contract.stacks import (
    MOST_BYTES,
    Frame,
    ThreadStack,
    ask_for_stacks,
    bytes_of_each,
    read_answer,
    read_dump,
)

WITHIN_S: Final = 20.0
"""In this time a worker answers, or the stacks of an interpreter that is held up are written."""
SOON_S: Final = 3.0
"""After this time a dump is believed although the worker may still answer."""
POLL_S: Final = 0.1
_KEPT_BYTES: Final = 4 << 20
_LONGEST_PATH: Final = 40
_SHORTENED: Final = ("site-packages", "dist-packages")
_log = logging.getLogger("pliant")


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
    within_s: float = WITHIN_S,
    sleep: Callable[[float], None] = time.sleep,
) -> list[WorkerStack]:
    """Ask the workers of an attempt where they are, and wait until all have answered or cannot.

    :param slots: the slot of each worker, by number.
    :raises PliantError: they cannot be asked.
    """
    mark, began_s = ask_for_stacks(attempt), time.monotonic()
    while True:
        looked_s = time.monotonic()
        waited_s, most = looked_s - began_s, bytes_of_each(len(slots))
        found = {worker: found_stack(attempt, worker, slot, mark, most) for worker, slot in slots.items()}
        settled = waited_s >= SOON_S
        open_ones = [
            worker
            for worker, each in found.items()
            if not _is_gone(attempt, worker) and (not each.threads or (each.remark and not settled))
        ]
        if not open_ones or waited_s >= within_s:
            return [*found.values()]
        sleep(max(POLL_S, time.monotonic() - looked_s))  # long answers keep at most half a core busy


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
    """

    def __init__(self, attempt: AttemptDir, where: Callable[[int], str]) -> None:
        self._attempt, self._where = attempt, where
        self._mark = ""
        # The file that holds them.
        self.kept: Path | None = None

    def ask(self) -> None:
        """Ask once; a failure costs the stacks and nothing else."""
        if not self._mark:
            try:
                self._mark = ask_for_stacks(self._attempt)
            except Exception:  # noqa: BLE001 - it must not keep workers from being ended
                self._mark = "-"

    def keep(self, workers: Iterable[int], why: str) -> str:
        """Keep the stacks of workers that are ended now; returns where they are, as the end of a sentence."""
        listed, mark = sorted(workers), self._mark
        self._mark, most = "", bytes_of_each(len(listed))
        try:
            found = [found_stack(self._attempt, worker, self._where(worker), mark, most) for worker in listed]
        except Exception as error:  # noqa: BLE001 - it must not keep workers from being ended
            _log.warning("the stacks of %s are not kept: %r", self._attempt.path, error)
            return ""
        if (path := keep_stacks(self._attempt, found, why)) is None:
            return ""
        self.kept = path
        return self.words

    @property
    def words(self) -> str:
        """The end of a reason; empty if nothing was kept."""
        if self.kept is None:
            return ""
        return f"; its stacks: {'/'.join(self.kept.parts[-6:])}"
