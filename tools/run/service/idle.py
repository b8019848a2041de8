"""Jobs that hold GPUs or CPU slots and hardly use them: the ``idle`` rule of the cluster file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pliant.schemas.cluster import IdleRule
from pliant.schemas.text import span_text

LOOK_S: Final = 10.0
"""Between two looks at what jobs use."""


@dataclass(frozen=True, slots=True)
class IdleJob:
    """A job that the rule applies to from now on, or no longer."""

    job_id: str
    used: float
    """Part of its slots that it used, over the last minute."""
    for_s: float
    """How long it has been below the limit; 0 if it is no longer."""

    @property
    def words(self) -> str:
        return f"it has used {100 * self.used:.0f} % of its slots or less for {span_text(self.for_s)}"


class IdleWatch:
    """Which jobs have been below the limit for long enough; each is named once until it is busy again.

    What is not measured is not idle. A run that is started again begins to count again.
    """

    def __init__(self, rule: IdleRule) -> None:
        self._rule = rule
        self._since_s: dict[str, float] = {}
        self._most: dict[str, float] = {}
        """The most that each of these jobs has used since then."""
        self._named = set[str]()
        self._looked_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return True

    def look(self, used: Mapping[str, float | None], now_s: float) -> list[IdleJob]:
        """:param used: part of their slots that jobs use; None where that is not known."""
        found = []
        for job_id in dict.fromkeys([*self._since_s, *used]):
            part = used.get(job_id)
            if part is None or part >= self._rule.below:
                if job_id in self._named and part is not None:
                    found.append(IdleJob(job_id, part, 0.0))
                self.forget(job_id)
                continue
            since_s = self._since_s.setdefault(job_id, now_s)
            self._most[job_id] = max(part, self._most.get(job_id, 0.0))
            if now_s - since_s >= self._rule.for_seconds and job_id not in self._named:
                self._named.add(job_id)
                found.append(IdleJob(job_id, self._most[job_id], now_s - since_s))
        return found

    def forget(self, job_id: str) -> None:
        """Begin to count again."""
        self._since_s.pop(job_id, None)
        self._most.pop(job_id, None)
        self._named.discard(job_id)
