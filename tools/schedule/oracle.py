"""What a simulation lets a policy know that no scheduler could. A policy that asks says so in its output."""

from __future__ import annotations

from typing import Protocol

from pliant.tools.schedule.jobs import JobState


class Oracle(Protocol):
    """The truth about jobs, for policies that were published with such knowledge.

    It is there only where a replay was asked to give it; a policy that uses it sets ``asks_oracle``.
    """

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        """Optimizer steps that ``job`` still needs at the batch of its author."""
        ...

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        """Seconds of one such step on ``gpus`` GPUs of a type that lie together; None: it does not run there.

        The same for equal :meth:`kind`.
        """
        ...

    def max_gpus(self, job: JobState) -> int:
        """The most GPUs that the job can use."""
        ...

    def kind(self, job: JobState) -> object:
        """Jobs of one kind have the same step times; a key for tables."""
        ...
