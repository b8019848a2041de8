"""A worker's side of ``pliant run``: acting on plans at step boundaries, without stopping where possible.

The loop asks :class:`Membership` at each boundary and acts on the :data:`Instruction` that it returns. All
workers act on a newer plan, or on a signal to one of them, after the same step. A plan with the same workers
changes the split of the batch. A plan with other workers makes all of them meet: those that it does not name
leave, new ones get the state from those that have it, and training goes on.

A worker that dies takes the process group with it. The others void the step that it broke and meet for the
plan without it, which the launcher writes; if none comes in time they save and leave. A worker that got one
collective operation further than the rest takes the rest along, so no completed step is lost.

A worker that ends says how in a file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.deadlock import DeadlockWatch, Position
from pliant.tools.run.elastic.membership.instructions import (
    CONTINUE,
    Continue,
    Instruction,
    Leave,
    Regroup,
    Resplit,
)
from pliant.tools.run.elastic.membership.process_group import ProcessGroup, leave_at_exit, lost_peer, released
from pliant.tools.run.elastic.membership.regrouping import Regrouping
from pliant.tools.run.elastic.membership.rendezvous import Rendezvous, exchange_of_main_thread
from pliant.tools.run.elastic.membership.switch_step import (
    STOP,
    LeftEpochError,
    NotNeededError,
    PlanWatch,
    StopRequestedError,
    StopSignal,
    Vote,
    ballot,
)
from pliant.tools.run.elastic.membership.worker_exit import WorkerExit
from pliant.tools.run.elastic.report import Reporter, WorkerChange
from pliant.tools.run.elastic.state.checkpoint import Saving
from pliant.tools.run.elastic.state.training import Mean, Training, check_training
from pliant.tools.run.statedir.contract.liveness import LivenessFile
from pliant.tools.run.statedir.contract.plan import Plan

_log = logging.getLogger("pliant")


class Membership:
    """A worker among the workers of its job, from its start to its end."""

    def __init__(self, context: WorkerContext, backend: str | None) -> None:
        self._context = context
        stop = StopSignal()
        self._stop, self._watch = stop, PlanWatch(context, stop)
        leave_at_exit()  # registered before the exit, so it runs after it
        group = ProcessGroup(context, backend)
        self._vote = Vote()
        self._reporter = Reporter(context)
        self._saving = Saving(context)
        self._exit = WorkerExit(context, self._reporter, self._saving, stop)
        self._regrouping = Regrouping(
            Rendezvous(context, group, self._watch), self._vote, self._reporter, self._saving, self._exit
        )
        self._presence = LivenessFile(context.attempt.presence(context.worker))
        self._deadlock = DeadlockWatch(
            context,
            exchange_of_main_thread,
            lambda: Position(self._training.counters.epoch, self._training.counters.step, self._left_out),
            self._exit.end_process,
        )
        # The last step that ended here without a backward pass.
        self._left_out: int | None = None
        # Set once it begins.
        self._training: Training
        # The largest ballot of the last vote, until a boundary does what it asks for; 0 for nothing.
        self._agreed = 0
        # Of this worker, since the last vote.
        self._losses = Mean()
        # When the step began; the end of the step before if only reading lies between them.
        self._step_since_s: float | None = None

    @property
    def stopping(self) -> bool:
        """Whether the job, or this worker, was asked to stop."""
        return self._watch.stop_requested

    @property
    def over(self) -> bool:
        """Whether the outcome is written."""
        return self._exit.ended

    # Before training

    def note(self, text: str) -> None:
        """Warn as soon as training begins."""
        self._regrouping.notes += (text,)

    def check_needed(self) -> Continue | Leave:
        """Whether to begin: while this worker started, the others may have stopped or gone on without it."""
        if self._context.left:
            return self._exit.leave()
        try:
            self._watch.check_needed(fresh=True)
        except NotNeededError:
            return self._exit.leave()
        except StopRequestedError:
            return self._exit.stop()
        return CONTINUE

    def start(self, training: Training) -> Resplit | Leave:
        """Announce that this worker is ready, meet the others, and get the state.

        It is that of the workers that train already, or else the newest whole checkpoint, which rank 0 reads.

        :raises UsageError: the training could not be saved.
        """
        check_training(training)
        self._training = training
        self._context.attempt.path.mkdir(parents=True, exist_ok=True)
        self._presence.begin()
        return self._regrouping.meet(training, None)

    # While training

    def step_begins(self, steps_left: int, since_s: float) -> RuntimeError | None:
        """A step has begun: start to agree on what to do after it.

        :param steps_left: of the epoch, after this one.
        :param since_s: when it began (monotonic).
        :returns: the error that shows the loss of a worker, if the step is void.
        """
        if self._step_since_s is None:
            self._step_since_s = since_s
        if not (self._vote.is_due() or steps_left == 1 or self._regrouping.is_joined_midway(self._training)):
            return None
        try:
            self._cast(before_last=steps_left == 1)
        except RuntimeError as error:
            if not _is_survived(error, self._context.device):
                raise
            return released(error)
        return None

    def step_ends(self, losses: Mean, waited_s: float | None = None) -> Continue | Regroup:
        """A step is complete; the next boundary does what was agreed.

        :param waited_s: how long this worker waited in it for the others' gradients; None if not known.
        """
        now = time.monotonic()
        # reading samples is part of a step; work at a boundary or between epochs is not
        step_s = self._reporter.usual_step_s if self._step_since_s is None else now - self._step_since_s
        self._step_since_s = now
        training, reporter = self._training, self._reporter
        reporter.measure_noise(training.model, training.counters)
        if waited_s is not None:
            reporter.own_step(step_s - waited_s - self._vote.take_waited_s())
        alone = self._context.world_size == 1
        if not alone:
            self._losses.include(losses)
        reporter.step_done(training.counters, losses if alone else Mean(), step_s)
        self._regrouping.publish_if_needed()
        return self.collect_vote()

    def left_out(self) -> None:
        """The step ends, and nothing of it was trained here: all workers must have left it out."""
        self._left_out = self._training.counters.step
        if self._context.world_size > 1:
            self._deadlock.await_skip(self._left_out)

    def set_aside(self, seconds: float) -> None:
        """An evaluation in the middle of a step took this long, which is not part of the time of the step."""
        if self._step_since_s is not None:
            self._step_since_s += seconds

    def measured(self, metric: float) -> None:
        """The script has measured something in the middle of an epoch."""
        self._reporter.measured(self._training.counters, metric)

    def step_void(self, error: RuntimeError) -> Regroup:
        """A worker was lost in the step, which does not count; ``error`` shows it."""
        since_s = time.monotonic() if self._step_since_s is None else self._step_since_s
        return self._lost(released(error), since_s)

    def collect_vote(self) -> Continue | Regroup:
        """Learn what was agreed for the step that ends, or that the loop body has left."""
        if not self._vote.is_open:
            return CONTINUE
        ballots: list[int] = []
        if isinstance(answer := self._together(lambda: ballots.append(self._vote.result())), Regroup):
            return answer
        self._agreed = max(self._agreed, *ballots)
        self._saving.note_saved(self._vote.saved_step)
        self._reporter.workers_needed(self._vote.own_s)
        self._reporter.add_losses(Mean(*self._vote.losses))
        return CONTINUE

    def boundary(self) -> Instruction:
        """Do what was agreed, at a place from which a later attempt can go on."""
        if not self._agreed:
            return CONTINUE
        if self._regrouping.is_joined_midway(self._training):
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
            self._exit.save(self._training)
        return CONTINUE if newer is None else self._switch(newer)

    def between_epochs(self) -> Continue | Regroup:
        """Between two epochs: look for news, because the end of the epoch may have taken long."""
        answer = self._together(self._cast)
        return answer if isinstance(answer, Regroup) else self.collect_vote()

    def epoch_left(self) -> Continue | Regroup:
        """Check that all workers have left an epoch midway, if one of them joined in its middle.

        That worker has trained fewer of its steps, so a script that counts steps leaves later there. Workers
        that have left take it along.
        """
        if not self._regrouping.is_joined_midway(self._training):
            return CONTINUE
        return self._together(partial(self._vote.check_together, left=True))

    def gather_loss(self) -> Continue | Regroup:
        return self._together(partial(self._training.gather_loss, self._context.world_size))

    def agree(self, value: Any, *, adds: bool = False) -> Continue | Regroup:
        """Let all workers know rank 0's value, for which others pass None, or the sums of their numbers."""
        return self._together(partial(self._training.agree, value, self._context.world_size, adds=adds))

    def epoch_ends(self, loss: float | None, metric: float | None) -> None:
        self._step_since_s = None
        self._reporter.epoch_done(self._training.counters, loss, metric)

    def warn(self, text: str) -> None:
        self._reporter.warn(self._training.counters, text)

    # From one generation to the next

    def regroup(self) -> Resplit | Leave:
        """Leave the process group, meet the next generation, and get or give the state."""
        self._deadlock.trains = False
        return self._regrouping.regroup(self._training)

    def settle(self, global_batch: int) -> None:
        """The loop trains by the current plan, in the same state as all other workers.

        :raises RuntimeError: an error that looked like the loss of a worker is none.
        """
        if self._context.world_size > 1:
            self._deadlock.begin()
        self._regrouping.settle(self._training, global_batch)

    def _switch(self, plan: Plan) -> Instruction:
        """Act on a newer plan, at the same step boundary on every worker."""
        self._step_since_s = None
        change = WorkerChange(time.monotonic(), self._reporter.usual_step_s)
        self._reporter.before_change()
        if plan.workers != self._context.plan.workers:
            if plan.workers[0] != self._context.worker:
                self._exit.report_saved(wait=True)  # the next rank 0 may write only then
            if isinstance(answer := self.gather_loss(), Regroup):
                return answer
        return self._regrouping.switch(plan, change)

    def _together(self, operation: Callable[[], object]) -> Continue | Regroup:
        """Do a collective operation.

        On GPUs the loss of a worker is not survived in place, because operations may hang there.

        :raises RuntimeError: it fails although no worker is lost.
        """
        began_s = time.monotonic()
        try:
            operation()
        except RuntimeError as error:
            if not _is_survived(error, self._context.device):
                raise
            lost = released(error)
        else:
            return CONTINUE
        return self._lost(lost, began_s)

    def _lost(self, error: RuntimeError, since_s: float) -> Regroup:
        """A worker was lost: nothing done since ``since_s`` counts."""
        self._agreed, self._step_since_s = 0, None
        is_lost = not isinstance(error, LeftEpochError)
        return self._regrouping.lost(error, WorkerChange(since_s, self._reporter.usual_step_s, lost=is_lost))

    # The end

    def training_ends(self) -> Continue | Regroup:
        """Every epoch is complete: save, and let no worker leave before it is done."""
        self._exit.save_final(self._training)
        if isinstance(answer := self._together(self._wait_for_all), Regroup):
            return answer
        self._exit.training_ended(self._training)
        return CONTINUE

    def left_early(self, metric: float | None) -> None:
        """The script left its training by ``break`` or on its way out; its exit code will tell which.

        The loss is not reported: other workers may train on. Nothing is saved: the body may be in the middle
        of a step, and another attempt should not go on from a state that made the script give up.
        """
        self._exit.early = True
        if metric is not None:
            self._reporter.epoch_done(self._training.counters, None, metric)
        self._exit.goes_on()

    def _stop_together(self) -> Regroup | Leave:
        training = self._training
        if isinstance(answer := self.gather_loss(), Regroup):
            return answer
        self._reporter.report_stop(training.counters)
        problem = self._exit.save(training, wait=True)
        try:
            self._wait_for_all()
        except RuntimeError as error:
            _log.warning("a worker was lost while stopping: %s", error)
        return self._exit.stop(problem)

    # Agreement

    def _cast(self, *, before_last: bool = False) -> None:
        self._exit.report_saved(wait=False)
        generation = self._watch.in_force().generation
        due = self._saving.due(self._context.plan.checkpoint_s, before_last=before_last)
        number = STOP if self._stop.received else ballot(generation, save=due)
        reporter, losses, self._losses = self._reporter, self._losses, Mean()
        self._vote.cast(
            number,
            reporter.usual_step_s,
            self._saving.step,
            own_step_s=reporter.own_step_s,
            losses=(float(losses.total), float(losses.samples)),
        )

    def _wait_for_all(self) -> None:
        """Wait for all workers; afterwards they know what is on disk."""
        self._vote.meet(self._saving.step)
        self._saving.note_saved(self._vote.saved_step)


def _is_survived(error: RuntimeError, device: torch.device) -> bool:
    """Whether the remaining workers meet after this error."""
    return device.type != "cuda" and (isinstance(error, LeftEpochError) or lost_peer(error))
