"""Whether, and when, a job whose attempt failed is started once more.

Failures in a row count up to a limit. What ends the row is progress that is worth its while: a hundredth of
the job's work, or training beyond where it was, in an attempt that lasted as long as the time between two
checkpoints. A job that crashes a little further each time is thus given up like one that does not move, and
so is one that fails too often within an hour, however far it gets in between.

An attempt whose place was taken away has not failed. But a job can bring that about itself, by a signal to
all processes of its group: where it happens to short attempts without progress, one after the other, they
have failed from the fourth on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHARE: Final = 0.01
"""Of the work; so much between two failures is progress."""
CHECKPOINT_S: Final = 60.0
"""Seconds between checkpoints where the job does not say."""
LONGEST_S: Final = 300.0
"""The longest wait before a retry."""
WINDOW_S: Final = 3600.0
MOST: Final = 5
"""Times the failures that are allowed in a row; that number is allowed within :data:`WINDOW_S`."""
BELIEVED: Final = 3
"""Attempts in a row whose place was taken away, before further ones count as failed."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a job when its attempt fails."""

    failures: int
    """In a row, this one included."""
    recent: int
    """Within :data:`WINDOW_S`, this one included."""


def wait_s(failures: int) -> float:
    """Before the retry after a number of failures, or of displacements, in a row: 1 s, 2 s, 4 s, …"""
    return min(LONGEST_S, 2.0 ** min(failures - 1, 16))


def is_worth_its_while(gained: float, total: float | None, lasted_s: float, checkpoint_s: float) -> bool:
    """Whether an attempt made progress.

    :param gained: samples beyond where the job was at the failure that the row began with.
    :param total: all samples of the job; None: unknown.
    :param lasted_s: from the decision to start the attempt to its failure.
    """
    if gained <= 0:
        return False
    return lasted_s >= checkpoint_s or (total is not None and gained >= SHARE * total)


def given_up(record: Record, retries: int) -> str | None:
    """Why there is no further retry; None: there is one. Empty: the failures in a row are reason enough."""
    if record.failures > retries:
        return ""
    if record.recent > MOST * (retries + 1):
        return f"failed {record.recent} times within an hour"
    return None
