"""The order of things in a training: micro-steps, step boundaries, epochs.

The author's code drives it from two sides: ``job.epochs`` runs :meth:`TrainingLoop.epochs`, and the loader
inside calls the loop before and after each pass of the author's loop body (``loop/passes.py``). At boundaries
the loop asks :class:`Membership`, which calls nothing back, and acts on the instruction that it returns.

A step has several parts where optimizers take turns in it (a GAN): a part begins when a model is trained
after an optimizer has stepped. A pass trains the parts whose turn it is, and what it does in others does not
count.
So a step whose second part was broken by the loss of a worker is tried again without its first, and with
micro-steps the second part is trained when the first has stepped.
"""

from __future__ import annotations

import atexit
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

import torch
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.loop.batches import BatchSplit, MicroBatch, Rows, tensors_in, to_device
from pliant.tools.run.elastic.loop.draws import OwnDraws
from pliant.tools.run.elastic.loop.exchange import Averaging
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.prepared import StepVoidError
from pliant.tools.run.elastic.loop.step_start import StepStart
from pliant.tools.run.elastic.loop.tally import Counts, PassCheck, StepSums, like, numbers_in, numbers_of
from pliant.tools.run.elastic.loop.weights import StepWeights
from pliant.tools.run.elastic.membership.membership import Continue, Instruction, Leave, Membership, Regroup
from pliant.tools.run.elastic.state.replicas import ReplicaGuard, shapes_of
from pliant.tools.run.elastic.state.training import (
    BETWEEN_EPOCHS,
    EPOCH_THROUGH,
    IN_EPOCH,
    Mean,
    Training,
    each_model,
    mixed_seed,
    restore_generators,
)

_log = logging.getLogger("pliant")
_OWN_DRAWS: Final = 1 << 20
"""What a loop over the micro-steps draws differs from what the one before has drawn."""


class TrainingLoop:
    """Runs one training: called by the loader at every micro-step and by ``epochs`` at every epoch.

    A step is complete when the loader is asked for the next one: the loop body has run, and only then the
    counters move. So what is saved at that boundary is always consistent. A step that was broken by the loss
    of a worker is quiet: nothing that the loop body does in it counts.
    """

    def __init__(
        self,
        context: Context,
        training: Training,
        gradients: Gradients,
        averaging: Averaging,
        *,
        batch_size: int | None,
        micro_batch_size: int | None = None,
        drop_last: bool = False,
        membership: Membership | None = None,
        dataset_size: int = 0,
        ends_on_difference: bool = True,
    ) -> None:
        """:param batch_size: the script's; the plan's comes first.
        :param micro_batch_size: the most samples of a micro-step on one worker, if the script states them.

        :raises UsageError: there is no batch size, or one that is too small for the workers.
        """
        self.context, self.training = context, training
        self._batch_size, self._micro_batch_size, self._drop_last = batch_size, micro_batch_size, drop_last
        self.dataset_size = dataset_size
        self.split = self._split_now()
        # How often the work was divided; the loader compares it to notice a change.
        self.division = 0
        self.started, self._runs = False, False
        self._gradients, self._averaging, self._membership = gradients, averaging, membership
        self._step_start = StepStart()
        self._weights = StepWeights(training.modules, takes_turns=len(training.optimizers) > 1)
        self.guard = ReplicaGuard(training, self.warn, ends=ends_on_difference)
        training.meets = self._meet
        self.draws = OwnDraws(each_model(training.model), context.device)
        self._micro: MicroBatch | None = None
        # Whether a step is under way, and when it began (monotonic).
        self._mid_step, self._since_s = False, 0.0
        # The batch of the step is trained, not only looked at; no optimizer has made a step in this process.
        self._trains, self._untouched = False, True
        # Loops over the loader that have begun; only the last may take batches.
        self._passes = 0
        # Whether gradients of the last micro-batch have arrived; whether those of one batch of this loop did
        # before the next one was asked for, so that nothing reads ahead; tensors of a batch that had none.
        self._touched, self._in_order, self._passed_over = False, False, list[weakref.ref[Any]]()
        # Samples of the epoch that were trained before this process began its part.
        self._begun_at = 0
        self.asked_for_steps = self.by_steps = self.has_closure = False
        # The author's code is in the loop over the loader; the optimizer has made the current step.
        self._in_loop = self._stepped = self._in_epoch = False
        # The loader has served the whole epoch. Another worker has done the end of it: this one's does not
        # count.
        self._passed = self._catching_up = False
        self._losses = Mean()
        self._metric: float | None = None
        # Values of rank 0 that this worker has asked for since the last step.
        self._asked = 0
        self._step_of_pass = self._drawn = 0
        # The part of the step that the pass has come to, and the one that it trains.
        self._part = self._turn = 0
        # An optimizer was called: what is trained next is another part. Or the workers have changed in the
        # pass: nothing is trained in the rest of it.
        self._part_over = self._divided_in_pass = False
        # The value of rank 0 for which the other workers wait for this one, in the middle of a step.
        self._catches_up_at = -1
        self.passes = PassCheck()
        self.counts = Counts(gradients, averaging, self.warn)
        self._sums = StepSums()
        # The loop body takes the micro-steps of its step itself; all of them; not all.
        self._takes_inner = self.took_all = self.took_some = False
        gradients.bind(accumulates=self.accumulates)
        gradients.on_backward = self.train
        if membership is not None:
            # the script may end while one of its variables still holds the iterator over epochs
            atexit.register(self.leave)

    @property
    def resumed(self) -> bool:
        """Whether this attempt or batch goes on with a begun epoch, and has not trained a step of it."""
        counters = self.training.counters
        return counters.epoch_samples > 0 and counters.step == self.training.batch[1]

    def epochs(self, count: int) -> Iterator[int]:
        """:raises UsageError: it is called again: which of several loops a state belongs to is not known. Or
        nothing was trained, though epochs were asked for.
        """
        if self._runs:
            raise UsageError(
                "job.epochs and job.steps run once: ask for all of them in one loop, and tell its phases by "
                "the number (for epoch in job.epochs(6): warms_up = epoch < 3)"
            )
        self._runs = True
        self._start()
        began_at = self.training.counters.step
        try:
            while self.training.counters.epoch < count:
                self._agree_to_begin()
                self._asked = 0
                if self.training.phase == IN_EPOCH:
                    self._in_epoch, self._passed = True, False
                    self._begun_at, self.asked_for_steps = self.training.counters.epoch_samples, False
                    yield self.training.counters.epoch
                    self._in_epoch = False
                self._end_epoch()
        except GeneratorExit:
            self.leave()
            raise
        finally:
            self.counts.close()
        self._check_trained(began_at, asked=bool(count and (self.dataset_size or not self.by_steps)))
        if self._membership is not None:
            while not self._obey(self._membership.training_ends()):
                pass

    def _check_trained(self, began_at: int, *, asked: bool) -> None:
        """:param began_at: the step at which this process began; ``asked``: for at least one more.

        :raises UsageError: nothing was trained, though it was asked for.
        """
        steps = self.training.counters.step
        if not asked and not steps:
            self.warn("nothing is trained: the script asks for 0 epochs or steps")
        elif not steps and self._drop_last and self.dataset_size < self.split.global_batch:
            raise UsageError(
                f"nothing was trained: no batch of {self.split.global_batch} samples was filled, and "
                "drop_last=True leaves out smaller ones: give it more samples, a smaller batch_size, or "
                "drop_last=False"
            )
        elif not steps:
            raise UsageError("nothing was trained: the loop over job.epochs has taken no batch of the loader")
        elif self._untouched and began_at == 0:
            self.warn(f"nothing is trained: no optimizer of job.prepare was called in {steps} steps")

    def base_batch(self) -> int:
        """The author's batch: that of the plan before a policy has changed it."""
        plan, batch = self.context.plan, self.split.global_batch
        return batch if plan is None else max(1, round(batch / plan.lr_scale))

    def quiet(self) -> bool:
        """Whether the loop body must have no effect: it ends no part of a step, or none that counts."""
        micro, averaging = self._micro, self._averaging
        between = micro is not None and not (micro.last and self._part == self._turn)
        return between or averaging.idle or self._catching_up or averaging.failed

    @property
    def micro(self) -> MicroBatch:
        """:raises UsageError: the author's code is not in the loop over batches or steps."""
        if self._micro is None or not self._in_loop:
            raise UsageError("ask for samples in the loop over job.steps, or over the loader")
        return self._micro

    def numbers(self) -> torch.Tensor:
        """Of the samples of the micro-batch, in the order of the epoch."""
        micro = self.micro
        return torch.arange(micro.loaded.start, micro.loaded.stop)

    def rows(self) -> Rows:
        """:raises UsageError: the author's code is not in the loop over batches or steps."""
        micro, counters = self.micro, self.training.counters
        no_effect = self._averaging.idle or self.failed or self._catching_up or self._divided_in_pass
        return Rows(
            start=max(0, micro.start - counters.epoch_samples),  # others may have completed the step
            count=max(1, micro.samples),
            samples=micro.samples,
            batch=micro.step_samples,
            step=counters.step,
            epoch=counters.epoch,
            division=self.division,
            last=micro.last,
            counts=self._part == self._turn and not no_effect,
            after_optimizer=self._part_over,
        )

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        """The sums over the workers, in place; False if a worker was lost, which makes the step void."""
        return self._averaging.add_up(tensors)

    @property
    def device(self) -> torch.device:
        return self.context.device

    def draw(self, make: Callable[[int, torch.Generator], Any]) -> Any:
        """The micro-batch's rows of what ``make`` draws for the samples of the step."""
        rows, training = self.rows(), self.training
        generator = torch.Generator().manual_seed(
            mixed_seed(training.seed, training.counters.samples_done, self._drawn)
        )
        self._drawn += 1
        mine = slice(rows.start, rows.start + rows.count)
        return to_device(_rows(make(rows.batch, generator), mine), self.device)

    @property
    def is_mid_step(self) -> bool:
        return self._mid_step

    def after_loop(self) -> bool:
        """Whether the author's code is past the loop over the loader, so it is not part of a step."""
        return not self._in_loop and not self._catching_up

    def leave(self) -> None:
        """The author has left ``epochs``, or ends the script while still holding its iterator."""
        if not self._in_epoch or (self._membership is not None and self._membership.over):
            return
        self._in_epoch = False
        if self._untouched and not self.training.counters.step:
            self.warn("nothing is trained: the script has left its training before the first step")
        # a metric counts if the epoch was left after its steps
        metric = self._metric if self.training.phase == IN_EPOCH and self._micro is None else None
        micro, self._micro = self._micro, None
        if micro is not None and micro.last and self._stepped and not self.failed:
            self.training.step_done(micro.step_samples, self._losses)
        if self._membership is not None:
            self._membership.left_early(metric)

    @property
    def accumulates(self) -> bool:
        return self.split.accum > 1

    @property
    def failed(self) -> bool:
        return self._averaging.failed

    def whole_step(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        if not self.has_closure:
            self._take_hand_made()
        may_come_again = self.accumulates or self._step_start.watches
        if may_come_again and self._in_loop and not self._takes_inner:
            self._weights.note(self._part, optimizer.param_groups)
        return self.training.scaled_lr()

    def closure_called(self) -> None:
        """The closure of an optimizer has made the gradients of the micro-batch."""
        if not self.quiet():
            self._take_hand_made()

    def _take_hand_made(self) -> None:
        """Gradients that the script has set by hand were computed without a backward pass."""
        self._touched = True
        self._take_part()
        self._gradients.before_optimizer()
        if self.failed:  # their exchange was the step's first
            raise StepVoidError

    def optimizer_called(self, optimizer: Optimizer) -> None:
        """An optimizer was asked for its step, and has made it if the pass counts."""
        self._gradients.refuse_within_backward()
        self._part_over, self.has_closure = True, False
        self.passes.called(optimizer)
        if self.quiet():
            self._gradients.commit()
            if self._part < self._turn:
                self._weights.go_to(self._part + 1)
        else:
            self._gradients.stepped()
            if self._in_loop:
                self._stepped, self._untouched = True, False
                self.training.parts = max(self.training.parts, self._part + 1)

    def begin_pass(self) -> int:
        """A loop over the loader begins; returns its number.

        :raises UsageError: ``epochs`` is not running, or the epoch has had its pass.
        """
        if not self.started:
            raise UsageError("iterate the loader inside `for epoch in job.epochs(n):`")
        if self._passed:
            raise UsageError(
                "the loader has no second pass in an epoch: ask job.epochs for more epochs, "
                "or evaluate with a DataLoader"
            )
        self._settle()
        self._in_loop, self._in_order = True, False
        self._passes += 1
        self.training.restore_again()
        return self._passes

    def goes_on(self, number: int, epoch: int, *, is_last: bool) -> bool:
        """Whether a loop over the loader that was asked for its next batch may have one.

        It may not if its epoch is over; that is not a mistake if it had no more batches.

        :param number: of the loop, which began in ``epoch``.
        :param is_last: whether it was given the last batch of that epoch.
        :raises UsageError: its remaining batches belong to another loop or epoch.
        """
        now = self.training.counters.epoch
        if now == epoch and self._in_epoch and number == self._passes:
            return True
        if now != epoch or not self._in_epoch:
            if is_last:
                return False
            raise UsageError(
                f"a loop over the loader that was begun in epoch {epoch} was continued after that epoch: "
                "begin one in every epoch of job.epochs"
            )
        raise UsageError(
            "a loop over the loader was continued after another one had begun: take all batches of an epoch "
            "from one, and other samples from a DataLoader of their own"
        )

    @property
    def is_through(self) -> bool:
        """Whether other workers have trained the rest of the epoch."""
        return self.training.phase == EPOCH_THROUGH

    def end_pass(self) -> None:
        self._passed, self._in_loop = True, False
        self._own_step()

    def _own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader."""
        self._gradients.own_step()
        self.counts.own_step()

    def leave_loop(self, number: int) -> None:
        if number == self._passes and self._in_loop:
            self._weights.return_to_present()
            self._in_loop = False
            self._own_step()

    def begin(self, micro: MicroBatch, batch: object = None) -> None:
        """The loop body gets a micro-batch. It may only look at it, so nothing is exchanged here."""
        self._look_at_shapes(batch)
        if not self._mid_step:
            self._stepped, self._trains = self.training.parts > 0, False
            self._since_s = time.monotonic()
            self._weights.begin_step()
            self.passes.begin_step()
            self._sums.begin_step()
            self.counts.begin_step(self.training.counters.step)
            self._gradients.begin_step()
            self._note_start()
        self._note_share(micro, first=not self._mid_step)
        self._mid_step, self._touched = True, False
        self.passes.begin()
        self._sums.begin()
        self.counts.begin(micro)
        self._step_of_pass = self.training.counters.step
        self._asked = self._part = self._drawn = 0
        self._turn, self._part_over = self.training.parts, False
        self._divided_in_pass = self._takes_inner = self.took_all = self.took_some = False
        self._averaging.idle = self._catches_up_at >= 0
        self._gradients.selected = self._turn == 0
        self._weights.begin_pass(self._turn, watched=self.accumulates)
        self._give(micro)

    def _look_at_shapes(self, batch: object) -> None:
        """Where workers are compared next, also compare the shapes of the batches of the step."""
        guard, whole = self.guard, self.context.world_size == 1 and not self.accumulates
        if whole or not guard.is_due(self.training.counters.step):
            return
        shapes = shapes_of(tensors_in(batch))
        if self._mid_step and shapes != guard.shapes:
            guard.warn_of_shapes()
        guard.shapes = shapes
        if not self._mid_step and self._averaging.begun:
            guard.size = self.dataset_size
            guard.look()

    def _note_share(self, micro: MicroBatch, *, first: bool) -> None:
        """The guard adds up what all workers train in a step, though passes come again for turns."""
        if self._averaging.begun and not self.by_steps and (first or not self._stepped):
            trained = self.training.counters.epoch_samples
            self.guard.takes(
                range(micro.start, micro.start + micro.samples),
                micro.weight,
                range(trained, trained + micro.step_samples),
                self.context.world_size,
                first=first,
            )

    def _compare(self) -> None:
        """Compare the replicas, where all workers are at the same place."""
        workers = self.context.world_size
        if workers > 1:
            self.guard.size = self.dataset_size
            self.guard.check(lambda tensor: self._averaging.add_up([tensor]), workers)

    def _meet(self) -> None:
        """All workers are between two steps, and the script's code between two epochs may follow."""
        self._compare()
        self.draws.share(self._averaging.broadcast, scripts=True)

    def warn(self, text: str) -> None:
        """A warning in the job's events, or on this process's own log."""
        if self._membership is None:
            _log.warning("%s", text)
        else:
            self._membership.warn(text)

    def inner(self, micro: MicroBatch | None, loop: int) -> None:
        """The loop body takes the micro-steps itself: this one comes next, or all are through.

        :param loop: which loop over them it is, in this pass, from 1.
        """
        if self._micro is None or not self._in_loop:
            raise UsageError("loop over job.micro_steps() inside `for step in job.steps(n):`")
        self._takes_inner, self.took_some, self.took_all = True, micro is not None, micro is None
        self._gradients.commit()
        if micro is not None:
            self._drawn = _OWN_DRAWS * loop
            if not self._divided_in_pass:
                self._give(micro)

    def _give(self, micro: MicroBatch) -> None:
        self._micro = micro
        self._gradients.begin(micro)

    def train(self) -> None:
        """A backward pass has reached the models; the workers have exchanged nothing about it yet.

        :raises UsageError: the loader was asked for the next batch before this one was trained.
        """
        self._touched = True
        if not self._in_order and any(one() is not None for one in self._passed_over):
            raise UsageError(
                "a batch is trained after the loader was asked for the next one: train each batch before "
                "taking the next (job.prepare reads ahead by itself: num_workers=1 or more)"
            )
        self._passed_over = []
        if self._part_over:
            self._part_over = False
            self._begin_part()
        self._take_part()

    def _begin_part(self) -> None:
        self._part += 1
        if self._divided_in_pass:
            self._averaging.idle = True
        elif not self.accumulates or self._takes_inner:
            self._turn = self.training.parts
        self._gradients.selected = self._part == self._turn

    def _take_part(self) -> None:
        """While the step is trained, all workers agree on what to do after it."""
        if self._micro is None or self._trains or self._averaging.idle:
            return
        self._trains = True
        if self.guard.is_due(self.training.counters.step) and self._averaging.begun:
            self._compare()
        elif self._averaging.begun and self.split.global_batch % self.split.workers:
            self.draws.share(self._averaging.broadcast, scripts=False)
        if self._membership is not None:
            error = self._membership.step_begins(self._micro.steps_left, self._since_s)
            if error is not None:
                self._averaging.void(error)

    def end(self, batch: object) -> None:
        """The loop body is through with its micro-batch.

        The last step of an epoch has no boundary of its own: no checkpoint lies between the steps of an epoch
        and the author's code after them.
        """
        micro = self._micro
        self._weights.return_to_present()
        self._in_order = self._in_order or self._touched
        if micro is not None and not self._touched:
            self._passed_over = [weakref.ref(one) for one in tensors_in(batch)]
        if self._divided_in_pass:
            self._end_divided(micro)
            return
        if micro is not None and micro.last:
            self._gradients.settle()
        self._averaging.idle = False
        if self.accumulates and micro is not None:
            self._gradients.commit()
            if not self._takes_inner:
                self.passes.check(last=micro.last, trained=self._touched)
                if not micro.last:
                    self._weights.check_untouched()
        self._complete()
        if micro is not None and micro.last and micro.steps_left and self._membership is not None:
            self._obey(self._membership.boundary())

    def _end_divided(self, micro: MicroBatch | None) -> None:
        """The workers have changed in the pass. Its step counts if its optimizers had stepped before."""
        self._micro, self._mid_step = None, False
        self._divided_in_pass = self._averaging.idle = False
        self.division += 1  # also where a worker joined before this pass: what comes next is cut again
        losses, self._losses = self._losses, Mean()
        training = self.training
        if training.counters.step == self._step_of_pass and training.parts > self._part and micro is not None:
            self._count(micro, losses)
        else:
            self._gradients.forget()
            self._put_back_start()

    def _note_start(self) -> None:
        self._step_start.note(self._gradients.kept() if self._gradients.outlive else {})

    def _put_back_start(self) -> None:
        self._step_start.put_back_buffers()
        if self._gradients.outlive:
            self._gradients.restore(self._step_start.gradients)

    def log(self, loss: float | torch.Tensor | None, metric: float | torch.Tensor | None) -> None:
        """Count what the author measured; a loss outside of a batch is not counted."""
        if metric is not None:
            self._metric = float(metric)
            if self.by_steps and self._membership is not None and not self._averaging.idle:
                self._membership.measured(self._metric)
        if loss is not None and self._micro is not None:
            self._losses.add(loss, self.counts.of_loss)

    def combine(self, value: Any, *, mean: bool) -> Any:
        """The sum or mean of a value over the workers, and over the micro-steps of the step.

        :param value: numbers or tensors in dictionaries, lists and tuples; outside of the loop over batches
            also a function, which is called again if the workers change.
        """
        self.passes.consulted = True
        if self._micro is not None and self._in_loop:
            return self._combine_in_step(value() if callable(value) else value, mean=mean)
        if not self.started or self.training.phase == BETWEEN_EPOCHS:
            raise UsageError("call job.sum and job.mean in the loop over job.epochs or job.steps")
        if self._micro is not None:
            self._settle()
            self._asked = 0
        number, division = self._asked, -1
        self._asked += 1
        given: Any = None
        while len(self.training.agreed) <= number:
            if division not in {-1, self.division} and not callable(value):
                raise UsageError(
                    "a worker was lost while values were added up: give job.sum a function, which is called "
                    "again"
                )
            if division != self.division:
                division, given = self.division, value() if callable(value) else value
            self._ask([*numbers_in(given), 1.0], adds=True)
        if given is None:
            given = value() if callable(value) else value  # others have added up what this worker was in
        *sums, workers = self.training.agreed[number]
        return like(given, [one / workers for one in sums] if mean else sums)

    def _combine_in_step(self, value: Any, *, mean: bool) -> Any:
        micro, samples = self.micro, self.counts.of_loss
        factor = samples if mean else float(micro.samples > 0)
        sums = self._sums.add(self._turn, [*(one * factor for one in numbers_in(value)), samples])
        if micro.last and not self._averaging.idle:
            self._take_part()
            self._averaging.add_up([sums])
        *numbers, samples = sums.tolist()
        if mean:
            numbers = [one / samples if samples else math.nan for one in numbers]
        return like(value, numbers)

    def weigh(self, count: float) -> None:
        """The loss of the micro-batch is a mean over ``count`` of something, not over its samples.

        :raises UsageError: it comes after the backward pass, or a second time in a pass with micro-steps.
        """
        micro, part = self.micro, self._part + self._part_over
        counts = not self._averaging.idle and (part == self._turn or not self.accumulates)
        if counts and micro.last:
            self._take_part()
        self.counts.weigh(
            count,
            micro,
            self.context.world_size,
            is_late=self._touched and not self._part_over,
            accumulates=self.accumulates,
            counts=counts,
        )

    def agree(self, value: Any) -> Any:
        training, self.passes.consulted = self.training, True
        if not self.started or training.phase == BETWEEN_EPOCHS:
            raise UsageError("call job.agree in the loop over job.epochs or job.steps")
        if self._micro is not None and not self._in_loop:
            self._settle()  # a `break` has left the loop over the loader
            self._asked = 0
        number, began_s, drawn = self._asked, time.monotonic(), self._drawn
        own = cache(lambda: numbers_of(value() if callable(value) else value))
        self._asked += 1
        while not self._is_past and len(training.agreed) <= number:
            # after a worker was lost this one may be rank 0
            self._ask(own() if self.context.rank == 0 else None)
        self._drawn = drawn  # whatever rank 0 alone has drawn
        if self._micro is not None and self._membership is not None:
            self._membership.set_aside(time.monotonic() - began_s)
        found = (training.agreed_before if self._is_past else training.agreed)[number]
        return dict(found) if isinstance(found, dict) else list(found) if isinstance(found, list) else found

    @property
    def _is_past(self) -> bool:
        """Whether the other workers have completed the step that the author's code is in."""
        return self._micro is not None and self.training.counters.step != self._step_of_pass

    def _ask(self, given: Any, *, adds: bool = False) -> None:
        """Ask for rank 0's next value, or the next sum, once; a change of the workers may come instead."""
        training, membership = self.training, self._membership
        if membership is None:
            training.agree(given, self.context.world_size, adds=adds)
            return
        if self._micro is None:
            self._obey(membership.agree(given, adds=adds))
            return
        if len(training.agreed) == self._catches_up_at:
            self._catch_up()
        self._weights.return_to_present()
        training.asking = True
        error = self._averaging.error
        if error is not None and training.parts <= self._part:
            self._put_back_start()
        answer = membership.agree(given) if error is None else membership.step_void(error)
        if not self._obey(answer):
            self._divided_in_pass = True
            self._note_start()
            self._averaging.idle = True
            if self._catches_up_at < 0 and not self._is_past:
                self._catch_up()
        training.asking = False

    def _catch_up(self) -> None:
        """All workers are at the same place of a step: what follows counts if the step was made."""
        self._catches_up_at, self._divided_in_pass = -1, True
        made = self.training.parts > self._part
        self._averaging.idle = not made
        if made:  # a worker that came with this state acts here like those that trained the part
            self._turn = self._part

    # When the workers change

    def _obey(self, answer: Instruction) -> bool:
        """Act on an instruction.

        :returns: True if what was asked is done; False after a new division of the work: ask again.
        :raises SystemExit: this worker leaves.
        """
        if isinstance(answer, Continue):
            return True
        assert self._membership is not None  # noqa: S101 it is what gave the instruction
        if isinstance(answer, Regroup):
            self._let_go()
            answer = self._membership.regroup()
        if isinstance(answer, Leave):
            raise SystemExit(answer.code)
        if answer.state is not None:
            self._take(answer.state, fresh=answer.fresh)
        self._divide()
        self._membership.settle(self.split.global_batch)
        return False

    def _let_go(self) -> None:
        self._gradients.let_go()
        self._averaging.end()
        self._gradients.bind(accumulates=False)

    def _take(self, state: Mapping[str, Any], *, fresh: bool) -> None:
        """Take the state of a worker that is further.

        If that worker has already run the author's code after an epoch, its effect comes with the state: here
        the code will run, too, but must not count.

        :raises UsageError: this worker's model is not that of the other one.
        """
        training, phase = self.training, self.training.phase
        training.unpack(state)
        self._catches_up_at = len(training.agreed) if state["asking"] else -1
        self._catching_up = not fresh and phase == IN_EPOCH and training.phase == EPOCH_THROUGH
        restore_generators(state["training"]["generators"])
        if not fresh:
            training.forget_restored()

    def _divide(self) -> None:
        self.split, several = self._split_now(), self.context.world_size > 1
        self.training.turn_to(self.split.global_batch)
        if several and not self._averaging.begun:
            self._averaging.begin(each_model(self.training.model), self.context.device)
        self._gradients.bind(accumulates=self.accumulates)
        may_be_void = several and self.context.device.type == "cpu"
        self._step_start.watch(self.training.model if may_be_void else None)
        self.division += 1
        self.guard.new_workers()
        self.draws.follow(self.context.rank, self.context.world_size)

    def _split_now(self) -> BatchSplit:
        plan, workers = self.context.plan, self.context.world_size
        batch = self._batch_size if plan is None or plan.global_batch is None else plan.global_batch
        if batch is None:
            raise UsageError("no batch size: give elastic.init(batch_size=...) or batch.size of the job")
        if batch < workers:
            raise UsageError(f"a global batch of {batch} is too small for {workers} workers")
        accum = 1 if plan is None else plan.accum
        if self._micro_batch_size is not None:
            share = -(-batch // workers)
            accum = max(accum, -(-share // self._micro_batch_size))
        return BatchSplit(batch, workers, accum, self._drop_last)

    # The order of things

    def _start(self) -> None:
        if not self.started:
            if self._membership is not None or self.context.world_size > 1 or self.accumulates:
                self.counts.watch()
            self.training.check_averaged()
            if self._membership is not None:
                self._obey(self._membership.start(self.training))
            else:
                self.training.turn_to(self.split.global_batch)
                self.draws.follow(self.context.rank, self.context.world_size)
        self.started = True

    def _complete(self, *, whole: bool = False) -> None:
        """Count the step if its last micro-step is through, and no part of it waits for its turn.

        :param whole: no part of it is trained any more.
        """
        micro, self._micro = self._micro, None
        if micro is None or not micro.last:
            return
        if not self._trains:
            self._micro = micro
            self._take_part()
            self._micro = None
        losses, self._losses = self._losses, Mean()
        training = self.training
        if not self.failed and self._part > self._turn:
            training.parts = max(training.parts, self._turn + 1)
            if training.parts <= self._part and not whole:
                return
        self._mid_step = False
        if not self._voided():
            self._count(micro, losses)

    def _count(self, micro: MicroBatch, losses: Mean) -> None:
        self.guard.step_done()
        if self._membership is not None and not (self._touched or self._stepped):
            self._membership.left_out()
        self.training.step_done(micro.step_samples, losses)
        self._asked = 0
        if self._membership is not None:
            self._obey(self._membership.step_ends(losses, self._averaging.take_waited_s()))

    def _voided(self) -> bool:
        """Whether a worker was lost in the step; then the remaining ones have met.

        The step is trained again here, unless another worker has completed it.
        """
        error, membership = self._averaging.error, self._membership
        if error is None or membership is None:
            return False
        counters = self.training.counters.copy()
        self._put_back_start()
        self._obey(membership.step_void(error))
        if self.training.counters == counters:
            self._step_start.put_back_generator()
        return True

    def _agree_to_begin(self) -> None:
        """Before every epoch but the first: look for news, because the time between may have been long."""
        while self.training.phase == BETWEEN_EPOCHS:
            if self._membership is None:
                self.training.phase = IN_EPOCH
            elif self._obey(self._membership.between_epochs()):
                self.training.phase = IN_EPOCH
                self._obey(self._membership.boundary())

    def _end_epoch(self) -> None:
        self._settle()
        epoch = self.training.counters.epoch
        self.training.phase = EPOCH_THROUGH
        self._leave_together(epoch)
        loss = self._whole_loss(epoch)
        self._catching_up = False
        if self.training.counters.epoch == epoch:
            if self._membership is not None:
                self._membership.epoch_ends(loss, self._metric)
            self.training.epoch_done()
            self.training.phase = BETWEEN_EPOCHS
        self._metric = None

    def _leave_together(self, epoch: int) -> None:
        """If this worker has left the epoch midway, let those that train on in it leave, too."""
        counters, membership = self.training.counters, self._membership
        if membership is None or counters.epoch_samples >= self.dataset_size:
            return
        decides_alike = self.asked_for_steps or self.passes.consulted
        counts_passes = not (self._passed or self._catching_up or decides_alike)
        if counts_passes and self.accumulates and not self.by_steps:
            raise UsageError(
                f"epoch {epoch} was left after {counters.epoch_samples} of {self.dataset_size} samples by a "
                "count of passes, and each step has several: end such a loop by loader.steps_done"
            )
        if self._begun_at and counts_passes:
            membership.warn(
                f"epoch {epoch} was left after {counters.epoch_samples} of {self.dataset_size} samples, "
                f"{self._begun_at} of which were trained before this process began: end such a loop by "
                "loader.steps_done, not by a count of its own"
            )
        while self.training.counters.epoch == epoch and not self._obey(membership.epoch_left()):
            pass

    def _whole_loss(self, epoch: int) -> float | None:
        """The loss over all workers; None also if a worker that was further has taken this one along."""
        if self._membership is None:
            self.training.gather_loss(self.context.world_size)
        else:
            while self.training.counters.epoch == epoch and not self._obey(self._membership.gather_loss()):
                pass
        return self.training.common_loss.value() if self.training.counters.epoch == epoch else None

    def _settle(self) -> None:
        """Complete the step that a ``break`` has left open, if the optimizer has made it; else drop it.

        If a worker was lost in it, nothing of it stays: the script did not ask for that step.
        """
        if self._divided_in_pass:
            self._end_divided(self._micro)
        if self._stepped:
            self._complete(whole=True)
        self._micro = None
        self._own_step()
        if self._mid_step:
            self._mid_step, self.training.parts = False, 0
            self._losses = Mean()
            if not self._voided() and self._membership is not None:
                self._obey(self._membership.hear())


def _rows(drawn: Any, rows: slice) -> Any:
    if isinstance(drawn, Mapping):
        return {name: _rows(value, rows) for name, value in drawn.items()}
    if isinstance(drawn, list | tuple):
        return type(drawn)(_rows(value, rows) for value in drawn)
    return drawn[rows]
