"""The training that a shape is compared with: one process of PyTorch alone, behind the names of the library.

It knows neither workers nor micro-steps, and takes nothing from the library but the order of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from pliant.tools.run.elastic.loop.batches import epoch_order
from pliant.tools.run.elastic.state.training import seed_everything


class PlainLoader:
    """Batches of a dataset in the order in which the library would train them."""

    def __init__(
        self, dataset: Any, batch: int, seed: int, *, shuffle: bool, drop_last: bool, **of: Any
    ) -> None:
        self.dataset, self.sampler, self.epoch, self.steps_done = dataset, self, 0, 0
        self._batch, self._seed, self._shuffle, self._drop_last, self._of = (
            batch,
            seed,
            shuffle,
            drop_last,
            of,
        )

    def __len__(self) -> int:
        full, rest = divmod(len(self.dataset), self._batch)
        return full + (rest > 0 and not self._drop_last)

    def set_epoch(self, epoch: int) -> None:
        """As a sampler's: the job knows the epoch."""

    def __iter__(self) -> Iterator[Any]:
        self.steps_done = 0
        batches = self._stream() if isinstance(self.dataset, IterableDataset) else self._in_order()
        for batch in batches:
            yield batch
            self.steps_done += 1

    def _stream(self) -> Iterator[Any]:
        return iter(DataLoader(self.dataset, self._batch, drop_last=self._drop_last, **self._of))

    def _in_order(self) -> Iterator[Any]:
        order = epoch_order(len(self.dataset), self.epoch, self._seed, shuffle=self._shuffle).tolist()
        batches = [order[start : start + self._batch] for start in range(0, len(order), self._batch)]
        generator = torch.Generator()  # the script's own must not advance
        return iter(
            DataLoader(self.dataset, batch_sampler=batches[: len(self)], generator=generator, **self._of)
        )


class PlainJob:
    """What ``elastic.init`` gives, for a script that stays in one process."""

    rank, world_size, stopping, sync_gradients = 0, 1, False, True
    device = torch.device("cpu")

    def __init__(self, batch_size: int, seed: int, **_: Any) -> None:
        self.batch_size, self._seed = batch_size, seed
        self._loaders: list[PlainLoader] = []
        seed_everything(seed)

    def prepare(
        self, *objects: Any, shuffle: bool = True, drop_last: bool = False,
        find_unused_parameters: bool = False, **of: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        del find_unused_parameters
        loading: dict[str, Any] = {name: of.pop(name) for name in ("collate_fn", "num_workers") if name in of}
        return tuple(
            one if isinstance(one, nn.Module | Optimizer) else self._loader(one, shuffle, drop_last, loading)
            for one in (*objects, *of.values())
        )

    def _loader(self, dataset: Any, shuffle: bool, drop_last: bool, loading: dict[str, Any]) -> PlainLoader:
        loader = PlainLoader(
            dataset, self.batch_size, self._seed, shuffle=shuffle, drop_last=drop_last, **loading
        )
        self._loaders.append(loader)
        return loader

    def epochs(self, count: int) -> Iterator[int]:
        for epoch in range(count):
            for loader in self._loaders:
                loader.epoch = epoch
            yield epoch

    def register(self, *objects: Any, **named: Any) -> None:
        """Nothing: one process keeps what it has."""

    def log(self, **values: Any) -> None:
        """Nothing: nobody looks."""

    def weigh(self, count: float) -> None:
        """Nothing: the batch is whole."""

    def agree(self, value: Any) -> Any:
        return value() if callable(value) else value

    mean = sum = agree
