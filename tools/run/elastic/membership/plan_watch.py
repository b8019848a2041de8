"""News for a worker: the plans of its job, requests to stop, and whether the others have ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.elastic.context import WorkerContext, read_plan
from pliant.tools.run.statedir.contract.files import (
    UnreadableError,
    ask_server,
    is_there,
    look_again,
    read_record,
)
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import life

_POLL_S: Final = 0.01
_LOOK_S: Final = 0.25
"""Between two looks at whether the others have ended: a file of each of them."""
_ASK_S: Final = 0.1
"""Between two questions to the server whether another plan has taken the place of the one that is known."""
_ASK_FOR_OTHERS_S: Final = 1.0
"""And whether workers that a plan adds have come: training goes on meanwhile."""
_log = logging.getLogger("pliant")


class NotNeededError(Exception):
    """The others have trained to the end without this worker."""


class StopAskedError(Exception):
    """The job, or this worker, is asked to stop."""


class StopSignal:
    """SIGTERM as a request that the next step boundary answers."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True


class Pace:
    """Lets a look at files go ahead only so often, however often it is asked for."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s, self._again_s = pause_s, 0.0

    def is_due(self) -> bool:
        """Whether that much time has gone by since it last said so."""
        now = time.monotonic()
        if now < self._again_s:
            return False
        self._again_s = now + self._pause_s
        return True


class PlanWatch:
    """The newest plan of a job, looked up so cheaply that every step can do it (one ``stat``, mostly)."""

    def __init__(self, context: WorkerContext, stop: StopSignal | None = None) -> None:
        self._context, self._stop = context, stop
        self._path = context.folder.plan
        self._plan = self._in_force = context.plan
        self._looks, self._looks_at_ends = Pace(_POLL_S), Pace(_LOOK_S)
        self._asks, self._asks_for_others = Pace(_ASK_S), Pace(_ASK_FOR_OTHERS_S)
        self._mark = (0, 0, 0)

    @property
    def stop_asked(self) -> bool:
        """Whether a signal or the newest plan asks this worker to stop."""
        return (self._stop is not None and self._stop.received) or self.newest().abort

    def check_needed(self, *, fresh: bool) -> None:
        """Look whether this worker shall go on waiting for the others.

        :param fresh: it has no state yet, and may be too late.
        :raises NotNeededError: the others have trained to the end.
        :raises StopAskedError: it is asked to stop.
        """
        if fresh and self._looks_at_ends.is_due() and self._context.is_done():
            raise NotNeededError
        if self.stop_asked:
            raise StopAskedError

    def newest(self) -> Plan:
        """The newest plan seen. A file that is away or cannot be understood changes nothing."""
        found = look_again(self._path) if self._asks.is_due() else _look(self._path)
        if found is None:
            return self._plan
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark != self._mark and self._read():
            self._mark = mark
        return self._plan

    def in_force(self) -> Plan:
        """The newest plan whose workers are all ready, or that asks to stop; at least the one followed.

        Workers that train together, or are starting together, are ready beyond doubt.
        """
        plan = self.newest()
        if self._in_force.generation < self._context.plan.generation:
            self._in_force = self._context.plan
        if plan.generation > self._in_force.generation and self._looks.is_due():
            self._in_force = self._newest_ready(plan)
        return self._in_force

    def exactly(self, generation: int, timeout_s: float) -> Plan:
        """The plan of that generation, which another worker has seen already.

        :raises ServiceMissingError: it did not appear in time.
        """
        path = self._context.folder.attempt(self._plan.attempt).plan(generation)
        deadline = time.monotonic() + timeout_s
        while not is_there(path):
            if self._asks.is_due():
                ask_server(path.parent)
            if time.monotonic() > deadline:
                raise ServiceMissingError(
                    f"{path} was announced by another worker but is not here after {timeout_s:g} s: "
                    "is the folder shared by all nodes?"
                )
            time.sleep(_POLL_S)
        return read_plan(path)

    def _newest_ready(self, plan: Plan) -> Plan:
        attempt, known = self._context.folder.attempt(plan.attempt), self._context.known
        if self._asks_for_others.is_due():
            ask_server(attempt.path)
        for generation in range(plan.generation, self._in_force.generation, -1):
            try:
                found = read_plan(attempt.plan(generation))
            except (BadInputError, UnreadableError):
                continue
            others = [worker for worker in found.workers if worker not in known]
            if found.abort or all(life(attempt.presence(worker)) == "alive" for worker in others):
                return found
        return self._in_force

    def _read(self) -> bool:
        """Whether all was learnt from the file that there is to learn from it."""
        try:
            plan = read_record(self._path, "plan", Plan, tries=1)
        except UnreadableError:
            return False
        except BadInputError as error:
            _log.warning("training goes on under generation %d: %s", self._plan.generation, error)
            return True
        if plan is not None and plan.generation > self._plan.generation:
            self._plan = plan
        return True


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
