"""When a job whose attempt failed, or whose new workers died, is started again, and on which slots.

Pure functions of what the log says: :class:`FailureRecord` decides on retries, :class:`Suspects` on slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SHARE: Final = 0.01
"""Of the work; so much between two failures is progress."""
CHECKPOINT_S: Final = 60.0
"""Seconds between checkpoints where the job does not say."""
LONGEST_WAIT_S: Final = 300.0
"""The longest wait before a retry."""
WINDOW_S: Final = 3600.0
MOST: Final = 5
"""Times the failures that are allowed in a row; that number is allowed within :data:`WINDOW_S`."""
BELIEVED: Final = 3
"""Attempts in a row whose place was taken away, before further ones count as failed."""
FIRST_S: Final = 60.0
LONGEST_SUSPICION_S: Final = 3600.0
SLOTS: Final = 3
"""After deaths on this many different slots in a row the job is at fault."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What is known of a job when its attempt fails: whether, and when, it is started once more.

    Failures in a row count up to a limit. Progress that is worth its while ends the row: a hundredth of the
    job's work, or training beyond where it was, in an attempt that lasted as long as the time between two
    checkpoints. A job that crashes a little further each time is thus given up like one that does not move,
    and so is one that fails too often within an hour, however far it gets in between.

    An attempt whose place was taken away has not failed. But a job can cause that itself, by a signal to all
    processes of its group: if it happens to short attempts without progress, one after the other, they count
    as failed from the fourth on.
    """

    failures: int
    """In a row, this one included."""
    recent: int
    """Within :data:`WINDOW_S`, this one included."""


def wait_s(failures: int) -> float:
    """Before the retry after a number of failures, or of displacements, in a row: 1 s, 2 s, 4 s, …"""
    return min(LONGEST_WAIT_S, 2.0 ** min(failures - 1, 16))


def is_worth_its_while(gained: float, total: float | None, lasted_s: float, checkpoint_s: float) -> bool:
    """Whether an attempt made progress.

    :param gained: samples beyond where the job was at the failure that the row began with.
    :param total: all samples of the job; None: unknown.
    :param lasted_s: from the decision to start the attempt to its failure.
    """
    if gained <= 0:
        return False
    return lasted_s >= checkpoint_s or (total is not None and gained >= SHARE * total)


def given_up(record: FailureRecord, retries: int) -> str | None:
    """Why there is no further retry; empty if the failures in a row say it. Returns None if there is one."""
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
    everybody: bool
    """From all jobs, not from that job alone."""


@dataclass(slots=True)
class Suspects:
    """Slots on which new workers died, and their jobs: what is kept from what, and for how long.

    One death does not tell whether the slot or the job is at fault. So the job is kept from that slot first,
    and others may have it. A slot on which workers of a second job died is bad for all; a job whose workers
    died on one slot after the other keeps its size for a while. Each time doubles with every further death,
    and a worker that grows old clears both its slot and its job.
    """

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
        self.jobs.pop(job_id or "", None)

    def next_death(self, job_id: str, slot: str) -> Consequence:
        """What would follow if a worker of the job died on the slot now."""
        by_job = self.slots.get(slot, {})
        others = [job for job in by_job if job != job_id]
        deaths = sum(by_job.values()) if others else by_job.get(job_id, 0)
        return Consequence(doubled(deaths), bool(others))

    def wait_s(self, job_id: str, slots: Iterable[str]) -> float | None:
        """Seconds for which the job keeps its size if its workers die on these slots now, if it does."""
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
    return min(LONGEST_SUSPICION_S, FIRST_S * 2.0 ** min(before, 16))
