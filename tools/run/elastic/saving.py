"""When a checkpoint is due, who writes it, and what is on disk."""

from __future__ import annotations

import os
import time
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError
from pliant.tools.run.elastic.checkpoint import Checkpoints
from pliant.tools.run.elastic.progress import Reporter
from pliant.tools.run.elastic.setting import Setting
from pliant.tools.run.elastic.state import Counters
from pliant.tools.run.elastic.training import Training

_BEFORE_LAST: Final = 0.25
"""Part of the time between checkpoints after which one is due before the last step of an epoch."""


class Saving:
    """The checkpoints of the job, as one of its workers knows them. Rank 0 writes."""

    def __init__(self, setting: Setting, reporter: Reporter, checkpoints: Checkpoints) -> None:
        self._setting, self._reporter, self._checkpoints = setting, reporter, checkpoints
        self._at_s = time.monotonic()
        self.counters = Counters()
        """Where training stands on disk."""

    def load(self, training: Training) -> tuple[str, ...]:
        """Go on from the newest whole checkpoint, if there is one; what was wrong with newer ones.

        :raises BadInputError: there are checkpoints, and none of them is whole.
        """
        loaded = self._checkpoints.load()
        if loaded.state is not None:
            training.resume(loaded.state)
        self.counters = training.counters.copy()
        return loaded.problems

    def begin(self) -> None:
        """The time to the next checkpoint starts now."""
        self._at_s = time.monotonic()

    def due(self, checkpoint_s: float, *, before_last: bool) -> bool:
        """Whether this worker wants a checkpoint at the next boundary.

        Before the last step of an epoch that is earlier: the author's code at the end of the epoch may take
        long, and there is no checkpoint in it.
        """
        within_s = checkpoint_s * (_BEFORE_LAST if before_last else 1.0)
        return self._setting.rank == 0 and time.monotonic() - self._at_s >= within_s

    def save(self, training: Training) -> str:
        """Write a checkpoint if this is rank 0. A failure is reported and returned, and training goes on."""
        if self._setting.rank != 0:
            self._saved(training)
            return ""
        began_s = self._at_s = time.monotonic()
        problem = self._write(training)
        if problem:
            self._reporter.warn(training.counters, problem)
        else:
            self._reporter.checkpoint_done(training.counters, time.monotonic() - began_s)
        return problem

    def save_alone(self, training: Training) -> str:
        """Write a checkpoint though nobody knows who else does: the first of those at this step."""
        orders = self._setting.orders
        if training.counters == self.counters or orders is None:
            return ""
        mark = orders.attempt.path / f"saving-{training.counters.step}"
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            self._saved(training)
            return ""
        except OSError as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"
        return self._write(training, alone=True)

    def on_disk(self, training: Training) -> bool:
        """Whether the newest whole checkpoint is that of the step that was done last."""
        try:
            state = self._checkpoints.load().state
        except BadInputError:
            return False
        return state is not None and Counters(**state["counters"]) == training.counters

    def earlier(self) -> Counters:
        """Where a worker that ends before its training began would have gone on."""
        try:
            state = self._checkpoints.load().state
        except BadInputError:
            state = None
        return Counters() if state is None else Counters(**state["counters"])

    def _write(self, training: Training, *, alone: bool = False) -> str:
        try:
            self._checkpoints.save(training.capture(), training.counters.step, alone=alone)
        except (PliantError, OSError) as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"
        self._saved(training)
        return ""

    def _saved(self, training: Training) -> None:
        self._at_s = time.monotonic()
        self.counters = training.counters.copy()
