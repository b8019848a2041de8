"""Breaking off an exchange with a worker that is gone without a word.

The end of a process closes its connections, and gloo notices. A machine that loses its power closes none, nor
does a process that stands still. The others would wait for the limit of an exchange, half an hour, though the
launcher has long written a plan without it. So a thread looks for that plan while the main thread waits.

The thread also ends a worker that the others have gone on without. It comes back from an exchange in most
cases, and leaves by itself. But gloo (PyTorch 2.13) forgets an operation whose first write fails, as it does
where the connection was ended while this process stood still: such an exchange never ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.plan_watch import PlanWatch
from pliant.tools.run.elastic.membership.process_group import ProcessGroup
from pliant.tools.run.statedir.contract.heartbeat import SURE_S, Heartbeats
from pliant.tools.run.statedir.contract.outcome import WorkerOutcome
from pliant.tools.run.statedir.contract.presence import life

LOOK_S: Final = 5.0
_log = logging.getLogger("pliant")


class Lookout:
    """Looks at whether a worker of the plan that is followed is lost.

    :param watch: of this thread alone.
    :param group: its connections are ended, from the thread.
    :param look_s: between two looks. A worker that leaves in good order is gone, too, for a moment before
        the others are through with their last exchange: it is lost if two looks in a row find it so.
    """

    def __init__(
        self, context: WorkerContext, watch: PlanWatch, group: ProcessGroup, look_s: float = LOOK_S
    ) -> None:
        self._context, self._watch, self._group, self._look_s = context, watch, group, look_s
        self._beats = Heartbeats()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Look from now on, if it does not do so yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pliant-lookout", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def lost(self) -> list[str]:
        """Slots of workers that are gone or silent, and that the newest plan goes on without."""
        context, plan = self._context, self._context.plan
        newest = self._watch.newest()
        if newest.generation <= plan.generation:
            return []
        stay = {*newest.workers, context.worker}  # never one's own file: a look would free its lock
        members = zip(plan.workers, plan.members, strict=True)
        slots = {
            str(context.attempt.presence(worker)): member.slot
            for worker, member in members
            if worker not in stay
        }
        self._beats.look(slots, time.monotonic())
        return [slot for path, slot in slots.items() if self._is_gone(path)]

    def _is_gone(self, path: str) -> bool:
        return life(path) == "gone" or self._beats.silence_s(path, SURE_S) >= SURE_S

    def _run(self) -> None:
        before: list[str] = []
        was_overtaken = False
        while not self._over.wait(self._look_s):
            found, overtaken = self.lost(), self._context.is_overtaken()
            if found and found == before:
                _log.debug("breaking off what is exchanged with %s", ", ".join(found))
                self._group.break_off()
            if overtaken and was_overtaken:
                self._leave()
            before, was_overtaken = found, overtaken

    def _leave(self) -> None:
        """End this worker, wherever it is: whatever it does has no use."""
        _log.warning("the job trains on without this worker, which was away: it ends")
        with contextlib.suppress(PliantError, OSError):
            self._context.report_end(WorkerOutcome(outcome="left"))
        os._exit(0)
