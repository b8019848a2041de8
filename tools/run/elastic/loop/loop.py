"""The order of things in a training: micro-steps, step boundaries, epochs.

The author's code drives it from two sides: ``job.epochs`` runs :meth:`TrainingLoop.epochs`, and iterating the
:class:`ElasticLoader` inside calls the loop before and after each micro-step. At boundaries the loop asks
:class:`Membership`, which calls nothing back, and acts on the instruction that it returns.
"""

from __future__ import annotations

import atexit
import math
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import tee
from typing import Any

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.loop.batches import (
    BatchSplit,
    DataSource,
    MicroBatch,
    epoch_order,
    micro_batches,
)
from pliant.tools.run.elastic.loop.gradients import Averaging, Gradients, StepStart
from pliant.tools.run.elastic.membership.membership import Continue, Instruction, Leave, Membership, Regroup
from pliant.tools.run.elastic.state.training import (
    BETWEEN_EPOCHS,
    EPOCH_THROUGH,
    IN_EPOCH,
    Mean,
    Training,
    mixed_seed,
    seed_everything,
)


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
        drop_last: bool,
        membership: Membership | None,
        dataset_size: int,
    ) -> None:
        """:param batch_size: the script's; the plan's comes first.

        :raises UsageError: there is no batch size, or one that is too small for the workers.
        """
        self.context, self.training = context, training
        self._batch_size, self._drop_last, self.dataset_size = batch_size, drop_last, dataset_size
        self.split = self._split_now()
        self.division = 0
        """How often the work was divided; the loader compares it to notice a change."""
        self.started = False
        self._gradients, self._averaging, self._membership = gradients, averaging, membership
        self._step_start = StepStart()
        self._micro: MicroBatch | None = None
        self._mid_step = False
        self._since_s = 0.0
        """When the step under way began (monotonic)."""
        self._trains = False
        """The batch of the step is trained, not only looked at."""
        self._passes = 0
        """Loops over the loader that have begun; only the last may take batches."""
        self._touched = False
        """The model has seen the micro-batch that was given out last."""
        self._passed_over: list[weakref.ref[Any]] = []
        """Tensors of the last batch, if the model was not called before the next one was asked for."""
        self._begun_at = 0
        """Samples of the epoch that were trained before this process began its part."""
        self.asked_for_steps = False
        self._in_loop = False
        """The author's code is in the loop over the loader."""
        self._stepped = False
        """The optimizer has made the current step."""
        self._in_epoch = False
        self._passed = False
        """The loader has served the whole epoch."""
        self._catching_up = False
        """Another worker has done the end of the epoch: this one's does not count."""
        self._losses = Mean()
        self._metric: float | None = None
        self._asked = 0
        """Values of rank 0 that this worker has asked for since the last step of the epoch."""
        gradients.bind(averaging.ddp, accumulates=self.accumulates)
        if membership is not None:
            # the script may end while one of its variables still holds the iterator over epochs
            atexit.register(self.leave)

    @property
    def resumed(self) -> bool:
        """Whether this attempt or batch goes on with a begun epoch, and has not trained a step of it."""
        counters = self.training.counters
        return counters.epoch_samples > 0 and counters.step == self.training.batch[1]

    def epochs(self, count: int) -> Iterator[int]:
        self._start()
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
        if self._membership is not None:
            while not self._obey(self._membership.training_ends()):
                pass

    def quiet(self) -> bool:
        """Whether the loop body must have no effect: it ends no step, or none that counts."""
        between = self._micro is not None and not self._micro.last
        return between or self._catching_up or self._averaging.failed

    def after_loop(self) -> bool:
        """Whether the author's code is past the loop over the loader, so it is not part of a step."""
        return not self._in_loop and not self._catching_up

    def leave(self) -> None:
        """The author has left ``epochs``, or ends the script while still holding its iterator."""
        if not self._in_epoch or (self._membership is not None and self._membership.over):
            return
        self._in_epoch = False
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

    def whole_step(self) -> AbstractContextManager[None]:
        self._gradients.join_rest()
        self._stepped = True
        return self.training.scaled_lr()

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
        self._in_loop = True
        self._passes += 1
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

    def leave_loop(self, number: int) -> None:
        if number == self._passes:
            self._in_loop = False

    def begin(self, micro: MicroBatch) -> None:
        """The loop body gets a micro-batch. It may only look at it, so nothing is exchanged here."""
        if not self._mid_step:
            self._stepped = self._trains = False
            self._since_s = time.monotonic()
            self._gradients.forget()
            self._step_start.note()
        self._mid_step, self._touched = True, False
        self._micro = micro
        self._averaging.follow_trained()
        self._gradients.begin(micro)

    def train(self) -> None:
        """The model is called for the micro-batch; the workers have exchanged nothing about it yet.

        :raises UsageError: the loader was asked for the next batch before this one was trained.
        """
        self._touched = True
        if self._passed_over and any(one() is not None for one in self._passed_over):
            raise UsageError(
                "a batch is trained after the loader was asked for the next one: train each batch before "
                "taking the next (job.prepare reads ahead by itself: num_workers=1 or more)"
            )
        self._passed_over = []
        self._take_part()

    def _take_part(self) -> None:
        """While the step is trained, all workers agree on what to do after it."""
        if self._micro is None or self._trains:
            return
        self._trains = True
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
        if micro is not None and not self._touched:
            self._passed_over = [weakref.ref(one) for one in tensors_in(batch)]
        self._complete()
        if micro is not None and micro.last and micro.steps_left and self._membership is not None:
            self._obey(self._membership.boundary())

    def log(self, loss: float | torch.Tensor | None, metric: float | torch.Tensor | None) -> None:
        """Count what the author measured; a loss outside of a batch is not counted."""
        if metric is not None:
            self._metric = float(metric)
        if loss is not None and self._micro is not None:
            self._losses.add(loss, self._micro.samples)

    def agree(self, value: float | Callable[[], float]) -> float:
        if not self.started or self.training.phase == BETWEEN_EPOCHS or self._micro is not None:
            raise UsageError(
                "call job.agree in the loop over job.epochs, once that over the loader has ended by itself"
            )
        number, training = self._asked, self.training
        own = cache(lambda: float(value() if callable(value) else value))
        self._asked += 1
        while len(training.agreed) <= number:
            # after a worker was lost this one may be rank 0
            given = own() if self.context.rank == 0 else 0.0
            if self._membership is not None:
                self._obey(self._membership.agree(given))
            else:
                training.agree(given, self.context.world_size)
        return training.agreed[number]

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
        for parameter in self.training.model.parameters():
            parameter.grad = None
        self._averaging.end()
        self._gradients.bind(None, accumulates=False)

    def _take(self, state: Mapping[str, Any], *, fresh: bool) -> None:
        """Take the state of a worker that is further.

        If that worker has already run the author's code after an epoch, its effect comes with the state: here
        the code will run, too, but must not count.

        :raises UsageError: this worker's model is not that of the other one.
        """
        training, phase = self.training, self.training.phase
        training.unpack(state)
        self._catching_up = not fresh and phase == IN_EPOCH and training.phase == EPOCH_THROUGH
        if fresh:
            seed_everything(training.seed, training.counters.step, self.context.rank)

    def _divide(self) -> None:
        self.split, several = self._split_now(), self.context.world_size > 1
        self.training.turn_to(self.split.global_batch)
        if several and self._averaging.ddp is None:
            self._averaging.begin(self.training.model, self.context.device)
        self._gradients.bind(self._averaging.ddp, accumulates=self.accumulates)
        may_be_void = several and self.context.device.type == "cpu"
        self._step_start.watch(self.training.model if may_be_void else None)
        self.division += 1

    def _split_now(self) -> BatchSplit:
        plan, workers = self.context.plan, self.context.world_size
        batch = self._batch_size if plan is None or plan.global_batch is None else plan.global_batch
        if batch is None:
            raise UsageError("no batch size: give elastic.init(batch_size=...) or batch.size of the job")
        if batch < workers:
            raise UsageError(f"a global batch of {batch} is too small for {workers} workers")
        return BatchSplit(batch, workers, 1 if plan is None else plan.accum, self._drop_last)

    # The order of things

    def _start(self) -> None:
        if not self.started:
            self.training.check_averaged()
            if self._membership is not None:
                self._obey(self._membership.start(self.training))
            else:
                self.training.turn_to(self.split.global_batch)
        self.started = True

    def _complete(self) -> None:
        micro, self._micro = self._micro, None
        if micro is None or not micro.last:
            return
        self._micro = micro
        self._take_part()
        self._micro, self._mid_step = None, False
        losses, self._losses = self._losses, Mean()
        if self._voided():
            return
        self.training.step_done(micro.step_samples, losses)
        if self._membership is not None:
            self._obey(self._membership.step_ends(losses))

    def _voided(self) -> bool:
        """Whether a worker was lost in the step; then the remaining ones have met.

        The step is trained again here, unless another worker has completed it.
        """
        error, membership = self._averaging.error, self._membership
        if error is None or membership is None:
            return False
        counters = self.training.counters.copy()
        self._step_start.put_back_buffers()
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
        if self._begun_at and not (self._passed or self._catching_up or self.asked_for_steps):
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
        if self._stepped:
            self._complete()
        self._micro = None
        if self._mid_step:
            self._mid_step = False
            self._losses = Mean()
            self._gradients.forget()
            if not self._voided() and self._membership is not None:
                self._obey(self._membership.hear())


class ElasticLoader:
    """The author's loader: iterating it starts the epoch, or goes on where an earlier attempt stopped.

    Each batch is one micro-step. ``len`` is the number of optimizer steps of an epoch, as schedulers expect.
    """

    def __init__(self, source: DataSource, loop: TrainingLoop, *, shuffle: bool = True) -> None:
        self._size = source.size
        self._source = source
        self._loop = loop
        self._shuffle = shuffle
        self._generator = torch.Generator()
        self._read_ahead: Iterator[MicroBatch] = iter(())
        """The micro-batches of the current pass whose samples are not read yet."""
        self._batches = source.loader(_Indices(self._indices), self._generator)

    def __len__(self) -> int:
        return self._loop.split.steps_per_epoch(self._size)

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the epoch that are trained, counted in batches of the current size.

        A worker may begin in the middle of an epoch, and a step may be tried twice. So a loop that does not
        take all batches ends by this, before it trains one: ``if loader.steps_done == 100: break``.
        """
        self._loop.asked_for_steps = True
        return math.ceil(self._loop.training.counters.epoch_samples / self._loop.split.global_batch)

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop
        number = loop.begin_pass()
        division = -1
        try:
            while division != loop.division and not loop.is_through:
                division = loop.division
                if not (yield from self._until_divided_again(division, number)):
                    return
        except GeneratorExit:
            loop.leave_loop(number)
            raise
        loop.end_pass()

    def _until_divided_again(self, division: int, number: int) -> Generator[Any, None, bool]:
        """Batches to the end of the epoch, or until the work is divided again.

        :param number: of the pass.
        :returns: False if the epoch was over when the pass was continued.
        """
        loop, epoch = self._loop, self._loop.training.counters.epoch
        step = loop.training.counters.step
        self._generator.manual_seed(mixed_seed(loop.training.seed, step, loop.context.rank))
        trained, rank = loop.training.counters.epoch_samples, loop.context.rank
        found = micro_batches(self._size, trained, loop.split, rank, resumed=loop.resumed)
        micros, self._read_ahead = tee(found)
        for micro, batch in zip(micros, self._source.on_device(self._batches), strict=True):
            loop.begin(micro)
            yield batch
            if not loop.goes_on(number, epoch, is_last=micro.last and not micro.steps_left):
                return False
            loop.end(batch)
            if loop.division != division:
                break
        return True

    def _indices(self) -> Iterator[list[int]]:
        counters, loop = self._loop.training.counters, self._loop
        order = epoch_order(self._size, counters.epoch, loop.training.seed, shuffle=self._shuffle).numpy()
        for micro in self._read_ahead:
            yield order[micro.loaded].tolist()


@dataclass(frozen=True)
class _Indices:
    """The batch sampler of PyTorch's loader."""

    of_pass: Callable[[], Iterator[list[int]]]

    def __iter__(self) -> Iterator[list[int]]:
        return self.of_pass()


def tensors_in(batch: object) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)
