"""How a worker ends, and the file that says so."""

from __future__ import annotations

import atexit
import logging
import sys
from types import TracebackType
from typing import Literal

from pliant.schemas.errors import PliantError, UsageError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.agreement import StopSignal
from pliant.tools.run.elastic.membership.process_group import cut_off
from pliant.tools.run.elastic.report import Reporter
from pliant.tools.run.elastic.state.checkpoint import Saving
from pliant.tools.run.elastic.state.training import Training, TrainingCounters
from pliant.tools.run.statedir.contract.plan import LOST_PEER, WorkerOutcome

_log = logging.getLogger("pliant")
How = Literal["done", "stopped", "crashed", "left", "cut_off"]


class Exit:
    """Writes one outcome, however the worker ends.

    "done": the script ended after its training, or left it by ``break``. "stopped": a stop was agreed.
    "left": the others go on without this worker. "cut_off": it does not reach them. "crashed": an exception,
    or a final state that could not be saved.
    """

    def __init__(self, context: WorkerContext, reporter: Reporter, saving: Saving, stop: StopSignal) -> None:
        self.training: Training | None = None
        """Set once it has begun."""
        self.complete = False
        """Every epoch is complete, or the script left its training."""
        self.early = False
        """The script left its training before the last epoch was complete."""
        self.unsaved = ""
        """Why the final state is not on disk."""
        self.ended = False
        self._context, self._reporter, self._saving, self._stop = context, reporter, saving, stop
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    def end(self, outcome: How, message: str = "") -> None:
        if self.ended:
            return
        self.ended = True
        self._await_checkpoint()
        self._reporter.close()
        reached = self._reached(outcome)
        end = WorkerOutcome(
            outcome=outcome,
            samples_done=reached.samples_done,
            epoch=reached.epoch,
            message=message,
            exit_counts=outcome == "done" and (self.early or not self._stop.received),
        )
        try:
            self._context.report_end(end)
        except (PliantError, OSError) as error:
            _log.warning("the outcome %r is not written: %s", outcome, error)

    def _await_checkpoint(self) -> None:
        try:
            saved = self._saving.ended(wait=True)
        except UsageError as error:
            _log.warning("the last checkpoint failed: %s", error)
        else:
            if saved is not None:
                self._reporter.checkpoint_ended(saved)

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
            self.end("crashed", "the script ended before its training did")
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
