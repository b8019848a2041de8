"""Reading samples: any dataset with a length and access by index, through PyTorch's own loader."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from pliant.schemas.errors import UsageError


@dataclass(frozen=True)
class Reading:
    """A dataset, and how its samples become batches on a device."""

    dataset: Dataset[Any]
    device: torch.device
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def size(self) -> int:
        """The number of samples.

        :raises UsageError: there is no length, no sample, or no access by index: nothing to divide exactly.
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
        return DataLoader(
            self.dataset,
            batch_sampler=indices,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
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
