"""From one generation of workers to the next: they leave their process group, meet, and share a state."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.tools.run.elastic.membership.instructions import REGROUP, Leave, Regroup, Resplit
from pliant.tools.run.elastic.membership.process_group import lost_peer, publish_file, released
from pliant.tools.run.elastic.membership.rendezvous import CutOffError, NoPlanError, Rendezvous
from pliant.tools.run.elastic.membership.switch_step import NotNeededError, StopRequestedError, Vote
from pliant.tools.run.elastic.membership.worker_exit import WorkerExit
from pliant.tools.run.elastic.report import Reporter, WorkerChange
from pliant.tools.run.elastic.state.checkpoint import Saving
from pliant.tools.run.elastic.state.training import Cursor, EpochPhase, Training
from pliant.tools.run.elastic.state.transfer import broadcast_state
from pliant.tools.run.statedir.contract.plan import Plan

_log = logging.getLogger("pliant")


@dataclass(slots=True)
class GenerationChange:
    """Facts on the way from one generation to the next, or to another split of the batch."""

    change: WorkerChange | None = None
    """Times of the change; None when training begins."""
    since_s: float = 0.0
    """When the workers began to leave (monotonic)."""
    plan: Plan | None = None
    """Plan that all have agreed to follow; None if a worker was lost."""
    lost: tuple[RuntimeError, tuple[int, ...]] | None = None
    """Error that shows the loss of a worker, and the workers that trained together then."""
    problems: tuple[str, ...] = ()
    """Faults of checkpoints, and waits for room."""

    def timed(self, part: str, began_s: float, ended_s: float | None = None) -> None:
        """Add to the seconds of a part of the change."""
        if self.change is not None:
            took_s = (time.monotonic() if ended_s is None else ended_s) - began_s
            self.change.parts[part] = self.change.parts.get(part, 0.0) + took_s


class Regrouping:
    """Takes one worker from generation to generation, from the first one on.

    :param vote: the votes of the workers, which begin again with each generation.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        vote: Vote,
        reporter: Reporter,
        saving: Saving,
        worker_exit: WorkerExit,
    ) -> None:
        self._context, self._group, self._watch = rendezvous.context, rendezvous.group, rendezvous.watch
        self._rendezvous, self._vote = rendezvous, vote
        self._reporter, self._saving, self._exit = reporter, saving, worker_exit
        self._change = GenerationChange()
        self._recurrence = Recurrence()
        # Warnings from before the training.
        self.notes: tuple[str, ...] = ()
        # The last epoch that a worker joined midway.
        self._joined_epoch = -1
        # The launcher can see which generation trains.
        self._is_published = True

    def is_joined_midway(self, training: Training) -> bool:
        """Whether some workers have trained fewer steps of the epoch; all know it."""
        return self._joined_epoch == training.counters.epoch

    def switch(self, plan: Plan, change: WorkerChange) -> Resplit | Regroup:
        """Follow a newer plan that all workers know, at the same step boundary."""
        if plan.workers == self._context.plan.workers:
            self._context.follow(plan)
            self._change = GenerationChange(change)
            return self._resplit(Resplit())
        self._change = GenerationChange(change, change.since_s, plan)
        return REGROUP

    def lost(self, error: RuntimeError, change: WorkerChange) -> Regroup:
        """A worker was lost, as ``error`` shows, or some have left the epoch before the others."""
        lost = (error, self._context.plan.workers) if change.lost else None
        self._change = GenerationChange(change, time.monotonic(), lost=lost)
        return REGROUP

    def regroup(self, training: Training) -> Resplit | Leave:
        """Leave the process group, meet the next generation, and get or give the state."""
        change = self._change
        self._vote.drop()
        self._group.leave()
        if change.plan is not None:
            self._context.follow(change.plan)
            if self._context.left:
                return self._exit.leave()
        change.timed("leave", change.since_s)
        return self.meet(training, training.cursor)

    def settle(self, training: Training, global_batch: int) -> None:
        """The loop trains by the current plan, in the same state as all other workers.

        :raises RuntimeError: an error that looked like the loss of a worker is none; see :class:`Recurrence`.
        """
        change, self._change, plan = self._change, GenerationChange(), self._context.plan
        self._exit.training = training
        training.set_lr_scale(plan.lr_scale)
        # before it reports: a launcher takes a worker that reports but does not train for another kind of
        # script
        self._publish()
        self._reporter.begin_generation(global_batch, change.change)
        problems, self.notes = (*self.notes, *change.problems), ()
        for problem in problems:
            self._reporter.warn(training.counters, problem)
        if change.lost is not None:
            error, before = change.lost
            self._recurrence.check(error, before, plan.workers, training.cursor)

    def publish_if_needed(self) -> None:
        """Try again to let the launcher know which generation trains."""
        if not self._is_published:
            self._publish()

    def meet(self, training: Training, cursor: Cursor | None) -> Resplit | Leave:
        """Meet until all workers have the same state.

        :param cursor: how far this worker is; None if it has no state yet.
        """
        failed: RuntimeError | None = None
        again = Recurrence()
        while True:
            began_s, before = time.monotonic(), self._context.plan.workers
            cursors = self._come_together(training, cursor)
            if isinstance(cursors, Leave):
                return cursors
            if failed is not None:
                again.check(failed, before, self._context.plan.workers, cursor)
            met_s = time.monotonic()
            self._note_joiners(cursors)
            self._change.timed("meet", began_s, met_s)
            try:
                resplit = self._share_state(training, cursors)
            except RuntimeError as error:
                if not lost_peer(error):
                    raise
                failed = released(error)
                self._group.leave()
            else:
                break
            finally:
                self._change.timed("broadcast", met_s)
        if self._rendezvous.shortage:
            self._change.problems += (f"training has waited for room: {self._rendezvous.shortage}",)
        return self._resplit(resplit)

    def _come_together(self, training: Training, cursor: Cursor | None) -> list[Cursor | None] | Leave:
        """How far each worker of the group is, by rank; or how this worker ends."""
        try:
            cursors = self._rendezvous.meet(cursor)
        except NotNeededError:
            return self._exit.leave()
        except StopRequestedError:
            return self._exit.stop() if cursor is None else self._save_and_leave(training, "asked to stop")
        except NoPlanError as error:
            return self._save_and_leave(training, str(error))
        except CutOffError as error:
            self._exit.end("cut_off", str(error))
            return Leave(1)
        return self._exit.leave() if self._context.left else cursors

    def _save_and_leave(self, training: Training, reason: str) -> Leave:
        return self._exit.save_and_leave(training, reason, lambda: self._watch.stop_requested)

    def _share_state(self, training: Training, cursors: Sequence[Cursor | None]) -> Resplit:
        """Give all workers of the group, which call this together, the state of the furthest.

        :param cursors: how far each worker is, by rank. If none has a state, rank 0 loads the checkpoint.
        :raises RuntimeError: a worker was lost.
        """
        rank, saving = self._context.rank, self._saving
        furthest = max((cursor for cursor in cursors if cursor), default=None)
        self._change.problems = saving.load(training) if furthest is None and rank == 0 else ()
        has = [one == furthest if furthest else index == 0 for index, one in enumerate(cursors)]
        if all(has):
            return Resplit()
        own = {**training.pack(), "saving": saving.pack()} if has[rank] else None
        pack = broadcast_state(own, has, rank, self._context.device)
        if has[rank]:
            return Resplit()
        saving.unpack(pack["saving"])
        return Resplit(pack, fresh=cursors[rank] is None)

    def _note_joiners(self, cursors: Sequence[Cursor | None]) -> None:
        furthest = max((cursor for cursor in cursors if cursor), default=None)
        if furthest is not None and furthest.phase == EpochPhase.STEPS and None in cursors:
            self._joined_epoch = furthest.epoch

    def _resplit(self, resplit: Resplit) -> Resplit:
        self._context.settle()
        self._vote.drop(self._context.rank, self._context.world_size)
        return resplit

    def _publish(self) -> None:
        """Let the launcher know which generation trains; if the disk is full, after a later step."""
        context, self._is_published = self._context, True
        if context.rank == 0:
            try:
                publish_file(context.attempt.reached, f"{context.plan.generation}\n".encode())
            except OSError as error:
                _log.debug("generation %d is not made known yet: %s", context.plan.generation, error)
                self._is_published = False


class Recurrence:
    """Notices an error that comes twice at the same place although all workers live.

    Workers that void a step meet before they train it again. If the same workers meet as before, none was
    lost. Once, a connection may have failed; a second time, another try would fail, too.
    """

    def __init__(self) -> None:
        self._place: tuple[tuple[int, ...], Cursor | None] | None = None

    def check(
        self, error: RuntimeError, before: tuple[int, ...], after: tuple[int, ...], cursor: Cursor | None
    ) -> None:
        """Compare where workers that have met after an error go on.

        :param before: the workers that trained together when the error came.
        :param after: the workers that have met.
        :param cursor: the place from which they go on.
        :raises RuntimeError: the error itself, if going on is useless.
        """
        place = (after, cursor) if before == after else None
        if place is not None and place == self._place:
            error.add_note("This came twice at the same place, and all workers are alive.")
            raise error
        self._place = place
