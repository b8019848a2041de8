"""A script under ``pliant profile``: the loader serves a measurement instead of an epoch, then ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pliant.tools.profile.measuring.request import Order
from pliant.tools.profile.measuring.worker import Changes, Sweep
from pliant.tools.run.elastic.loop.data_loader import Reading
from pliant.tools.run.elastic.rehearsal import rehearse
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.elastic.state.training import Training


class Measurement:
    """Engine and loader of a script that is measured; nothing is counted, saved or reported."""

    started = False
    failed = False

    def __init__(
        self, order: Order, model: nn.Module, reading: Reading, training: Training, backend: str | None
    ) -> None:
        self._reading, self._backend = reading, backend
        self._device = next(model.parameters()).device
        self._training = training
        changes = Changes(self._checkpoint, self._rescale)
        self._sweep = Sweep(order, model, reading.size, self._read, changes)

    def epochs(self, count: int) -> Iterator[int]:
        """One epoch, which the loader does not let end."""
        del count
        yield 0

    def after_loop(self) -> bool:
        """Never: what is measured is steps."""
        return False

    def quiet(self) -> bool:
        """Whether the loop body is in a micro-step that does not end its step."""
        return not self._sweep.boundary

    @property
    def accumulates(self) -> bool:
        """Whether the step has several micro-steps; known in all but its last one."""
        return self.quiet()

    def agree(self, value: float | Callable[[], float]) -> float:
        """The value itself: no measurement gets to the end of an epoch."""
        return float(value() if callable(value) else value)

    def log(self, loss: object, metric: object) -> None:
        """Losses of a measurement mean nothing."""

    def __len__(self) -> int:
        return self._reading.size

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sweep)

    def _checkpoint(self, folder: Path) -> None:
        """Save all of the state and go on from it, as a job does that is relaunched."""
        checkpoints = Checkpoints(folder)
        checkpoints.save(self._training.capture(), 0)
        state = checkpoints.load().state
        if state is not None:
            self._training.resume(state)

    def _rescale(self, folder: Path) -> float:
        return rehearse(folder, self._training, self._device, self._backend)

    def _read(self, indices: Iterable[list[int]]) -> Iterable[Any]:
        return self._reading.on_device(self._reading.loader(indices, torch.Generator()))
