"""How a worker ends: its last checkpoint, and the outcome that it leaves in a file."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from pliant.schemas.errors import PliantError, UsageError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.instructions import Leave
from pliant.tools.run.elastic.membership.process_group import cut_off
from pliant.tools.run.elastic.membership.switch_step import StopSignal
from pliant.tools.run.elastic.report import Reporter
from pliant.tools.run.elastic.state.checkpoint import Saving
from pliant.tools.run.elastic.state.training import Training, TrainingCounters
from pliant.tools.run.statedir.contract.plan import ENDED_EARLY, LOST_PEER, WorkerOutcome

_log = logging.getLogger("pliant")
How = Literal["done", "stopped", "crashed", "left", "cut_off"]


class WorkerExit:
    """Writes one outcome, however the worker ends, and reports the checkpoints that come before it.

    "done": the script ended after its training, or left it by ``break``. "stopped": a stop was agreed.
    "left": the others go on without this worker. "cut_off": it does not reach them. "crashed": an exception,
    or a final state that could not be saved.
    """

    def __init__(self, context: WorkerContext, reporter: Reporter, saving: Saving, stop: StopSignal) -> None:
        # Set once it has begun.
        self.training: Training | None = None
        # Every epoch is complete, or the script left its training.
        self.complete = False
        # The script left its training before the last epoch was complete.
        self.early = False
        # Why the final state is not on disk.
        self.unsaved = ""
        self.ended = False
        self._context, self._reporter, self._saving, self._stop = context, reporter, saving, stop
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    # Checkpoints

    def save(self, training: Training, *, wait: bool = False) -> str:
        """Begin a checkpoint if this is rank 0; the one before is on disk by then.

        :param wait: whether to wait until it is on disk, too.
        :returns: why it failed, as far as that is known.
        """
        self.report_saved(wait=True)
        self._saving.begin(training)
        return self.report_saved(wait=wait)

    def report_saved(self, *, wait: bool) -> str:
        """Report a checkpoint that has come to its end; returns why it failed."""
        saved = self._saving.ended(wait=wait)
        if saved is None:
            return ""
        self._reporter.checkpoint_ended(saved)
        return saved.problem

    def save_final(self, training: Training) -> None:
        """Save the state after the last epoch, if it is not on disk."""
        self.report_saved(wait=True)
        if training.counters != self._saving.counters:
            self.unsaved = self.save(training, wait=True)

    # Ends

    def end(self, outcome: How, message: str = "") -> None:
        """Write the outcome, once."""
        if self.ended:
            return
        self.ended = True
        self._await_checkpoint()
        self._reporter.close()
        self._report(outcome, message)
        if self._context.tracking is not None:
            self._context.tracking.close(done=outcome == "done")

    def leave(self) -> Leave:
        """The others go on without this worker."""
        self.end("left")
        return Leave()

    def stop(self, message: str = "asked to stop before the first step") -> Leave:
        """The job, or this worker, was asked to stop."""
        self.end("stopped", message)
        return Leave()

    def save_and_leave(self, training: Training, reason: str, stop_requested: Callable[[], bool]) -> Leave:
        """Workers are gone, or a stop is asked for, and no plan says how to go on."""
        self.report_saved(wait=True)
        problem = self._saving.save_alone(training)
        if stop_requested():  # also while it was saved
            return self.stop(problem)
        message = f"{LOST_PEER} ({reason}), and no plan came without it"
        self.end("crashed", "; ".join(filter(None, (message, problem))))
        return Leave(1)

    def end_process(self, reason: str) -> None:
        """End this worker, whose main thread will not come back from its exchange."""
        self.end("crashed", reason)
        _log.error("%s", reason)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def goes_on(self) -> None:
        """The training is over; the script goes on, and may end without a last word (``os._exit``)."""
        self.complete = True
        self._reporter.flush()
        self._report("done", goes_on=True)
        if self._context.tracking is not None:
            self._context.tracking.flush()

    def training_ended(self, training: Training) -> None:
        """All workers have trained every epoch, and know what is on disk."""
        if training.counters != self._saving.counters and not self.unsaved:
            self.unsaved = "rank 0 did not save the final state"
        self.early, self.complete = False, True
        if not self.unsaved:
            self.goes_on()

    def _report(self, outcome: How, message: str = "", *, goes_on: bool = False) -> None:
        reached = self._reached(outcome)
        end = WorkerOutcome(
            outcome=outcome,
            samples_done=reached.samples_done,
            epoch=reached.epoch,
            message=message,
            exit_counts=outcome == "done" and (self.early or not self._stop.received),
            goes_on=goes_on,
        )
        try:
            self._context.report_end(end)
        except (PliantError, OSError) as error:
            _log.warning("the outcome %r is not written: %s", outcome, error)

    def _await_checkpoint(self) -> None:
        try:
            self.report_saved(wait=True)
        except UsageError as error:
            _log.warning("the last checkpoint failed: %s", error)

    def _reached(self, outcome: How) -> TrainingCounters:
        if self.training is None:
            return self._saving.earlier()
        return self.training.counters if outcome == "done" else self._saving.counters

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end("crashed", described(kind, error, alone=self._context.world_size == 1))
        self._previous_hook(kind, error, trace)

    def _on_exit(self) -> None:
        if not self.complete:
            self.end("crashed", ENDED_EARLY)
        elif self.unsaved:
            self.end("crashed", self.unsaved)
        else:
            self.end("done")


def described(kind: type[BaseException], error: BaseException, *, alone: bool) -> str:
    """One line about an exception; it says if another worker's end is the likely cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # "Error(s) in loading state_dict for Net:" says nothing without the next line
    first = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    text = f"{kind.__name__}: {first}" if first else kind.__name__
    return f"{LOST_PEER}: {text}" if not alone and cut_off(error) else text
