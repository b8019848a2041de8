"""What happens at each pass of the loop body: its begin and end, backward passes, and calls of optimizers.

The loader calls :class:`Stepper` before and after each pass, the gradients of the models in a backward pass,
and the optimizers of ``job.prepare`` around each of their steps. :class:`~.step.Step` decides, this acts.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch, tensors_in
from pliant.tools.run.elastic.loop.prepared import StepVoidError
from pliant.tools.run.elastic.loop.step import InnerLoop, LoopPhase, PassMode, StepOutcome
from pliant.tools.run.elastic.loop.tally import PassCheck, StepCounts, StepSums
from pliant.tools.run.elastic.loop.weights import StepWeights
from pliant.tools.run.elastic.loop.workers import WorkerGroup
from pliant.tools.run.elastic.state.training import Mean


class Stepper:
    """Runs the steps of a training.

    A step is complete when the loader is asked for the next one: the loop body has run, and only then the
    counters move. So what is saved at that boundary is always consistent.
    """

    def __init__(self, workers: WorkerGroup) -> None:
        self.workers, self.step, self.phase = workers, workers.step, LoopPhase.BEFORE
        training = workers.training
        self.weights = StepWeights(training.modules, takes_turns=len(training.optimizers) > 1)
        self.order = ReadOrder()
        self.checks = PassCheck()
        self.counts = StepCounts(workers.gradients, workers.averaging, workers.warn)
        self.sums = StepSums()
        # No optimizer has made a step in this process.
        self.is_untrained = True
        # The script has no loader: its samples are numbers.
        self.by_steps = False
        workers.gradients.on_backward = self.backward_begins

    @property
    def in_batches(self) -> bool:
        """Whether the script is in the loop over batches or steps."""
        return self.phase is LoopPhase.IN_BATCHES

    @property
    def failed(self) -> bool:
        """Whether a worker was lost in the step, so that its gradients are void."""
        return self.workers.averaging.failed

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-steps."""
        return self.workers.accumulates

    @property
    def is_past(self) -> bool:
        """Whether the other workers have completed the step that the script is in."""
        step = self.step
        return step.micro is not None and self.workers.training.counters.step != step.number

    def quiet(self) -> bool:
        """Whether the loop body must have no effect: it ends no part of a step, or none that counts."""
        return not self.step.acts(is_lost=self.failed) or self.workers.replays_epoch

    def after_loop(self) -> bool:
        """Whether the script is past the loop over batches, so that what it does is not part of a step."""
        return not self.in_batches and not self.workers.replays_epoch

    # Optimizers

    def has_closure(self) -> None:
        """The optimizer that is called next has a closure, which makes its gradients."""
        self.step.has_closure = True

    def around_optimizer(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        """What an optimizer makes its step within."""
        step = self.step
        if not step.has_closure:
            self._average_hand_made()
        may_come_again = self.accumulates or self.workers.may_be_void
        if may_come_again and self.in_batches and step.inner is InnerLoop.NONE:
            self.weights.note(step.part, optimizer.param_groups)
        return self.workers.training.scaled_lr()

    def closure_called(self) -> None:
        """The closure of an optimizer has made the gradients of the micro-batch."""
        if not self.quiet():
            self._average_hand_made()

    def _average_hand_made(self) -> None:
        """Average gradients that no backward pass has made: the script has set them."""
        self.step.has_gradients = True
        self.agree_on_step()
        self.workers.gradients.before_optimizer()
        if self.failed:  # their exchange was the step's first
            raise StepVoidError

    def optimizer_called(self, optimizer: Optimizer) -> None:
        """An optimizer was asked for its step, and has made it if the pass counts."""
        step, gradients, training = self.step, self.workers.gradients, self.workers.training
        gradients.refuse_within_backward()
        step.part_over, step.has_closure = True, False
        self.checks.called(optimizer)
        if self.quiet():
            gradients.commit()
            if step.part < step.turn:
                self.weights.go_to(step.part + 1)
        else:
            gradients.stepped()
            if self.in_batches:
                step.stepped, self.is_untrained = True, False
                training.parts = max(training.parts, step.part + 1)

    # Passes

    def begin(self, micro: MicroBatch, batch: object = None) -> None:
        """The loop body gets a micro-batch. It may only look at it, so nothing is exchanged here."""
        workers, step = self.workers, self.step
        parts, number = workers.training.parts, workers.training.counters.step
        self._compare_shapes(batch)
        is_first = not step.under_way
        if is_first:
            step.begin(time.monotonic(), parts)
            self.weights.begin_step()
            self.checks.begin_step()
            self.sums.begin_step()
            self.counts.begin_step(number)
            workers.gradients.begin_step()
            workers.note_start()
        self._note_share(micro, first=is_first)
        self.checks.begin()
        self.sums.begin()
        self.counts.begin(micro)
        step.begin_pass(parts, number)
        workers.exchange_if_counted()
        workers.gradients.selected = step.turn == 0
        self.weights.begin_pass(step.turn, watched=self.accumulates)
        self._give(micro)

    def inner(self, micro: MicroBatch | None, loop: int) -> None:
        """The loop body takes the micro-steps itself: this one comes next, or all are done.

        :param loop: number of its loop over them in this pass, from 1.
        :raises UsageError: it is in no loop over steps.
        """
        step = self.step
        if step.micro is None or not self.in_batches:
            raise UsageError("loop over job.micro_steps() inside `for step in job.steps(n):`")
        step.inner = InnerLoop.COMPLETE if micro is None else InnerLoop.BEGUN
        self.workers.gradients.commit()
        if micro is not None:
            step.begin_inner(loop)
            if not step.mode.is_changed:
                self._give(micro)

    def _give(self, micro: MicroBatch) -> None:
        self.step.micro = micro
        self.workers.gradients.begin(micro)

    def backward_begins(self) -> None:
        """A backward pass has reached the models; the workers have exchanged nothing about it yet.

        :raises UsageError: the loader was asked for the next batch before this one was trained.
        """
        step, workers = self.step, self.workers
        step.has_gradients = True
        self.order.check()
        if step.part_over:
            whole = not self.accumulates or step.inner is not InnerLoop.NONE
            step.begin_part(workers.training.parts, whole=whole)
            workers.exchange_if_counted()
            workers.gradients.selected = step.part == step.turn
        self.agree_on_step()

    def agree_on_step(self) -> None:
        """While the step is trained, all workers agree on what to do after it."""
        workers, step = self.workers, self.step
        if step.micro is None or step.is_agreed or workers.averaging.idle:
            return
        step.is_agreed = True
        if workers.guard.is_due(workers.training.counters.step) and workers.averaging.begun:
            workers.compare()
        elif workers.averaging.begun and workers.split.global_batch % workers.split.workers:
            workers.draws.share(workers.averaging.broadcast, scripts=False)
        if workers.membership is not None:
            error = workers.membership.step_begins(step.micro.steps_left, step.began_s)
            if error is not None:
                workers.averaging.void(error)

    def end(self, batch: object) -> None:
        """The loop body is through with its micro-batch.

        The last step of an epoch has no boundary of its own: no checkpoint lies between the steps of an epoch
        and the script's code after them.
        """
        step, workers, micro = self.step, self.workers, self.step.micro
        self.weights.return_to_present()
        if micro is not None:
            self.order.pass_ends(tensors_in(batch), trained=step.has_gradients)
        if step.mode.is_changed:
            self._end_changed()
            return
        if micro is not None and micro.last:
            workers.gradients.settle()
        step.mode = PassMode.COUNTS
        workers.exchange_if_counted()
        if self.accumulates and micro is not None:
            workers.gradients.commit()
            if step.inner is InnerLoop.NONE:
                self.checks.check(last=micro.last, trained=step.has_gradients)
                if not micro.last:
                    self.weights.check_untouched()
        self._complete()
        if micro is not None and micro.last and micro.steps_left and workers.membership is not None:
            workers.follow(workers.membership.boundary())

    def leave(self) -> None:
        """The script leaves the loop over batches: what it trains next belongs to no batch."""
        if self.in_batches:
            self.phase = LoopPhase.IN_EPOCH
        self.own_step()

    def break_off(self) -> None:
        """The script has left the loop over batches in the middle of its step."""
        self.weights.return_to_present()
        self.leave()

    def own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader."""
        self.workers.gradients.own_step()
        self.counts.own_step()

    def settle(self) -> None:
        """Complete the step that a ``break`` has left open, if the optimizer has made it; else drop it.

        If a worker was lost in it, nothing of it stays: the script did not ask for that step.
        """
        step, workers = self.step, self.workers
        if step.mode.is_changed:
            self._end_changed()
        if step.stepped:
            self._complete(left=True)
        step.micro = None
        self.own_step()
        if step.under_way:
            step.under_way, workers.training.parts = False, 0
            step.take_losses()
            if not workers.retry() and workers.membership is not None:
                workers.follow(workers.membership.collect_vote())

    def leave_training(self) -> None:
        """The script leaves its training: its last step counts if the optimizer has made it."""
        step = self.step
        micro, step.micro = step.micro, None
        if micro is not None and micro.last and step.stepped and not self.failed:
            self.workers.training.step_done(micro.step_samples, step.losses)

    # Ends of passes

    def _complete(self, *, left: bool = False) -> None:
        """Count the step if its last micro-step is through, and no part of it waits for its turn.

        :param left: no part of it is trained any more.
        """
        step, training = self.step, self.workers.training
        micro = step.micro
        if micro is not None and micro.last and not step.is_agreed:
            self.agree_on_step()
        outcome = step.outcome(training.parts, is_past=self.is_past, is_lost=self.failed, left=left)
        step.micro = None
        if micro is None or not micro.last:
            return
        losses = step.take_losses()
        if outcome is StepOutcome.TURN:
            training.parts = max(training.parts, step.turn + 1)
            return
        step.under_way = False
        if outcome is StepOutcome.RETRY and self.workers.retry():
            return
        self._count(micro, losses)

    def _count(self, micro: MicroBatch, losses: Mean) -> None:
        workers, step = self.workers, self.step
        workers.guard.step_done()
        membership = workers.membership
        if membership is not None and not (step.has_gradients or step.stepped):
            membership.left_out()
        workers.training.step_done(micro.step_samples, losses)
        step.values = 0
        if membership is not None:
            workers.follow(membership.step_ends(losses, workers.averaging.take_waited_s()))
        elif (tracking := workers.context.tracking) is not None:
            tracking.add_losses(losses)
            tracking.step_done(workers.training.counters.samples_done)

    def _end_changed(self) -> None:
        """The workers have changed in the pass. Its step counts if its optimizers had stepped before."""
        step, workers, micro = self.step, self.workers, self.step.micro
        outcome = step.outcome(workers.training.parts, is_past=self.is_past, is_lost=False)
        step.micro, step.under_way, step.mode = None, False, PassMode.COUNTS
        workers.exchange_if_counted()
        workers.divide_again()
        losses = step.take_losses()
        if outcome is StepOutcome.COUNTED and micro is not None:
            self._count(micro, losses)
        else:
            workers.gradients.forget()
            workers.restore_start()

    # What the workers compare

    def _compare_shapes(self, batch: object) -> None:
        """Where workers are compared next, also compare the shapes of the batches of the step."""
        workers, guard = self.workers, self.workers.guard
        whole = workers.context.world_size == 1 and not self.accumulates
        if whole or not guard.is_due(workers.training.counters.step):
            return
        guard.see_shapes(tensors_in(batch), again=self.step.under_way)
        if not self.step.under_way and workers.averaging.begun:
            guard.look()

    def _note_share(self, micro: MicroBatch, *, first: bool) -> None:
        """The guard adds up what all workers train in a step, though passes come again for turns."""
        workers = self.workers
        if workers.averaging.begun and not self.by_steps and (first or not self.step.stepped):
            trained = workers.training.counters.epoch_samples
            workers.guard.takes(
                range(micro.start, micro.start + micro.samples),
                micro.weight,
                range(trained, trained + micro.step_samples),
                workers.context.world_size,
                first=first,
            )


class ReadOrder:
    """Checks that no batch is trained after the script has taken the next one."""

    def __init__(self) -> None:
        # A batch of this loop was trained before the next one was taken, so that nothing reads ahead.
        self._is_known = False
        # Tensors of a batch that was not trained.
        self._passed_over = list[weakref.ref[torch.Tensor]]()

    def begin_loop(self) -> None:
        """A loop over batches begins."""
        self._is_known = False

    def pass_ends(self, batch: Iterable[torch.Tensor], *, trained: bool) -> None:
        """The script takes the next batch."""
        self._is_known = self._is_known or trained
        if not trained:
            self._passed_over = [weakref.ref(tensor) for tensor in batch]

    def check(self) -> None:
        """A backward pass begins.

        :raises UsageError: a batch was taken and not trained, and still lives: this may be its backward pass.
        """
        if not self._is_known and any(tensor() is not None for tensor in self._passed_over):
            raise UsageError(
                "a batch is trained after the loader was asked for the next one: train each batch before "
                "taking the next (job.prepare reads ahead by itself: num_workers=1 or more)"
            )
        self._passed_over = []
