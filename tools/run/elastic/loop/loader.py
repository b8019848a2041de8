"""The loader that a job trains from: a worker's micro-batches of the current epoch, on its device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from typing import Any

import torch

from pliant.tools.run.elastic.loop.batches import MicroBatch, epoch_order, micro_batches, mixed_seed
from pliant.tools.run.elastic.loop.data_loader import Reading
from pliant.tools.run.elastic.loop.loop import Engine


class ElasticLoader:
    """Iterating it goes on where the epoch stands: from its start, or from where an earlier attempt stopped.

    Every batch is one micro-step. ``len`` is the number of optimizer steps of a whole epoch, which is what
    schedulers ask for.
    """

    def __init__(self, reading: Reading, engine: Engine, *, shuffle: bool = True) -> None:
        self._size = reading.size
        self._reading = reading
        self._engine = engine
        self._shuffle = shuffle
        self._generator = torch.Generator()
        self._read_ahead: Iterator[MicroBatch] = iter(())
        """What samples are read for, of the pass under way."""
        self._batches = reading.loader(_Indices(self), self._generator)

    def __len__(self) -> int:
        return self._engine.cut.steps_per_epoch(self._size)

    def __iter__(self) -> Iterator[Any]:
        engine = self._engine
        engine.begin_pass()
        division = -1
        try:
            while division != engine.division:
                division = engine.division
                yield from self._until_divided_anew(division)
        except GeneratorExit:
            engine.leave_loop()
            raise
        engine.end_pass()

    def _until_divided_anew(self, division: int) -> Iterator[Any]:
        """Batches to the end of the epoch, or until other workers share it or share it otherwise."""
        engine = self._engine
        step = engine.training.counters.step
        self._generator.manual_seed(mixed_seed(engine.seed, step, engine.setting.rank))
        micros, self._read_ahead = tee(self._micros())
        for micro, batch in zip(micros, self._reading.on_device(self._batches), strict=True):
            engine.begin(micro)
            if engine.division != division:
                return
            yield batch
            engine.end()
            if engine.division != division:
                return

    def indices(self) -> Iterator[list[int]]:
        """The samples of every micro-batch from the cursor to the end of the epoch."""
        counters, engine = self._engine.training.counters, self._engine
        order = epoch_order(self._size, counters.epoch, engine.seed, shuffle=self._shuffle).numpy()
        for micro in self._read_ahead:
            yield order[micro.loaded].tolist()

    def _micros(self) -> Iterator[MicroBatch]:
        engine = self._engine
        cursor, rank = engine.training.counters.cursor, engine.setting.rank
        return micro_batches(self._size, cursor, engine.cut, rank, resumed=engine.resumed)


class _Indices:
    """What PyTorch's loader asks for indices."""

    def __init__(self, loader: ElasticLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.indices()
