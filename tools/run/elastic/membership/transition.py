"""The way from one generation of workers to the next: what the loop shall do, and who gets whose state."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pliant.tools.run.elastic.membership.checkpoint_schedule import Saving
from pliant.tools.run.elastic.membership.transfer import pass_on
from pliant.tools.run.elastic.report.report import Change
from pliant.tools.run.elastic.state.cursor import Cursor
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import Plan


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on: what was asked is done."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """The workers change, or one was lost: let go of the process group, ask ``regroup``, then ask again."""


@dataclass(frozen=True, slots=True)
class NewDivision:
    """From here on other workers share the work, or share it otherwise: take the state, then ``settle``."""

    state: Mapping[str, Any] | None = None
    """Of a worker that is further; None: this one's own counts."""
    fresh: bool = False
    """This worker had no state before."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the script with this exit code; the outcome is written."""

    code: int = 0


Instruction = Continue | Regroup | NewDivision | Leave
CONTINUE: Final = Continue()
REGROUP: Final = Regroup()


@dataclass(slots=True)
class Transition:
    """On the way from one generation to the next, or to another cut of the batch."""

    change: Change | None = None
    """None: training begins."""
    since_s: float = 0.0
    """When the workers began to leave (monotonic)."""
    plan: Plan | None = None
    """What all have agreed to follow; None: a worker was lost."""
    lost: tuple[RuntimeError, tuple[int, ...]] | None = None
    """What says that a worker was lost, and those that trained together then."""
    problems: tuple[str, ...] = ()
    """What was wrong with checkpoints."""

    def timed(self, part: str, began_s: float, ended_s: float | None = None) -> None:
        """Count the time of a part; without an end, it ends now."""
        if self.change is not None:
            took_s = (time.monotonic() if ended_s is None else ended_s) - began_s
            self.change.parts[part] = self.change.parts.get(part, 0.0) + took_s


def share(
    training: Training, saving: Saving, cursors: Sequence[Cursor | None], rank: int
) -> tuple[NewDivision, tuple[str, ...]]:
    """All workers of the group, which call this together, get the state of the furthest.

    :param cursors: how far each worker is, by rank. Where none has a state, rank 0 loads the checkpoint.
    :returns: what is new here, and what was wrong with checkpoints.
    :raises RuntimeError: a worker was lost.
    """
    furthest = max((one for one in cursors if one), default=None)
    problems = saving.load(training) if furthest is None and rank == 0 else ()
    has = [one == furthest if furthest else index == 0 for index, one in enumerate(cursors)]
    if all(has):
        return NewDivision(), problems
    own = {**training.parcel(), "saving": saving.parcel()} if has[rank] else None
    parcel = pass_on(own, has, rank)
    if has[rank]:
        return NewDivision(), problems
    saving.unpack(parcel["saving"])
    return NewDivision(parcel, fresh=cursors[rank] is None), problems
