"""The passes of the author's loop body, and what each gets: a batch of the loader, or the number of its step.

Each pass is one micro-step. Where several optimizers take turns in a step, its micro-steps come again for
each of them: the later ones train with what the earlier ones have changed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Any

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import DataSource, MicroBatch, epoch_order, micro_batches
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.state.training import mixed_seed


class Passes(ABC):
    """Iterating it starts the epoch, or goes on where an earlier attempt stopped."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    @abstractmethod
    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        """What the loop body gets for each micro-batch."""

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
        """Passes to the end of the epoch, or until the work is divided again.

        :param number: of the loop over the loader.
        :returns: False if the epoch was over when that loop was continued.
        """
        loop, counters = self._loop, self._loop.training.counters
        epoch, trained, rank = counters.epoch, counters.epoch_samples, loop.context.rank
        micros = micro_batches(loop.dataset_size, trained, loop.split, rank, resumed=loop.resumed)
        for micro, given in self._with_turns(self._given(micros), division):
            loop.begin(micro)
            yield given
            if not loop.goes_on(number, epoch, is_last=micro.last and not micro.steps_left):
                return False
            loop.end(given)
            if loop.division != division:
                break
        return True

    def _with_turns(
        self, passes: Iterator[tuple[MicroBatch, Any]], division: int
    ) -> Iterator[tuple[MicroBatch, Any]]:
        """The same, with those of a step again while optimizers wait for their turn."""
        loop, held = self._loop, list[tuple[MicroBatch, Any]]()
        for one in passes:
            yield one
            held.append(one)
            while one[0].last and loop.is_mid_step and loop.division == division:
                yield from held
            if not loop.is_mid_step:
                held.clear()


class ElasticLoader(Passes):
    """The author's loader. ``len`` is the number of optimizer steps of an epoch, as schedulers expect."""

    def __init__(self, source: DataSource, loop: TrainingLoop, *, shuffle: bool = True) -> None:
        super().__init__(loop)
        self._size = source.size
        self._source = source
        self._shuffle = shuffle
        self._generator = torch.Generator()
        self._read_ahead: Iterator[MicroBatch] = iter(())
        """The micro-batches of the current pass whose samples are not read yet."""
        self._batches = source.loader(_Indices(self._indices), self._generator)

    def __len__(self) -> int:
        return self._loop.split.steps_per_epoch(self._size)

    @property
    def dataset(self) -> Any:
        return self._source.dataset

    @property
    def sampler(self) -> SampleOrder:
        """What scripts ask a ``DistributedSampler``."""
        return SampleOrder(self._size)

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the epoch that are trained, counted in batches of the current size.

        A worker may begin in the middle of an epoch, and a step may be tried twice. So a loop that does not
        take all batches ends by this, before it trains one: ``if loader.steps_done == 100: break``.
        """
        self._loop.asked_for_steps = True
        return math.ceil(self._loop.training.counters.epoch_samples / self._loop.split.global_batch)

    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        loop = self._loop
        step = loop.training.counters.step
        self._generator.manual_seed(mixed_seed(loop.training.seed, step, loop.context.rank))
        ahead, self._read_ahead = tee(micros)
        return zip(ahead, self._source.on_device(self._batches), strict=True)

    def _indices(self) -> Iterator[list[int]]:
        counters, loop = self._loop.training.counters, self._loop
        order = epoch_order(self._size, counters.epoch, loop.training.seed, shuffle=self._shuffle).numpy()
        for micro in self._read_ahead:
            yield order[micro.loaded].tolist()


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of the samples, as far as a script need know: the library shuffles each epoch by itself."""

    size: int

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        """Nothing: ``job.epochs`` knows the epoch."""


@dataclass(frozen=True)
class _Indices:
    """The batch sampler of PyTorch's loader."""

    of_pass: Callable[[], Iterator[list[int]]]

    def __iter__(self) -> Iterator[list[int]]:
        return self.of_pass()


class ElasticSteps(Passes):
    """The steps of a training without epochs: one long epoch, whose samples are numbers.

    They are counted in batches of the author's size. Where a policy has changed the batch, a number may be
    left out, or come twice.
    """

    def __init__(self, loop: TrainingLoop, count: int) -> None:
        super().__init__(loop)
        self._base = loop.base_batch()
        self._count = count
        self._step: list[MicroBatch] = []
        self._inner_loops = 0
        """Loops over its micro-steps that the loop body has begun in its pass."""

    def __iter__(self) -> Iterator[int]:
        loop = self._loop
        loop.dataset_size, loop.by_steps = self._count * self._base, True
        for _ in loop.epochs(1):
            yield from super().__iter__()

    def micro_steps(self) -> Iterator[int]:
        """The micro-steps of the step under way, for a loop within its body."""
        self._inner_loops += 1
        mine = self._inner_loops
        for number, micro in enumerate(self._step):
            self._loop.inner(micro, mine)
            yield number
        self._loop.inner(None, mine)

    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        step: list[MicroBatch] = []
        for micro in micros:
            step.append(micro)
            if micro.last:
                self._step, step = step, []
                yield from self._passes_of_step()

    def _passes_of_step(self) -> Iterator[tuple[MicroBatch, int]]:
        """One pass for each micro-step, or one for all if the loop body takes them itself."""
        loop = self._loop
        number = loop.training.counters.epoch_samples // self._base
        for micro in self._step:
            self._inner_loops = 0
            yield micro, number
            if loop.took_all:
                return
            if loop.took_some:
                raise UsageError("take all of job.micro_steps(): the loop over them was left before its end")
