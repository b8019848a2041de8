"""From one generation of workers to the next: leave, meet, share the state, train on.

All workers act on a newer plan after the same step. A worker that dies takes the process group with it: the
others meet anew for the plan without it that the launcher writes. Whoever got one collective operation
further than the rest takes the rest along, so no completed step is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership.circle import Circle, LeftAloneError
from pliant.tools.run.elastic.membership.cursor import Cursor
from pliant.tools.run.elastic.membership.failure import Recurrence, lost_peer, released
from pliant.tools.run.elastic.membership.folder_store import make_known
from pliant.tools.run.elastic.membership.transfer import pass_on
from pliant.tools.run.elastic.membership.vote import Vote
from pliant.tools.run.elastic.report.report import Change, Reporter
from pliant.tools.run.elastic.state.saving import Saving
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import Plan

_log = logging.getLogger("pliant")
_SMOOTHING: Final = 0.2
"""Weight of the newest step in what a step usually takes."""


class Trainer(Protocol):
    """What supervision needs of the training that it watches over."""

    training: Training

    @property
    def cursor(self) -> Cursor:
        """How far it is."""
        ...

    def part(self) -> None:
        """Let go of the process group."""
        ...

    def join(self) -> int:
        """Train with the workers of the process group, by the plan of now; returns the global batch."""
        ...

    def leave(self) -> None:
        """The author's code is in no epoch any more; without effect where the training has ended."""
        ...

    def parcel(self) -> dict[str, object]:
        """What workers with an older state, or none, get."""
        ...

    def unpack(self, parcel: dict[str, object], *, fresh: bool) -> None:
        """Take the state of a worker that is further."""
        ...


class Passage:
    """What the workers of one generation do to become those of the next, each on its side.

    :param vote: the agreement of the workers that train together.
    :param leave: called by a worker that the others go on without.
    :param alone: called where a worker died and nobody says how to go on.
    """

    def __init__(
        self,
        context: Context,
        circle: Circle,
        reporter: Reporter,
        saving: Saving,
        vote: Vote,
        *,
        leave: Callable[[], NoReturn],
        alone: Callable[[LeftAloneError], NoReturn],
    ) -> None:
        self.trainer: Trainer | None = None
        """Once training has begun."""
        self._context, self._circle, self._reporter = context, circle, reporter
        self._saving, self._vote = saving, vote
        self._leave, self._alone = leave, alone
        self._recurrence = Recurrence()
        self.usual_step_s = 0.0
        """What steps take; 0 before the first one."""
        self._told = True

    @property
    def training(self) -> Training:
        """What is trained."""
        return self._loop.training

    def step_took(self, step_s: float) -> None:
        """A step is complete: what a change costs is held against what steps usually take."""
        self.usual_step_s += (step_s - self.usual_step_s) * (_SMOOTHING if self.usual_step_s else 1.0)
        if not self._told:
            self._tell()

    def begin(self, trainer: Trainer) -> None:
        """Meet the workers of the plan, and get the state that training begins with."""
        self._enter(trainer)
        self.trainer = trainer

    def switch(self, plan: Plan, lose_nothing: Callable[[], bool]) -> None:
        """Act on a newer plan, at the same step boundary on every worker.

        :param lose_nothing: lets all workers know what only some do; False: a worker was lost meanwhile.
        """
        began_s = time.monotonic()
        if plan.workers == self._plan.workers:
            self._context.follow(plan)
            self._go_on(self._loop, Change(began_s, self.usual_step_s))
            return
        if not lose_nothing():
            return
        self._part()
        self._context.follow(plan)
        if self._context.left:
            self._leave()
        self._enter(self._loop, Change(began_s, self.usual_step_s).timed("leave", began_s))

    def together(self, operation: Callable[[], object]) -> bool:
        """Whether a collective operation went through; else a worker was lost, and those left have met anew.

        On GPUs a lost worker is not survived in place, because operations may hang there.

        :raises RuntimeError: it fails although no worker is lost.
        """
        began_s = time.monotonic()
        try:
            operation()
        except RuntimeError as error:
            if self._context.device.type == "cuda" or not lost_peer(error):
                raise
            found = released(error)
        else:
            return True
        self.recover(began_s, found)
        return False

    def recover(self, since_s: float, error: RuntimeError) -> None:
        """Go on with those that are left.

        :param error: what a worker was taken to be lost for.
        :raises RuntimeError: that error, if it came twice at the same place though no worker was lost.
        """
        began_s, before = time.monotonic(), self._plan.workers
        self._part()
        change = Change(since_s, self.usual_step_s, lost=True)
        self._enter(self._loop, change.timed("leave", began_s))
        self._recurrence.check(error, before, self._plan.workers, self._loop.cursor)

    def _part(self) -> None:
        self._vote.drop(alone=True)
        self._loop.part()
        self._circle.leave()

    def _enter(self, trainer: Trainer, change: Change | None = None) -> None:
        """Meet for the plan that is followed, and get or give the state; without a change, to start."""
        cursor = None if change is None else trainer.cursor
        problems: tuple[str, ...] | None = None
        failed: RuntimeError | None = None
        again = Recurrence()
        while problems is None:
            began_s, before = time.monotonic(), self._plan.workers
            cursors = self._form(cursor)
            if failed is not None:
                again.check(failed, before, self._plan.workers, cursor)
            met_s = time.monotonic()
            try:
                problems = self._share(trainer, cursors)
            except RuntimeError as error:
                if not lost_peer(error):
                    raise
                failed = released(error)
                self._circle.leave()
            if change is not None:
                change = change.timed("meet", began_s, met_s).timed("broadcast", met_s)
        self._go_on(trainer, change)
        if self._circle.shortage:
            problems += (f"training has waited for room: {self._circle.shortage}",)
        for problem in problems:
            self._reporter.warn(trainer.training.counters, problem)

    def _form(self, cursor: Cursor | None) -> list[Cursor | None]:
        try:
            cursors = self._circle.form(self._plan, cursor)
        except LeftAloneError as error:
            self._alone(error)
        if self._context.left:
            self._leave()
        return cursors

    def _share(self, trainer: Trainer, cursors: list[Cursor | None]) -> tuple[str, ...]:
        """All get the state of the furthest; what was wrong with checkpoints.

        :raises RuntimeError: a worker was lost.
        """
        rank, furthest = self._context.rank, max((one for one in cursors if one), default=None)
        problems: tuple[str, ...] = ()
        if furthest is None and rank == 0:
            problems = self._saving.load(trainer.training)
        has = [one == furthest if furthest else index == 0 for index, one in enumerate(cursors)]
        if all(has):
            return problems
        parcel = pass_on(
            {**trainer.parcel(), "saving": self._saving.parcel()} if has[rank] else None, has, rank
        )
        if not has[rank]:
            self._saving.unpack(parcel["saving"])
            trainer.unpack(parcel, fresh=cursors[rank] is None)
        return problems

    def _go_on(self, trainer: Trainer, change: Change | None) -> None:
        """The workers of the plan that is followed train from now on, each in the same state."""
        plan = self._plan
        self._context.settle()
        self._vote.drop(alone=self._context.world_size == 1)
        trainer.training.want_lr_scale(plan.lr_scale)
        batch = trainer.join()
        # first that it trains: a launcher takes who reports, but does not train, for a script of another kind
        self._told = False
        self._tell()
        self._reporter.turn_to(batch, change)

    def _tell(self) -> None:
        """Let the launcher know which generation trains; where the disk is full, after a later step."""
        orders = self._context.orders
        if self._context.rank == 0 and orders is not None:
            try:
                make_known(orders.attempt.reached, f"{orders.plan.generation}\n".encode())
            except OSError as error:
                _log.debug("generation %d is not made known yet: %s", orders.plan.generation, error)
                return
        self._told = True

    @property
    def _plan(self) -> Plan:
        return self._circle.plan

    @property
    def _loop(self) -> Trainer:
        assert self.trainer is not None  # noqa: S101 called while training only
        return self.trainer
