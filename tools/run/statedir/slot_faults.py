"""What fails for one job: errors in the work for it, and when it is started again, and on which slots.

Errors end that job, never the loop that serves all (:class:`Faults`). Memory that runs out, a disk that is
full for all, and errors outside of :meth:`Faults.of`, such as a log that cannot be written, belong to no job.

When an attempt failed, or its new workers died, :class:`FailureRecord` decides on retries and
:class:`SlotFaults` on slots, both from what the log says.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.schemas.events import SlotCleared, SlotQuarantined
from pliant.schemas.file_io.files import is_out_of_order, probe_room
from pliant.tools.run.statedir.contract.folders import UnreadableError

_PASSING: Final = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    *(errno.EAGAIN, errno.EINTR, errno.ESTALE),
}
"""Shortages of the machine and hiccups of the network: no training job is ended for these."""
_log = logging.getLogger("pliant")


class Faults:
    """Errors in the work for single jobs.

    :param folder: where to test whether the disk is full for all jobs, or only for one.
    :param end: ends a job, for a reason; it may be called more than once.
    """

    def __init__(self, folder: Path, end: Callable[[str, str], object]) -> None:
        self._folder = folder
        self._end = end
        self._passing: dict[str, str] = {}

    def of(self, job_id: str, *, doing: str = "", tries_again: bool = False) -> _Work:
        """Work for one job: an error in it ends that job.

        :param doing: what could not be done, put before the reason.
        :param tries_again: the work is done again soon, so a passing error is only warned of. So is a file
            that cannot be read in any case: its content is unknown, so nothing is done.
        :raises ServiceMissingError: the disk is full for all.
        """
        return _Work(self, job_id, doing, tries_again)

    def went_well(self, job_id: str) -> None:
        self._passing.pop(job_id, None)

    def went_wrong(self, job_id: str, error: Exception, doing: str, *, tries_again: bool) -> None:
        """:raises ServiceMissingError: the disk is full for all."""
        if is_out_of_order(error):
            probe_room(self._folder)
        reason = f"{doing}: {reason_of(error)}" if doing else reason_of(error)
        if isinstance(error, UnreadableError) or (tries_again and may_pass(error)):
            if self._passing.get(job_id) != reason:
                _log.warning("job %s: %s; it is tried again", job_id, reason)
            self._passing[job_id] = reason
            return
        _log.debug("job %s: %s", job_id, reason, exc_info=error)
        self._end(job_id, reason)


class _Work:
    """One block of work; a class costs less than a generator, and each turn has several for each job."""

    __slots__ = ("_doing", "_faults", "_job_id", "_tries_again")

    def __init__(self, faults: Faults, job_id: str, doing: str, tries_again: bool) -> None:
        self._faults = faults
        self._job_id = job_id
        self._doing = doing
        self._tries_again = tries_again

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Whether the error belongs to the job, and is dealt with."""
        if error is None:
            self._faults.went_well(self._job_id)
            return False
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            return False
        self._faults.went_wrong(self._job_id, error, self._doing, tries_again=self._tries_again)
        return True


def reason_of(error: Exception) -> str:
    """An error in one line, as the reason for a job's end."""
    if isinstance(error, PliantError):
        return str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error).partition("\n")[0]
    return f"internal error: {type(error).__name__}: {text}" if text else f"internal error: {error!r}"


def may_pass(error: Exception) -> bool:
    """Whether an error, or its cause, is a shortage that passes by itself."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING


SHARE: Final = 0.01
"""Share of the work that counts as progress between two failures."""
CHECKPOINT_S: Final = 60.0
"""Seconds between checkpoints if the job does not say."""
LONGEST_WAIT_S: Final = 300.0
"""The longest wait before a retry."""
WINDOW_S: Final = 3600.0
MOST: Final = 5
"""Failures allowed within :data:`WINDOW_S`, as a multiple of those allowed in a row."""
BELIEVED: Final = 3
"""Attempts in a row whose place was taken away; further ones count as failed."""
FIRST_S: Final = 60.0
LONGEST_SUSPICION_S: Final = 3600.0
SICK: Final = 3
"""Jobs whose new workers died on a slot, after which it waits for an operator's resume."""
UNTIL_RESUMED_S: Final = 10 * 365 * 86400.0
SLOTS: Final = 3
"""Different slots in a row with deaths, after which the job is at fault."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What decides whether a job whose attempt fails is started again.

    Failures in a row count up to a limit. Progress ends the row: a hundredth of the job's work, or training
    beyond where it was in an attempt that lasted as long as the time between two checkpoints. So a job that
    crashes a little further each time is given up, and so is one that fails too often within an hour.

    Two equal failures at the same step end it at once (:class:`Fault`): a third one would be equal, too. A
    script that reports no steps has to fail within the time between two checkpoints for that.

    An attempt whose place was taken away has not failed. But a job can cause that itself, by a signal to its
    whole process group: if it happens to short attempts without progress in a row, they count as failed from
    the fourth on.
    """

    failures: int
    """Failures in a row, this one included."""
    recent: int
    """Within :data:`WINDOW_S`, this one included."""


@dataclass(frozen=True, slots=True)
class Fault:
    """How the script of an attempt failed."""

    exit_code: int | None = None
    """Negative for a signal; None if it is not known."""
    by_itself: bool = False
    """Nobody else ended it, so it would fail again where it was."""
    is_final: bool = False
    """No retry helps, as where its command line is wrong."""
    at_samples: float = 0.0
    """Samples trained, as it last reported."""
    within: float | None = None
    """Samples by which that may be too few; None if the script does not report."""


_VARIES: Final = re.compile(
    r"^rank \d+ |\b0x[0-9a-fA-F]+|(?<=attempts/)\d+|\bp(rocess|id)[ =]\d+"
    r"|\b\d{4}-\d\d-\d\d|\b\d\d:\d\d(:\d\d)?([.,]\d+)?"
)
"""Parts that differ between failures of one kind: ranks, addresses, attempts, processes, times."""


def is_alike(reason: str, other: str) -> bool:
    """Whether two attempts failed for the same reason."""
    return _VARIES.sub("", reason) == _VARIES.sub("", other)


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


def reason_to_stop(record: FailureRecord, retries: int) -> str | None:
    """Why there is no further retry; empty if for the failures in a row. Returns None if there is one."""
    if record.failures > retries:
        return ""
    if record.recent > MOST * (retries + 1):
        return f"failed {record.recent} times within an hour"
    return None


@dataclass(frozen=True, slots=True)
class QuarantineRule:
    """What follows from a death."""

    seconds: float
    """Seconds for which the slot is in quarantine."""
    for_all: bool
    """True if it holds for all jobs, not for that job alone."""
    jobs: int = field(default=1, compare=False)
    """Whose workers have died there, since one last trained there for long enough."""

    @property
    def is_sick(self) -> bool:
        """Whether only an operator gives the slot back."""
        return self.seconds >= UNTIL_RESUMED_S


@dataclass(slots=True)
class SlotFaults:
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
    """Slots by job on which its new workers died, since one last trained for long enough."""

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

    def next_death(self, job_id: str, slot: str) -> QuarantineRule:
        """What follows if a worker of the job dies on the slot now."""
        by_job = self.slots.get(slot, {})
        others = [job for job in by_job if job != job_id]
        deaths = sum(by_job.values()) if others else by_job.get(job_id, 0)
        seconds = doubled(deaths) if len(others) + 1 < SICK else UNTIL_RESUMED_S
        return QuarantineRule(seconds, bool(others), len(others) + 1)

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

    def add(self, event: SlotQuarantined | SlotCleared) -> None:
        if isinstance(event, SlotCleared):
            self.grew_old(event.job, event.slot)
        elif (by := event.job or event.by) is not None:
            self.died(by, event.slot)


def doubled(before: int) -> float:
    return min(LONGEST_SUSPICION_S, FIRST_S * 2.0 ** min(before, 16))
