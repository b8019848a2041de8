"""What rank 0 says about a job while it trains: events in the attempt's own file.

The first step of an attempt, and the first one after each change of its workers or of its batch, is told by
a ``progress`` event. Its detail names the ``generation`` that trains; after a change while training went on
also ``mechanism`` ("in place"), ``parts`` (seconds of each part of the stall) and, where a worker died,
``lost``; in an attempt that replaces another one ``mechanism`` ("relaunched") and the ``reason``. Later ones
bring ``step_seconds``, the mean since the one before, and where the batch may move the ``noise_scale``.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psutil
from torch import nn

from pliant.schemas.errors import PliantError
from pliant.schemas.event import Event, EventName
from pliant.schemas.io import EventWriter
from pliant.tools.run.elastic.noise import NoiseMeter
from pliant.tools.run.elastic.setting import Setting
from pliant.tools.run.elastic.state import Counters, Mean
from pliant.tools.run.plan import ENV_NOISE, Plan

_LEAST_STEPS: Final = 3
"""So many steps are averaged, at least, before they count as a measured speed."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Change:
    """A change that training went on over."""

    since_s: float
    """Since when no step is trained that counts (monotonic)."""
    usual_step_s: float
    """What a step took before it."""
    parts: Mapping[str, float] = field(default_factory=dict)
    lost: bool = False
    """A worker died."""

    def timed(self, part: str, began_s: float, ended_s: float | None = None) -> Change:
        """The same, with the time of a part added; without an end, it ends now."""
        took_s = (time.monotonic() if ended_s is None else ended_s) - began_s
        return replace(self, parts={**self.parts, part: self.parts.get(part, 0.0) + took_s})


class Reporter:
    """Writes events at most every ``progress_s`` seconds. A file that cannot be written stops nothing.

    Every worker has one, that of rank 0 writes. The loss of a ``progress`` event is the mean over rank 0's
    samples since the last one, that of an ``epoch`` event the mean over the epoch on all workers. NaN and
    infinities are recorded as null, with a note.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._batch: int | None = None
        self._due_s = 0.0
        self._started = False
        self._change: Change | None = None
        self._writer: EventWriter | None = None
        self._loss = Mean()
        self._steps = Mean()
        self._noise = NoiseMeter() if ENV_NOISE in os.environ else None
        self._not_finite = set[str]()
        """Columns that the log has a line about."""

    def turn_to(self, global_batch: int, change: Change | None = None) -> None:
        """Report about the plan that is followed now."""
        self._batch, self._change, self._steps = global_batch, change, Mean()
        if self._noise is not None:
            self._noise.forget()
        if self._setting.rank != 0:
            self.close()
        elif self._writer is None and self._setting.orders is not None:
            attempt = self._setting.orders.attempt
            attempt.path.mkdir(parents=True, exist_ok=True)
            try:
                self._writer = EventWriter(attempt.progress)
            except PliantError as error:
                _log.warning("no progress is reported: %s", error)

    def log(self, losses: Mean) -> None:
        """Count the losses of a step."""
        self._loss.include(losses)

    def look(self, model: nn.Module, counters: Counters) -> None:
        """Measure the noise of the gradients, if that is asked for; a step is complete."""
        if self._noise is not None and self._batch is not None and self._setting.rank == 0:
            self._noise.look(model, counters.step, self._batch)

    def step_done(self, counters: Counters, step_s: float) -> None:
        """An optimizer step is complete; it took ``step_s``."""
        now = time.monotonic()
        orders, change = self._setting.orders, self._change
        if orders is None:
            return
        if change is not None:
            self._change = None
            self._progress(counters, *_told(change, orders.plan, now, step_s))
        elif not self._started:
            ready_s = time.time() - psutil.Process().create_time()
            self._progress(counters, _first(orders.plan, ready_s), ready_s - step_s)
        else:
            self._steps.add(step_s, 1)
            if now < self._due_s:
                return
            self._progress(counters, self._measured())
        self._started = True
        self._due_s = now + orders.plan.progress_s

    def _measured(self) -> dict[str, Any]:
        """The speed since the last report, and the noise; those of a few steps say little."""
        steps, self._steps = self._steps, Mean()
        noise_scale = None if self._noise is None else self._noise.noise_scale
        found = {
            "step_seconds": steps.value() if steps.samples >= _LEAST_STEPS else None,
            "noise_scale": noise_scale,
        }
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}

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
        self,
        name: EventName,
        counters: Counters,
        *,
        detail: dict[str, Any] | None = None,
        **numbers: Any,
    ) -> None:
        orders = self._setting.orders
        if self._writer is None or orders is None:
            return
        if strange := {name: value for name, value in numbers.items() if not _is_finite(value)}:
            numbers |= dict.fromkeys(strange)
            detail = {**(detail or {}), "warning": self._note(strange, counters)}
        event = Event(
            time=time.time(),
            event=name,
            job=orders.plan.job,
            gpus=len(orders.plan.members),
            global_batch=self._batch,
            samples_done=float(counters.samples_done),
            detail=detail,
            **numbers,
        )
        try:
            self._writer.append([event])
        except PliantError as error:
            _log.warning("a progress event is lost: %s", error)

    def _note(self, strange: Mapping[str, float | None], counters: Counters) -> str:
        """What an event says of numbers that it cannot hold; the log says it once."""
        told = ", ".join(f"{column} is {value}" for column, value in strange.items())
        text = f"{told} after step {counters.step}, recorded as null"
        if strange.keys() - self._not_finite:
            self._not_finite |= strange.keys()
            _log.warning("%s; this is said once", text)
        return text


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _first(plan: Plan, ready_s: float) -> dict[str, Any]:
    """The detail of the first step of an attempt."""
    detail = {"first_step": True, "ready_s": round(ready_s, 3), "generation": plan.generation}
    return {**detail, "mechanism": "relaunched", "reason": plan.reason} if plan.reason else detail


def _told(change: Change, plan: Plan, now_s: float, step_s: float) -> tuple[dict[str, Any], float]:
    """The detail of the first step after a change, and what it cost: all time beyond that of a usual step.

    At least the parts before the step: fewer workers may make it shorter than usual, which is no gain of it.
    """
    parts = {name: round(seconds, 4) for name, seconds in change.parts.items()}
    detail = {
        "mechanism": "in place",
        "generation": plan.generation,
        "parts": {**parts, "first_step": round(step_s, 4), "usual_step": round(change.usual_step_s, 4)},
    }
    if change.lost:
        detail["lost"] = True
    beyond_s = now_s - change.since_s - change.usual_step_s
    return detail, max(beyond_s, math.fsum(change.parts.values()))
