"""How long a job will take, from those like it that ended before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pliant.schemas.job import Job
from pliant.schemas.text.wording import counted

PRIOR: Final = 2.0
"""A mean of a group counts as this many jobs against the jobs of a group within it."""
_ALIKE: Final = ("", " of its model", " of its model and user", " of its model, user and size")
_Group = tuple[str | int, ...]


class Estimate(NamedTuple):
    """How long a job is expected to take on the GPUs that it requests, alone on them."""

    seconds: float
    jobs: int
    """Ended jobs in the smallest group of jobs like it that has some; 0: none has ended yet."""
    alike: str = ""
    """What these have in common with it, in words."""

    def __str__(self) -> str:
        if not self.jobs:
            return "no job has ended yet, so all are taken to be as long"
        return f"{self.seconds:.4g} s expected, from {counted(self.jobs, 'ended job')}{self.alike}"


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    jobs: int = 0


@dataclass(slots=True)
class Durations:
    """Geometric means by group: of all jobs, of a model, of its users, and of the sizes that these request.

    The mean of a group leans on that of the group around it as on ``PRIOR`` jobs more, so few jobs say
    little and many say all. One that ends costs O(1), and what is expected follows from those that ended
    alone, in any order but for rounding.
    """

    _means: dict[_Group, _Mean] = field(default_factory=dict)

    def learn(self, job: Job, seconds: float) -> None:
        """A job has ended, and would have taken this long on the GPUs that it requested."""
        for group in _groups(job):
            mean = self._means.setdefault(group, _Mean())
            mean.total += math.log(seconds)
            mean.jobs += 1

    def expect(self, job: Job) -> Estimate:
        """What is expected of a job that begins; of all the same while none has ended."""
        found = Estimate(1.0, 0)
        log_seconds = 0.0
        for group, alike in zip(_groups(job), _ALIKE, strict=True):
            mean = self._means.get(group)
            if mean is None:
                break
            prior = PRIOR if found.jobs else 0.0
            log_seconds = (mean.total + prior * log_seconds) / (mean.jobs + prior)
            found = Estimate(math.exp(log_seconds), mean.jobs, alike)
        return found


def _groups(job: Job) -> Iterator[_Group]:
    """The groups that a job is in, each within the one before."""
    names = (job.model, job.user, job.gpus.requested)
    return (names[:length] for length in range(len(names) + 1))
