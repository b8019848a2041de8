"""How a worker ends, and the file that says so.

Telling a lost worker from every other error that a collective operation ends with.
"""

from __future__ import annotations

import atexit
import logging
import sys
import traceback
from types import TracebackType
from typing import Final, Literal

from pliant.schemas.errors import PliantError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.checkpoint_schedule import Saving
from pliant.tools.run.elastic.membership.plan_watch import StopSignal
from pliant.tools.run.elastic.report import Reporter
from pliant.tools.run.elastic.state.state import Counters, Cursor
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import LOST_PEER, WorkerOutcome

_log = logging.getLogger("pliant")
How = Literal["done", "stopped", "crashed", "left", "cut_off"]


class Exit:
    """Writes one outcome, whatever the worker ends by.

    "done": the script ends after its training, or leaves it by ``break``. "stopped": a stop was agreed.
    "left": the others go on without this worker. "cut_off": it does not reach them. "crashed": an exception,
    or a final state that could not be saved.
    """

    def __init__(self, context: WorkerContext, reporter: Reporter, saving: Saving, stop: StopSignal) -> None:
        self.training: Training | None = None
        """Once it has begun."""
        self.complete = False
        """Every epoch is complete, or the script left them."""
        self.early = False
        """The script left its training before that."""
        self.unsaved = ""
        """Why the final state is not on disk."""
        self.ended = False
        """The outcome is written."""
        self._context, self._reporter, self._saving, self._stop = context, reporter, saving, stop
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    def end(self, outcome: How, message: str = "") -> None:
        """Write the outcome, if none was written before."""
        if self.ended:
            return
        self.ended = True
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

    def _reached(self, outcome: How) -> Counters:
        """What counts as trained: all of it in a job that is done, else what is saved."""
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
    """One line about an exception; whether another worker's end is the likely cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # "Error(s) in loading state_dict for Net:" says nothing without the next line
    first = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    text = f"{kind.__name__}: {first}" if first else kind.__name__
    return f"{LOST_PEER}: {text}" if not alone and cut_off(error) else text


_CUT_OFF: Final = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "timed out")
_LIBRARIES: Final = ("gloo", "nccl")


def lost_peer(error: BaseException) -> bool:
    """Whether it comes from the exchange between workers, so that another worker's end may be the cause."""
    return isinstance(error, RuntimeError) and _tells(error, (*_CUT_OFF, *_LIBRARIES))


def cut_off(error: BaseException) -> bool:
    """Whether it says that a connection to another worker has ended."""
    return isinstance(error, RuntimeError) and _tells(error, _CUT_OFF)


def _tells(error: BaseException, signs: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in signs)


class Recurrence:
    """Notices an error that no lost worker explains: at the same place, twice, and all workers live.

    The workers that void a step meet before they train it again. If those that meet are the same as before
    the error, none of them was lost. Once, that may be a connection that was. A second time at the same
    place, it is the training or the machine, and would come at every further try.
    """

    def __init__(self) -> None:
        self._place: tuple[tuple[int, ...], Cursor | None] | None = None

    def check(
        self, error: RuntimeError, before: tuple[int, ...], after: tuple[int, ...], cursor: Cursor | None
    ) -> None:
        """The workers have met after an error, and go on from ``cursor``.

        :param before: the workers that trained together when it came.
        :param after: those that have met.
        :raises RuntimeError: the error itself, if going on is useless.
        """
        place = (after, cursor) if before == after else None
        if place is not None and place == self._place:
            error.add_note("This came twice at the same place, and all workers are alive.")
            raise error
        self._place = place


def released(error: RuntimeError) -> RuntimeError:
    """The error with its traceback, but without the variables in it: they keep connections open."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error
