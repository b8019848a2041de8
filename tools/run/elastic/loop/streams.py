"""Datasets that can only be iterated: every worker reads the stream, and trains its share of each step.

The samples have the numbers in which the stream gives them, so the state is the number of those that are
trained. A worker that joins, and a job that is launched again, reads and leaves out what came before, unless
the stream can say where it is (``state_dict``, as torchdata's ``StatefulDataLoader`` has).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch, one_step, to_device
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.loop.passes import Passes
from pliant.tools.run.elastic.state.training import Stateful

ANY_SIZE: Final = 1 << 31
"""Stands for the number of samples while it is not known."""


def is_stream(dataset: Any) -> bool:
    """Whether samples come only one after the other.

    :raises UsageError: the object gives batches, not samples.
    """
    if isinstance(dataset, DataLoader) and dataset.batch_size is not None:
        kind = type(dataset).__name__
        raise UsageError(
            f"{kind} gives batches: give job.prepare its dataset, or make it with batch_size=None"
        )
    return isinstance(dataset, IterableDataset | DataLoader) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


@dataclass(frozen=True)
class StreamSource:
    """A stream, and how its samples become batches on a device."""

    dataset: Iterable[Any]
    device: torch.device
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    size: int = ANY_SIZE

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

    def __init__(self, dataset: Iterable[Any], trained: Callable[[], int]) -> None:
        """:param trained: the number of samples of the epoch that are trained."""
        self._dataset, self._trained = dataset, trained
        self._samples: Iterator[Any] = iter(())
        self._epoch = -1
        self._held: deque[Any] = deque()
        self._first = 0
        """The number of the first sample held."""
        self._marks: list[tuple[int, Any]] = []
        """Numbers of samples, and the stream's state before it gave them."""
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
        lacking = first + count - self._first - len(self._held)
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
        self.reader = Reader(source.dataset, lambda: loop.training.counters.epoch_samples)

    @property
    def dataset(self) -> Any:
        return self._source.dataset

    def _given(self, micros: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        """The micro-batches come from the stream: how many there are shows at its end."""
        del micros
        loop, reader = self._loop, self.reader
        split, counters, rank = loop.split, loop.training.counters, loop.context.rank
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
