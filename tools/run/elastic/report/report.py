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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from torch import nn

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.report.history import History
from pliant.tools.run.elastic.report.memory import memory_held
from pliant.tools.run.elastic.report.noise import NoiseMeter
from pliant.tools.run.elastic.state.state import Counters, Mean
from pliant.tools.run.statedir.contract.plan import ENV_NOISE, Plan
from pliant.tools.run.statedir.contract.progress import LastCheckpoint, Progress, write_progress

_LEAST_STEPS: Final = 3
"""The least number of steps whose mean counts as a measured speed."""
_SMOOTHING: Final = 0.2
"""Weight of the newest step in what a step usually takes."""
_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""Where a process's start, in ticks since the system was booted, stands behind its name in ``stat``."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Change:
    """A change that training went on over."""

    since_s: float
    """Since when no step is trained that counts (monotonic)."""
    usual_step_s: float
    """What a step took before it."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part."""
    lost: bool = False
    """A worker died."""


class Reporter:
    """Reports every ``progress_s`` seconds. A file that cannot be written stops nothing.

    Every worker has one, that of rank 0 writes. The loss of a ``progress`` event is the mean over rank 0's
    samples since the last one, that of an ``epoch`` event the mean over the epoch on all workers. NaN and
    infinities are recorded as null, with a note.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.usual_step_s = 0.0
        """What steps take; 0 before the first one."""
        self._context = context
        self._batch: int | None = None
        self._due_s = self._keep_due_s = 0.0
        self._started = False
        self._change: Change | None = None
        self._history = History(context)
        self._newest = _Newest(context)
        self._reported_at = -1
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

    def look(self, model: nn.Module, counters: Counters) -> None:
        """Measure the noise of the gradients, if that is asked for; a step is complete."""
        if self._noise is not None and self._batch is not None and self._context.rank == 0:
            self._noise.look(model, counters.step, self._batch)

    def step_done(self, counters: Counters, losses: Mean, step_s: float) -> None:
        """An optimizer step is complete; it took ``step_s``."""
        self._loss.include(losses)
        self._newest.loss.include(losses)
        now, weight = time.monotonic(), _SMOOTHING if self.usual_step_s else 1.0
        self.usual_step_s += (step_s - self.usual_step_s) * weight
        plan, change, self._reached = self._context.plan, self._change, counters
        if change is not None:
            self._change = None
            self._progress(counters, *_cost_of(change, plan, now, step_s))
        elif not self._started:
            ready_s = process_age_s()
            self._progress(counters, _first(plan, ready_s), ready_s - step_s)
        else:
            self._steps.add(step_s, 1)
            if now < self._due_s:
                return
            self._newest.measured |= self._measured()
            if now >= self._keep_due_s and self._newest.measured:
                self._progress(counters, self._newest.measured)
                self._keep_due_s = now + plan.history_s
        if change is not None or not self._started:
            self._keep_due_s = now
        self._started = True
        self._due_s = now + plan.progress_s
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
        self._reported_at = counters.step
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
            if self._reached is not None and self._reached.step != self._reported_at:
                self._progress(self._reached)
            self._history.flush()
        self._history.close()

    def _progress(
        self, counters: Counters, detail: Mapping[str, Any] | None = None, overhead_s: float | None = None
    ) -> None:
        overhead_s = None if overhead_s is None else max(0.0, overhead_s)
        self._reported_at = counters.step
        self._history.write(
            "progress", counters, loss=self._loss.value(), overhead_seconds=overhead_s, detail=detail
        )
        self._loss = Mean()


class _Newest:
    """What was measured last, for the job's small file. Where that cannot be written, it warns once."""

    def __init__(self, context: WorkerContext) -> None:
        self.warnings = 0
        self.loss = Mean()
        """Since the last report."""
        self.measured: dict[str, float] = {}
        """``step_seconds`` and ``noise_scale`` under this plan, where they are known."""
        self._context = context
        self._batch = 0
        self._before: tuple[float, int] | None = None
        self._checkpoint: tuple[float, Counters, float] | None = None
        self._failed = False

    def begin(self, global_batch: int) -> None:
        """Measure under another plan."""
        self._batch, self.measured, self._before = global_batch, {}, None

    def checkpoint_done(self, counters: Counters, took_s: float) -> None:
        """A checkpoint is safe on disk."""
        self._checkpoint = (time.monotonic(), counters.copy(), took_s)

    def write(self, counters: Counters) -> None:
        """Replace the file, if this is rank 0."""
        loss, self.loss = self.loss.value(), Mean()
        path = self._context.folder.progress
        if self._context.rank != 0:
            return
        try:
            write_progress(path, self._report(counters, loss))
        except (OSError, ValueError) as error:
            if not self._failed:
                _log.warning("%s is not up to date: %s", path, error)
            self._failed = True
        else:
            self._failed = False

    def _report(self, counters: Counters, loss: float | None) -> Progress:
        now, plan = time.monotonic(), self._context.plan
        return Progress(
            job=plan.job,
            attempt=plan.attempt,
            generation=plan.generation,
            gpus=len(plan.members),
            global_batch=self._batch,
            step=counters.step,
            epoch=counters.epoch,
            samples_done=float(counters.samples_done),
            loss=loss if loss is not None and math.isfinite(loss) else None,
            samples_per_second=self._speed(counters, now),
            step_seconds=self.measured.get("step_seconds"),
            noise_scale=self.measured.get("noise_scale"),
            checkpoint=self._last_checkpoint(now),
            memory=memory_held(),
            warnings=self.warnings,
        )

    def _speed(self, counters: Counters, now_s: float) -> float | None:
        before, self._before = self._before, (now_s, counters.samples_done)
        if before is None or now_s <= before[0]:
            return None
        return max(0.0, (counters.samples_done - before[1]) / (now_s - before[0]))

    def _last_checkpoint(self, now_s: float) -> LastCheckpoint | None:
        if self._checkpoint is None:
            return None
        at_s, counters, took_s = self._checkpoint
        return LastCheckpoint(
            step=counters.step,
            samples_done=float(counters.samples_done),
            seconds=took_s,
            age_s=now_s - at_s,
        )


def process_age_s(pid: int | None = None) -> float:
    """Seconds since a process was started, this one without a pid.

    By the clock in which the kernel keeps starts, to a tick (10 ms): as a time of day they are up to a second
    off, since the kernel tells the time of its boot in whole seconds, and a clock that is set moves them.

    :raises psutil.NoSuchProcess: it is gone.
    """
    pid = os.getpid() if pid is None else pid
    if not hasattr(time, "CLOCK_BOOTTIME") or not _PROC.joinpath("self", "stat").exists():
        return time.time() - psutil.Process(pid).create_time()
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    ticks = int(text.rpartition(")")[2].split()[_START_TICKS])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _first(plan: Plan, ready_s: float) -> dict[str, Any]:
    """The detail of the first step of an attempt."""
    detail = {"first_step": True, "ready_s": round(ready_s, 3), "generation": plan.generation}
    return {**detail, "mechanism": "relaunched", "reason": plan.reason} if plan.reason else detail


def _cost_of(change: Change, plan: Plan, now_s: float, step_s: float) -> tuple[dict[str, Any], float]:
    """The detail of the first step after a change, and what it cost: all time beyond that of a usual step.

    At least the parts before the step: fewer workers may make the step itself shorter than usual.
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
