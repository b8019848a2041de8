"""How a worker ends, and the file that says so."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from pliant.schemas.errors import PliantError
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership.failure import cut_off
from pliant.tools.run.elastic.state.state import Counters
from pliant.tools.run.statedir.contract.outcome import LOST_PEER, WorkerOutcome

_log = logging.getLogger("pliant")
How = Literal["done", "stopped", "crashed", "left"]


class Exit:
    """Writes one outcome, whatever the worker ends by.

    The script ends after its training, or leaves it by ``break`` ("done"), a stop was agreed ("stopped"),
    the others go on without this worker ("left"), an exception, or a final state that could not be saved
    ("crashed").

    :param reached: what counts as trained, by how the worker ends.
    :param asked_to_stop: whether a signal asked this worker to stop.
    :param leave: called at the end of a script that may hold on to an epoch that it has left.
    """

    def __init__(
        self,
        context: Context,
        reached: Callable[[How], Counters],
        asked_to_stop: Callable[[], bool],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.complete = False
        """Every epoch is complete, or the script left them."""
        self.early = False
        """The script left its training before that."""
        self.unsaved = ""
        """Why the final state is not on disk."""
        self._context, self._reached, self._asked = context, reached, asked_to_stop
        self._leave = leave
        self._before: list[Callable[[], None]] = []
        self._ended = False
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    def before(self, action: Callable[[], None]) -> None:
        """Have something done before the outcome is written."""
        self._before.append(action)

    def end(self, outcome: How, message: str = "") -> None:
        """Write the outcome, if none was written before."""
        if self._ended:
            return
        self._ended = True
        for action in self._before:
            action()
        reached = self._reached(outcome)
        end = WorkerOutcome(
            outcome=outcome,
            samples_done=reached.samples_done,
            epoch=reached.epoch,
            message=message,
            exit_counts=outcome == "done" and (self.early or not self._asked()),
        )
        try:
            if self._context.orders is not None:
                self._context.orders.report_end(end)
        except (PliantError, OSError) as error:
            _log.warning("the outcome %r is not written: %s", outcome, error)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end("crashed", described(kind, error, alone=self._context.world_size == 1))
        self._previous_hook(kind, error, trace)

    def _on_exit(self) -> None:
        if self._ended:
            return
        self._leave()
        if not self.complete:
            self.end("crashed", "the script ended before its training did")
        elif self.unsaved:
            self.end("crashed", self.unsaved)
        else:
            self.end("done")


def described(kind: type[BaseException], error: BaseException, *, alone: bool) -> str:
    """One line about an exception; whether another worker's end is the likely cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # "Error(s) in loading state_dict for Net:" says nothing without the next line
    first = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    text = f"{kind.__name__}: {first}" if first else kind.__name__
    return f"{LOST_PEER}: {text}" if not alone and cut_off(error) else text
