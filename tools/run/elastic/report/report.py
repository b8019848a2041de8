"""What rank 0 says about a job while it trains: the newest in one small file, and history as events.

The file (:class:`Progress`) is replaced every ``progress_s`` seconds of the plan. The events go to the
attempt's own file. The first step of an attempt, and the first one after each change of its workers or of its
batch, is recorded by a ``progress`` event. Its detail names the ``generation`` that trains; after a change
while training went on also ``mechanism`` ("in place"), ``parts`` (seconds of each part of the stall) and,
where a worker died, ``lost``; in an attempt that replaces another one ``mechanism`` ("relaunched") and the
``reason``. The first measurement after it follows as soon as there is one, later ones every ``history_s``
seconds: ``step_seconds``, a mean, and where the batch may move the ``noise_scale``.
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

from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.report.history import History
from pliant.tools.run.elastic.report.newest import Newest
from pliant.tools.run.elastic.report.noise import NoiseMeter
from pliant.tools.run.elastic.state.state import Counters, Mean
from pliant.tools.run.statedir.contract.plan import ENV_NOISE, Plan

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
    """Reports every ``progress_s`` seconds. A file that cannot be written stops nothing.

    Every worker has one, that of rank 0 writes. The loss of a ``progress`` event is the mean over rank 0's
    samples since the last one, that of an ``epoch`` event the mean over the epoch on all workers. NaN and
    infinities are recorded as null, with a note.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch: int | None = None
        self._due_s = self._keep_due_s = 0.0
        self._started = False
        self._change: Change | None = None
        self._history = History(context)
        self._newest = Newest(context)
        self._told_at = -1
        self._reached: Counters | None = None
        self._loss = Mean()
        self._steps = Mean()
        self._noise = NoiseMeter() if ENV_NOISE in os.environ else None

    def turn_to(self, global_batch: int, change: Change | None = None) -> None:
        """Report about the plan that is followed now."""
        self._batch, self._change, self._steps = global_batch, change, Mean()
        if self._noise is not None:
            self._noise.forget()
        if self._context.rank != 0:
            self.close()
            return
        self._newest.begin(global_batch)
        self._history.begin(global_batch)

    def log(self, losses: Mean) -> None:
        """Count the losses of a step."""
        self._loss.include(losses)
        self._newest.log(losses)

    def look(self, model: nn.Module, counters: Counters) -> None:
        """Measure the noise of the gradients, if that is asked for; a step is complete."""
        if self._noise is not None and self._batch is not None and self._context.rank == 0:
            self._noise.look(model, counters.step, self._batch)

    def step_done(self, counters: Counters, step_s: float) -> None:
        """An optimizer step is complete; it took ``step_s``."""
        now = time.monotonic()
        orders, change, self._reached = self._context.orders, self._change, counters
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
            self._newest.take(self._measured())
            if now >= self._keep_due_s and self._newest.measured:
                self._progress(counters, self._newest.measured)
                self._keep_due_s = now + orders.plan.history_s
        if change is not None or not self._started:
            self._keep_due_s = now
        self._started = True
        self._due_s = now + orders.plan.progress_s
        self._newest.write(counters)

    def _measured(self) -> dict[str, float]:
        """The speed since the last measurement, and the noise; those of a few steps say little."""
        found: dict[str, float | None] = {"step_seconds": None, "noise_scale": None}
        if self._steps.samples >= _LEAST_STEPS:
            found["step_seconds"], self._steps = self._steps.value(), Mean()
        if self._noise is not None:
            found["noise_scale"] = self._noise.noise_scale
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}

    def last_words(self, counters: Counters) -> None:
        """What is not reported yet, before leaving; checkpoints after this are part of the leaving."""
        if self._loss.samples:
            self._progress(counters)
        self._history.flush()
        self._history.leaving = True

    def before_change(self) -> None:
        """Say what another worker, rank 0 by then, could not; all have yet to agree on the loss."""
        if self._context.rank == 0:
            self._history.flush()

    def epoch_done(self, counters: Counters, loss: float | None, metric: float | None) -> None:
        """An epoch is complete."""
        self._told_at = counters.step
        self._history.write("epoch", counters, loss=loss, metric=metric, detail={"epoch": counters.epoch})

    def checkpoint_done(self, counters: Counters, took_s: float) -> None:
        """A checkpoint is safe on disk."""
        self._newest.checkpoint_done(counters, took_s)
        self._history.checkpoint_done(counters, took_s)

    def warn(self, counters: Counters, text: str) -> None:
        """Something went wrong that training goes on after."""
        _log.warning("%s", text)
        self._newest.warnings += 1
        self._history.warn(counters, text)

    def close(self) -> None:
        """Say what is not said yet, where this is still rank 0, and close the file.

        One worker writes at a time: that which the others go on without is silent.
        """
        if self._context.rank == 0:
            if self._reached is not None and self._reached.step != self._told_at:
                self._progress(self._reached)
            self._history.flush()
        self._history.close()

    def _progress(
        self, counters: Counters, detail: Mapping[str, Any] | None = None, overhead_s: float | None = None
    ) -> None:
        overhead_s = None if overhead_s is None else max(0.0, overhead_s)
        self._told_at = counters.step
        self._history.write(
            "progress", counters, loss=self._loss.value(), overhead_seconds=overhead_s, detail=detail
        )
        self._loss = Mean()


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
