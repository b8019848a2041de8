"""What the GPUs that a job has held were good for, in samples of its author's batch.

Counted by the speeds of the profile, so that a job that is slower than its profile, by a factor that depends
on its progress alone, is as far as the same job in the reference when it has had the same credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge


@dataclass(slots=True)
class _Account:
    credit: float
    until_s: float
    """Up to when it is counted."""
    rate: float = 0.0
    """Of what the job was to hold then, should it end before it is asked about again."""
    from_s: float = 0.0


class Credits:
    """Credit by job; of those that are there."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def of(self, job_id: str) -> float:
        """Credit at the last time that was booked."""
        return self._accounts[job_id].credit

    def begin(self, job: JobState, time_s: float) -> None:
        """A job is there."""
        self._accounts.setdefault(job.id, _Account(job.samples_done(time_s), time_s))

    def book(self, jobs: Iterable[JobState], known: Knowledge, time_s: float) -> None:
        """Count what jobs have held up to now, and go on with what they hold."""
        for job in jobs:
            account = self._accounts[job.id]
            self.expect(job, known.held_rate(job, time_s), job.changed_s + known.rescale_s(job))
            _count(account, time_s)

    def expect(self, job: JobState, rate: float, from_s: float) -> None:
        """A job is to hold from now on what is good for ``rate`` samples per second, from a time on."""
        account = self._accounts[job.id]
        account.rate, account.from_s = rate, from_s

    def end(self, job_id: str, time_s: float) -> float | None:
        """A job has left; its credit. None: it was not there."""
        account = self._accounts.pop(job_id, None)
        if account is None:
            return None
        _count(account, time_s)
        return account.credit

    def dump(self) -> dict[str, list[float]]:
        """As JSON values."""
        return {job_id: [*astuple(account)] for job_id, account in sorted(self._accounts.items())}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`dump`."""
        self._accounts = {job_id: _Account(*values) for job_id, values in state.items()}


def _count(account: _Account, time_s: float) -> None:
    account.credit += account.rate * max(0.0, time_s - max(account.until_s, account.from_s))
    account.until_s = max(account.until_s, time_s)
