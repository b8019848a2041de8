"""The order of things in a training loop: micro-steps, step boundaries, epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.loop.batches import Cut, MicroBatch
from pliant.tools.run.elastic.loop.data_parallel import Averaging, check_same, outline
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.undo import StepStart
from pliant.tools.run.elastic.membership.cursor import BETWEEN_EPOCHS, EPOCH_THROUGH, IN_EPOCH, Cursor
from pliant.tools.run.elastic.membership.membership import Supervision
from pliant.tools.run.elastic.state.state import Mean, seed_everything
from pliant.tools.run.elastic.state.training import Training


class TrainingLoop:
    """Runs one training: called by the loader at every micro-step and by ``epochs`` at every epoch.

    A step is complete when the loader is asked for what comes after it: the loop body has run, and only
    then the cursor moves. What is saved at that boundary is therefore always consistent. While the loop body
    is in a step that was broken by the loss of a worker, it is quiet: nothing of it counts.
    """

    def __init__(
        self,
        context: Context,
        training: Training,
        gradients: Gradients,
        averaging: Averaging,
        *,
        cut: Callable[[], Cut],
        seed: int,
        supervision: Supervision | None,
    ) -> None:
        """:param cut: how a global batch is divided by the plan of now a global batch."""
        self.context, self.training, self.seed = context, training, seed
        self.cut = cut()
        self.division = 0
        """Counts how often the work was divided anew."""
        self.started = False
        self._gradients, self._averaging, self._supervision = gradients, averaging, supervision
        self._cut_now = cut
        self._step_start = StepStart()
        self._phase = IN_EPOCH
        self._micro: MicroBatch | None = None
        self._mid_step = False
        self._in_loop = False
        """The author's code is in the loop over the loader."""
        self._stepped = False
        """The optimizer has made the step that is under way."""
        self._in_epoch = False
        """The author's code is in an epoch."""
        self._passed = False
        """The loader has served all of it."""
        self._catching_up = False
        self._lost_workers = Mean()
        self._metric: float | None = None
        self._asked = 0
        """Values of rank 0 that this worker has asked for since the last step of the epoch."""
        self._first_step: int | None = None
        averaging.before_forward = self._follow_trained
        if averaging.ddp is not None:
            gradients.bind(averaging.ddp, accumulates=self.accumulates)

    @property
    def resumed(self) -> bool:
        """Whether an epoch goes on now that was begun under another batch, and no step of it is done yet."""
        counters = self.training.counters
        return counters.cursor > 0 and counters.step == self._first_step

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``; see ``ElasticJob.epochs``."""
        self._start()
        try:
            while self.training.counters.epoch < count:
                self._agree_to_begin()
                self._asked = 0
                if self._phase == IN_EPOCH:
                    self._in_epoch, self._passed = True, False
                    yield self.training.counters.epoch
                    self._in_epoch = False
                self._end_epoch()
        except GeneratorExit:
            self.leave()
            raise
        if self._supervision is not None:
            self._supervision.training_ends()

    def quiet(self) -> bool:
        """Whether the loop body must have no effect: it ends no step, or none that counts."""
        between = self._micro is not None and not self._micro.last
        return between or self._catching_up or self._averaging.failed

    def after_loop(self) -> bool:
        """Whether the author's code is past the loop over the loader: what it does is not part of a step."""
        return not self._in_loop and not self._catching_up

    def leave(self) -> None:
        """The author has left ``epochs``, or ends the script without letting go of it."""
        if not self._in_epoch:
            return
        self._in_epoch = False
        metric = self._left_metric()
        micro, self._micro = self._micro, None
        if micro is not None and micro.last and self._stepped and not self.failed:
            self.training.step_done(micro.step_samples, self._lost_workers)
        if self._supervision is not None:
            self._supervision.left_early(metric)

    @property
    def accumulates(self) -> bool:
        """Whether steps have several micro-steps."""
        return self.cut.accum > 1

    @property
    def failed(self) -> bool:
        """Whether a worker was lost in the step under way, which is void."""
        return self._averaging.failed

    def stepped(self) -> None:
        """The optimizer makes its step."""
        self._stepped = True

    def begin_pass(self) -> None:
        """A loop over the loader begins.

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

    def end_pass(self) -> None:
        """The loader has served all of the epoch."""
        self._passed, self._in_loop = True, False

    def leave_loop(self) -> None:
        """The author has left the loop over the loader by ``break``, or by an exception."""
        self._in_loop = False

    def begin(self, micro: MicroBatch) -> None:
        """The loop body gets a micro-batch."""
        if not self._mid_step:
            self._stepped = False
            self._gradients.forget()
            division = self.division
            if self._supervision is not None:
                self._supervision.step_begins(micro.steps_left)
            if self.division != division:
                return
            self._step_start.note()
        self._mid_step = True
        self._micro = micro
        self._follow_trained()
        self._gradients.begin(micro)

    def end(self) -> None:
        """The loop body is through with its micro-batch.

        The boundary after the last step of an epoch is at the end of the epoch: no checkpoint ever has an
        epoch of which only the author's code after the steps is left.
        """
        micro = self._micro
        self._complete()
        if micro is not None and micro.last and micro.steps_left and self._supervision is not None:
            self._supervision.boundary()

    def log(self, loss: float | torch.Tensor | None, metric: float | torch.Tensor | None) -> None:
        """Count what the author measured; outside of a batch a loss is not counted."""
        if metric is not None:
            self._metric = float(metric)
        if loss is not None and self._micro is not None:
            self._lost_workers.add(loss, self._micro.samples)

    def agree(self, value: float | Callable[[], float]) -> float:
        """Rank 0's value; see ``ElasticJob.agree``."""
        if not self.started or self._phase == BETWEEN_EPOCHS or self._micro is not None:
            raise UsageError(
                "call job.agree in the loop over job.epochs, once that over the loader has ended by itself"
            )
        number, training = self._asked, self.training
        own = cache(lambda: float(value() if callable(value) else value))
        self._asked += 1
        while len(training.agreed) <= number:
            # looked at anew where a worker was lost: this one may be rank 0 now
            told = own() if self.context.rank == 0 else 0.0
            if self._supervision is not None:
                self._supervision.agree(told)
            else:
                training.agree(told, self.context.world_size)
        return training.agreed[number]

    # What supervision asks for when the workers change

    @property
    def cursor(self) -> Cursor:
        """Where the next collective operation is."""
        counters = self.training.counters
        return Cursor(counters.epoch, counters.step, self._phase, len(self.training.agreed))

    def part(self) -> None:
        """Let go of the process group."""
        for parameter in self.training.model.parameters():
            parameter.grad = None
        self._averaging.end()
        self._gradients.bind(None, accumulates=False)

    def join(self) -> int:
        """Train with the workers of the process group, by the plan of now; returns the global batch."""
        self._first_step, self.cut = self._first_step_now(), self._cut_now()
        if self.context.world_size > 1 and self._averaging.ddp is None:
            self._averaging.begin(self.training.model, self.context.device)
        self._gradients.bind(self._averaging.ddp, accumulates=self.cut.accum > 1)
        may_be_void = self.context.world_size > 1 and self.context.device.type == "cpu"
        self._step_start.watch(self.training.model if may_be_void else None)
        self.division += 1
        return self.cut.global_batch

    def parcel(self) -> dict[str, Any]:
        """What workers with an older state, or none, get."""
        return {
            "training": self.training.shared(),
            "model": outline(self.training.model),
            "phase": self._phase,
            "first_step": self._first_step_now(),
        }

    def unpack(self, parcel: dict[str, Any], *, fresh: bool) -> None:
        """Take the state of a worker that is further.

        If that one has done already what the author does after an epoch, it comes with the state: here it
        will be done, too, but must not count.

        :raises UsageError: this worker's model is not that of the other one.
        """
        check_same(self.training.model, parcel["model"])
        self._catching_up = not fresh and self._phase == IN_EPOCH and parcel["phase"] == EPOCH_THROUGH
        self.training.restore(parcel["training"])
        self._phase, self._first_step, self.cut = parcel["phase"], parcel["first_step"], self._cut_now()
        if fresh:
            seed_everything(self.seed, self.training.counters.step, self.context.rank)

    def _first_step_now(self) -> int:
        """The step that the batch of now begins with, or the attempt."""
        same = self._first_step is not None and self._cut_now().global_batch == self.cut.global_batch
        return self._first_step if same and self._first_step is not None else self.training.counters.step

    # The order of things

    def _start(self) -> None:
        if not self.started:
            self.training.check_averaged()
            if self._supervision is not None:
                self._supervision.start(self)
            else:
                self._first_step = self.training.counters.step
        self.started = True

    def _complete(self) -> None:
        """Count the step that the micro-batch ends, if it ends one, and if it was not broken."""
        micro, self._micro = self._micro, None
        if micro is None or not micro.last:
            return
        self._mid_step = False
        losses, self._lost_workers = self._lost_workers, Mean()
        if self._voided():
            return
        self.training.step_done(micro.step_samples, losses)
        if self._supervision is not None:
            self._supervision.step_ends(losses)

    def _voided(self) -> bool:
        """Whether a worker was lost in the step, and those left have met anew.

        The step is trained again here, unless another worker has completed it.
        """
        error, supervision = self._averaging.error, self._supervision
        if error is None or supervision is None:
            return False
        counters = self.training.counters.copy()
        self._step_start.put_back_buffers()
        supervision.step_void(error)
        if self.training.counters == counters:
            self._step_start.put_back_generator()
        return True

    def _left_metric(self) -> float | None:
        """The metric of an epoch that the author leaves after its steps."""
        return self._metric if self._phase == IN_EPOCH and self._micro is None else None

    def _agree_to_begin(self) -> None:
        """Before every epoch but the first: look for news of the time before it, which may have been long."""
        while self._phase == BETWEEN_EPOCHS:
            if self._supervision is None:
                self._phase = IN_EPOCH
            elif self._supervision.between_epochs():
                self._phase = IN_EPOCH
                self._supervision.boundary()

    def _end_epoch(self) -> None:
        """Everything of an epoch is done, the author's code after its steps included."""
        self._settle()
        epoch = self.training.counters.epoch
        self._phase = EPOCH_THROUGH
        loss = self._whole_loss(epoch)
        self._catching_up = False
        if self.training.counters.epoch == epoch:
            if self._supervision is not None:
                self._supervision.epoch_ends(loss, self._metric)
            self.training.epoch_done()
            self._phase = BETWEEN_EPOCHS
        self._metric = None

    def _whole_loss(self, epoch: int) -> float | None:
        """The loss of all workers; None also where a worker that was further has taken this one along."""
        if self._supervision is None:
            self.training.gather_loss(self.context.world_size)
        else:
            while self.training.counters.epoch == epoch and not self._supervision.gather_loss():
                pass
        return self.training.common_loss.value() if self.training.counters.epoch == epoch else None

    def _follow_trained(self) -> None:
        """Take up that the author has frozen or unfrozen parameters: all workers do it at the same place."""
        if self._gradients.trained_differ():
            self._averaging.renew(self.context.device)
            self._gradients.follow(self._averaging.ddp)

    def _settle(self) -> None:
        """Complete the step that a ``break`` has left open, if the optimizer has made it; else drop it.

        Nothing of it stays where a worker was lost in it: that is no step of the script's.
        """
        if self._stepped:
            self._complete()
        self._micro = None
        if self._mid_step:
            self._mid_step = False
            self._lost_workers = Mean()
            self._gradients.forget()
            if not self._voided() and self._supervision is not None:
                self._supervision.abandon_step()
