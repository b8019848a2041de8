"""What rank 0 reports about a job while it trains: the newest in one small file, and a history of events.

:class:`Reporter` writes both. The file (:class:`Progress`) is replaced every ``progress_s`` seconds of the
plan. The events are few and go to the attempt's own file (:class:`EventHistory`). A ``progress`` event
records the first step of an attempt, and the first step after each change of its workers or its batch. Its
detail names the ``generation`` that trains. After a change in place it also has ``mechanism`` ("in place"),
``parts`` (seconds of each part of the stall) and, if a worker died, ``lost``; in an attempt that replaces
another one, ``mechanism`` ("relaunched") and the ``reason``. The mean ``step_seconds`` and, where the batch
may change, the ``noise_scale`` (:class:`NoiseMeter`) follow as soon as each is known, then every
``history_s`` seconds.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import nn

from pliant.schemas.errors import PliantError
from pliant.schemas.events import Checkpointed, EpochEnded, Progressed, Trained, row_of
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.state.checkpoint import Saved
from pliant.tools.run.elastic.state.training import Mean, TrainingCounters
from pliant.tools.run.statedir.contract.plan import ENV_NOISE, LastCheckpoint, Plan, Progress, write_progress

MAX_WARNINGS: Final = 10
"""Warnings of an attempt; later ones are recorded as rarely as checkpoints."""
NOISE_INTERVAL_STEPS: Final = 10
"""Steps from one measured pair of gradients to the next."""
MAX_NOISE_SAMPLES: Final = 1 << 20
"""Gradients that the noise is measured from, about: more would hardly make it more certain."""
_SPREAD: Final = 2654435761
"""Large prime, whose multiples are spread over all remainders."""
_NOISE_SMOOTHING: Final = 0.1
_LEAST_STEPS: Final = 3
"""Fewest steps whose mean counts as a measured speed."""
_STEP_SMOOTHING: Final = 0.2
"""Weight of the newest step in the usual step time."""
_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""Field of ``stat``, after the process's name, that holds its start in ticks since boot."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A change of the workers or the batch while training goes on."""

    since_s: float
    """Time at which the last step that counts was over (monotonic)."""
    usual_step_s: float
    """Seconds of a step before the change."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part."""
    lost: bool = False
    """Whether a worker died."""


class Reporter:
    """Reports every ``progress_s`` seconds. A file that cannot be written stops nothing.

    Every worker has one; rank 0's writes. The loss of a ``progress`` event is the mean over the samples of
    all workers up to their last vote, since the one before; that of an ``epoch`` event the mean over the
    epoch. NaN and infinities are recorded as null, with a note.
    """

    def __init__(self, context: WorkerContext) -> None:
        # Smoothed seconds of a step; 0 before the first one.
        self.usual_step_s = 0.0
        # The same without what this worker waits for others; 0 if that is not known.
        self.own_step_s = 0.0
        self._context = context
        self._batch: int | None = None
        self._due_s = self._keep_due_s = 0.0
        self._started = False
        self._change: WorkerChange | None = None
        self._history = EventHistory(context)
        self._newest = _Newest(context)
        self._reported_at = -1
        self._reached: TrainingCounters | None = None
        self._loss = Mean()
        self._steps = Mean()
        self._noise = NoiseMeter() if ENV_NOISE in os.environ else None
        # What the log has since the last change; the first of its kind does not wait for `history_s`.
        self._kept: set[str] = set()

    def begin_generation(self, global_batch: int, change: WorkerChange | None = None) -> None:
        self._batch, self._change, self._steps, self.own_step_s = global_batch, change, Mean(), 0.0
        self._kept.clear()
        if self._noise is not None:
            self._noise.forget()
        if self._context.rank != 0:
            self.close()
            if self._context.tracking is not None:
                self._context.tracking.close()
            return
        self._newest.begin(global_batch)
        self._history.begin(global_batch)

    def measure_noise(self, model: nn.Module, counters: TrainingCounters) -> None:
        """Measure the noise of a complete step's gradients, if that is asked for."""
        if self._noise is not None and self._batch is not None and self._context.rank == 0:
            self._noise.look(model, counters.step, self._batch)

    def own_step(self, own_s: float) -> None:
        """Of the step that ends, this worker needed so long without waiting for others."""
        weight = _STEP_SMOOTHING if self.own_step_s else 1.0
        self.own_step_s += (max(0.0, own_s) - self.own_step_s) * weight

    def workers_needed(self, own_s: list[float]) -> None:
        """By rank, how long the workers need for a step without waiting for others; 0 if not known."""
        self._newest.own_s = tuple(own_s) if all(own_s) else None

    def add_losses(self, losses: Mean) -> None:
        """Those of all workers, since the last time."""
        self._loss.include(losses)
        self._newest.loss.include(losses)
        if self._context.tracking is not None:
            self._context.tracking.add_losses(losses)

    def step_done(self, counters: TrainingCounters, losses: Mean, step_s: float) -> None:
        self.add_losses(losses)
        if self._context.tracking is not None:
            self._context.tracking.step_done(counters.samples_done)
        now, weight = time.monotonic(), _STEP_SMOOTHING if self.usual_step_s else 1.0
        self.usual_step_s += (step_s - self.usual_step_s) * weight
        plan, change, self._reached = self._context.plan, self._change, counters
        if change is not None:
            self._change = None
            self._progress(counters, _change_done(change, plan, now, step_s))
        elif not self._started:
            ready_s = process_age_s()
            self._progress(counters, _first(plan, ready_s, ready_s - step_s))
        else:
            self._steps.add(step_s, 1)
            if now < self._due_s:
                return
            measured = self._newest.measured
            measured |= self._measured()
            if measured and (now >= self._keep_due_s or measured.keys() - self._kept):
                speed_s, noise = measured.get("step_seconds"), measured.get("noise_scale")
                self._progress(counters, Progressed(time.time(), step_seconds=speed_s, noise_scale=noise))
                self._keep_due_s = now + plan.history_s
                self._kept |= measured.keys()
        if change is not None or not self._started:
            self._keep_due_s = now
        self._started = True
        self._due_s = now + plan.progress_s
        self._newest.write(counters)

    def _measured(self) -> dict[str, float]:
        """The speed since the last measurement, and the noise; too few steps give no speed."""
        measured: dict[str, float | None] = {"step_seconds": None, "noise_scale": None}
        if self._steps.samples >= _LEAST_STEPS:
            measured["step_seconds"], self._steps = self._steps.value(), Mean()
        if self._noise is not None:
            measured["noise_scale"] = self._noise.noise_scale
        return {name: value for name, value in measured.items() if value is not None and math.isfinite(value)}

    def report_stop(self, counters: TrainingCounters) -> None:
        if self._loss.samples:
            self._progress(counters)
        self._history.flush()
        self._history.leaving = True

    def before_change(self) -> None:
        """Write what another worker, rank 0 after the change, could not."""
        if self._context.rank == 0:
            self._history.flush()

    def epoch_done(self, counters: TrainingCounters, loss: float | None, metric: float | None) -> None:
        self._reported_at = counters.step
        event = EpochEnded(time.time(), loss=loss, metric=metric, epoch=counters.epoch)
        self._history.write(event, counters)

    def checkpoint_ended(self, saved: Saved) -> None:
        """Training goes on whatever became of it."""
        if saved.problem:
            self.warn(saved.counters, saved.problem)
        else:
            self._newest.checkpoint_done(saved.counters, saved.took_s)
            self._history.checkpoint_done(saved.counters, saved.stall_s)

    def measured(self, counters: TrainingCounters, metric: float) -> None:
        """A metric of a script that evaluates between steps."""
        if self._context.rank == 0:
            self._history.write(Progressed(time.time(), metric=metric, step=counters.step), counters)

    def warn(self, counters: TrainingCounters, text: str) -> None:
        _log.warning("%s", text)
        self._newest.warnings += 1
        self._history.warn(counters, text)

    def flush(self) -> None:
        """Report the rest, if this is still rank 0: one worker writes at a time."""
        if self._context.rank == 0:
            if self._reached is not None and self._reached.step != self._reported_at:
                self._progress(self._reached)
            self._history.flush()

    def close(self) -> None:
        self.flush()
        self._history.close()

    def _progress(self, counters: TrainingCounters, event: Progressed | None = None) -> None:
        self._reported_at = counters.step
        event = Progressed(time.time()) if event is None else event
        self._history.write(replace(event, loss=self._loss.value()), counters)
        self._loss = Mean()


class _Newest:
    """The newest measurements, for the job's small file. If that cannot be written, it warns once."""

    def __init__(self, context: WorkerContext) -> None:
        self.warnings = 0
        # Since the last report.
        self.loss = Mean()
        self.own_s: tuple[float, ...] | None = None
        # `step_seconds` and `noise_scale` under this plan, as far as known.
        self.measured: dict[str, float] = {}
        self._context = context
        self._batch = 0
        self._before: tuple[float, int] | None = None
        self._checkpoint: tuple[float, TrainingCounters, float] | None = None
        self._failed = False

    def begin(self, global_batch: int) -> None:
        self._batch, self.measured, self._before, self.own_s = global_batch, {}, None, None

    def checkpoint_done(self, counters: TrainingCounters, took_s: float) -> None:
        self._checkpoint = (time.monotonic(), counters.copy(), took_s)

    def write(self, counters: TrainingCounters) -> None:
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

    def _report(self, counters: TrainingCounters, loss: float | None) -> Progress:
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
            own_seconds=self.own_s,
            noise_scale=self.measured.get("noise_scale"),
            checkpoint=self._last_checkpoint(now),
            memory=memory_held(),
            warnings=self.warnings,
        )

    def _speed(self, counters: TrainingCounters, now_s: float) -> float | None:
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
    """Seconds since a process was started, to a tick (10 ms); without a pid, this one.

    Times of day are up to a second off, because the kernel states its boot in whole seconds.

    :raises psutil.NoSuchProcess: the process is gone.
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


def _first(plan: Plan, ready_s: float, cost_s: float) -> Progressed:
    return Progressed(
        time.time(),
        overhead_seconds=max(0.0, cost_s),
        first_step=True,
        ready_s=round(ready_s, 3),
        generation=plan.generation,
        mechanism="relaunched" if plan.reason else None,
        reason=plan.reason or None,
    )


def _change_done(change: WorkerChange, plan: Plan, now_s: float, step_s: float) -> Progressed:
    """The first step after a change, with the change's cost: all time beyond a usual step.

    At least the parts before the step: the step itself may be shorter than usual.
    """
    parts = {name: round(seconds, 4) for name, seconds in change.parts.items()}
    beyond_s = now_s - change.since_s - change.usual_step_s
    return Progressed(
        time.time(),
        overhead_seconds=max(0.0, beyond_s, math.fsum(change.parts.values())),
        mechanism="in place",
        generation=plan.generation,
        parts={**parts, "first_step": round(step_s, 4), "usual_step": round(change.usual_step_s, 4)},
        lost=change.lost or None,
    )


class EventHistory:
    """Writes events while this worker is rank 0. A file that cannot be written stops nothing.

    An event about checkpoints, every ``history_s`` seconds, has the ``count`` of all since the last one, and
    how long training stood still for them. The checkpoint before leaving has no time: that is part of the
    cost of leaving.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.leaving = False
        self._context = context
        self._batch: int | None = None
        self._writer: EventWriter | None = None
        self._saved: TrainingCounters | None = None
        self._saved_s = 0.0
        self._count = 0
        self._checkpoint_due_s = self._warning_due_s = 0.0
        self._warnings = 0
        # Columns that were logged as not finite.
        self._not_finite = set[str]()

    def begin(self, global_batch: int) -> None:
        self._batch, attempt = global_batch, self._context.attempt
        if self._writer is not None:
            return
        attempt.path.mkdir(parents=True, exist_ok=True)
        try:
            self._writer = EventWriter(attempt.progress)
        except PliantError as error:
            _log.warning("no progress is reported: %s", error)

    def checkpoint_done(self, counters: TrainingCounters, stall_s: float) -> None:
        if self.leaving:
            self.write(Checkpointed(time.time(), step=counters.step), counters)
            return
        self._saved, self._saved_s, self._count = counters.copy(), self._saved_s + stall_s, self._count + 1
        if time.monotonic() >= self._checkpoint_due_s:
            self.flush()

    def flush(self) -> None:
        """Write about the checkpoints since the last event."""
        if self._saved is None:
            return
        counters, self._saved = self._saved, None
        event = Checkpointed(
            time.time(), overhead_seconds=self._saved_s, step=counters.step, count=self._count
        )
        self.write(event, counters)
        self._saved_s, self._count, self._checkpoint_due_s = 0.0, 0, self._later()

    def warn(self, counters: TrainingCounters, text: str) -> None:
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS or time.monotonic() >= self._warning_due_s:
            self.write(Progressed(time.time(), warning=text), counters)
            self._warning_due_s = self._later()

    def write(self, event: Trained, counters: TrainingCounters) -> None:
        if self._writer is None:
            return
        numbers = {"loss": event.loss, "metric": event.metric, "overhead_seconds": event.overhead_seconds}
        strange = {name: value for name, value in numbers.items() if not math.isfinite(value or 0.0)}
        if strange:
            unstated: dict[str, Any] = dict.fromkeys(strange)
            event = replace(event, warning=self._note(strange, counters), **unstated)
        event = replace(
            event,
            job=self._context.plan.job,
            gpus=self._context.world_size,
            global_batch=self._batch,
            samples_done=float(counters.samples_done),
        )
        try:
            self._writer.append([row_of(event)])
        except PliantError as error:
            _log.warning("an event is lost: %s", error)

    def _note(self, strange: Mapping[str, float | None], counters: TrainingCounters) -> str:
        """What an event says about numbers that it cannot hold; it is logged once."""
        named = ", ".join(f"{column} is {value}" for column, value in strange.items())
        text = f"{named} after step {counters.step}, recorded as null"
        if strange.keys() - self._not_finite:
            self._not_finite |= strange.keys()
            _log.warning("%s; this is said once", text)
        return text

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _later(self) -> float:
        return time.monotonic() + self._context.plan.history_s


def memory_held() -> int:
    """Most bytes that this process has reserved of its GPU; resident memory if it uses no GPU."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return int(psutil.Process().memory_info().rss)


class NoiseMeter:
    """Estimates the gradient noise scale φ = tr Σ / |G|²: the batch in samples at which noise equals signal.

    Two successive steps have gradients g, h at nearly the same weights, each a mean over a batch of B, so
    E[g · h] = |G|² and E|g - h|² = 2 tr Σ / B. Both are smoothed over pairs. It looks when a step is
    complete: a script that drops its gradients before that is not measured, and clipping blurs the estimate.
    Of one step in :data:`NOISE_INTERVAL_STEPS` it copies the gradients, of large models about
    :data:`MAX_NOISE_SAMPLES` numbers spread over all layers, others for each pair: signal and noise are sums
    over the parameters alike. A pair that is not finite (an overflow in mixed precision) is left out.
    """

    def __init__(self) -> None:
        # The shapes of the gradients, and copies of the numbers that are looked at.
        self._before: tuple[list[torch.Size], list[torch.Tensor]] | None = None
        self._signal = 0.0
        self._noise = 0.0
        self._pairs = 0

    @property
    def noise_scale(self) -> float | None:
        """Returns None before the first pair, or if there is no signal."""
        scale = self._noise / self._signal if self._signal > 0 else math.inf
        return scale if math.isfinite(scale) else None

    def look(self, model: nn.Module, step: int, batch: int) -> None:
        turn = step % NOISE_INTERVAL_STEPS
        if turn == 0:
            gradients = _gradients(model)
            self._before = (
                [one.shape for one in gradients],
                [one.clone() for one in _sampled(gradients, step)],
            )
        elif turn == 1 and self._before is not None:
            (shapes, before), self._before = self._before, None
            after = _gradients(model)
            if before and shapes == [one.shape for one in after]:
                self._compare(before, _sampled(after, step - 1), batch)

    def forget(self) -> None:
        self._before = None

    def _compare(self, before: list[torch.Tensor], after: list[torch.Tensor], batch: int) -> None:
        pairs = list(zip(before, after, strict=True))
        signal = math.fsum(_dot(g, h) for g, h in pairs)
        spread = math.fsum(_dot(d, d) for d in (g.sub_(h) for g, h in pairs))
        noise = batch * spread / 2
        if not math.isfinite(signal + noise):
            return
        self._pairs += 1
        part = max(_NOISE_SMOOTHING, 1 / self._pairs)
        self._signal += part * (signal - self._signal)
        self._noise += part * (noise - self._noise)


def _dot(one: torch.Tensor, other: torch.Tensor) -> float:
    """Their inner product, in their own precision: the noise scale needs few digits."""
    if one.dtype in (torch.float16, torch.bfloat16):
        one, other = one.float(), other.float()
    if one.is_sparse:
        return float((one * other).sum())
    return float(torch.dot(one.flatten(), other.flatten()))


def _sampled(gradients: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    """The gradients, or evenly spread numbers of large ones: others for each pair, the same within it."""
    stride = sum(one.numel() for one in gradients) // MAX_NOISE_SAMPLES
    if stride < 2 or any(one.is_sparse for one in gradients):
        return gradients
    first = step // NOISE_INTERVAL_STEPS * _SPREAD % stride
    return [one.flatten()[first::stride] for one in gradients]


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.detach() for parameter in model.parameters() if parameter.grad is not None]
