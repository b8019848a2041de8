"""The newest about a job's training: what rank 0 puts into the job's small file, again and again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from pliant.tools.run.elastic.context import Context, Orders
from pliant.tools.run.elastic.state.state import Counters, Mean
from pliant.tools.run.statedir.contract.progress import LastCheckpoint, Progress, write_progress

_log = logging.getLogger("pliant")


class Newest:
    """What was measured last. A file that cannot be written stops nothing, and is warned of once."""

    def __init__(self, context: Context) -> None:
        self.warnings = 0
        self.measured: Mapping[str, float] = {}
        """``step_seconds`` and ``noise_scale`` under this plan, where they are known."""
        self._context = context
        self._batch = 0
        self._loss = Mean()
        self._before: tuple[float, int] | None = None
        self._checkpoint: tuple[float, Counters, float] | None = None
        self._failed = False

    def begin(self, global_batch: int) -> None:
        """Measure under another plan."""
        self._batch, self.measured, self._before = global_batch, {}, None

    def log(self, losses: Mean) -> None:
        """Count the losses of a step."""
        self._loss.include(losses)

    def take(self, measured: Mapping[str, float]) -> None:
        """Take up what was measured since the last report."""
        self.measured = {**self.measured, **measured}

    def checkpoint_done(self, counters: Counters, took_s: float) -> None:
        """A checkpoint is safe on disk."""
        self._checkpoint = (time.monotonic(), counters.copy(), took_s)

    def write(self, counters: Counters) -> None:
        """Replace the file, if this is rank 0."""
        loss, self._loss = self._loss.value(), Mean()
        orders = self._context.orders
        if orders is None or self._context.rank != 0:
            return
        try:
            write_progress(orders.folder.progress, self._report(orders, counters, loss))
        except (OSError, ValueError) as error:
            if not self._failed:
                _log.warning("%s is not up to date: %s", orders.folder.progress, error)
            self._failed = True
        else:
            self._failed = False

    def _report(self, orders: Orders, counters: Counters, loss: float | None) -> Progress:
        now = time.monotonic()
        return Progress(
            job=orders.plan.job,
            attempt=orders.plan.attempt,
            generation=orders.plan.generation,
            gpus=len(orders.plan.members),
            global_batch=self._batch,
            step=counters.step,
            epoch=counters.epoch,
            samples_done=float(counters.samples_done),
            loss=loss if loss is not None and math.isfinite(loss) else None,
            samples_per_second=self._speed(counters, now),
            step_seconds=self.measured.get("step_seconds"),
            noise_scale=self.measured.get("noise_scale"),
            checkpoint=self._last_checkpoint(now),
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
