"""Samples as batches on a device, by PyTorch's own loader: any dataset with a length and access by index."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import tee
from multiprocessing.synchronize import Event
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch, epoch_order, micro_batches
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.state.state import mixed_seed


@dataclass(frozen=True)
class DataSource:
    """A dataset, and how its samples become batches on a device."""

    dataset: Dataset[Any]
    device: torch.device
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def size(self) -> int:
        """The number of samples.

        :raises UsageError: the dataset cannot be divided: it has no length, no samples or no access by index.
        """
        samples: Any = self.dataset
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")) or not len(samples):
            raise UsageError(f"{type(samples).__name__}: expected a dataset with a length, samples and []")
        return len(samples)

    def loader(self, indices: Iterable[list[int]], generator: torch.Generator) -> DataLoader[Any]:
        """Batches of the listed samples. The generator is the loader's own: the author's must not move.

        Loading processes ignore SIGTERM, which may go to a whole process group, until this process ends.
        """
        leaving = multiprocessing.Event()
        atexit.register(leaving.set)
        dataset, collate_fn = self.dataset, self.collate_fn
        if collate_fn is None and (at_once := read_at_once(dataset)) is not None:
            dataset, collate_fn = at_once, list
        return DataLoader(
            dataset,
            batch_sampler=indices,
            num_workers=self.num_workers,
            collate_fn=collate_fn,
            pin_memory=self.device.type == "cuda",
            persistent_workers=self.num_workers > 0,
            worker_init_fn=partial(_obey, leaving),
            generator=generator,
        )

    def on_device(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, moved."""
        if self.device.type == "cpu":
            return iter(batches)
        return (to_device(batch, self.device) for batch in batches)


def read_at_once(dataset: Dataset[Any]) -> Dataset[Any] | None:
    """A dataset of tensors, or a part of one, that reads a batch by one look into each tensor.

    The batches are those that PyTorch makes of single samples, in a fraction of the time. None: samples are
    to be read one by one.
    """
    if type(dataset) is Subset and (inner := read_at_once(dataset.dataset)) is not None:
        return Subset(inner, dataset.indices)
    if type(dataset) is TensorDataset and all(_is_plain(tensor) for tensor in dataset.tensors):
        return _TensorsAtOnce(dataset.tensors)
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether looking up rows gives what stacking them would: the same values in the same layout."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_contiguous()


class _TensorsAtOnce(Dataset[list[torch.Tensor]]):
    """Whole batches of a dataset of tensors, by the method that PyTorch's loader looks for."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._tensors = tensors

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [tensor[indices] for tensor in self._tensors]


def to_device(batch: Any, device: torch.device) -> Any:
    """Every tensor in tuples, lists and dictionaries of a batch, on the device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _obey(leaving: Event, worker: int) -> None:
    """Let a loading process outlive a SIGTERM to its whole process group, but not its parent's leaving."""
    del worker
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if leaving.is_set() else None)


class ElasticLoader:
    """Iterating it goes on where the epoch stands: from its start, or from where an earlier attempt stopped.

    Every batch is one micro-step. ``len`` is the number of optimizer steps of a whole epoch, which is what
    schedulers ask for.
    """

    def __init__(self, source: DataSource, loop: TrainingLoop, *, shuffle: bool = True) -> None:
        self._size = source.size
        self._source = source
        self._loop = loop
        self._shuffle = shuffle
        self._generator = torch.Generator()
        self._read_ahead: Iterator[MicroBatch] = iter(())
        """What samples are read for, of the pass under way."""
        self._batches = source.loader(_Indices(self), self._generator)

    def __len__(self) -> int:
        return self._loop.cut.steps_per_epoch(self._size)

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the epoch that are trained, of batches as large as now.

        A worker may begin in the middle of an epoch, and a step may be tried twice. So a loop that does not
        take all batches ends by this, before it trains one: ``if loader.steps_done == 100: break``.
        """
        self._loop.asked_for_steps = True
        return math.ceil(self._loop.training.counters.epoch_samples / self._loop.cut.global_batch)

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
        """Batches to the end of the epoch, or until other workers share it or share it otherwise.

        :param number: of the pass.
        :returns: false if the epoch was over when the pass was continued.
        """
        loop, epoch = self._loop, self._loop.training.counters.epoch
        step = loop.training.counters.step
        self._generator.manual_seed(mixed_seed(loop.training.seed, step, loop.context.rank))
        trained, rank = loop.training.counters.epoch_samples, loop.context.rank
        found = micro_batches(self._size, trained, loop.cut, rank, resumed=loop.resumed)
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

    def indices(self) -> Iterator[list[int]]:
        """The samples of every micro-batch that is left of the epoch."""
        counters, loop = self._loop.training.counters, self._loop
        order = epoch_order(self._size, counters.epoch, loop.training.seed, shuffle=self._shuffle).numpy()
        for micro in self._read_ahead:
            yield order[micro.loaded].tolist()


class _Indices:
    """What PyTorch's loader asks for indices."""

    def __init__(self, loader: ElasticLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.indices()
