"""Slots where new workers died, and jobs whose new workers died: who is kept from what, and for how long.

One death does not say whether the slot or the job is at fault. So the job is kept from that slot first, and
others may have it. A slot on which workers of a second job died is bad for all; a job whose workers
died on one slot after the other keeps its size for a while. Each time doubles with every further death, and a
worker that grows old clears both its slot and its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FIRST_S: Final = 60.0
LONGEST_S: Final = 3600.0
SLOTS: Final = 3
"""After deaths on this many different slots in a row the job is at fault."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """What follows from a death."""

    seconds: float
    """For how long the slot is withheld."""
    everybody: bool
    """From all jobs, not from that job alone."""


@dataclass(slots=True)
class Suspects:
    """The evidence of one log."""

    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    """Deaths by slot and job, since a worker last grew old there."""
    jobs: dict[str, list[str]] = field(default_factory=dict)
    """By job: the slots that its new workers died on since one of them last grew old."""

    def died(self, job_id: str, slot: str) -> None:
        """A new worker of a job died on a slot."""
        by_job = self.slots.setdefault(slot, {})
        by_job[job_id] = by_job.get(job_id, 0) + 1
        self.jobs.setdefault(job_id, []).append(slot)

    def grew_old(self, job_id: str | None, slot: str) -> None:
        """A worker has trained on a slot for long enough."""
        self.slots.pop(slot, None)
        self.forget(job_id)

    def forget(self, job_id: str | None) -> None:
        """A job is beyond doubt, or has ended."""
        self.jobs.pop(job_id or "", None)

    def next_death(self, job_id: str, slot: str) -> Consequence:
        """What would follow if a worker of the job died on the slot now."""
        by_job = self.slots.get(slot, {})
        others = [job for job in by_job if job != job_id]
        deaths = sum(by_job.values()) if others else by_job.get(job_id, 0)
        return Consequence(doubled(deaths), bool(others))

    def wait_s(self, job_id: str, slots: Iterable[str]) -> float | None:
        """How long the job keeps its size if its workers die on these slots now; None: it may try others."""
        deaths = [*self.jobs.get(job_id, ()), *slots]
        own = {slot for slot in deaths if self.slots.get(slot, {}).keys() <= {job_id}}
        return doubled(len(deaths) - SLOTS) if len(own) >= SLOTS else None

    def deaths_on(self, slot: object) -> int:
        """How many workers died on a slot: of free ones those with fewer are taken first."""
        return sum(self.slots.get(str(slot), {}).values())

    def add(self, job_id: str | None, name: str, detail: Mapping[str, Any]) -> None:
        """Take up a ``slot_down`` or ``slot_up`` of the log."""
        slot = str(detail.get("slot", ""))
        if name == "slot_up":
            self.grew_old(job_id, slot)
        elif (by := job_id or detail.get("by")) is not None:
            self.died(str(by), slot)


def doubled(before: int) -> float:
    """Seconds, by the number of deaths before this one."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(before, 16))
