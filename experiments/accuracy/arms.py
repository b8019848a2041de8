"""The ways in which the same model is trained, as data."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

JUMP: Final = 16
"""ONES, figure 13: the batch grows from 256 to 4k at once."""

LARGER: Final = (2, 4, 8)
"""Ares, figure 2: from 2 to 16 GPUs, each with a batch of its own."""
GROWN: Final = ("stepwise", "warm", "abrupt")
"""The arms whose batch grows while they train: ONES, figures 13 and 14."""
DRAWN: Final = ("drawn-1", "drawn-2", "drawn-3")
"""The arms whose batch is drawn again and again: the elastic-scaling paper, figure 2, has three."""
DRAWN_FACTORS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Figure 2 has 512 images throughout, and 128 to 1,024 in those that change."""
DRAWN_CHANGES: Final = 4
REFERENCE: Final = "fixed"
"""What the others are held against."""


@dataclass(frozen=True, slots=True)
class Change:
    """A newer plan of the job, in force from the first step of an epoch on."""

    epoch: int
    workers: tuple[int, ...] = (0,)
    """Their numbers in order of rank; new ones are started."""
    factor: float = 1
    """On the global batch."""
    micro_steps: int = 1
    """In each optimizer step."""
    lr_scale: float = 1.0
    """On the learning rate, towards which the library warms up."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    name: str
    words: str
    changes: tuple[Change, ...] = ()
    factor: int = 1
    """On the global batch, from the first step on; the learning rate stays."""
    sudden: tuple[int, float] | None = None
    """An epoch in which the script itself multiplies its learning rate, at once."""
    bits: int = 64
    """Of the model's numbers."""

    @property
    def reference(self) -> str:
        """The arm that this one is held against."""
        return REFERENCE if self.bits == 64 else f"{REFERENCE}-{self.bits}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it."""

    seeds: tuple[int, ...]
    samples: int
    tested: int
    epochs: int
    first: int
    """The epoch of the first change."""
    apart: int
    """Epochs between two changes."""
    width: int
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.9


FULL: Final = Scale((0, 1, 2, 3, 4), 4096, 1024, epochs=18, first=6, apart=2, width=48)
SMOKE: Final = Scale((0,), 256, 64, epochs=6, first=1, apart=1, width=8)


def arms(scale: Scale) -> tuple[Arm, ...]:
    """All ways to train, those that others are held against before them."""
    begins = [scale.first + number * scale.apart for number in range(4)]
    gangs = ((0, 1), (0, 1, 2), (0, 2), (2,))
    resized = tuple(Change(epoch, gang) for epoch, gang in zip(begins, gangs, strict=True))
    doubled = tuple(Change(epoch, factor=2**n, lr_scale=2.0**n) for n, epoch in enumerate(begins, 1))
    regrouped = (Change(scale.first, micro_steps=2),)
    return (
        Arm(REFERENCE, "fixed: one worker throughout"),
        Arm("elastic", "elastic: 1, 2, 3, 2, 1 workers, same global batch", resized),
        Arm("regrouped", "regrouped: one worker, two micro-steps", regrouped),
        Arm("stepwise", "stepwise: batch × 2 four times, warm-up", doubled),
        Arm(
            "warm",
            f"batch × {JUMP} at once, warm-up",
            (Change(scale.first, factor=JUMP, lr_scale=JUMP),),
        ),
        Arm(
            "abrupt",
            f"abrupt: batch and learning rate × {JUMP} at once",
            (Change(scale.first, factor=JUMP),),
            sudden=(scale.first, JUMP),
        ),
        *(
            Arm(name, f"drawn batches, pattern {n}: × 1/4 to × 2 at random epochs", _drawn(scale, n))
            for n, name in enumerate(DRAWN, 1)
        ),
        *(Arm(f"larger-{k}", f"batch × {k} from the start", factor=k) for k in LARGER),
        Arm(f"{REFERENCE}-32", "fixed, 32-bit numbers", bits=32),
        Arm("elastic-32", "elastic, 32-bit numbers", resized, bits=32),
        Arm("regrouped-32", "regrouped, 32-bit numbers", regrouped, bits=32),
    )


def _drawn(scale: Scale, pattern: int) -> tuple[Change, ...]:
    """Batches and epochs at random, the same with every seed of the training; the learning rate follows."""
    chance = random.Random(pattern)  # noqa: S311 - no secret
    epochs = sorted(chance.sample(range(1, scale.epochs - 1), min(DRAWN_CHANGES, scale.epochs - 2)))
    factors = [chance.choice(DRAWN_FACTORS) for _ in epochs]
    return tuple(Change(epoch, factor=f, lr_scale=f) for epoch, f in zip(epochs, factors, strict=True))
