"""A worker's side of ``pliant run``: acting on plans at step boundaries, without stopping where that can be.

All workers act on a new plan, or on a signal to any one of them, after the same step. A plan that names the
same workers changes the cut of the batch. One that names others makes all of them meet anew: those that it
does not name leave, those that are new get the state from those that have it, and training goes on.

A worker that dies takes the process group with it. The others void the step that it broke and meet anew,
too, for the plan without it that the launcher writes; if none comes in time they save and leave. Whoever
got one collective operation further than the rest takes the rest along, so no completed step is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from pliant.tools.run.elastic.context import Context, Orders
from pliant.tools.run.elastic.membership.circle import Circle, LeftAloneError
from pliant.tools.run.elastic.membership.failure import released
from pliant.tools.run.elastic.membership.passage import Passage, Trainer
from pliant.tools.run.elastic.membership.process_group import leave_at_exit
from pliant.tools.run.elastic.membership.vote import STOP, Pace, PlanWatch, StopSignal, Vote, ballot
from pliant.tools.run.elastic.report.exit import Exit, How
from pliant.tools.run.elastic.report.report import Reporter
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.elastic.state.saving import Saving
from pliant.tools.run.elastic.state.state import Counters, Mean
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.outcome import LOST_PEER
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import Presence

_LOOK_S: Final = 0.25
"""Between two looks at whether the others are through: a file of each of them."""
_log = logging.getLogger("pliant")


class Supervision:
    """What happens at step boundaries and at the end under ``pliant run``."""

    def __init__(self, context: Context, orders: Orders, backend: str | None) -> None:
        self._context = context
        self._watch = PlanWatch(orders.folder, orders.plan)
        leave_at_exit()  # before the ending, which then is earlier
        self._looks_at_ends = Pace(_LOOK_S)
        self._signal = StopSignal()
        self._vote = Vote(alone=True)
        self._reporter = Reporter(context)
        self._saving = Saving(context, self._reporter, Checkpoints(orders.folder.checkpoints))
        self._exit = Exit(context, self._reached, lambda: self._signal.received, self._let_go)
        self._exit.before(self._reporter.close)
        self._circle = Circle(context, backend, self._watch, self._check)
        self._presence = Presence(orders.attempt.presence(orders.worker))
        self._passage = Passage(
            context,
            self._circle,
            self._reporter,
            self._saving,
            self._vote,
            leave=self._leave,
            alone=self._save_and_leave,
        )
        self._agreed = 0
        self._step_since_s: float | None = None
        """The beginning of the step, or the end of the one before if nothing but reading lies between."""

    # Before training

    def check_not_stopped(self) -> None:
        """Leave at once if a stop was asked for while this worker was starting or waiting for others.

        Also if the others have got through without it: they will never come.

        :raises SystemExit: it was.
        """
        if self._context.left or (self._looks_at_ends.is_due() and self._orders.is_done()):
            self._leave()
        if self._watch.newest().abort or self._signal.received:
            self._exit.end("stopped", "asked to stop before the first step")
            raise SystemExit(0)

    def start(self, trainer: Trainer) -> None:
        """Say that this worker is ready, meet the others, and get the state.

        That of the workers that train already; where none does, that of the newest whole checkpoint, which
        rank 0 reads.

        :raises UsageError: the training could not be saved.
        """
        trainer.training.check_storable()
        self._orders.attempt.path.mkdir(parents=True, exist_ok=True)
        self._presence.begin()
        self._passage.begin(trainer)

    # While training

    def step_begins(self, steps_left: int) -> None:
        """Start to agree on what to do after the step that begins; the epoch has ``steps_left`` after it."""
        if self._step_since_s is None:
            self._step_since_s = time.monotonic()
        if self._vote.is_due() or steps_left == 1:
            self._together(lambda: self._cast(before_last=steps_left == 1))

    def step_ends(self, losses: Mean) -> None:
        """A step is complete; what was agreed is done at the next boundary."""
        assert self._step_since_s is not None  # noqa: S101 a step has begun
        now = time.monotonic()
        # reading the samples is a part of it; what is done at a boundary or between epochs is not
        step_s, self._step_since_s = now - self._step_since_s, now
        training, reporter = self._training, self._reporter
        reporter.log(losses)
        reporter.look(training.model, training.counters)
        reporter.step_done(training.counters, step_s)
        self._passage.step_took(step_s)
        self._hear()

    def step_void(self, error: RuntimeError) -> None:
        """A worker was lost in the step: it does not count.

        :param error: what tells so.
        :raises RuntimeError: the error, if it came twice at this step though no worker was lost.
        """
        assert self._step_since_s is not None  # noqa: S101 a step has begun
        since_s, self._step_since_s, self._agreed = self._step_since_s, None, 0
        self._passage.recover(since_s, released(error))

    def boundary(self) -> None:
        """Do what was agreed, where a later attempt can go on.

        :raises SystemExit: that was to stop, or to go on without this worker.
        """
        if not self._agreed:
            return
        agreed, self._agreed = self._agreed, 0
        generation, save = divmod(agreed, 2)
        orders = self._orders
        if agreed == STOP:
            self._stop()
            return
        newer: Plan | None = None
        if generation > orders.plan.generation:
            newer = self._watch.exactly(generation, orders.plan.timeout_s)
            if newer.abort:
                self._stop()
                return
        if save:
            if not self.gather_loss():
                return
            self._step_since_s = None
            self._saving.save(self._training)
        if newer is not None:
            self._step_since_s = None
            self._reporter.before_change()
            self._passage.switch(newer, self.gather_loss)

    def between_epochs(self) -> bool:
        """All of an epoch is done and more are to come: look for news of its end, which may have been long.

        False: a worker was lost meanwhile, look again.

        :raises SystemExit: it was agreed to stop.
        """
        return self._together(self._cast) and self._hear()

    def gather_loss(self) -> bool:
        """Let all workers know the loss of the epoch so far; False: a worker was lost meanwhile."""
        return self._together(partial(self._training.gather_loss, self._context.world_size))

    def agree(self, value: float) -> bool:
        """Let all workers know rank 0's value, the others' is 0; False: a worker was lost meanwhile."""
        return self._together(lambda: self._training.agree(value, self._context.world_size))

    def epoch_ends(self, loss: float | None, metric: float | None) -> None:
        """An epoch is complete."""
        self._step_since_s = None
        self._reporter.epoch_done(self._training.counters, loss, metric)

    def abandon_step(self) -> None:
        """The loop body left the loader in the middle of a step."""
        self._hear()

    def _together(self, operation: Callable[[], object]) -> bool:
        """Whether a collective operation went through; else those left have met anew."""
        done = self._passage.together(operation)
        if not done:
            self._agreed, self._step_since_s = 0, None
        return done

    # The end

    def training_ends(self) -> None:
        """Every epoch is complete: save, and let no worker leave before that."""
        training = self._training
        met = False
        while not met:
            if training.counters != self._saving.counters:
                self._exit.unsaved = self._saving.save(training)
            met = self._together(self._meet)
        if training.counters != self._saving.counters and not self._exit.unsaved:
            self._exit.unsaved = "rank 0 did not save the final state"
        self._exit.complete, self._exit.early = True, False

    def left_early(self, metric: float | None) -> None:
        """The script left its training, by ``break`` or on its way out: the exit code will tell which.

        A metric of the epoch that it leaves is told, but not the loss: other workers may train on.

        Nothing is saved: the body may be in the middle of a step, and what made the script give up should
        not be what another attempt goes on from.
        """
        self._exit.complete = self._exit.early = True
        if metric is not None:
            self._reporter.epoch_done(self._training.counters, None, metric)

    def _let_go(self) -> None:
        """The script ends, and a variable of it may hold the iterator over epochs that it has left."""
        if self._passage.trainer is not None:
            self._passage.trainer.leave()

    def _stop(self) -> None:
        """Save and leave together."""
        training = self._training
        if not self.gather_loss():
            return
        self._reporter.last_words(training.counters)
        problem = self._saving.save(training)
        try:
            self._meet()
        except RuntimeError as error:
            _log.warning("a worker was lost while stopping: %s", error)
        self._exit.end("stopped", problem)
        raise SystemExit(0)

    def _leave(self) -> NoReturn:
        """The others go on without this worker."""
        self._exit.end("left")
        raise SystemExit(0)

    def _save_and_leave(self, error: LeftAloneError) -> NoReturn:
        """Nobody says how to go on."""
        problem = self._saving.save_alone(self._training)
        if self._asked_to_stop:
            self._exit.end("stopped", problem)
            raise SystemExit(0)
        message = f"{LOST_PEER} ({error}), and no plan came without it"
        self._exit.end("crashed", "; ".join(filter(None, (message, problem))))
        raise SystemExit(1)

    def _check(self) -> None:
        """What breaks off the waiting for others."""
        if self._passage.trainer is None:
            self.check_not_stopped()
        elif self._asked_to_stop:
            raise LeftAloneError("asked to stop")

    @property
    def _asked_to_stop(self) -> bool:
        return self._signal.received or self._watch.newest().abort

    # Agreement

    def _cast(self, *, before_last: bool = False) -> None:
        """Give this worker's word on the next boundary."""
        plan = self._watch.in_force(self._context.known)
        due = self._saving.due(self._orders.plan.checkpoint_s, before_last=before_last)
        generation = max(plan.generation, self._orders.plan.generation)
        number = STOP if self._signal.received else ballot(generation, save=due)
        self._vote.cast(number, self._passage.usual_step_s, self._saving.step)

    def _hear(self) -> bool:
        """Take up what was agreed; False: a worker was lost meanwhile."""
        if not self._vote.is_open:
            return True
        found: list[int] = []
        heard = self._together(lambda: found.append(self._vote.result()))
        self._agreed = max([self._agreed, *found])
        if heard:
            self._saving.hear(self._vote.saved_step)
        return heard

    def _meet(self) -> None:
        """Wait for all workers; they know afterwards what is on disk."""
        self._vote.meet(self._saving.step)
        self._saving.hear(self._vote.saved_step)

    @property
    def _orders(self) -> Orders:
        assert self._context.orders is not None  # noqa: S101 there is no supervision without them
        return self._context.orders

    @property
    def _training(self) -> Training:
        return self._passage.training

    def _reached(self, outcome: How) -> Counters:
        """What counts as trained: all of it in a job that is done, else what is saved."""
        if self._passage.trainer is None:
            return self._saving.earlier()
        return self._training.counters if outcome == "done" else self._saving.counters
