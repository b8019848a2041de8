"""What stays known about a job's training: events in the attempt's own file, few of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from pliant.schemas.errors import PliantError
from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.state.state import Counters

MOST_WARNINGS: Final = 10
"""Of an attempt; later ones are recorded as rarely as checkpoints."""
_log = logging.getLogger("pliant")


class History:
    """Writes events while this worker is rank 0. A file that cannot be written stops nothing.

    Checkpoints are recorded every ``history_s`` seconds: one event has the time of all since the one before,
    and their ``count``. That of the last checkpoint before leaving is a part of what the leaving costs.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.leaving = False
        self._context = context
        self._batch: int | None = None
        self._writer: EventWriter | None = None
        self._saved: Counters | None = None
        self._saved_s = 0.0
        self._count = 0
        self._checkpoint_due_s = self._warning_due_s = 0.0
        self._warnings = 0
        self._not_finite = set[str]()
        """Columns that the log has a line about."""

    def begin(self, global_batch: int) -> None:
        """Write about a plan from now on."""
        self._batch, attempt = global_batch, self._context.attempt
        if self._writer is not None:
            return
        attempt.path.mkdir(parents=True, exist_ok=True)
        try:
            self._writer = EventWriter(attempt.progress)
        except PliantError as error:
            _log.warning("no progress is reported: %s", error)

    def checkpoint_done(self, counters: Counters, took_s: float) -> None:
        """A checkpoint is safe on disk."""
        if self.leaving:
            self.write("checkpoint", counters, detail={"step": counters.step})
            return
        self._saved, self._saved_s, self._count = counters.copy(), self._saved_s + took_s, self._count + 1
        if time.monotonic() >= self._checkpoint_due_s:
            self.flush()

    def flush(self) -> None:
        """Write about checkpoints that nothing is written about yet."""
        if self._saved is None:
            return
        counters, self._saved = self._saved, None
        detail = {"step": counters.step, "count": self._count}
        self.write("checkpoint", counters, overhead_seconds=self._saved_s, detail=detail)
        self._saved_s, self._count, self._checkpoint_due_s = 0.0, 0, self._later()

    def warn(self, counters: Counters, text: str) -> None:
        """Something went wrong that training goes on after."""
        self._warnings += 1
        if self._warnings <= MOST_WARNINGS or time.monotonic() >= self._warning_due_s:
            self.write("progress", counters, detail={"warning": text})
            self._warning_due_s = self._later()

    def write(
        self,
        name: EventName,
        counters: Counters,
        *,
        detail: Mapping[str, Any] | None = None,
        **numbers: Any,
    ) -> None:
        """Write an event."""
        if self._writer is None:
            return
        known = {name: value for name, value in numbers.items() if value is not None}
        if strange := {name: value for name, value in known.items() if not math.isfinite(value)}:
            numbers |= dict.fromkeys(strange)
            detail = {**(detail or {}), "warning": self._note(strange, counters)}
        event = Event(
            time=time.time(),
            event=name,
            job=self._context.plan.job,
            gpus=self._context.world_size,
            global_batch=self._batch,
            samples_done=float(counters.samples_done),
            detail=detail,
            **numbers,
        )
        try:
            self._writer.append([event])
        except PliantError as error:
            _log.warning("an event is lost: %s", error)

    def _note(self, strange: Mapping[str, float | None], counters: Counters) -> str:
        """What an event says of numbers that it cannot hold; the log says it once."""
        named = ", ".join(f"{column} is {value}" for column, value in strange.items())
        text = f"{named} after step {counters.step}, recorded as null"
        if strange.keys() - self._not_finite:
            self._not_finite |= strange.keys()
            _log.warning("%s; this is said once", text)
        return text

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _later(self) -> float:
        return time.monotonic() + self._context.plan.history_s
