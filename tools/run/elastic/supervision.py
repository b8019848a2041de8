"""A worker's side of ``pliant run``: watching the plan, stopping, checkpoints, and how it all ended."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from types import TracebackType
from typing import Final, Literal

import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError
from pliant.tools.run.elastic.checkpoint import Checkpoints
from pliant.tools.run.elastic.progress import Reporter
from pliant.tools.run.elastic.setting import Orders
from pliant.tools.run.elastic.state import Counters
from pliant.tools.run.elastic.training import Training
from pliant.tools.run.elastic.watch import STOP, PlanWatch, StopSignal, Vote, ballot
from pliant.tools.run.plan import Plan, WorkerOutcome

_log = logging.getLogger("pliant")
_BEFORE_LAST: Final = 0.25
"""Part of the time between checkpoints after which one is due before the last step of an epoch."""
_LOST_PEER: Final = ("closed by peer", "reset by peer", "gloo", "nccl", "broken pipe")


class Supervision:
    """What happens at step boundaries and at the end under ``pliant run``.

    All workers act on a new plan, or on a signal to any one of them, after the same step. Ways to end: the
    script ends after its training, or leaves it by ``break`` ("done"), a stop was agreed ("stopped"), an
    exception, or a final state that could not be saved ("crashed").
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._alone = len(orders.plan.members) == 1
        self._watch = PlanWatch(orders.folder.plan, orders.plan)
        self._signal = StopSignal()
        self._vote = Vote(alone=self._alone)
        self._checkpoints = Checkpoints(orders.folder.checkpoints)
        self._reporter = Reporter(orders) if orders.rank == 0 else None
        self._training: Training | None = None
        self._saved = Counters()
        self._saved_at_s = 0.0
        self._step_began_s = 0.0
        self._agreed = 0
        self._complete = False
        self._early = False
        self._unsaved = ""
        self._ended = False
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    # Before training

    def check_not_stopped(self) -> None:
        """Leave at once if a stop was asked for while this worker was starting or waiting for others.

        :raises SystemExit: it was.
        """
        plan = self._watch.newest()
        if plan.abort or self._signal.received or plan.generation > self._orders.plan.generation:
            self._end("stopped", "asked to stop before the first step")
            raise SystemExit(0)

    def start(self, training: Training, global_batch: int, seed: int) -> None:
        """Go on from the newest whole checkpoint, the same one on every worker.

        :raises ServiceMissingError: the workers do not read the same.
        """
        loaded = self._checkpoints.load()
        if loaded.state is not None:
            training.restore(loaded.state, self._orders.rank, seed)
        self._check_same(training.counters.step)
        self._training = training
        self._saved, self._saved_at_s = _copy(training.counters), time.monotonic()
        if self._reporter is not None:
            self._reporter.open(global_batch)
            for problem in loaded.problems:
                self._reporter.warn(training.counters, problem)

    # While training

    def step_begins(self, steps_left: int) -> None:
        """Start to agree on what to do after the step that begins; the epoch has ``steps_left`` after it."""
        self._step_began_s = time.monotonic()
        self._cast(before_last=steps_left == 1)

    def log(self, loss: float | torch.Tensor, samples: int) -> None:
        """Count a loss for the progress events."""
        if self._reporter is not None:
            self._reporter.log(loss, samples)

    def step_ends(self, training: Training) -> None:
        """A step is complete; what was agreed is done at the next boundary."""
        if self._reporter is not None:
            self._reporter.step_done(training.counters, time.monotonic() - self._step_began_s)
        self._agreed = max(self._agreed, self._vote.result())

    def boundary(self, training: Training) -> None:
        """Do what was agreed, where a later attempt can go on.

        :raises SystemExit: that was to stop.
        """
        agreed, self._agreed = self._agreed, 0
        generation, save = divmod(agreed, 2)
        if agreed == STOP:
            self._stop(training)
        elif generation > self._orders.plan.generation:
            self.switch(self._same_plan(generation), training)
        elif save:
            self._gather_loss(training)
            self._save(training)

    def between_epochs(self, training: Training) -> None:
        """All of an epoch is done and more are to come: look for news of its end, which may have been long.

        :raises SystemExit: it was agreed to stop.
        """
        self._cast()
        self._agreed = max(self._agreed, self._vote.result())
        self.boundary(training)

    def switch(self, plan: Plan, training: Training) -> None:
        """Act on a newer plan, at the same step boundary on every worker.

        A plan that cuts the work the same way is taken over on the spot. Any other one ends this attempt
        with a checkpoint, from which the next attempt goes on.
        """
        if plan.abort or _division(plan) != _division(self._orders.plan):
            self._stop(training)
        training.scale_lr(plan.lr_scale)
        self._orders = Orders(self._orders.folder, plan, self._orders.rank)

    def epoch_ends(self, training: Training, loss: float | None, metric: float | None) -> None:
        """An epoch is complete."""
        if self._reporter is not None:
            self._reporter.epoch_done(training.counters, loss, metric)

    def abandon_step(self) -> None:
        """The loop body left the loader in the middle of a step."""
        self._agreed = max(self._agreed, self._vote.result())

    # The end

    def training_ends(self, training: Training) -> None:
        """Every epoch is complete: save, and let no worker leave before that."""
        if training.counters != self._saved:
            self._unsaved = self._save(training)
        self._barrier()
        self._complete, self._early = True, False

    def left_early(self) -> None:
        """The script left its training, by ``break`` or on its way out: the exit code will tell which.

        Nothing is saved: the body may be in the middle of a step, and what made the script give up should
        not be what another attempt goes on from.
        """
        self._complete = self._early = True

    def _stop(self, training: Training) -> None:
        self._gather_loss(training)
        if self._reporter is not None:
            self._reporter.last_words(training.counters)
        problem = self._save(training)
        self._barrier()
        self._end("stopped", problem)
        raise SystemExit(0)

    def _cast(self, *, before_last: bool = False) -> None:
        """Give this worker's word on the next boundary.

        Rank 0 says when a checkpoint is due. Before the last step of an epoch that is earlier: the author's
        code at the end of the epoch may take long, and there is no checkpoint in it.
        """
        within_s = self._orders.plan.checkpoint_s * (_BEFORE_LAST if before_last else 1.0)
        due = self._orders.rank == 0 and time.monotonic() - self._saved_at_s >= within_s
        known = ballot(self._watch.newest().generation, save=due)
        self._vote.cast(STOP if self._signal.received else known)

    def _gather_loss(self, training: Training) -> None:
        """Give the loss of the epoch so far to rank 0, which saves it."""
        training.epoch_loss = training.epoch_loss.gathered(self._orders.rank, len(self._orders.plan.members))

    def _save(self, training: Training) -> str:
        """Write a checkpoint if this is rank 0. A failure is reported and returned, and training goes on."""
        if self._reporter is None:
            self._saved = _copy(training.counters)
            return ""
        began_s = self._saved_at_s = time.monotonic()
        try:
            self._checkpoints.save(training.capture(), training.counters.step)
        except (PliantError, OSError) as error:
            problem = f"the checkpoint of step {training.counters.step} failed: {error}"
            self._reporter.warn(training.counters, problem)
            return problem
        self._saved = _copy(training.counters)
        self._saved_at_s = time.monotonic()
        self._reporter.checkpoint_done(training.counters, self._saved_at_s - began_s)
        return ""

    def _barrier(self) -> None:
        if not self._alone:
            dist.barrier()

    def _same_plan(self, generation: int) -> Plan:
        """A plan of at least this generation: the same one on all workers, should yet newer ones appear."""
        while True:
            plan = self._watch.wait_for(generation, self._orders.plan.timeout_s)
            oldest, generation = self._vote.spread(plan.generation)
            if oldest == generation:
                return plan

    def _check_same(self, step: int) -> None:
        first, last = self._vote.spread(step)
        if first != last:
            raise ServiceMissingError(
                f"{self._orders.folder.checkpoints}: some workers read the checkpoint of step {first}, "
                f"others that of step {last}: is the folder shared by all nodes?"
            )

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._end("crashed", _described(kind, error, alone=self._alone))
        self._previous_hook(kind, error, trace)

    def _on_exit(self) -> None:
        if self._ended:
            return
        if not self._complete:
            self._end("crashed", "the script ended before its training did")
        elif self._unsaved:
            self._end("crashed", self._unsaved)
        else:
            self._end("done")

    def _earlier(self) -> Counters:
        """Where a worker that ends before its training began would have gone on."""
        try:
            state = self._checkpoints.load().state
        except BadInputError:
            state = None
        return Counters() if state is None else Counters(**state["counters"])

    def _reached(self, outcome: str) -> Counters:
        """What counts as trained: all of it in a job that is done, else what is saved."""
        if self._training is None:
            return self._earlier()
        return self._training.counters if outcome == "done" else self._saved

    def _end(self, outcome: Literal["done", "stopped", "crashed"], message: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if self._reporter is not None:
            self._reporter.close()
        reached = self._reached(outcome)
        end = WorkerOutcome(
            outcome=outcome,
            samples_done=reached.samples_done,
            epoch=reached.epoch,
            message=message,
            exit_counts=outcome == "done" and (self._early or not self._signal.received),
        )
        try:
            self._orders.report_end(end)
        except (PliantError, OSError) as error:
            _log.warning("the outcome %r is not written: %s", outcome, error)


def _copy(counters: Counters) -> Counters:
    return Counters(**counters.as_dict())


def _division(plan: Plan) -> tuple[object, ...]:
    return plan.attempt, plan.members, plan.global_batch, plan.accum


def _described(kind: type[BaseException], error: BaseException, *, alone: bool) -> str:
    """One line about an exception; whether another worker's end is the likely cause."""
    first = (str(error).splitlines() or [""])[0]
    text = f"{kind.__name__}: {first}" if first else kind.__name__
    lost = not alone and any(word in str(error).lower() for word in _LOST_PEER)
    return f"lost the connection to another worker: {text}" if lost else text
