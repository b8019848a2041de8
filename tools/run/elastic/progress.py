"""What rank 0 says about a job while it trains: events in the attempt's own file."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import psutil

from pliant.schemas.errors import PliantError
from pliant.schemas.event import Event, EventName
from pliant.schemas.io import EventWriter
from pliant.tools.run.elastic.setting import Orders
from pliant.tools.run.elastic.state import Counters, Mean

_log = logging.getLogger("pliant")


class Reporter:
    """Writes events at most every ``progress_s`` seconds. A file that cannot be written stops nothing.

    The loss of a ``progress`` event is the mean over rank 0's samples since the last one, that of an
    ``epoch`` event the mean over the epoch on all workers.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._batch: int | None = None
        self._due_s: float | None = None
        self._writer: EventWriter | None = None
        self._loss = Mean()

    def open(self, global_batch: int) -> None:
        """Open the file of the attempt."""
        self._batch = global_batch
        self._orders.attempt.path.mkdir(parents=True, exist_ok=True)
        try:
            self._writer = EventWriter(self._orders.attempt.progress)
        except PliantError as error:
            _log.warning("no progress is reported: %s", error)

    def log(self, loss: Any, samples: int) -> None:
        """Count a loss."""
        self._loss.add(loss, samples)

    def step_done(self, counters: Counters, step_s: float) -> None:
        """An optimizer step is complete; it took ``step_s``."""
        now = time.monotonic()
        if self._due_s is None:
            ready_s = time.time() - psutil.Process().create_time()
            self._progress(counters, {"first_step": True, "ready_s": round(ready_s, 3)}, ready_s - step_s)
        elif now >= self._due_s:
            self._progress(counters)
        else:
            return
        self._due_s = now + self._orders.plan.progress_s

    def last_words(self, counters: Counters) -> None:
        """What is not reported yet, before leaving."""
        if self._loss.samples:
            self._progress(counters)

    def epoch_done(self, counters: Counters, loss: float | None, metric: float | None) -> None:
        """An epoch is complete."""
        self._write("epoch", counters, loss=loss, metric=metric, detail={"epoch": counters.epoch})

    def checkpoint_done(self, counters: Counters, took_s: float) -> None:
        """A checkpoint is safe on disk."""
        self._write("checkpoint", counters, overhead_seconds=took_s, detail={"step": counters.step})

    def warn(self, counters: Counters, text: str) -> None:
        """Something went wrong that training goes on after."""
        _log.warning("%s", text)
        self._write("progress", counters, detail={"warning": text})

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _progress(
        self, counters: Counters, detail: dict[str, Any] | None = None, overhead_s: float | None = None
    ) -> None:
        overhead_s = None if overhead_s is None else max(0.0, overhead_s)
        loss = self._loss.value()
        self._write("progress", counters, loss=loss, overhead_seconds=overhead_s, detail=detail)
        self._loss = Mean()

    def _write(
        self, name: EventName, counters: Counters, *, loss: float | None = None, **columns: Any
    ) -> None:
        if self._writer is None:
            return
        if loss is not None and not math.isfinite(loss):
            _log.warning("the loss is %s after step %d", loss, counters.step)
            loss = None
        event = Event(
            time=time.time(),
            event=name,
            job=self._orders.plan.job,
            gpus=len(self._orders.plan.members),
            global_batch=self._batch,
            samples_done=float(counters.samples_done),
            loss=loss,
            **columns,
        )
        try:
            self._writer.append([event])
        except PliantError as error:
            _log.warning("a progress event is lost: %s", error)
