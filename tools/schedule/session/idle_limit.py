"""How long a policy is asked that starts nothing more."""

from __future__ import annotations

from typing import Final

from pliant.tools.schedule.jobs import JobState, Phase

IDLE_ROUNDS: Final = 1000
"""Further rounds in which a policy is asked while nothing runs or can arrive."""


class IdleLimit:
    """Counts the decisions in a row that left nothing running and nothing to come."""

    def __init__(self) -> None:
        self._idle = 0

    def count(self, *, idle: bool) -> None:
        self._idle = self._idle + 1 if idle else 0

    @property
    def is_reached(self) -> bool:
        """Whether the first such decision had :data:`IDLE_ROUNDS` more after it."""
        return self._idle > IDLE_ROUNDS


def why_left(policy: str, job: JobState) -> str:
    """The reason given for a job that a policy never starts."""
    never = "never starts it" if job.phase is Phase.WAITING else "does not start it again"
    return f'policy "{policy}" {never}'
