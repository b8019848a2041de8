"""Jobs that the policy does not see, by the reason why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain


@dataclass(slots=True)
class HiddenJobs:
    """A job is held, awaiting, in line or limited, never two of them.

    It is bound only while it holds GPUs on a drained node.
    """

    held: dict[str, str] = field(default_factory=dict)
    """Active jobs that get no GPUs, and the user who holds them."""
    bound: dict[str, str] = field(default_factory=dict)
    """Jobs that keep their GPUs until they end, and the drained node that they finish on."""
    awaiting: dict[str, str] = field(default_factory=dict)
    """Jobs that wait for other jobs to end, and for which, in words."""
    unsatisfiable: dict[str, str] = field(default_factory=dict)
    """Awaiting jobs that can never start, and why."""
    in_line: dict[str, str] = field(default_factory=dict)
    """Jobs over the limit of their array, and the limit in words."""
    limited: dict[str, str] = field(default_factory=dict)
    """Jobs over their user's limit, and the limit in words."""
    reserved: dict[str, str] = field(default_factory=dict)
    """Jobs for which reservations leave too few nodes, and which ones, in words; whatever else hides them."""
    on_cpus: dict[str, bool] = field(default_factory=dict)
    """Active jobs that need no GPU. The session places them after the policy has decided."""

    @property
    def any(self) -> bool:
        waits = self.limited or self.awaiting or self.in_line or self.reserved
        return bool(self.held or self.bound or self.on_cpus or waits)

    def hides(self, job_id: str) -> bool:
        hidden = job_id in self.held or job_id in self.bound or job_id in self.on_cpus
        return hidden or job_id in self.reserved or self.keeps_waiting(job_id)

    def keeps_waiting(self, job_id: str) -> bool:
        """Whether a job waits for another one or for room within a limit."""
        return job_id in self.limited or job_id in self.awaiting or job_id in self.in_line

    def let_in(self, job_id: str) -> None:
        """A job waits for no other one and for no limit."""
        for jobs in (self.awaiting, self.unsatisfiable, self.in_line, self.limited):
            jobs.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        self.let_in(job_id)
        self.held.pop(job_id, None)
        self.bound.pop(job_id, None)
        self.on_cpus.pop(job_id, None)
        self.reserved.pop(job_id, None)

    def must_wait(self) -> Iterator[str]:
        """Jobs that may hold no GPUs."""
        others = chain(self.held, self.awaiting, self.in_line, self.limited)
        return iter(dict.fromkeys(chain(others, self.reserved)))
