"""What the script asks for in its loop: samples, draws, and values that all workers know."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch, Rows, to_device
from pliant.tools.run.elastic.loop.step import NOTHING_AWAITED, LoopPhase, PassMode
from pliant.tools.run.elastic.loop.stepper import Stepper
from pliant.tools.run.elastic.loop.tally import like, numbers_in, numbers_of
from pliant.tools.run.elastic.state.training import EpochPhase, mixed_seed
from pliant.tools.run.elastic.trackers import METRIC


class LoopBody:
    """Answers the script in the body of its loop. All workers ask for values at the same places."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper, self._workers = stepper, stepper.workers
        self._step, self._training = stepper.step, stepper.workers.training
        # The last one of the epoch.
        self.metric: float | None = None

    @property
    def device(self) -> torch.device:
        """Where the batches are."""
        return self._workers.context.device

    @property
    def micro(self) -> MicroBatch:
        """:raises UsageError: the script is not in the loop over batches or steps."""
        if self._step.micro is None or not self._stepper.in_batches:
            raise UsageError("ask for samples in the loop over job.steps, or over the loader")
        return self._step.micro

    def numbers(self) -> torch.Tensor:
        """Numbers of the samples of the micro-batch in the order of the epoch: int64."""
        loaded = self.micro.loaded
        return torch.arange(loaded.start, loaded.stop)

    def rows(self) -> Rows:
        """:raises UsageError: the script is not in the loop over batches or steps."""
        micro, step, counters = self.micro, self._step, self._training.counters
        void = (
            step.mode.is_idle or step.mode.is_changed or self._stepper.failed or self._workers.replays_epoch
        )
        return Rows(
            start=max(0, micro.start - counters.epoch_samples),  # others may have completed the step
            count=max(1, micro.samples),
            samples=micro.samples,
            batch=micro.step_samples,
            step=counters.step,
            epoch=counters.epoch,
            division=self._workers.division,
            last=micro.last,
            counts=step.part == step.turn and not void,
            after_optimizer=step.part_over,
        )

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Make the sums over the workers, in place; False if a worker was lost, which makes the step void."""
        return self._workers.averaging.add_up(tensors)

    def draw(self, make: Callable[[int, torch.Generator], Any]) -> Any:
        """The micro-batch's rows of what ``make`` draws for the samples of the step."""
        rows, training, step = self.rows(), self._training, self._step
        generator = torch.Generator().manual_seed(
            mixed_seed(training.seed, training.counters.samples_done, step.draws)
        )
        step.draws += 1
        drawn = make(rows.batch, generator)
        return to_device(_rows(drawn, slice(rows.start, rows.start + rows.count)), self.device)

    def log(
        self,
        loss: float | torch.Tensor | None,
        metric: float | torch.Tensor | None,
        values: Mapping[str, float | torch.Tensor],
    ) -> None:
        """Count what the script measured; a loss outside of a batch is not counted.

        :raises UsageError: there are other values, and no tracker that takes them.
        """
        membership, step = self._workers.membership, self._step
        self._track(values if metric is None else {METRIC: metric, **values})
        if metric is not None:
            self.metric = float(metric)
            if self._stepper.by_steps and membership is not None and not step.mode.is_idle:
                membership.measured(self.metric)
        if loss is not None and step.micro is not None:
            step.losses.add(loss, self._stepper.counts.of_loss)

    def _track(self, values: Mapping[str, float | torch.Tensor]) -> None:
        tracking, step = self._workers.context.tracking, self._step
        if tracking is None:
            if others := ", ".join(values.keys() - {METRIC}):
                raise UsageError(
                    f"job.log got {others}, which only trackers take: name one, as in "
                    'elastic.init(track="tensorboard"), or log only loss and metric'
                )
        elif step.mode.is_idle or self._workers.replays_epoch:
            return
        elif step.micro is not None:
            tracking.pending |= values
        elif values:
            tracking.log(self._training.counters.samples_done, values)

    def weigh(self, count: float) -> None:
        """The loss of the micro-batch is a mean over ``count`` of something, not over its samples.

        :raises UsageError: it comes after the backward pass, or a second time in a pass with micro-steps.
        """
        micro, step, stepper = self.micro, self._step, self._stepper
        trains = step.part + step.part_over == step.turn or not stepper.accumulates
        counts = trains and not step.mode.is_idle
        if counts and micro.last:
            stepper.agree_on_step()
        stepper.counts.weigh(
            count,
            micro,
            self._workers.context.world_size,
            is_late=step.has_gradients and not step.part_over,
            accumulates=stepper.accumulates,
            counts=counts,
        )

    def combine(self, value: Any, *, mean: bool) -> Any:
        """The sum or mean of a value over the workers, and over the micro-steps of the step.

        :param value: numbers or tensors in dictionaries, lists and tuples; outside of the loop over batches
            also a function, which is called again if the workers change.
        :raises UsageError: the script is in no loop over epochs, or a worker was lost and ``value`` is not a
            function.
        """
        step, workers, training = self._step, self._workers, self._training
        self._stepper.checks.consulted = True
        if step.micro is not None and self._stepper.in_batches:
            return self._combine_in_step(value() if callable(value) else value, mean=mean)
        self._check_in_epoch("job.sum and job.mean")
        self._settle_open_step()
        number, division = step.values, -1
        step.values += 1
        given: Any = None
        while len(training.agreed) <= number:
            if division not in {-1, workers.division} and not callable(value):
                raise UsageError(
                    "a worker was lost while values were added up: give job.sum a function, which is called "
                    "again"
                )
            if division != workers.division:
                division, given = workers.division, value() if callable(value) else value
            self._share([*numbers_in(given), 1.0], adds=True)
        if given is None:
            given = value() if callable(value) else value  # others have added up what this worker was in
        *sums, count = training.agreed[number]
        return like(given, [total / count for total in sums] if mean else sums)

    def _combine_in_step(self, value: Any, *, mean: bool) -> Any:
        micro, stepper = self.micro, self._stepper
        samples = stepper.counts.of_loss
        factor = samples if mean else float(micro.samples > 0)
        sums = stepper.sums.add(self._step.turn, [*(one * factor for one in numbers_in(value)), samples])
        if micro.last and not self._step.mode.is_idle:
            stepper.agree_on_step()
            self._workers.averaging.add_up([sums])
        *numbers, samples = sums.tolist()
        if mean:
            numbers = [one / samples if samples else math.nan for one in numbers]
        return like(value, numbers)

    def agree(self, value: Any) -> Any:
        """Rank 0's value on all workers.

        :param value: numbers by name or in a list, or a function that returns them.
        :raises UsageError: the script is in no loop over epochs.
        """
        stepper, training, step = self._stepper, self._training, self._step
        stepper.checks.consulted = True
        self._check_in_epoch("job.agree")
        if not stepper.in_batches:
            self._settle_open_step()
        number, began_s, draws = step.values, time.monotonic(), step.draws
        own = cache(lambda: numbers_of(value() if callable(value) else value))
        step.values += 1
        while not stepper.is_past and len(training.agreed) <= number:
            # after a worker was lost this one may be rank 0
            self._share(own() if self._workers.context.rank == 0 else None)
        step.draws = draws  # whatever rank 0 alone has drawn
        if step.micro is not None and self._workers.membership is not None:
            self._workers.membership.set_aside(time.monotonic() - began_s)
        agreed = (training.agreed_before if stepper.is_past else training.agreed)[number]
        return agreed.copy() if isinstance(agreed, dict | list) else agreed

    def _check_in_epoch(self, name: str) -> None:
        if self._stepper.phase is LoopPhase.BEFORE or self._training.phase == EpochPhase.PENDING:
            raise UsageError(f"call {name} in the loop over job.epochs or job.steps")

    def _settle_open_step(self) -> None:
        """Where a ``break`` has left the loop over batches, end its step."""
        if self._step.micro is not None:
            self._stepper.settle()
            self._step.values = 0

    def _share(self, given: Any, *, adds: bool = False) -> None:
        """Share rank 0's next value, or the next sum, once; a change of the workers may come instead."""
        training, step, workers = self._training, self._step, self._workers
        membership = workers.membership
        if membership is None:
            training.agree(given, workers.context.world_size, adds=adds)
            return
        if step.micro is None:
            workers.follow(membership.agree(given, adds=adds))
            return
        if len(training.agreed) == step.awaited:
            self._reach_others()
        self._stepper.weights.return_to_present()
        training.asking = True
        error = workers.averaging.error
        if error is not None and training.parts <= step.part:
            workers.restore_start()
        instruction = membership.agree(given) if error is None else membership.step_void(error)
        if not workers.follow(instruction):
            workers.note_start()
            step.mode = PassMode.VOID if step.awaited == NOTHING_AWAITED else PassMode.REPLAYS
            workers.exchange_if_counted()
            if step.mode is PassMode.VOID and not self._stepper.is_past:
                self._reach_others()
        training.asking = False

    def _reach_others(self) -> None:
        self._step.reach_others(self._training.parts)
        self._workers.exchange_if_counted()


def _rows(drawn: Any, rows: slice) -> Any:
    if isinstance(drawn, Mapping):
        return {name: _rows(value, rows) for name, value in drawn.items()}
    if isinstance(drawn, list | tuple):
        return type(drawn)(_rows(value, rows) for value in drawn)
    return drawn[rows]
