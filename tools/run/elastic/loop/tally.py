"""What the passes of a step add up to: values of the script, counts that losses are means of, calls.

A pass of the loop body is a micro-step. What it finds is a part of what the step finds, on this worker and on
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.averaging import Averaging
from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.loss_watch import LossWatch
from pliant.tools.run.elastic.state.training import map_leaves, plain

_WATCHED_STEPS: Final = 64
"""Steps whose losses are looked at."""


class PassCheck:
    """Checks that the loop body does the same in every micro-step of a step."""

    def __init__(self) -> None:
        # The loop body knows of micro-steps: it has asked for them, or decided together with the others.
        self.consulted = False
        # By the optimizers that were called in the pass, their learning rates.
        self._called: dict[int, list[Any]] = {}
        # The same of the pass before, if it was one of the same step.
        self._before: dict[int, list[Any]] | None = None
        self._trained_before: bool | None = None

    def begin_step(self) -> None:
        self._before, self._trained_before, self.consulted = None, None, False

    def begin(self) -> None:
        self._called = {}

    def called(self, optimizer: Optimizer) -> None:
        self._called[id(optimizer)] = [group.get("lr") for group in optimizer.param_groups]

    def check(self, *, last: bool, trained: bool) -> None:
        """The pass ends.

        :param last: no other pass of the step follows; ``trained``: this one had a backward pass.
        :raises UsageError: it has called other optimizers than the one before, or at another learning rate:
            the loop counts passes, or decides by the loss of a micro-batch.
        """
        if self._trained_before not in {None, trained}:
            raise UsageError(
                "some micro-steps of a step were trained and others were not: leave out whole steps, by "
                "loader.steps_done, or always run the backward pass and decide about the optimizer's step"
            )
        self._trained_before = None if last else trained
        before, called = self._before, self._called
        self._before = None if last else called
        if before is None or before == called or self.consulted:
            return
        what = "was called" if before.keys() != called.keys() else "had another learning rate"
        raise UsageError(
            f"an optimizer {what} in some micro-steps of a step and not in others: a pass of the loop is a "
            "part of a step, so count by loader.steps_done (or the number that job.steps gives), decide by "
            "job.mean, and leave accumulation to the job"
        )


class StepSums:
    """Values that the script adds up over the micro-steps of a step, by part and order of the calls."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self._calls = 0

    def begin_step(self) -> None:
        self._sums.clear()

    def begin(self) -> None:
        self._calls = 0

    def add(self, part: int, numbers: Sequence[float]) -> torch.Tensor:
        """A copy of the sums of the step so far, with these numbers; float64."""
        key, sums = (part, self._calls), torch.tensor(numbers, dtype=torch.float64)
        self._calls += 1
        if (before := self._sums.get(key)) is not None:
            sums += before
        self._sums[key] = sums
        return sums.clone()


class StepCounts:
    """What the losses of a step are means of: its samples, or what the script says."""

    def __init__(self, gradients: Gradients, averaging: Averaging, warn: Callable[[str], None]) -> None:
        self._gradients, self._averaging, self._warn = gradients, averaging, warn
        self._micro: MicroBatch | None = None
        # What the loss of the micro-batch is a mean of, if the script has said so.
        self._stated: float | None = None
        # Counts of the step so far on this worker, and the first of them, the unit of the others.
        self._of_step = self._unit = 0.0
        self._watch, self._of_sample = LossWatch(self._look), 0.0

    def watch(self) -> None:
        """Look at the losses of the first steps."""
        self._watch.open()

    def begin_step(self, step: int) -> None:
        self._of_step = self._unit = 0.0
        if step >= _WATCHED_STEPS:
            self._watch.close()

    def begin(self, micro: MicroBatch) -> None:
        self._micro, self._stated = micro, None

    @property
    def of_loss(self) -> float:
        if self._stated is not None:
            return self._stated
        return 0.0 if self._micro is None else float(self._micro.samples)

    def weigh(
        self,
        count: float,
        micro: MicroBatch,
        workers: int,
        *,
        is_late: bool,
        accumulates: bool,
        counts: bool,
    ) -> None:
        """:param counts: whether the gradients that follow are collected.

        :raises UsageError: it comes after the backward pass, or a second time in a pass with micro-steps.
        """
        again = self._stated is not None
        if (is_late and not again) or (again and accumulates):
            raise UsageError(
                "call job.weigh(count) once in a micro-step, before the backward pass of the loss that is a "
                "mean over count"
            )
        self._stated = count = float(count) if micro.samples else 0.0
        if not counts:
            return
        self._of_step += count
        unit = self._unit = self._unit or count
        if not micro.last:
            # the sum over the step is known in its last micro-step only
            self._gradients.weigh(count / (unit or 1.0), last=False)
            return
        total = torch.tensor([self._of_step], dtype=torch.float64)
        self._averaging.add_up([total])
        share = workers / total.item() if total.item() else 0.0
        self._gradients.scale_sum(unit * share)
        self._gradients.weigh(count * share, last=True)
        self._of_step = self._unit = 0.0

    def _look(self, weight: float) -> None:
        """A loss is a mean over targets of this weight: warn if it is no fixed number for each sample."""
        micro = self._micro
        if micro is None or not micro.samples or self._stated is not None or self._is_whole(micro):
            return
        of_sample = weight / micro.samples
        known = self._of_sample = self._of_sample or of_sample
        if abs(of_sample - known) > 1e-6 * known:
            self._watch.close()
            self._warn(
                "the loss is a mean over targets whose number or weight differs between samples "
                "(ignore_index, class weights), and shares are weighted by samples: call job.weigh(count) "
                "before its backward pass, with the number of targets that count"
            )

    def own_step(self) -> None:
        """What the script trains next belongs to no batch of the loader."""
        self._micro = None

    def close(self) -> None:
        """The training is over."""
        self._watch.close()

    @staticmethod
    def _is_whole(micro: MicroBatch) -> bool:
        """Whether the micro-batch is all of its step."""
        return micro.samples == micro.step_samples


def numbers_in(value: Any) -> list[float]:
    """The numbers of a value, in order.

    :raises UsageError: it holds something else.
    """
    numbers: list[float] = []

    def leaf(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            numbers.extend(one.detach().double().flatten().tolist())
        else:
            numbers.append(numbers_of(one))

    map_leaves(plain(value), leaf)
    return numbers


def like(value: Any, numbers: Sequence[float]) -> Any:
    """The numbers in the form of a value; whole ones where it has whole ones."""
    rest = iter(numbers)

    def leaf(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            flat = torch.tensor([next(rest) for _ in range(one.numel())], dtype=torch.float64)
            return flat.reshape(one.shape).to(one.device, one.dtype if one.is_floating_point() else None)
        number = next(rest)
        return int(number) if isinstance(one, int) and number.is_integer() else number

    return map_leaves(plain(value), leaf)


def numbers_of(value: Any) -> Any:
    """A number, or numbers by name or in a row, as plain ones.

    :raises UsageError: it holds something else.
    """
    if isinstance(value, Mapping):
        return {str(name): numbers_of(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [numbers_of(one) for one in value]
    try:
        return float(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise UsageError(
            f"job.agree, job.mean and job.sum take numbers, or a dict or list of them, not {kind}"
        ) from None
