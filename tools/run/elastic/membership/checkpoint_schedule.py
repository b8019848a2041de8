"""When a checkpoint is due, who writes it, and what is on disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.report import Reporter
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.elastic.state.training import Training, TrainingCounters

_BEFORE_LAST: Final = 0.25
"""Share of the time between checkpoints after which one is due before the last step of an epoch."""
_MOST_OF_TIME: Final = 0.02
"""Largest share of the time that these earlier checkpoints may take."""


class Saving:
    """When one of the job's workers saves, and what it knows to be on disk. Rank 0 writes."""

    def __init__(self, context: WorkerContext, reporter: Reporter) -> None:
        self._context, self._reporter = context, reporter
        self._checkpoints = Checkpoints(context.folder.checkpoints)
        self._at_s = time.monotonic()
        """When the last checkpoint was written, or training began."""
        self._took_s = 0.0
        """Seconds that writing it took."""
        self.counters = TrainingCounters()
        """Where training stands on disk, as far as this worker knows."""
        self._asked: tuple[TrainingCounters, float] | None = None
        """What rank 0 was asked to write last, and when; None once it is known to be written."""

    @property
    def step(self) -> int:
        """The step that is on disk, as far as this worker knows."""
        return self.counters.step

    def hear(self, step: int) -> None:
        """Another worker has said that this step is on disk."""
        if self._asked is not None and self._asked[0].step == step:
            (self.counters, self._at_s), self._asked = self._asked, None

    def parcel(self) -> dict[str, Any]:
        """What a worker with an older state, or none, receives. An age, because clocks of hosts differ."""
        return {"counters": self.counters.as_dict(), "age_s": time.monotonic() - self._at_s}

    def unpack(self, parcel: Mapping[str, Any]) -> None:
        self.counters, self._asked = TrainingCounters.from_dict(parcel["counters"]), None
        self._at_s = time.monotonic() - parcel["age_s"]

    def load(self, training: Training) -> tuple[str, ...]:
        """Go on from the newest whole checkpoint, if there is one.

        :returns: what was wrong with newer ones.
        :raises BadInputError: there are checkpoints, but none is whole.
        """
        loaded = self._checkpoints.load()
        if loaded.state is not None:
            training.resume(loaded.state)
        self.counters = training.counters.copy()
        self._at_s = time.monotonic()
        return loaded.problems

    def due(self, checkpoint_s: float, *, before_last: bool) -> bool:
        """Whether this worker wants a checkpoint at the next boundary.

        Before the last step of an epoch it is due earlier: the author's code at the end of the epoch may take
        long, and there is no checkpoint in it. With short epochs and a large state that would mean four times
        as many checkpoints, so these early ones may take only a small share of the time.
        """
        early_s = max(checkpoint_s * _BEFORE_LAST, self._took_s / _MOST_OF_TIME)
        within_s = min(checkpoint_s, early_s) if before_last else checkpoint_s
        return self._context.rank == 0 and time.monotonic() - self._at_s >= within_s

    def save(self, training: Training) -> str:
        """Write a checkpoint if this is rank 0. A failure is reported and returned, and training goes on.

        The other workers know that it is written once they :meth:`hear` of it.
        """
        began_s = time.monotonic()
        if self._context.rank != 0:
            self._asked = training.counters.copy(), began_s
            return ""
        self._at_s = began_s
        problem = self._write(training)
        if problem:
            self._reporter.warn(training.counters, problem)
        else:
            self._took_s = time.monotonic() - began_s
            self._reporter.checkpoint_done(training.counters, self._took_s)
        return problem

    def save_alone(self, training: Training) -> str:
        """Write a checkpoint without agreement: one of the workers at this step does.

        The others wait until it has, and write one themselves if it fails.
        """
        if training.counters == self.counters:
            return ""
        try:
            with _alone(self._context.attempt.path / f"saving-{training.counters.step}") as mark:
                if mark.read():
                    self._saved(training)
                    return ""
                problem = self._write(training, alone=True)
                if not problem:
                    with contextlib.suppress(OSError):  # then the next worker writes it once more
                        mark.write("saved\n")
                        mark.flush()
                return problem
        except OSError as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"

    def earlier(self) -> TrainingCounters:
        """Where a worker that ends before its training began would have gone on."""
        try:
            state = self._checkpoints.load().state
        except (BadInputError, UsageError):
            state = None
        return TrainingCounters() if state is None else TrainingCounters.from_dict(state["counters"])

    def _write(self, training: Training, *, alone: bool = False) -> str:
        overtaken = self._context.is_overtaken
        if overtaken():
            return "no checkpoint: the job trains on without this worker"
        try:
            state, step = training.capture(), training.counters.step
            self._checkpoints.save(state, step, alone=alone, overtaken=overtaken)
        except UsageError:
            raise
        except (PliantError, OSError) as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"
        self._saved(training)
        return ""

    def _saved(self, training: Training) -> None:
        self._at_s = time.monotonic()
        self.counters, self._asked = training.counters.copy(), None


@contextmanager
def _alone(path: Path) -> Iterator[TextIO]:
    """A file that one worker at a time holds; if it dies, the next one gets it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
