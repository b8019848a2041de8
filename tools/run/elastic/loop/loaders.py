"""The passes of the author's loop body, and what each gets: a batch of the loader, or the number of its step.

Each pass is one micro-step. Where several optimizers take turns in a step, its micro-steps come again for
each of them: the later ones train with what the earlier ones have changed.

A dataset may only be iterable: every worker reads the stream, and trains its share of each step. The samples
have the numbers in which the stream gives them, so the state is the number of those that are
trained. A worker that joins, and a job that is launched again, reads and leaves out what came before, unless
the stream can say where it is (``state_dict``, as torchdata's ``StatefulDataLoader`` has).
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import (
    DataSource,
    MicroBatch,
    micro_batches,
    one_step,
    to_device,
)
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.loop.step import InnerLoop
from pliant.tools.run.elastic.state.training import Stateful, mixed_seed


class Passes(ABC):
    """Iterating it starts the epoch, or goes on where an earlier attempt stopped."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        # What sees the passes on their way to the loop body, and may change what it gets.
        self.observed: Callable[[Iterator[tuple[MicroBatch, Any]]], Iterator[tuple[MicroBatch, Any]]] = iter

    @property
    def batch_size(self) -> int:
        """Samples of an optimizer step, over all workers."""
        return self._loop.workers.split.global_batch

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        raise UsageError(
            f"loader.batch_size = {size}: the batch is the job's, so give it to elastic.init(batch_size=…); "
            'with "elastic": "size+batch" a policy changes it'
        )

    @abstractmethod
    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        """What the loop body gets for each micro-batch."""

    def __iter__(self) -> Iterator[Any]:
        loop, workers = self._loop, self._loop.workers
        number = loop.begin_loop()
        division = -1
        try:
            while division != workers.division and not loop.is_complete:
                division = workers.division
                if not (yield from self._until_divided_again(division, number)):
                    return
        except GeneratorExit:
            loop.leave_loop(number)
            raise
        loop.end_loop()

    def _until_divided_again(self, division: int, number: int) -> Generator[Any, None, bool]:
        """Passes to the end of the epoch, or until the work is divided again.

        :param number: of the loop over the loader.
        :returns: False if the epoch was over when that loop was continued.
        """
        loop, counters = self._loop, self._loop.training.counters
        workers, stepper = loop.workers, loop.stepper
        epoch, trained, rank = counters.epoch, counters.epoch_samples, workers.context.rank
        micros = micro_batches(loop.dataset_size, trained, workers.split, rank, resumed=loop.resumed)
        for micro, given in self._with_turns(self.observed(self._given(micros)), division):
            stepper.begin(micro, given)
            yield given
            if not loop.goes_on(number, epoch, is_last=micro.last and not micro.steps_left):
                return False
            stepper.end(given)
            if workers.division != division:
                break
        return True

    def _with_turns(
        self, passes: Iterator[tuple[MicroBatch, Any]], division: int
    ) -> Iterator[tuple[MicroBatch, Any]]:
        """The same, with those of a step again while optimizers wait for their turn."""
        workers, held = self._loop.workers, list[tuple[MicroBatch, Any]]()
        step = workers.step
        for one in passes:
            yield one
            held.append(one)
            while one[0].last and step.under_way and workers.division == division:
                yield from held
            if not step.under_way:
                held.clear()


class ElasticLoader(Passes):
    """The author's loader. ``len`` is the number of optimizer steps of an epoch, as schedulers expect."""

    def __init__(self, source: DataSource, loop: TrainingLoop, *, shuffle: bool = True) -> None:
        super().__init__(loop)
        self._source = source
        self._shuffle = shuffle
        self._generator = torch.Generator()
        # The micro-batches of the current pass whose samples are not read yet.
        self._read_ahead: Iterator[MicroBatch] = iter(())
        self._batches = source.loader(_Indices(self._indices), self._generator)
        # where the worker joins after the last step of an epoch, it has read nothing of it
        loop.workers.guard.order = lambda: _fingerprint(self._order())

    def __len__(self) -> int:
        return self._loop.workers.split.steps_per_epoch(self._source.size)

    def __iter__(self) -> Iterator[Any]:
        self._loop.dataset_size = self._source.size  # it may be another one in each epoch
        return super().__iter__()

    @property
    def dataset(self) -> Any:
        return self._source.dataset

    @property
    def sampler(self) -> SampleOrder:
        """What scripts ask a ``DistributedSampler``."""
        return SampleOrder(self._source.size)

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the epoch that are trained, counted in batches of the current size.

        A worker may begin in the middle of an epoch, and a step may be tried twice. So a loop that does not
        take all batches ends by this, before it trains one: ``if loader.steps_done == 100: break``.
        """
        self._loop.epoch.steps_requested = True
        return math.ceil(self._loop.training.counters.epoch_samples / self.batch_size)

    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        workers, training = self._loop.workers, self._loop.training
        seed, counters = training.seed, training.counters
        self._generator.manual_seed(mixed_seed(seed, counters.step, workers.context.rank))
        ahead, self._read_ahead = tee(micros)
        epoch, batches = counters.epoch, iter(self._source.on_device(self._batches))
        for micro in ahead:  # not by zip, which keeps its first pair for as long as the caller does
            with workers.draws.reading(seed, epoch, micro.start):
                batch = next(batches)
            yield micro, batch

    def _indices(self) -> Iterator[list[int]]:
        order = self._order()
        self._loop.workers.guard.order = _fingerprint(order)
        for micro in self._read_ahead:
            yield order[micro.loaded].tolist()

    def _order(self) -> np.ndarray[Any, Any]:
        """Numbers of the epoch's samples, in order."""
        training, size = self._loop.training, self._loop.dataset_size
        order = self._source.order(size, training.counters.epoch, training.seed, shuffle=self._shuffle)
        return order.numpy()


def _fingerprint(order: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(order.tobytes())


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
        self._base = loop.workers.base_batch()
        self._count = count
        self._step: list[MicroBatch] = []
        # Loops over its micro-steps that the loop body has begun in its pass.
        self._inner_loops = 0

    def __iter__(self) -> Iterator[int]:
        loop = self._loop
        loop.dataset_size, loop.stepper.by_steps = self._count * self._base, True
        for _ in loop.epochs(1):
            yield from super().__iter__()

    def micro_steps(self) -> Iterator[int]:
        """The micro-steps of the step under way, for a loop within its body."""
        self._inner_loops += 1
        mine = self._inner_loops
        for number, micro in enumerate(self._step):
            self._loop.stepper.inner(micro, mine)
            yield number
        self._loop.stepper.inner(None, mine)

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
            if loop.stepper.step.inner is InnerLoop.COMPLETE:
                return
            if loop.stepper.step.inner is InnerLoop.BEGUN:
                raise UsageError("take all of job.micro_steps(): the loop over them was left before its end")


ANY_SIZE: Final = 1 << 31
"""Number of samples while it is not known."""


def is_stream(dataset: Any) -> bool:
    """Whether samples come only one after the other.

    :raises UsageError: the object gives batches, not samples.
    """
    if isinstance(dataset, DataLoader) and (instead := _instead_of(dataset)):
        raise UsageError(f"{type(dataset).__name__} {instead}")
    return isinstance(dataset, IterableDataset | DataLoader) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


def _instead_of(loader: DataLoader[Any]) -> str:
    """What is wrong with a loader as a stream of samples and what to write; empty if nothing is.

    Of samples that it finds by number only those in their own order come alike on all workers.
    """
    is_stream, in_order = (
        isinstance(loader.dataset, IterableDataset),
        type(loader.sampler) is SequentialSampler,
    )
    if loader.batch_size is None and loader.batch_sampler is None and (is_stream or in_order):
        return ""
    if is_stream:
        return "gives batches: give job.prepare its dataset, or make it with batch_size=None"
    if in_order or type(loader.sampler) is RandomSampler:
        arguments = [f"shuffle={not in_order}"]
    else:
        arguments = ["sampler=loader.sampler"]
    arguments += ["drop_last=True"] if loader.drop_last else []
    arguments += [f"num_workers={loader.num_workers}"] if loader.num_workers else []
    if loader.batch_size is not None and loader.collate_fn is not default_collate:
        arguments.append("collate_fn=loader.collate_fn")
    batch = loader.batch_size or "…"
    wrong = "draws an order of its own on each worker" if loader.batch_sampler is None else "gives batches"
    return (
        f"{wrong}: give job.prepare its dataset (loader.dataset, {', '.join(arguments)}) "
        f"and elastic.init(batch_size={batch})"
    )


@dataclass(frozen=True)
class StreamSource:
    """A stream, and how its samples become batches on a device."""

    dataset: Iterable[Any]
    device: torch.device
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    size: int = ANY_SIZE
    most: int | None = None
    """Most samples of an epoch."""

    def batch(self, samples: list[Any]) -> Any:
        return to_device((self.collate_fn or default_collate)(samples), self.device)

    def loader(self, indices: Iterable[list[int]], generator: torch.Generator) -> Iterator[Any]:
        """Batches as large as the lists, for a measurement: the stream begins again at its end."""
        del generator
        samples = self._endless()
        return (self.batch(list(islice(samples, len(numbers)))) for numbers in indices)

    def on_device(self, batches: Iterable[Any]) -> Iterator[Any]:
        return iter(batches)

    def _endless(self) -> Iterator[Any]:
        while True:
            empty = True
            for sample in self.dataset:
                empty = False
                yield sample
            if empty:
                raise UsageError(f"{type(self.dataset).__name__} gave no samples")


class Reader:
    """The samples of a stream by number, from the first that is not trained yet."""

    def __init__(self, dataset: Iterable[Any], trained: Callable[[], int], most: int | None = None) -> None:
        """:param trained: the number of samples of the epoch that are trained.
        :param most: samples that an epoch has; None: all.
        """
        self._dataset, self._trained, self._most = dataset, trained, most
        self._samples: Iterator[Any] = iter(())
        self._epoch = -1
        self._held: deque[Any] = deque()
        # The number of the first sample held.
        self._first = 0
        # Numbers of samples, and the stream's state before it gave them.
        self._marks: list[tuple[int, Any]] = []
        self._restored: tuple[int, int, Any] | None = None

    def turn_to(self, epoch: int) -> None:
        """Hold what comes after the trained samples of an epoch, and let go of the others."""
        trained = self._trained()
        if epoch != self._epoch or trained < self._first:
            self._open(epoch, trained)
        while self._first < trained and self.ahead(self._first, 1):
            self._held.popleft()
            self._first += 1
        later = [mark for mark in self._marks if mark[0] > trained]
        self._marks = [mark for mark in self._marks if mark[0] <= trained][-1:] + later

    def ahead(self, first: int, count: int) -> list[Any]:
        """The samples from a number on; fewer than ``count`` at the end of the stream."""
        end = first + count if self._most is None else min(first + count, self._most)
        lacking = end - self._first - len(self._held)
        if lacking > 0:
            if isinstance(self._dataset, Stateful) and self._first >= self._trained():
                self._marks.append((self._first + len(self._held), self._dataset.state_dict()))
            self._held.extend(islice(self._samples, lacking))
        start = first - self._first
        return list(islice(self._held, start, start + count))

    def _open(self, epoch: int, trained: int) -> None:
        self._held.clear()
        self._marks.clear()
        self._first, self._epoch = 0, epoch
        restored, self._restored = self._restored, None
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        if restored is not None and restored[0] == epoch and restored[1] <= trained:
            assert isinstance(self._dataset, Stateful)  # noqa: S101 it has given this state
            self._dataset.load_state_dict(restored[2])
            self._first = restored[1]
        self._samples = iter(self._dataset)

    def state_dict(self) -> dict[str, Any]:
        trained = self._trained()
        known = [mark for mark in self._marks if mark[0] <= trained][-1:]
        return {"epoch": self._epoch, "marks": [list(mark) for mark in known]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._restored = None
        for number, state in state_dict["marks"]:
            self._restored = state_dict["epoch"], number, state


class ElasticStream(Passes):
    """The author's loader over a stream; it has no length."""

    def __init__(self, source: StreamSource, loop: TrainingLoop) -> None:
        super().__init__(loop)
        self._source = source
        self.reader = Reader(source.dataset, lambda: loop.training.counters.epoch_samples, source.most)

    @property
    def dataset(self) -> Any:
        return self._source.dataset

    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        """The micro-batches come from the stream: how many there are shows at its end."""
        del micros
        loop, reader, workers = self._loop, self.reader, self._loop.workers
        split, counters, rank = workers.split, loop.training.counters, workers.context.rank
        epoch, trained, resumed = counters.epoch, counters.epoch_samples, loop.resumed
        reader.turn_to(epoch)
        if not reader.ahead(trained, 1) and not trained:
            raise UsageError(
                f"{type(self.dataset).__name__} gave no samples in epoch {epoch}: "
                "each epoch iterates it again"
            )
        least = split.global_batch if split.drop_last else 1
        loop.dataset_size = ANY_SIZE
        while len(samples := reader.ahead(trained, split.global_batch)) >= (1 if resumed else least):
            more = len(reader.ahead(trained + len(samples), least)) >= least
            if not more:
                loop.dataset_size = trained + len(samples)
            for micro in one_step(trained, len(samples), 2 if more else 0, split, rank):
                own = slice(micro.start - trained, micro.start - trained + max(1, micro.samples))
                yield micro, self._source.batch(samples[own])
            trained, resumed = trained + len(samples), False
            reader.turn_to(epoch)
        loop.dataset_size = trained
