"""When a job whose attempt failed, or whose new workers died, is started again, and on which slots.

:class:`FailureRecord` decides on retries, :class:`Suspects` on slots, both from what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SHARE: Final = 0.01
"""Of the work; that much between two failures is progress."""
CHECKPOINT_S: Final = 60.0
"""Seconds between checkpoints if the job does not say."""
LONGEST_WAIT_S: Final = 300.0
"""The longest wait before a retry."""
WINDOW_S: Final = 3600.0
MOST: Final = 5
"""This multiple of the failures that are allowed in a row is allowed within :data:`WINDOW_S`."""
BELIEVED: Final = 3
"""Attempts in a row whose place was taken away; further ones count as failed."""
FIRST_S: Final = 60.0
LONGEST_SUSPICION_S: Final = 3600.0
SICK: Final = 3
"""A slot on which new workers of this many jobs died is left out until an operator resumes its node."""
UNTIL_RESUMED_S: Final = 10 * 365 * 86400.0
SLOTS: Final = 3
"""After deaths on this many different slots in a row the job is at fault."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What decides whether a job whose attempt fails is started again.

    Failures in a row count up to a limit. Progress ends the row: a hundredth of the job's work, or training
    beyond where it was in an attempt that lasted as long as the time between two checkpoints. So a job that
    crashes a little further each time is given up, and so is one that fails too often within an hour.

    An attempt whose place was taken away has not failed. But a job can cause that itself, by a signal to its
    whole process group: if it happens to short attempts without progress in a row, they count as failed from
    the fourth on.
    """

    failures: int
    """In a row, this one included."""
    recent: int
    """Within :data:`WINDOW_S`, this one included."""


def wait_s(failures: int) -> float:
    """Before the retry after that many failures, or displacements, in a row: 1 s, 2 s, 4 s, …"""
    return min(LONGEST_WAIT_S, 2.0 ** min(failures - 1, 16))


def is_worth_its_while(gained: float, total: float | None, lasted_s: float, checkpoint_s: float) -> bool:
    """Whether an attempt made progress.

    :param gained: samples beyond where the job was when the row of failures began.
    :param total: all samples of the job; None if unknown.
    :param lasted_s: from the decision to start the attempt to its failure.
    """
    if gained <= 0:
        return False
    return lasted_s >= checkpoint_s or (total is not None and gained >= SHARE * total)


def given_up(record: FailureRecord, retries: int) -> str | None:
    """Why there is no further retry; empty if for the failures in a row. Returns None if there is one."""
    if record.failures > retries:
        return ""
    if record.recent > MOST * (retries + 1):
        return f"failed {record.recent} times within an hour"
    return None


@dataclass(frozen=True, slots=True)
class Consequence:
    """What follows from a death."""

    seconds: float
    """For how long the slot is withheld."""
    for_all: bool
    """From all jobs, not from that job alone."""
    jobs: int = field(default=1, compare=False)
    """Whose workers have died there, since one last trained there for long enough."""

    @property
    def is_sick(self) -> bool:
        """Whether only an operator gives the slot back."""
        return self.seconds >= UNTIL_RESUMED_S


@dataclass(slots=True)
class Suspects:
    """Slots on which new workers died, and their jobs: what is kept from what, and for how long.

    One death does not tell whether the slot or the job is at fault, so first the job is kept from that slot.
    A slot on which workers of a second job died is bad for all, and after a third one only an operator gives
    it back; a job whose workers died on several slots in
    a row keeps its size for a while. The time doubles with every further death, and a worker that trains for
    long enough clears both its slot and its job.
    """

    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    """Deaths by slot and job, since a worker last trained there for long enough."""
    jobs: dict[str, list[str]] = field(default_factory=dict)
    """By job: the slots that its new workers died on, since one of them last trained for long enough."""

    def died(self, job_id: str, slot: str) -> None:
        by_job = self.slots.setdefault(slot, {})
        by_job[job_id] = by_job.get(job_id, 0) + 1
        self.jobs.setdefault(job_id, []).append(slot)

    def grew_old(self, job_id: str | None, slot: str) -> None:
        """A worker has trained on a slot for long enough."""
        self.slots.pop(slot, None)
        self.forget(job_id)

    def forget(self, job_id: str | None) -> None:
        self.jobs.pop(job_id or "", None)

    def next_death(self, job_id: str, slot: str) -> Consequence:
        """What follows if a worker of the job dies on the slot now."""
        by_job = self.slots.get(slot, {})
        others = [job for job in by_job if job != job_id]
        deaths = sum(by_job.values()) if others else by_job.get(job_id, 0)
        seconds = doubled(deaths) if len(others) + 1 < SICK else UNTIL_RESUMED_S
        return Consequence(seconds, bool(others), len(others) + 1)

    def wait_s(self, job_id: str, slots: Iterable[str]) -> float | None:
        """Seconds for which the job keeps its size if its workers die on these slots now.

        Returns None if it may grow.
        """
        deaths = [*self.jobs.get(job_id, ()), *slots]
        own = {slot for slot in deaths if self.slots.get(slot, {}).keys() <= {job_id}}
        return doubled(len(deaths) - SLOTS) if len(own) >= SLOTS else None

    def deaths_on(self, slot: object) -> int:
        """Deaths on a slot: of free ones those with the fewest are taken first."""
        return sum(self.slots.get(str(slot), {}).values())

    def add(self, job_id: str | None, name: str, detail: Mapping[str, Any]) -> None:
        slot = str(detail.get("slot", ""))
        if name == "slot_up":
            self.grew_old(job_id, slot)
        elif (by := job_id or detail.get("by")) is not None:
            self.died(str(by), slot)


def doubled(before: int) -> float:
    return min(LONGEST_SUSPICION_S, FIRST_S * 2.0 ** min(before, 16))
