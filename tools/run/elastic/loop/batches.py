"""Which samples each worker trains in which micro-step, and how they become batches on its device.

An epoch is a permutation of the dataset, fixed by seed and epoch. The sampler's state is the number of
samples that are trained: the next step trains ``order[trained : trained + global_batch]``, whatever the
number of workers. Rank r takes its contiguous share of them, cut into micro-batches. So a resize never loses
or repeats a sample. :func:`micro_batches` is that arithmetic; :class:`DataSource` reads the samples.

:class:`Carried` is what a training carries from batch to batch, row by row: the hidden state of a recurrent
net.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
)

from pliant.schemas.errors import UsageError
from pliant.tools.profile.throughput import shares
from pliant.tools.run.elastic.state.training import (
    generator_states,
    map_leaves,
    mixed_seed,
    restore_generators,
    seed_everything,
)


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How a global batch is split over workers and micro-steps."""

    global_batch: int
    workers: int = 1
    accum: int = 1
    """Micro-steps per step; fewer if the last step of an epoch has fewer samples."""
    drop_last: bool = False

    def steps_per_epoch(self, dataset_size: int) -> int:
        full, rest = divmod(dataset_size, self.global_batch)
        return full + (rest > 0 and not self.drop_last)


class MicroBatch(NamedTuple):
    """One pass of the loop body on one worker: ``order[start : start + samples]``."""

    start: int
    samples: int
    """Own samples; with 0, a padding sample is trained with weight 0: each worker takes part in each step."""
    weight: float
    """Factor on the gradients of the micro-batch's mean loss. The mean over workers of the sums over
    micro-steps is then the mean over the global batch."""
    last: bool
    """Whether this micro-step ends its optimizer step."""
    step_samples: int
    """Samples of the whole step, over all workers and micro-steps."""
    steps_left: int
    """Steps of the epoch after this one."""

    @property
    def loaded(self) -> slice:
        """Positions in the order that are loaded; never empty."""
        return slice(self.start, self.start + max(1, self.samples))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a micro-batch has in the batch of its step, and whether what is found for them counts."""

    start: int
    count: int
    """Rows, at least 1: a worker without samples trains one, with weight 0."""
    samples: int
    """Rows that are this worker's."""
    batch: int
    """Rows of the whole batch, over all workers and micro-steps."""
    step: int
    epoch: int
    division: int
    """Number of the division of the work: another one where the workers have changed."""
    last: bool
    """Whether the worker's rows are complete with these."""
    counts: bool
    after_optimizer: bool


def epoch_order(dataset_size: int, epoch: int, seed: int, *, shuffle: bool = True) -> torch.Tensor:
    """The order of the samples in an epoch: int64, shape (dataset_size,), the same on every worker."""
    if not shuffle:
        return torch.arange(dataset_size)
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(dataset_size, generator=generator)


def sampled_order(sampler: Sampler[int], epoch: int, seed: int) -> torch.Tensor:
    """What a script's own sampler draws for an epoch: int64, the same on every worker and after every start.

    :raises UsageError: it draws another number of samples than its length says.
    """
    if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        generator.manual_seed(mixed_seed(seed, epoch))
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    states = generator_states()
    try:
        seed_everything(seed, epoch)
        order = torch.tensor([int(index) for index in sampler])
    finally:
        restore_generators(states)
    if len(order) != (size := _length(sampler)):
        raise UsageError(f"{type(sampler).__name__} drew {len(order)} samples, and its length is {size}")
    return order


def _length(sampler: Any) -> int:
    """:raises UsageError: it has no length, or gives something else than the numbers of samples."""
    kind = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        raise UsageError(f"sampler: leave out {kind}: each worker gets its share of every batch")
    if isinstance(sampler, BatchSampler):
        raise UsageError(f"sampler: {kind} gives batches: give its sampler, and elastic.init the batch_size")
    if not (hasattr(sampler, "__iter__") and hasattr(sampler, "__len__")):
        raise UsageError(f"sampler: {kind} has no length, or cannot be iterated")
    size: int = len(sampler)
    return size


def micro_batches(
    dataset_size: int, trained: int, split: BatchSplit, rank: int, *, resumed: bool = False
) -> Iterator[MicroBatch]:
    """The remaining micro-batches of ``rank`` in the epoch.

    A ``resumed`` epoch has at least one step, even if the batch has grown beyond its remaining samples: the
    author's code after the loop may need one.
    """
    left = max(0, dataset_size - trained)
    steps = split.steps_per_epoch(left)
    if resumed and left:
        steps = max(1, steps)
    batch, whole = split.global_batch, _cut(split.global_batch, split, rank)
    for steps_left in reversed(range(steps)):
        samples = min(batch, dataset_size - trained)
        parts = whole if samples == batch else _cut(samples, split, rank)
        for offset, size, weight, last in parts:
            yield MicroBatch(trained + offset, size, weight, last, samples, steps_left)
        trained += samples


def one_step(
    trained: int, samples: int, steps_left: int, split: BatchSplit, rank: int
) -> Iterator[MicroBatch]:
    """The micro-batches of ``rank`` in the step that trains the next ``samples``."""
    for offset, size, weight, last in _cut(samples, split, rank):
        yield MicroBatch(trained + offset, size, weight, last, samples, steps_left)


def _cut(samples: int, split: BatchSplit, rank: int) -> list[tuple[int, int, float, bool]]:
    """Of each micro-batch of ``rank`` in a step of ``samples``: where it begins in the step, its samples, its
    weight, and whether it is the last.
    """
    by_rank = shares(samples, split.workers)
    micro_steps = min(split.accum, by_rank[0])
    start, parts = sum(by_rank[:rank]), []
    for index, size in enumerate(shares(by_rank[rank], micro_steps)):
        weight = size * split.workers / samples
        parts.append((start if size else 0, size, weight, index == micro_steps - 1))
        start += size
    return parts


@dataclass(frozen=True)
class DataSource:
    """A dataset, and how its samples become batches on a device."""

    dataset: Dataset[Any]
    device: torch.device
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Sampler[int] | None = None
    most: int | None = None
    """Most samples of an epoch: the first ones of the data set, or of the sampler's order."""

    @property
    def size(self) -> int:
        """The number of samples of an epoch.

        :raises UsageError: the dataset has no length, no samples or no access by index.
        """
        samples: Any = self.dataset
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            raise UsageError(f"{type(samples).__name__}: expected a dataset with a length, samples and []")
        if not len(samples):
            raise UsageError(f"{type(samples).__name__} has no samples: nothing would be trained")
        size = len(samples) if self.sampler is None else _length(self.sampler)
        return size if self.most is None else min(size, self.most)

    def order(self, size: int, epoch: int, seed: int, *, shuffle: bool) -> torch.Tensor:
        """The numbers of an epoch's ``size`` samples, in order: int64."""
        if self.sampler is not None:
            return sampled_order(self.sampler, epoch, seed)[: self.most]
        return epoch_order(size, epoch, seed, shuffle=shuffle)

    def loader(self, indices: Iterable[list[int]], generator: torch.Generator) -> DataLoader[Any]:
        """Batches of the listed samples. The generator is the loader's own: the author's must not advance.

        Loading processes ignore SIGTERM and SIGUSR1, which may go to a whole process group, until this
        process ends.
        """
        leaving = multiprocessing.Event()
        atexit.register(leaving.set)
        dataset, collate_fn = self.dataset, self.collate_fn
        if collate_fn is None and read_at_once(dataset) is not None:
            dataset, collate_fn = _AtOnce(dataset), list
        return DataLoader(
            dataset,
            batch_sampler=indices,
            num_workers=self.num_workers,
            collate_fn=collate_fn,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=partial(_init_loading_process, leaving),
            generator=generator,
        )

    def on_device(self, batches: Iterable[Any]) -> Iterator[Any]:
        if self.device.type == "cpu":
            return iter(batches)
        return (to_device(batch, self.device) for batch in batches)


def read_at_once(dataset: Dataset[Any]) -> Dataset[Any] | None:
    """A dataset of tensors, or a subset of one, that reads a batch by one look-up in each tensor.

    Returns None if that would not give the batches that PyTorch makes of single samples.
    """
    if type(dataset) is Subset and (inner := read_at_once(dataset.dataset)) is not None:
        return Subset(inner, dataset.indices)
    if type(dataset) is TensorDataset and all(_is_plain(tensor) for tensor in dataset.tensors):
        return _TensorsAtOnce(dataset.tensors)
    return None


class _AtOnce(Dataset[Any]):
    """A dataset that is read at once as long as it can be: a script may give it other tensors or indices."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: list[int]) -> Any:
        at_once: Any = read_at_once(self._dataset)
        if at_once is None:
            return default_collate([self._dataset[index] for index in indices])
        return at_once.__getitems__(indices)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether looking up rows gives the same values and layout as stacking them."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_contiguous()


class _TensorsAtOnce(Dataset[list[torch.Tensor]]):
    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._tensors = tensors

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [tensor[indices] for tensor in self._tensors]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in its tuples, lists and dictionaries on the device."""
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


def tensors_in(batch: object) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)


def _init_loading_process(leaving: Event, worker: int) -> None:
    """Let a loading process survive signals to its process group, but not the end of its parent."""
    del worker
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if leaving.is_set() else None)


class HasRows(Protocol):
    """What a training says of its pass, and does with all workers."""

    @property
    def device(self) -> torch.device: ...

    def rows(self) -> Rows: ...

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        """The sums over the workers, in place; False if a worker was lost."""
        ...


class Carried:
    """What each row of a batch hands on to the same row of the next batch. Made by ``job.carried``.

    Every worker holds the rows of the whole batch as they were when the last step ended: they are exchanged
    with each step. So a worker that joins, another division of the rows, a step that is tried again and a
    checkpoint all find what one process would have found.
    """

    def __init__(self, make: Callable[[int], Any], dim: int, training: Callable[[], HasRows]) -> None:
        self._make, self._dim, self._training = make, dim, training
        # Of all rows, at the end of the last step; None at the start of an epoch.
        self._kept: Any = None
        # Of all rows, in a step that may not be counted yet.
        self._found: Any = None
        # The step; the epoch of what is kept, or found later.
        self._found_in = self._epoch = -1
        # Of this worker's rows, the others zero, with the step and the division.
        self._partial: tuple[tuple[int, int], Any] | None = None

    @property
    def value(self) -> Any:
        """For the rows of this worker's micro-batch: without a history, and its own to change.

        What ``make`` gives in the first step of an epoch, and where the global batch has changed.
        """
        training = self._training()
        rows = training.rows()
        self._keep(rows)
        if self._kept is None or self._epoch != rows.epoch or self._size(self._kept) != rows.batch:
            return to_device(self._make(rows.count), training.device)
        own = map_leaves(self._kept, lambda one: one.narrow(self._dim, rows.start, rows.count).clone())
        return to_device(own, training.device)

    @value.setter
    def value(self, values: Any) -> None:
        """:raises UsageError: it has other rows than the batch, or the optimizer has stepped before."""
        training = self._training()
        rows = training.rows()
        self._keep(rows)
        if rows.after_optimizer:
            raise UsageError("job.carried: set its value before optimizer.step(), which may be tried again")
        if (size := self._size(values)) != rows.count:
            raise UsageError(
                f"job.carried: {size} rows along dimension {self._dim}, and this worker has {rows.count}"
            )
        if not rows.counts:
            return
        key = rows.step, rows.division
        if self._partial is None or self._partial[0] != key:
            self._partial = key, map_leaves(values, lambda one: self._empty(one, rows.batch))
        whole = self._partial[1]
        for into, one in zip(tensors_in(whole), tensors_in(values), strict=True):
            if rows.samples:
                into.narrow(self._dim, rows.start, rows.count).copy_(one.detach())
        if rows.last:
            self._partial = None
            if training.add_up(list(tensors_in(whole))):
                self._found, self._found_in, self._epoch = whole, rows.step, rows.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self._kept, "found": self._found, "step": self._found_in, "epoch": self._epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._kept, self._found = state_dict["kept"], state_dict["found"]
        self._found_in, self._epoch = state_dict["step"], state_dict["epoch"]
        self._partial = None

    def _keep(self, rows: Rows) -> None:
        """A step is over when the next one is under way."""
        if self._found is not None and rows.step > self._found_in:
            self._kept, self._found = self._found, None

    def _size(self, values: Any) -> int:
        sizes = {one.size(self._dim) for one in tensors_in(values)}
        if len(sizes) != 1:
            raise UsageError(f"job.carried: its tensors have {sorted(sizes)} rows, expected one number")
        return sizes.pop()

    def _empty(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        shape = list(like.shape)
        shape[self._dim] = rows
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
