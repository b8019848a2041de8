"""The order of things in a training loop: micro-steps, step boundaries, epochs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.cut import Cut, MicroBatch
from pliant.tools.run.elastic.gradients import Gradients
from pliant.tools.run.elastic.setting import Setting
from pliant.tools.run.elastic.state import Mean
from pliant.tools.run.elastic.supervision import Supervision
from pliant.tools.run.elastic.training import Training


class Engine:
    """Runs one training: called by the loader at every micro-step and by ``epochs`` at every epoch.

    A step is complete when the loader is asked for what comes after it: the loop body has run, and only
    then the cursor moves. What is saved at that boundary is therefore always consistent.
    """

    def __init__(
        self,
        setting: Setting,
        training: Training,
        gradients: Gradients,
        *,
        cut: Cut,
        seed: int,
        supervision: Supervision | None,
    ) -> None:
        self.setting, self.training, self.cut, self.seed = setting, training, cut, seed
        self._gradients, self._supervision = gradients, supervision
        self._micro: MicroBatch | None = None
        self._mid_step = False
        self._metric: float | None = None
        self._first_step: int | None = None
        self.started = False

    @property
    def resumed(self) -> bool:
        """Whether an epoch that an earlier attempt has begun goes on now, and no step of it is done yet."""
        counters = self.training.counters
        return counters.cursor > 0 and counters.step == self._first_step

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``; see ``ElasticJob.epochs``."""
        self._start()
        try:
            while self.training.counters.epoch < count:
                yield self.training.counters.epoch
                self._end_epoch(count)
        except GeneratorExit:
            if self._supervision is not None:
                self._supervision.left_early()
            raise
        if self._supervision is not None:
            self._supervision.training_ends(self.training)

    def quiet(self) -> bool:
        """Whether the loop body is in a micro-step that does not end its step."""
        return self._micro is not None and not self._micro.last

    def begin(self, micro: MicroBatch) -> None:
        """The loop body gets a micro-batch."""
        if not self._mid_step:
            self._gradients.forget()
            if self._supervision is not None:
                self._supervision.step_begins(micro.steps_left)
        self._mid_step = True
        self._micro = micro
        self._gradients.begin(micro)

    def end(self) -> None:
        """The loop body is through with its micro-batch.

        The boundary after the last step of an epoch is at the end of the epoch: no checkpoint ever has an
        epoch of which only the author's code after the steps is left.
        """
        micro = self._micro
        self._complete()
        if micro is not None and micro.last and micro.steps_left and self._supervision is not None:
            self._supervision.boundary(self.training)

    def log(self, loss: float | torch.Tensor | None, metric: float | torch.Tensor | None) -> None:
        """Count what the author measured; outside of a batch a loss is not counted."""
        if metric is not None:
            self._metric = float(metric)
        if loss is not None and self._micro is not None:
            self.training.epoch_loss.add(loss, self._micro.samples)
            if self._supervision is not None:
                self._supervision.log(loss, self._micro.samples)

    def check_started(self) -> None:
        """Refuse to train outside of ``epochs``.

        :raises UsageError: ``epochs`` is not running.
        """
        if not self.started:
            raise UsageError("iterate the loader inside `for epoch in job.epochs(n):`")

    def _start(self) -> None:
        if not self.started and self._supervision is not None:
            self._supervision.start(self.training, self.cut.global_batch, self.seed)
        if not self.started:
            self._first_step = self.training.counters.step
        self.started = True

    def _complete(self) -> None:
        """Count the step that the micro-batch ends, if it ends one."""
        micro, self._micro = self._micro, None
        if micro is not None and micro.last:
            self._mid_step = False
            self.training.counters.advance(micro.step_samples)
            if self._supervision is not None:
                self._supervision.step_ends(self.training)

    def _end_epoch(self, count: int) -> None:
        """Everything of an epoch is done, the author's code after its steps included."""
        self._settle()
        training = self.training
        loss = training.epoch_loss.over_all_workers(self.setting.world_size).value()
        if self._supervision is not None:
            self._supervision.epoch_ends(training, loss, self._metric)
        training.epoch_loss, self._metric = Mean(), None
        training.counters.next_epoch()
        if self._supervision is not None and training.counters.epoch < count:
            self._supervision.between_epochs(training)

    def _settle(self) -> None:
        """Complete, or drop, the step that a ``break`` has left open."""
        self._complete()
        if self._mid_step:
            self._mid_step = False
            self._gradients.forget()
            if self._supervision is not None:
                self._supervision.abandon_step()
