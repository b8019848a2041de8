"""Where a worker is, for ``pliant stack``: its Python stacks, even while it hangs.

A thread looks for questions. It sees the stacks of all threads whether they wait in a collective operation,
sleep or compute. Only a call into C that keeps the interpreter to itself holds up that thread, too. So it
winds up the watchdog of ``faulthandler`` again and again, which needs no interpreter: if it is not wound up
in time, it writes the stacks. It takes the place of a script's own ``faulthandler.dump_traceback_later``.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from itertools import islice
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.stacks import (
    MOST_FRAMES,
    OWN_THREADS,
    Frame,
    StackAnswer,
    ThreadStack,
    answer,
    open_dump,
    question,
)

POLL_INTERVAL_S: Final = 1.0
HELD_UP_AFTER_S: Final = 12.0
"""Seconds after which a held-up interpreter has its stacks written: before its worker counts as silent."""
_log = logging.getLogger("pliant")


class StackWatch:
    """Answers questions about one worker while its process lives.

    :param held_s: how long its interpreter may be held up.
    """

    def __init__(self, attempt: AttemptDir, worker: int, held_s: float = HELD_UP_AFTER_S) -> None:
        self._attempt, self._worker, self._held_s = attempt, worker, held_s
        self._dump = -1
        self._wind_up_s = float("-inf")
        self._answered = ""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Training goes on without it where the file cannot be made."""
        try:
            self._attempt.path.mkdir(parents=True, exist_ok=True)
            self._dump = open_dump(self._attempt.held_stack(self._worker))
        except OSError as error:
            _log.warning("pliant stack will not show this worker: %s", error)
            return
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )
        threading.Thread(target=self._look, name=f"{OWN_THREADS}stacks", daemon=True).start()

    def _look(self) -> None:
        while True:
            if time.monotonic() >= self._wind_up_s:
                self._wind_up()
            asked = question(self._attempt)
            if asked and asked != self._answered:
                self._answered = asked
                try:
                    answer(self._attempt, self._worker, StackAnswer(question=asked, threads=stacks()))
                except (PliantError, OSError) as error:
                    _log.debug("no stacks are shown: %s", error)
            time.sleep(min(POLL_INTERVAL_S, self._held_s / 4))

    def _before_fork(self) -> None:
        """A process that is forked while the watchdog runs would wait for it at its end, in vain."""
        self._lock.acquire()
        faulthandler.cancel_dump_traceback_later()
        self._wind_up_s = float("-inf")

    def _wind_up(self) -> None:
        with self._lock:
            self._wind_up_s = time.monotonic() + self._held_s / 4
            faulthandler.dump_traceback_later(self._held_s, file=self._dump)
        if os.fstat(self._dump).st_size:  # it was held up, and goes on
            os.ftruncate(self._dump, 0)


def stacks() -> tuple[ThreadStack, ...]:
    """The stacks of this process, without the library's threads; the main thread first."""
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        (ident != main, names.get(ident, "not made by Python"), frame)
        for ident, frame in sys._current_frames().items()
        if not names.get(ident, "").startswith(OWN_THREADS)
    ]
    return tuple(
        ThreadStack(
            name=name,
            frames=tuple(
                Frame(at.f_code.co_filename, line, at.f_code.co_qualname)
                for at, line in islice(traceback.walk_stack(frame), MOST_FRAMES)
            ),
        )
        for _, name, frame in sorted(threads, key=lambda each: each[:2])
    )
