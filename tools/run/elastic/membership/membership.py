"""A worker's side of ``pliant run``: acting on plans at step boundaries, without stopping where possible.

The loop asks :class:`Membership` at each boundary, and follows its :data:`Instruction`. All workers act on a
newer plan, or on a signal to one of them, after the same step. A plan with the same workers changes the cut
of the batch. A plan with others makes all of them meet: those that it does not name leave, those that are
new get the state from those that have it, and training goes on.

A worker that dies takes the process group with it. The others void the step that it broke and meet, too, for
the plan without it that the launcher writes; if none comes in time they save and leave. A worker that got one
collective operation further than the rest takes the rest along, so no completed step is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.checkpoint_schedule import Saving
from pliant.tools.run.elastic.membership.exit import Exit, Recurrence, lost_peer, released
from pliant.tools.run.elastic.membership.plan_watch import (
    NotNeededError,
    PlanWatch,
    StopAskedError,
    StopSignal,
    make_known,
)
from pliant.tools.run.elastic.membership.process_group import ProcessGroup, leave_at_exit
from pliant.tools.run.elastic.membership.rendezvous import CutOffError, LeftAloneError, Rendezvous
from pliant.tools.run.elastic.membership.transition import (
    CONTINUE,
    REGROUP,
    Continue,
    Instruction,
    Leave,
    NewDivision,
    Regroup,
    Transition,
    share,
)
from pliant.tools.run.elastic.membership.vote import STOP, LeftEpochError, Vote, ballot
from pliant.tools.run.elastic.report import Change, Reporter
from pliant.tools.run.elastic.state.state import IN_EPOCH, Cursor, Mean
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import LOST_PEER, Plan
from pliant.tools.run.statedir.contract.presence import Presence

_log = logging.getLogger("pliant")


class Membership:
    """A worker among the workers of its job, from its start to its end."""

    def __init__(self, context: WorkerContext, backend: str | None) -> None:
        self._context = context
        stop = StopSignal()
        self._stop, self._watch = stop, PlanWatch(context, stop)
        leave_at_exit()  # before the exit, which then is earlier
        self._group = ProcessGroup(context, backend)
        self._rendezvous = Rendezvous(context, self._group, self._watch)
        self._vote = Vote(alone=True)
        self._reporter = Reporter(context)
        self._saving = Saving(context, self._reporter)
        self._exit = Exit(context, self._reporter, self._saving, stop)
        self._presence = Presence(context.attempt.presence(context.worker))
        self._training: Training
        """Once it begins."""
        self._transition = Transition()
        self._notes: tuple[str, ...] = ()
        """Warnings from before the training."""
        self._recurrence = Recurrence()
        self._agreed = 0
        self._joined_epoch = -1
        """The epoch in whose middle a worker has joined the others last."""
        self._is_known = True
        """The launcher can see which generation trains."""
        self._step_since_s: float | None = None
        """The beginning of the step, or the end of the one before if nothing but reading lies between."""

    # Before training

    def note(self, text: str) -> None:
        """Warn of something, once the training begins."""
        self._notes = (*self._notes, text)

    def check_needed(self) -> Continue | Leave:
        """Whether to begin: a stop may have been asked for while this worker was starting.

        Or the others go on, or have ended, without it: they will never come.
        """
        if self._context.left:
            return self._leave()
        try:
            self._watch.check_needed(fresh=True)
        except NotNeededError:
            return self._leave()
        except StopAskedError:
            return self._stop_before_start()
        return CONTINUE

    def start(self, training: Training) -> NewDivision | Leave:
        """Say that this worker is ready, meet the others, and get the state.

        That of the workers that train already; where none does, that of the newest whole checkpoint, which
        rank 0 reads.

        :raises UsageError: the training could not be saved.
        """
        training.check_storable()
        self._training = training
        self._context.attempt.path.mkdir(parents=True, exist_ok=True)
        self._presence.begin()
        return self._meet(None)

    # While training

    def step_begins(self, steps_left: int, since_s: float) -> RuntimeError | None:
        """Start to agree on what to do after a step, which has begun; the epoch has ``steps_left`` after it.

        :param since_s: when it began (monotonic).
        :returns: what says that a worker was lost, so that the step is void.
        """
        if self._step_since_s is None:
            self._step_since_s = since_s
        if not (self._vote.is_due() or steps_left == 1 or self._is_joined_midway):
            return None
        try:
            self._cast(before_last=steps_left == 1)
        except RuntimeError as error:
            if not self._is_survived(error):
                raise
            return released(error)
        return None

    def step_ends(self, losses: Mean) -> Continue | Regroup:
        """A step is complete; what was agreed is done at the next boundary."""
        assert self._step_since_s is not None  # noqa: S101 a step has begun
        now = time.monotonic()
        # reading the samples is a part of it; what is done at a boundary or between epochs is not
        step_s, self._step_since_s = now - self._step_since_s, now
        training, reporter = self._training, self._reporter
        reporter.look(training.model, training.counters)
        reporter.step_done(training.counters, losses, step_s)
        if not self._is_known:
            self._make_known()
        return self.hear()

    def step_void(self, error: RuntimeError) -> Regroup:
        """A worker was lost in the step: it does not count.

        :param error: what says so.
        """
        assert self._step_since_s is not None  # noqa: S101 a step has begun
        return self._lost(released(error), self._step_since_s)

    def hear(self) -> Continue | Regroup:
        """Take up what was agreed for the step that ends, or that the loop body has left."""
        if not self._vote.is_open:
            return CONTINUE
        found: list[int] = []
        if isinstance(answer := self._together(lambda: found.append(self._vote.result())), Regroup):
            return answer
        self._agreed = max(self._agreed, *found)
        self._saving.hear(self._vote.saved_step)
        return CONTINUE

    def boundary(self) -> Instruction:
        """Do what was agreed, where a later attempt can go on."""
        if not self._agreed:
            return CONTINUE
        if self._is_joined_midway:
            # the others may have left the epoch after the step
            answer = self._together(partial(self._vote.check_together, left=False))
            if isinstance(answer, Regroup):
                return answer
        agreed, self._agreed = self._agreed, 0
        generation, save = divmod(agreed, 2)
        newer: Plan | None = None
        if agreed != STOP and generation > self._context.plan.generation:
            newer = self._watch.exactly(generation, self._context.plan.timeout_s)
        if agreed == STOP or (newer is not None and newer.abort):
            return self._stop_together()
        if save:
            if isinstance(answer := self.gather_loss(), Regroup):
                return answer
            self._step_since_s = None
            self._saving.save(self._training)
        return CONTINUE if newer is None else self._switch(newer)

    def between_epochs(self) -> Continue | Regroup:
        """An epoch is done and more are to come: look for news, for its end may have been long."""
        answer = self._together(self._cast)
        return answer if isinstance(answer, Regroup) else self.hear()

    def epoch_left(self) -> Continue | Regroup:
        """See whether all workers have left an epoch midway, where one of them joined in its middle.

        That one has trained fewer of its steps, so a script that counts them leaves it later there. Workers
        that have left take it along.
        """
        if not self._is_joined_midway:
            return CONTINUE
        return self._together(partial(self._vote.check_together, left=True))

    def gather_loss(self) -> Continue | Regroup:
        """Let all workers know the loss of the epoch so far."""
        return self._together(partial(self._training.gather_loss, self._context.world_size))

    def agree(self, value: float) -> Continue | Regroup:
        """Let all workers know rank 0's value; that of the others is 0."""
        return self._together(partial(self._training.agree, value, self._context.world_size))

    def epoch_ends(self, loss: float | None, metric: float | None) -> None:
        """An epoch is complete."""
        self._step_since_s = None
        self._reporter.epoch_done(self._training.counters, loss, metric)

    def warn(self, text: str) -> None:
        """Say what is not as the script's author will have meant it."""
        self._reporter.warn(self._training.counters, text)

    # From one generation to the next

    def regroup(self) -> NewDivision | Leave:
        """Leave the process group, meet the workers of the next generation, and get or give the state."""
        transition = self._transition
        self._vote.drop(alone=True)
        self._group.leave()
        if transition.plan is not None:
            self._context.follow(transition.plan)
            if self._context.left:
                return self._leave()
        self._transition.timed("leave", transition.since_s)
        return self._meet(self._training.cursor)

    def settle(self, global_batch: int) -> None:
        """The loop trains by the plan of now, in the same state as those of all other workers.

        :raises RuntimeError: what a worker was taken to be lost for came twice at the same place, and no
            worker was lost.
        """
        transition, self._transition, plan = self._transition, Transition(), self._context.plan
        training = self._exit.training = self._training
        training.want_lr_scale(plan.lr_scale)
        # first that it trains: a launcher takes a worker that reports, but does not train, for a script of
        # another kind
        self._make_known()
        self._reporter.turn_to(global_batch, transition.change)
        problems, self._notes = (*self._notes, *transition.problems), ()
        for problem in problems:
            self._reporter.warn(training.counters, problem)
        if transition.lost is not None:
            error, before = transition.lost
            self._recurrence.check(error, before, plan.workers, training.cursor)

    def _switch(self, plan: Plan) -> Instruction:
        """Act on a newer plan, at the same step boundary on every worker."""
        began_s, self._step_since_s = time.monotonic(), None
        self._reporter.before_change()
        change = Change(began_s, self._reporter.usual_step_s)
        if plan.workers == self._context.plan.workers:
            self._context.follow(plan)
            self._transition = Transition(change)
            return self._divided(NewDivision())
        if isinstance(answer := self.gather_loss(), Regroup):
            return answer
        self._transition = Transition(change, began_s, plan)
        return REGROUP

    def _together(self, operation: Callable[[], object]) -> Continue | Regroup:
        """Do a collective operation.

        On GPUs a lost worker is not survived in place, because operations may hang there.

        :raises RuntimeError: it fails although no worker is lost.
        """
        began_s = time.monotonic()
        try:
            operation()
        except RuntimeError as error:
            if not self._is_survived(error):
                raise
            found = released(error)
        else:
            return CONTINUE
        return self._lost(found, began_s)

    def _is_survived(self, error: RuntimeError) -> bool:
        """Whether the workers that are left meet after it."""
        apart = isinstance(error, LeftEpochError)
        return self._context.device.type != "cuda" and (apart or lost_peer(error))

    @property
    def _is_joined_midway(self) -> bool:
        """Whether some workers have trained fewer steps of the epoch than others, as all of them know."""
        return self._joined_epoch == self._training.counters.epoch

    def _lost(self, error: RuntimeError, since_s: float) -> Regroup:
        """A worker was lost: nothing counts that was done since then."""
        self._agreed, self._step_since_s = 0, None
        apart = isinstance(error, LeftEpochError)
        change = Change(since_s, self._reporter.usual_step_s, lost=not apart)
        lost = None if apart else (error, self._context.plan.workers)
        self._transition = Transition(change, time.monotonic(), lost=lost)
        return REGROUP

    def _meet(self, cursor: Cursor | None) -> NewDivision | Leave:
        """Meet until all have the same state.

        :param cursor: how far this worker is; None: it has no state yet.
        """
        failed: RuntimeError | None = None
        again = Recurrence()
        while True:
            began_s, before = time.monotonic(), self._context.plan.workers
            try:
                cursors = self._rendezvous.meet(cursor)
            except NotNeededError:
                return self._leave()
            except StopAskedError:
                return self._stop_before_start() if cursor is None else self._save_and_leave("asked to stop")
            except LeftAloneError as error:
                return self._save_and_leave(str(error))
            except CutOffError as error:
                self._exit.end("cut_off", str(error))
                return Leave(1)
            if self._context.left:
                return self._leave()
            if failed is not None:
                again.check(failed, before, self._context.plan.workers, cursor)
            met_s = time.monotonic()
            self._note_joiners(cursors)
            self._transition.timed("meet", began_s, met_s)
            try:
                division, self._transition.problems = share(
                    self._training, self._saving, cursors, self._context.rank
                )
            except RuntimeError as error:
                if not lost_peer(error):
                    raise
                failed = released(error)
                self._group.leave()
            else:
                break
            finally:
                self._transition.timed("broadcast", met_s)
        if self._rendezvous.shortage:
            self._transition.problems += (f"training has waited for room: {self._rendezvous.shortage}",)
        return self._divided(division)

    def _note_joiners(self, cursors: list[Cursor | None]) -> None:
        furthest = max((one for one in cursors if one), default=None)
        if furthest is not None and furthest.phase == IN_EPOCH and None in cursors:
            self._joined_epoch = furthest.epoch

    def _divided(self, division: NewDivision) -> NewDivision:
        self._context.settle()
        self._vote.drop(alone=self._context.world_size == 1)
        return division

    def _make_known(self) -> None:
        """Let the launcher know which generation trains; where the disk is full, after a later step."""
        context, self._is_known = self._context, True
        if context.rank == 0:
            try:
                make_known(context.attempt.reached, f"{context.plan.generation}\n".encode())
            except OSError as error:
                _log.debug("generation %d is not made known yet: %s", context.plan.generation, error)
                self._is_known = False

    # The end

    @property
    def over(self) -> bool:
        """Whether the outcome of this worker is written."""
        return self._exit.ended

    def training_ends(self) -> Continue | Regroup:
        """Every epoch is complete: save, and let no worker leave before that."""
        training, end = self._training, self._exit
        if training.counters != self._saving.counters:
            end.unsaved = self._saving.save(training)
        if isinstance(answer := self._together(self._wait_for_all), Regroup):
            return answer
        if training.counters != self._saving.counters and not end.unsaved:
            end.unsaved = "rank 0 did not save the final state"
        end.complete, end.early = True, False
        return CONTINUE

    def left_early(self, metric: float | None) -> None:
        """The script left its training, by ``break`` or on its way out: the exit code will tell which.

        A metric of the epoch that it leaves is reported, but not the loss: other workers may train on.

        Nothing is saved: the body may be in the middle of a step, and what made the script give up should
        not be what another attempt goes on from.
        """
        self._exit.complete = self._exit.early = True
        if metric is not None:
            self._reporter.epoch_done(self._training.counters, None, metric)

    def _stop_before_start(self) -> Leave:
        self._exit.end("stopped", "asked to stop before the first step")
        return Leave()

    def _stop_together(self) -> Regroup | Leave:
        """Save and leave together."""
        training = self._training
        if isinstance(answer := self.gather_loss(), Regroup):
            return answer
        self._reporter.last_words(training.counters)
        problem = self._saving.save(training)
        try:
            self._wait_for_all()
        except RuntimeError as error:
            _log.warning("a worker was lost while stopping: %s", error)
        self._exit.end("stopped", problem)
        return Leave()

    def _leave(self) -> Leave:
        """The others go on without this worker."""
        self._exit.end("left")
        return Leave()

    def _save_and_leave(self, reason: str) -> Leave:
        """No plan says how to go on."""
        problem = self._saving.save_alone(self._training)
        if self._watch.stop_asked:
            self._exit.end("stopped", problem)
            return Leave()
        message = f"{LOST_PEER} ({reason}), and no plan came without it"
        self._exit.end("crashed", "; ".join(filter(None, (message, problem))))
        return Leave(1)

    # Agreement

    def _cast(self, *, before_last: bool = False) -> None:
        """Give this worker's word on the next boundary."""
        generation = self._watch.in_force().generation
        due = self._saving.due(self._context.plan.checkpoint_s, before_last=before_last)
        number = STOP if self._stop.received else ballot(generation, save=due)
        self._vote.cast(number, self._reporter.usual_step_s, self._saving.step)

    def _wait_for_all(self) -> None:
        """Wait for all workers; they know afterwards what is on disk."""
        self._vote.meet(self._saving.step)
        self._saving.hear(self._vote.saved_step)
