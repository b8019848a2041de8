"""What ``pliant verify`` and the workers of its runs share, in one folder for each run.

The order says what the library is to do: how much of the data set it trains, in which precision, and at which
steps each worker waits until it may go on. Workers write a line for each optimizer step, and the weights at
the end of each epoch and at their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, PositiveInt, Record
from pliant.tools.run.statedir.contract.folders import Folder, Inside

ENV_RECORDING: Final = "PLIANT_RECORDING"
"""The folder of the run, for a worker that is to record what it does."""


class RecordingOrder(Record):
    """How a run is to train."""

    batch: PositiveInt | None = None
    """Samples per optimizer step; None if the script says."""
    seed: NonNegativeInt | None = None
    """Seed of the job; None if the script sets it."""
    samples: PositiveInt | None = None
    """Maximum samples of an epoch; None for those of :attr:`steps`, the last of which has half a batch."""
    steps: PositiveInt = 6
    """Steps of an epoch; a training without epochs has as many as all epochs."""
    epochs: PositiveInt = 3
    """Number of epochs; state lost by a change in the second may show in the third only."""
    double: bool = True
    """Weights and samples are turned into float64, in which rounding does not hide what is wrong."""
    moved: bool = False
    """The first weights are changed in their last digit: how far that moves the last ones, rounding may."""
    pause_s: NonNegativeFloat = 0.0
    """Seconds of pause after each step, so that changes take effect after the next one."""
    holds: tuple[PositiveInt, ...] = ()
    """Optimizer steps after which each worker waits until it may go on."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One worker's part of an optimizer step."""

    step: int
    """Number in the training, from 1."""
    epoch: int
    first: int
    """Samples of the epoch that were trained before."""
    samples: int
    """Samples of the whole step."""
    loss: float
    """Sum of what was logged for this worker's samples, and their number."""
    counted: float
    rates: list[float]
    """Learning rates of all groups."""
    rows: dict[int, str]
    """Digests of this worker's samples, by place in the order of the epoch."""
    draws: bool
    """The step has moved PyTorch's generator."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        fields = json.loads(line)
        return cls(**{**fields, "rows": {int(place): digest for place, digest in fields["rows"].items()}})


@dataclass(frozen=True, slots=True)
class RecordedScript:
    """What a worker found out about its script."""

    batch: int
    accum: int
    """Micro-steps of an optimizer step."""
    dropouts: int
    """Layers that were switched off."""
    norms: int
    """Layers of batch normalization that were frozen."""


@dataclass(frozen=True, slots=True)
class RunFolder(Folder):
    """The files of one run."""

    order = Inside("order.json")
    script = Inside("script.json")

    def steps(self, attempt: int, worker: int) -> Path:
        return self.path / f"steps-{attempt}-{worker}.jsonl"

    def weights(self, attempt: int, worker: int, step: int) -> Path:
        return self.path / f"weights-{attempt}-{worker}-{step}.npz"

    def held(self, step: int, worker: int) -> Path:
        """Exists once a worker waits after a step."""
        return self.path / f"held-{step}-{worker}"

    def go(self, step: int) -> Path:
        """Exists once no worker need wait there."""
        return self.path / f"go-{step}"
