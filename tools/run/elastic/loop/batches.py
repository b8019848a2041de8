"""Which samples a worker trains, in which micro-step, and how much each micro-batch counts. Pure arithmetic.

An epoch is a permutation of the dataset, fixed by seed and epoch. The state of the sampler is the
number of samples that are trained: the next step trains ``order[trained : trained + global_batch]`` whatever
the number of workers. Rank r takes its contiguous share of them, cut into micro-batches. So a resize never
loses or repeats a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pliant.tools.profile.throughput import shares
from pliant.tools.run.elastic.state.state import mixed_seed


@dataclass(frozen=True, slots=True)
class Cut:
    """How a global batch is divided: the same on every worker."""

    global_batch: int
    workers: int = 1
    accum: int = 1
    """Micro-steps per step; fewer where a tail has fewer samples."""
    drop_last: bool = False
    """Leave out the samples at the end of an epoch that do not fill a global batch."""

    def steps_per_epoch(self, dataset_size: int) -> int:
        """Optimizer steps from the start of an epoch to its end."""
        full, rest = divmod(dataset_size, self.global_batch)
        return full + (rest > 0 and not self.drop_last)


class MicroBatch(NamedTuple):
    """One pass of the loop body on one worker: ``order[start : start + samples]``."""

    start: int
    samples: int
    """0: a padding sample is trained with weight 0, because every worker must take part in every step."""
    weight: float
    """Factor on the gradients of the micro-batch's mean loss. The mean over workers of the sums over
    micro-steps is then the mean over the global batch."""
    last: bool
    """The micro-step that ends its optimizer step."""
    step_samples: int
    """Samples of the whole step, over all workers and micro-steps."""
    steps_left: int
    """Steps of the epoch after this one."""

    @property
    def loaded(self) -> slice:
        """Positions in the order that are loaded; never empty."""
        return slice(self.start, self.start + max(1, self.samples))


def epoch_order(dataset_size: int, epoch: int, seed: int, *, shuffle: bool = True) -> torch.Tensor:
    """The order of the samples in an epoch: int64, shape (dataset_size,), the same on every worker."""
    if not shuffle:
        return torch.arange(dataset_size)
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(dataset_size, generator=generator)


def micro_batches(
    dataset_size: int, trained: int, cut: Cut, rank: int, *, resumed: bool = False
) -> Iterator[MicroBatch]:
    """Every micro-batch of ``rank`` that is left of the epoch.

    A ``resumed`` epoch has at least one step, should the samples that are left not fill a batch that has
    grown meanwhile: what the author does after the loop may need it.
    """
    left = max(0, dataset_size - trained)
    steps = cut.steps_per_epoch(left)
    if resumed and left:
        steps = max(1, steps)
    for steps_left in reversed(range(steps)):
        samples = min(cut.global_batch, dataset_size - trained)
        yield from _one_step(trained, samples, steps_left, cut, rank)
        trained += samples


def _one_step(trained: int, samples: int, steps_left: int, cut: Cut, rank: int) -> Iterator[MicroBatch]:
    by_rank = shares(samples, cut.workers)
    micro_steps = min(cut.accum, by_rank[0])
    start = trained + sum(by_rank[:rank])
    for index, size in enumerate(shares(by_rank[rank], micro_steps)):
        yield MicroBatch(
            start=start if size else trained,
            samples=size,
            weight=size * cut.workers / samples,
            last=index == micro_steps - 1,
            step_samples=samples,
            steps_left=steps_left,
        )
        start += size
