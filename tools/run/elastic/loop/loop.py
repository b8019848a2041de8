"""The order of things in a training: epochs, and the loops over batches in them.

The script drives it from two sides: ``job.epochs`` runs :meth:`TrainingLoop.epochs`, and the loader inside
calls the loop around each loop over batches, and :class:`~.stepper.Stepper` around each pass of its body
(``loop/loaders.py``). At boundaries the loop asks :class:`Membership`, which calls nothing back, and
:class:`~.workers.WorkerGroup` follows the instruction that it returns.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from dataclasses import dataclass

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.body import LoopBody
from pliant.tools.run.elastic.loop.step import LoopPhase
from pliant.tools.run.elastic.loop.stepper import Stepper
from pliant.tools.run.elastic.loop.workers import WorkerGroup
from pliant.tools.run.elastic.state.training import EpochPhase


@dataclass(slots=True)
class EpochRecord:
    """What this process has seen of the epoch."""

    begun_at: int = 0
    """Samples of the epoch that were trained before this process began its part."""
    is_served: bool = False
    """Whether the loader has served the whole epoch."""
    steps_requested: bool = False
    """Whether the script has asked for ``loader.steps_done``."""


class TrainingLoop:
    """Runs one training: called by the loader at every loop over batches and by ``epochs`` at every epoch."""

    def __init__(self, workers: WorkerGroup, *, dataset_size: int = 0, drop_last: bool = False) -> None:
        """:param dataset_size: samples of an epoch."""
        self.workers, self.training = workers, workers.training
        self._membership = workers.membership
        self.stepper = Stepper(workers)
        self.body = LoopBody(self.stepper)
        self.dataset_size, self._drop_last = dataset_size, drop_last
        self.epoch = EpochRecord()
        # Loops over the loader that have begun; only the last may take batches.
        self._loops = 0
        if self._membership is not None:
            # the script may end while one of its variables still holds the iterator over epochs
            atexit.register(self.leave)

    @property
    def dataset_size(self) -> int:
        """Samples of an epoch."""
        return self.workers.guard.size

    @dataset_size.setter
    def dataset_size(self, size: int) -> None:
        self.workers.guard.size = size

    @property
    def started(self) -> bool:
        """Whether ``epochs`` has begun."""
        return self.stepper.phase is not LoopPhase.BEFORE

    @property
    def resumed(self) -> bool:
        """Whether this attempt or batch goes on with a begun epoch, and has not trained a step of it."""
        counters = self.training.counters
        return counters.epoch_samples > 0 and counters.step == self.training.batch[1]

    @property
    def is_complete(self) -> bool:
        """Whether other workers have trained the rest of the epoch."""
        return self.training.phase == EpochPhase.COMPLETE

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the remaining epochs.

        :raises UsageError: it is called again: which of several loops a state belongs to is not known. Or
            nothing was trained, though epochs were asked for.
        """
        if self.started:
            raise UsageError(
                "job.epochs and job.steps run once: ask for all of them in one loop, and tell its phases by "
                "the number (for epoch in job.epochs(6): warms_up = epoch < 3)"
            )
        self._start()
        began_at = self.training.counters.step
        try:
            while self.training.counters.epoch < count:
                self._agree_to_begin()
                self.stepper.step.values = 0
                self.epoch = EpochRecord(begun_at=self.training.counters.epoch_samples, is_served=True)
                if self.training.phase == EpochPhase.STEPS:
                    self.epoch.is_served, self.stepper.phase = False, LoopPhase.IN_EPOCH
                    yield self.training.counters.epoch
                    self.stepper.phase = LoopPhase.BETWEEN_EPOCHS
                self._end_epoch()
        except GeneratorExit:
            self.leave()
            raise
        finally:
            self.stepper.counts.close()
        self._check_trained(began_at, asked=bool(count and (self.dataset_size or not self.stepper.by_steps)))
        if self._membership is not None:
            while not self.workers.follow(self._membership.training_ends()):
                pass
        elif self.workers.context.tracking is not None:
            self.workers.context.tracking.flush()

    def leave(self) -> None:
        """The script has left ``epochs``, or ends while still holding its iterator."""
        stepper, membership = self.stepper, self._membership
        if stepper.phase in {LoopPhase.BEFORE, LoopPhase.BETWEEN_EPOCHS} or (
            membership is not None and membership.over
        ):
            return
        stepper.phase = LoopPhase.BETWEEN_EPOCHS
        if stepper.is_untrained and not self.training.counters.step:
            self.workers.warn("nothing is trained: the script has left its training before the first step")
        # a metric counts if the epoch was left after its steps
        is_between_steps = self.training.phase == EpochPhase.STEPS and stepper.step.micro is None
        metric = self.body.metric if is_between_steps else None
        stepper.leave_training()
        if membership is not None:
            membership.left_early(metric)

    # The loop over the loader

    def begin_loop(self) -> int:
        """A loop over the loader begins; returns its number.

        :raises UsageError: ``epochs`` is not running, or the loader has served the epoch already.
        """
        stepper = self.stepper
        if not self.started:
            raise UsageError("iterate the loader inside `for epoch in job.epochs(n):`")
        if self.epoch.is_served:
            raise UsageError(
                "the loader has no second pass in an epoch: ask job.epochs for more epochs, "
                "or evaluate with a DataLoader"
            )
        stepper.settle()
        if stepper.phase is LoopPhase.IN_EPOCH:
            stepper.phase = LoopPhase.IN_BATCHES
        stepper.order.begin_loop()
        self._loops += 1
        self.training.restore_again()
        return self._loops

    def goes_on(self, number: int, epoch: int, *, is_last: bool) -> bool:
        """Whether a loop over the loader that was asked for its next batch may have one.

        It may not if its epoch is over; that is not a mistake if it had no more batches.

        :param number: of the loop, which began in ``epoch``.
        :param is_last: whether it was given the last batch of that epoch.
        :raises UsageError: its remaining batches belong to another loop or epoch.
        """
        in_epoch = self.stepper.phase in {LoopPhase.IN_EPOCH, LoopPhase.IN_BATCHES}
        is_over = self.training.counters.epoch != epoch or not in_epoch
        if not is_over and number == self._loops:
            return True
        if is_over and is_last:
            return False
        if is_over:
            raise UsageError(
                f"a loop over the loader that was begun in epoch {epoch} was continued after that epoch: "
                "begin one in every epoch of job.epochs"
            )
        raise UsageError(
            "a loop over the loader was continued after another one had begun: take all batches of an epoch "
            "from one, and other samples from a DataLoader of their own"
        )

    def end_loop(self) -> None:
        """The loader has served the whole epoch."""
        self.epoch.is_served = True
        self.stepper.leave()

    def leave_loop(self, number: int) -> None:
        """The script has left a loop over the loader before its end."""
        if number == self._loops and self.stepper.in_batches:
            self.stepper.break_off()

    # Epochs

    def _start(self) -> None:
        workers = self.workers
        self.stepper.phase = LoopPhase.BETWEEN_EPOCHS
        if workers.membership is not None or workers.context.world_size > 1 or workers.accumulates:
            self.stepper.counts.watch()
        workers.start()

    def _agree_to_begin(self) -> None:
        """Before every epoch but the first: look for news, because the time between may have been long."""
        while self.training.phase == EpochPhase.PENDING:
            if self._membership is None:
                self.training.phase = EpochPhase.STEPS
            elif self.workers.follow(self._membership.between_epochs()):
                self.training.phase = EpochPhase.STEPS
                self.workers.follow(self._membership.boundary())

    def _end_epoch(self) -> None:
        self.stepper.settle()
        epoch = self.training.counters.epoch
        self.training.phase = EpochPhase.COMPLETE
        self._leave_together(epoch)
        loss = self._whole_loss(epoch)
        self.workers.replays_epoch = False
        if self.training.counters.epoch == epoch:
            if self._membership is not None:
                self._membership.epoch_ends(loss, self.body.metric)
            self.training.epoch_done()
            self.training.phase = EpochPhase.PENDING
        self.body.metric = None

    def _leave_together(self, epoch: int) -> None:
        """If this worker has left the epoch midway, let those that train on in it leave, too.

        :raises UsageError: the script has counted passes, and a step has several.
        """
        counters, membership, seen = self.training.counters, self._membership, self.epoch
        if membership is None or counters.epoch_samples >= self.dataset_size:
            return
        decides_alike = seen.steps_requested or self.stepper.checks.consulted
        counts_passes = not (seen.is_served or self.workers.replays_epoch or decides_alike)
        if counts_passes and self.workers.accumulates and not self.stepper.by_steps:
            raise UsageError(
                f"epoch {epoch} was left after {counters.epoch_samples} of {self.dataset_size} samples by a "
                "count of passes, and each step has several: end such a loop by loader.steps_done"
            )
        if seen.begun_at and counts_passes:
            membership.warn(
                f"epoch {epoch} was left after {counters.epoch_samples} of {self.dataset_size} samples, "
                f"{seen.begun_at} of which were trained before this process began: end such a loop by "
                "loader.steps_done, not by a count of its own"
            )
        while self.training.counters.epoch == epoch and not self.workers.follow(membership.epoch_left()):
            pass

    def _whole_loss(self, epoch: int) -> float | None:
        """The loss over all workers; None also if a worker that was further has taken this one along."""
        training, membership = self.training, self._membership
        if membership is None:
            training.gather_loss(self.workers.context.world_size)
        else:
            while training.counters.epoch == epoch and not self.workers.follow(membership.gather_loss()):
                pass
        return training.common_loss.value() if training.counters.epoch == epoch else None

    def _check_trained(self, began_at: int, *, asked: bool) -> None:
        """Warn of a training without a step, or refuse it.

        :param began_at: the step at which this process began.
        :param asked: whether the script has asked for at least one more.
        :raises UsageError: nothing was trained, though it was asked for.
        """
        steps, batch = self.training.counters.step, self.workers.split.global_batch
        if not asked and not steps:
            self.workers.warn("nothing is trained: the script asks for 0 epochs or steps")
        elif not steps and self._drop_last and self.dataset_size < batch:
            raise UsageError(
                f"nothing was trained: no batch of {batch} samples was filled, and "
                "drop_last=True leaves out smaller ones: give it more samples, a smaller batch_size, or "
                "drop_last=False"
            )
        elif not steps:
            raise UsageError("nothing was trained: the loop over job.epochs has taken no batch of the loader")
        elif self.stepper.is_untrained and began_at == 0:
            text = f"nothing is trained: no optimizer of job.prepare was called in {steps} steps"
            self.workers.warn(text)
