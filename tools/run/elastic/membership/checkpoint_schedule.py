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
from pliant.tools.run.elastic.state.state import Counters
from pliant.tools.run.elastic.state.training import Training

_BEFORE_LAST: Final = 0.25
"""Part of the time between checkpoints after which one is due before the last step of an epoch."""
_MOST_OF_TIME: Final = 0.02
"""Part of the time that these earlier checkpoints may take."""


class Saving:
    """The checkpoints of the job, as one of its workers knows them. Rank 0 writes."""

    def __init__(self, context: WorkerContext, reporter: Reporter) -> None:
        self._context, self._reporter = context, reporter
        self._checkpoints = Checkpoints(context.folder.checkpoints)
        self._at_s = time.monotonic()
        """When the last checkpoint was written, or training began."""
        self._took_s = 0.0
        """What it took to write it."""
        self.counters = Counters()
        """Where training stands on disk."""
        self._asked: tuple[Counters, float] | None = None
        """What rank 0 was asked to write last, and when, until it is known that it did."""

    @property
    def step(self) -> int:
        """The step that is on disk, as far as this worker knows."""
        return self.counters.step

    def hear(self, step: int) -> None:
        """Another worker knows that this step is on disk."""
        if self._asked is not None and self._asked[0].step == step:
            (self.counters, self._at_s), self._asked = self._asked, None

    def parcel(self) -> dict[str, Any]:
        """What a worker with an older state, or none, gets. An age, for the clocks of hosts differ."""
        return {"counters": self.counters.as_dict(), "age_s": time.monotonic() - self._at_s}

    def unpack(self, parcel: Mapping[str, Any]) -> None:
        """Take over what another worker knows."""
        self.counters, self._asked = Counters.from_dict(parcel["counters"]), None
        self._at_s = time.monotonic() - parcel["age_s"]

    def load(self, training: Training) -> tuple[str, ...]:
        """Go on from the newest whole checkpoint, if there is one; what was wrong with newer ones.

        :raises BadInputError: there are checkpoints, and none of them is whole.
        """
        loaded = self._checkpoints.load()
        if loaded.state is not None:
            training.resume(loaded.state)
        self.counters = training.counters.copy()
        self._at_s = time.monotonic()
        return loaded.problems

    def due(self, checkpoint_s: float, *, before_last: bool) -> bool:
        """Whether this worker wants a checkpoint at the next boundary.

        Before the last step of an epoch that is earlier: the author's code at the end of the epoch may take
        long, and there is no checkpoint in it. But where epochs are short and the state is large, that alone
        would make checkpoints four times as many: they may take a small part of the time.
        """
        early_s = max(checkpoint_s * _BEFORE_LAST, self._took_s / _MOST_OF_TIME)
        within_s = min(checkpoint_s, early_s) if before_last else checkpoint_s
        return self._context.rank == 0 and time.monotonic() - self._at_s >= within_s

    def save(self, training: Training) -> str:
        """Write a checkpoint if this is rank 0. A failure is reported and returned, and training goes on.

        The others do not know whether it is written until they :meth:`hear` of it.
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
        """Write a checkpoint without the others: of those that are at this step, one does.

        The others wait until it has, and write one themselves if it has not.
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
                    with contextlib.suppress(OSError):  # then the next one writes it once more
                        mark.write("saved\n")
                        mark.flush()
                return problem
        except OSError as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"

    def earlier(self) -> Counters:
        """Where a worker that ends before its training began would have gone on."""
        try:
            state = self._checkpoints.load().state
        except (BadInputError, UsageError):
            state = None
        return Counters() if state is None else Counters.from_dict(state["counters"])

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
    """A file that one worker at a time has open; if it dies, the next one has it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
