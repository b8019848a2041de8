"""What a checkpoint holds: where training is, every object with state, the random generators.

How far a worker is, so that after a disturbance the one that is furthest can take the others along.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist


@runtime_checkable
class Stateful(Protocol):
    """Anything that can hand out its state and take it back."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state: tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state back."""
        ...


@dataclass(slots=True)
class Counters:
    """Where training is."""

    epoch: int = 0
    epoch_samples: int = 0
    """Of the epoch's order, as many from its start are trained."""
    step: int = 0
    samples_done: int = 0
    """Over all epochs."""

    def advance(self, samples: int) -> None:
        """One optimizer step over ``samples`` is complete."""
        self.epoch_samples += samples
        self.samples_done += samples
        self.step += 1

    def next_epoch(self) -> None:
        """An epoch is complete."""
        self.epoch += 1
        self.epoch_samples = 0

    def copy(self) -> Counters:
        """The counters as they are now."""
        return replace(self)

    def as_dict(self) -> dict[str, int]:
        """The counters by their names in checkpoints."""
        return {
            "epoch": self.epoch,
            "cursor": self.epoch_samples,
            "step": self.step,
            "samples_done": self.samples_done,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, int]) -> Self:
        """What :meth:`as_dict` made."""
        return cls(found["epoch"], found["cursor"], found["step"], found["samples_done"])


@dataclass(slots=True)
class Mean:
    """A running mean, weighted by samples."""

    total: float | torch.Tensor = 0.0
    samples: int = 0

    def add(self, value: float | torch.Tensor, samples: int) -> None:
        """Count a value for a number of samples. A tensor stays on its device: nothing waits for a GPU."""
        if isinstance(value, torch.Tensor):
            value = value.detach().double() if value.is_cuda else value.item()
        if samples:
            self.total = self.total + value * samples
            self.samples += samples

    def include(self, other: Mean) -> None:
        """Count what another one has counted."""
        self.total = self.total + other.total
        self.samples += other.samples

    def value(self) -> float | None:
        """The mean; None of nothing."""
        return float(self.total) / self.samples if self.samples else None

    def over_all_workers(self, world_size: int) -> Mean:
        """The sums of all workers, which must call this together."""
        if world_size == 1:
            return self
        sums = torch.tensor([float(self.total), float(self.samples)], dtype=torch.float64)
        dist.all_reduce(sums)
        return Mean(float(sums[0]), int(sums[1]))


def mixed_seed(*parts: int) -> int:
    """A 64-bit seed made from several non-negative numbers, such as a job's seed and an epoch."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def seed_everything(*parts: int) -> None:
    """Seed PyTorch, NumPy and Python from a job's seed and, where given, a step and a rank."""
    seed = mixed_seed(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 the author's transforms may draw from it


def generator_states() -> dict[str, Any]:
    """The states of all generators, as tensors and plain values."""
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy_state = (kind, torch.from_numpy(np.asarray(words).astype(np.int64)), *rest)
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": numpy_state, "python": random.getstate()}


def restore_generators(states: Mapping[str, Any]) -> None:
    """Set all generators; those of GPUs only where their number is the same."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, words, *rest = states["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


BETWEEN_EPOCHS: Final = 0
"""The epoch has not begun: the workers have yet to agree that it shall."""
IN_EPOCH: Final = 1
"""Between two steps of the epoch."""
EPOCH_THROUGH: Final = 2
"""Its steps and what the author does after them are done; what is missing is the loss of all workers."""


class Cursor(NamedTuple):
    """Where the next collective operation of a worker lies; they are ordered by how far that is.

    Workers differ by one operation at most, because none completes before all have begun it.
    """

    epoch: int
    step: int
    phase: int
    agreed: int = 0
    """Values of rank 0 that it knows since the last step of the epoch."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The cursor that ``str`` of a tuple's numbers wrote; None of a worker that has no state yet."""
        return cls(*map(int, text.split())) if text != "-" else None


def written(cursor: Cursor | None) -> str:
    """The cursor as text."""
    return "-" if cursor is None else " ".join(map(str, cursor))
