"""How long a policy that leaves all jobs waiting is still asked; one rule for real and simulated time."""

from __future__ import annotations

from typing import Final

from pliant.tools.schedule.jobs import JobState, Phase

IDLE_ROUNDS: Final = 1000
"""While nothing runs and nothing can arrive, a policy with rounds is asked this many times more."""


class IdleLimit:
    """Counts the decisions in a row that left nothing running and nothing to come."""

    def __init__(self) -> None:
        self._idle = 0

    def count(self, *, idle: bool) -> None:
        """A decision was made; ``idle``: nothing runs after it and nothing can arrive."""
        self._idle = self._idle + 1 if idle else 0

    @property
    def is_reached(self) -> bool:
        """Whether the first such decision had :data:`IDLE_ROUNDS` more after it."""
        return self._idle > IDLE_ROUNDS


def why_left(policy: str, job: JobState) -> str:
    """What is said of a job that a policy never starts."""
    never = "never starts it" if job.phase is Phase.WAITING else "does not start it again"
    return f'policy "{policy}" {never}'
