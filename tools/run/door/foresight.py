"""What would become of jobs, for accounts that ask: computed by processes of their own, a few at a time.

The run is replayed on by code of the command line, which imports both it and the replay; the door may not,
so it starts that as a process. It is root's, and looks at all jobs; it leaves out of its answer what the
account may not see, and ends by itself after some seconds of the processor.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError, InfeasibleError, LockedError, PliantError, UsageError
from pliant.tools.run.door.protocol import Foresee, error_of
from pliant.tools.run.door.roles import Person

AT_ONCE: Final = 2
"""Questions of all accounts that are computed at one time."""
WITHIN_S: Final = 40.0
"""An answer is there within this time, or is given up; clients wait a little longer."""
CPU_S: Final = 30
"""Seconds of the processor for one."""
MEMORY_BYTES: Final = 4 << 30
"""Of one."""
ASKED: Final = ("-P", "-m", "pliant.cli.ahead")
"""A question on stdin; on stdout a line of how it ended, with ``cpu_s``, then the answer."""
_SAID: Final = frozenset({UsageError.exit_code, BadInputError.exit_code, InfeasibleError.exit_code})
"""Errors that are about the question. Others may be about jobs that the account does not see."""
_log = logging.getLogger("pliant")


class Foresight:
    """Asks for predictions in one state directory; may be used by several threads at a time."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        """By account: one question at a time."""
        self._spent: Counter[int] = Counter()
        """Milliseconds of the processor by account that are not charged yet."""
        self._lock = threading.Lock()
        """Of what was spent."""

    def of(self, request: Foresee, who: Person, seen: Collection[str], own: Collection[str]) -> bytes:
        """The answer, as JSON, about the jobs that the account sees.

        :param own: the jobs of which it may know everything.
        :raises PliantError: the question makes no sense, or is not answered in time.
        """
        question = {"question": request.model_dump(mode="json"), "seen": [*seen], "own": [*own]}
        until_s = time.monotonic() + WITHIN_S
        with self._turn(who, until_s):
            head, answer = self._ask(json.dumps(question).encode(), until_s - time.monotonic())
            with self._lock:
                self._spent[who.uid] += round(1000 * float(head.get("cpu_s", CPU_S)))
        if head.get("ok") is True:
            return answer
        error = error_of(head)
        if error.exit_code in _SAID:
            raise error
        _log.warning("door: a prediction for %s was not made: %s", who.account, error)
        raise PliantError("no prediction was made; the messages of the run say why")

    def spent_s(self, uid: int) -> float:
        """Seconds of the processor since the last call."""
        with self._lock:
            return self._spent.pop(uid, 0) / 1000

    @contextmanager
    def _turn(self, who: Person, until_s: float) -> Iterator[None]:
        """:raises LockedError: others are at it."""
        with _taken(self._turns[who.uid], until_s), _taken(self._places, until_s):
            yield

    def _ask(self, question: bytes, within_s: float) -> tuple[dict[str, Any], bytes]:
        argv = [sys.executable, *ASKED, str(self._state)]
        try:
            done = subprocess.run(
                argv, input=question, capture_output=True, timeout=max(within_s, 0.1), cwd="/", check=False
            )
        except subprocess.TimeoutExpired:
            return {"exit": LockedError.exit_code, "error": f"no answer within {WITHIN_S:g} s"}, b""
        if done.returncode == -signal.SIGXCPU:
            text = f"no answer within {CPU_S} s of the processor: too many jobs for this policy"
            return {"exit": InfeasibleError.exit_code, "error": text}, b""
        head, _, answer = done.stdout.partition(b"\n")
        try:
            return dict(json.loads(head)), answer
        except ValueError:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return {"exit": 1, "error": f"its process ended with code {done.returncode}: {last}"}, b""


@contextmanager
def _taken(lock: threading.Lock | threading.BoundedSemaphore, until_s: float) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, until_s - time.monotonic())):
        raise LockedError("other predictions are being made: try again in a moment")
    try:
        yield
    finally:
        lock.release()
