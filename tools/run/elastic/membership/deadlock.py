"""Workers that wait for each other in different places, which none of them would ever leave.

A worker that leaves out a batch, or takes part in an exchange that the others do not make, is out of step
with them: each then waits in an exchange for what the others never send. All of them live and show it, and
they look like workers that wait for a slow one. So a worker that has waited at one place for some seconds
says in a file where that is. If all workers say so, none of them computes; if they wait at different places
or in different steps, and go on doing so, the job is at an end.

A worker that has left out a batch waits at the end of its step until the others have done so, too: what it
would send next, they would take for what they wait for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.record import NonNegativeInt, Record
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.process_group import SERVER_POLL_INTERVAL_S, pause, publish_file
from pliant.tools.run.elastic.membership.switch_step import RateLimiter
from pliant.tools.run.statedir.contract.folders import read_file, refresh_folder
from pliant.tools.run.statedir.contract.liveness import life

POLL_INTERVAL_S: Final = 2.0
PUBLISH_AFTER_S: Final = 10.0
"""Seconds at one place after which a worker writes where it waits."""
DEADLOCK_AFTER_S: Final = 30.0
"""Seconds in which all workers wait where they are before the job counts as deadlocked."""
WARN_AFTER_S: Final = 60.0
"""Seconds of waiting for a worker that does something else, after which it is named, once."""
_LIBRARIES: Final = tuple(
    f"{os.path.realpath(path)}{os.sep}"
    for path in (Path(__file__).parents[1], sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
)
"""Folders of files that are not the script's."""
_log = logging.getLogger("pliant")


class Position(NamedTuple):
    """How far the script of a worker is."""

    epoch: int
    step: int
    """Steps of the training before the one that it is in."""
    left_out: int | None
    """Last step that ended on this worker without a backward pass."""


class WaitPoint(Record):
    """Where a worker waits for the others."""

    generation: NonNegativeInt
    epoch: NonNegativeInt
    step: NonNegativeInt
    left_out: NonNegativeInt | None = None
    place: str
    """File and line of the script."""


class DeadlockWatch:
    """A thread of one worker that compares where the workers wait.

    :param exchange: which call of an exchange the main thread is in; None if it is in none.
    :param position: how far the worker is.
    :param end: ends this worker for the reason given.
    """

    def __init__(
        self,
        context: WorkerContext,
        exchange: Callable[[], tuple[int, int] | None],
        position: Callable[[], Position],
        end: Callable[[str], None],
    ) -> None:
        self._context, self._exchange, self._position, self._end = context, exchange, position, end
        # The workers have met and train; while they meet, or pass a state on, they may wait anywhere.
        self.trains = False
        self._thread: threading.Thread | None = None
        self._place: tuple[object, ...] | None = None
        self._since_s = 0.0
        # What the others can read of this worker.
        self._own: WaitPoint | None = None
        # By rank.
        self._others: list[WaitPoint | None] = []
        self._others_since_s = 0.0
        self._has_warned = False
        # The step that the main thread waits to leave out with the others.
        self._without: tuple[int, int] | None = None

    def begin(self) -> None:
        self.trains = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pliant-deadlock", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(POLL_INTERVAL_S)
            with contextlib.suppress(PliantError, OSError):  # the next look may succeed
                if reason := self.look(time.monotonic()):
                    self._end(reason)
                    return

    def look(self, now_s: float) -> str:
        """Compare, if this worker has waited for a while. Returns why the job is at an end, or nothing."""
        exchange = (self._without or self._exchange()) if self.trains else None
        plan = self._context.plan
        place = None if exchange is None else (plan.generation, *exchange, *self._position())
        if place is None or place != self._place:
            self._place, self._since_s = place, now_s
            self._withdraw()
            return ""
        if now_s - self._since_s < PUBLISH_AFTER_S:
            return ""
        own = self._own or self._publish()
        others = [self._read(worker) for worker in plan.workers if worker != self._context.worker]
        if others != self._others:
            self._others, self._others_since_s = others, now_s
        waiting = [*others[: self._context.rank], own, *others[self._context.rank :]]
        slots = [member.slot for member in plan.members]
        known = [each for each in waiting if each is not None]
        if len(known) == len(waiting):
            return described(known, slots) if now_s - self._others_since_s >= DEADLOCK_AFTER_S else ""
        if now_s - self._since_s >= WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            away = ", ".join(slot for slot, each in zip(slots, waiting, strict=True) if each is None)
            _log.warning(
                "waits at %s since %.0f s for %s, which lives and does something else: "
                "`pliant stack %s` shows what",
                own.place,
                now_s - self._since_s,
                away,
                plan.job,
            )
        return ""

    def await_skip(self, step: int) -> None:
        """Wait until all workers have left out a step, or one is gone; the thread may end the job before."""
        context, asks = self._context, RateLimiter(SERVER_POLL_INTERVAL_S)
        attempt, generation = context.attempt, context.plan.generation
        publish_file(attempt.left_out(context.worker), f"{generation} {step}".encode())
        missing = [worker for worker in context.plan.workers if worker != context.worker]
        self._without = generation, step
        while missing:
            if asks.is_due():
                refresh_folder(attempt.path)
                if any(life(attempt.presence(worker)) == "gone" for worker in missing):
                    break
            missing = [
                worker
                for worker in missing
                if not _has_skipped(read_file(attempt.left_out(worker)), generation, step)
            ]
            pause()
        self._without = None

    def _publish(self) -> WaitPoint:
        position = self._position()
        own = WaitPoint(generation=self._context.plan.generation, place=author_place(), **position._asdict())
        publish_file(self._context.attempt.waits(self._context.worker), own.model_dump_json().encode())
        self._own = own
        return own

    def _withdraw(self) -> None:
        if self._own is not None:
            self._own, self._others = None, []
            self._context.attempt.waits(self._context.worker).unlink(missing_ok=True)

    def _read(self, worker: int) -> WaitPoint | None:
        """Where another worker waits. Returns None if it does not, or under another plan."""
        attempt = self._context.attempt
        refresh_folder(attempt.path)
        text = read_file(attempt.waits(worker))
        try:
            waiting = None if text is None else WaitPoint.model_validate_json(text)
        except ValidationError:
            return None
        return (
            waiting if waiting is not None and waiting.generation == self._context.plan.generation else None
        )


def _has_skipped(text: bytes | None, generation: int, step: int) -> bool:
    """Whether a worker's file says that it has left out this step, or a later one."""
    numbers = [int(word) for word in (text or b"").split()]
    return numbers[:1] == [generation] and numbers[1] >= step


def described(waiting: Sequence[WaitPoint], slots: Sequence[str]) -> str:
    """Why workers that all wait will not go on; empty if they wait at one place, where an exchange is slow.

    :param slots: of the workers, in the same order.
    """
    if len({(each.epoch, each.step, each.place, each.left_out == each.step) for each in waiting}) == 1:
        return ""
    where = ", ".join(
        f"{slot} in epoch {each.epoch}, step {each.step} ({each.place})"
        for slot, each in zip(slots, waiting, strict=True)
    )
    last = max((each.left_out for each in waiting if each.left_out is not None), default=None)
    alone = [slot for slot, each in zip(slots, waiting, strict=True) if each.left_out == last]
    if last is not None and len(alone) < len(slots):
        cause = (
            f"{', '.join(alone)} trained nothing in step {last}: leave a batch out on all workers or on "
            "none, and decide by what is the same on all, as job.mean(loss) is"
        )
    else:
        cause = "all workers must take the same batches and leave their loops at the same step"
    return f"the workers wait for each other at different places: {where}; {cause}"


def author_place() -> str:
    """File and line of the script that the main thread is in; empty if that is not known."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and os.path.realpath(frame.f_code.co_filename).startswith(_LIBRARIES):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
