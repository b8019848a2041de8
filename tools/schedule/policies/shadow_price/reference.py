"""The reference of the bound: all GPUs dealt out equally among the jobs, in whole GPUs, again and again.

It is a schedule that a real cluster could follow. A deal holds for ``deal_s`` seconds, and in each of them
every job trains for ``lost_s`` seconds less: its start or rescale, and the wait for a decision. Every job
gets the same number of GPUs within its limits. Those that have had the fewest GPU-seconds come first: they
get the GPUs that are over, and where not all minima fit the others sit out a deal. Jobs enter some time after
they were submitted, at the next deal; one that is done leaves at the end of its deal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import equal_shares
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints

RatesOf = Callable[[JobState], tuple[Ints, Floats]]
"""Sizes, ascending from 0, and the samples per second of a job on each, 0 where infeasible."""
_ROUNDING: Final = 1e-9


@dataclass(slots=True)
class Sharer:
    """One job in the reference."""

    job: JobState
    enters_s: float
    credit: float = 0.0
    """Samples at the beginning of the deal."""
    service_gpu_s: float = 0.0
    gpus: int = 0
    """What it has in this deal; of its part, as many as make it fastest."""
    rate: float = 0.0
    target: float = 0.0
    """Samples at the end of the deal."""
    over: float | None = None
    """Samples at which it is done; None: the real job is not, so that this one goes on as well."""

    def dumped(self) -> list[float | None]:
        """As JSON values."""
        return [
            self.enters_s, self.credit, self.service_gpu_s, self.gpus, self.rate, self.target, self.over
        ]  # fmt: skip


class EqualShares:
    """The reference up to the last time that it was asked about."""

    def __init__(self, deal_s: float, lost_s: float) -> None:
        self.deal_s = deal_s
        self.lost_s = lost_s
        self._sharers: dict[str, Sharer] = {}
        self._dealt_s: float | None = None
        """None: no deal holds, and the next is not before ``_closed_s``."""
        self._closed_s = -math.inf

    @property
    def until_s(self) -> float:
        """When the deal ends; infinite: there is none."""
        return math.inf if self._dealt_s is None else self._dealt_s + self.deal_s

    def share(self, job_id: str) -> Sharer | None:
        """What a job has in this deal; None: it sits it out, or is not there."""
        found = self._sharers.get(job_id)
        return found if found is not None and found.gpus else None

    def enter(self, job: JobState, enters_s: float) -> None:
        """A job will be there from a time on."""
        self._sharers[job.id] = Sharer(job, enters_s)

    def end(self, job_id: str, over: float) -> None:
        """The real job is done; this one leaves with the deal in which it gets as far."""
        if job_id in self._sharers:
            self._sharers[job_id].over = over

    def withdraw(self, job_id: str) -> None:
        """A job is not to be served any more."""
        self._sharers.pop(job_id, None)

    def advance(self, time_s: float, gpus: int, rates_of: RatesOf) -> Iterator[tuple[float, str]]:
        """Deal out ``gpus`` GPUs up to a time; (time, id) of those that leave."""
        while (next_s := self._next_s()) <= time_s:
            yield from self.close(next_s)
            if any(each.enters_s <= next_s for each in self._sharers.values()):
                self._deal(next_s, gpus, rates_of)

    def close(self, time_s: float) -> list[tuple[float, str]]:
        """End the deal that holds, before its time where the GPUs change; (time, id) of those that leave."""
        if self._dealt_s is not None:
            whole = time_s >= self.until_s
            lasted_s = time_s - self._dealt_s
            for each in self._sharers.values():
                trained_s = max(0.0, lasted_s - self.lost_s)
                each.credit = each.target if whole else each.credit + each.rate * trained_s
                each.service_gpu_s += each.gpus * lasted_s
                each.gpus, each.rate, each.target = 0, 0.0, each.credit
        self._dealt_s, self._closed_s = None, time_s
        done = [
            job_id
            for job_id, each in self._sharers.items()
            if each.over is not None and each.credit >= each.over * (1 - _ROUNDING)
        ]
        for job_id in done:
            del self._sharers[job_id]
        return [(time_s, job_id) for job_id in done]

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "dealt_s": self._dealt_s,
            "closed_s": None if self._closed_s == -math.inf else self._closed_s,
            "jobs": {job_id: each.dumped() for job_id, each in sorted(self._sharers.items())},
        }

    def load(self, state: Mapping[str, Any], jobs: Mapping[str, JobState]) -> None:
        """The inverse of :meth:`dump`."""
        self._dealt_s = state["dealt_s"]
        self._closed_s = -math.inf if state["closed_s"] is None else state["closed_s"]
        self._sharers = {
            job_id: Sharer(jobs[job_id], *values)
            for job_id, values in state["jobs"].items()
            if job_id in jobs
        }

    def _next_s(self) -> float:
        if self._dealt_s is not None:
            return self.until_s
        return max(self._closed_s, min((each.enters_s for each in self._sharers.values()), default=math.inf))

    def _deal(self, time_s: float, gpus: int, rates_of: RatesOf) -> None:
        self._dealt_s = time_s
        there = [each for each in self._sharers.values() if each.enters_s <= time_s]
        admitted: list[tuple[Sharer, Ints, Floats]] = []
        limits: list[tuple[int, int]] = []
        left = gpus
        for each in sorted(there, key=lambda each: (each.service_gpu_s, each.enters_s, each.job.id)):
            sizes, rates = rates_of(each.job)
            able = np.flatnonzero(rates)
            if able.size and (low := int(sizes[able[0]])) <= left:
                left -= low
                admitted.append((each, sizes, rates))
                limits.append((low, int(sizes[rates.argmax()])))
        parts = equal_shares(gpus, limits)
        for (each, sizes, rates), part in zip(admitted, parts, strict=True):
            best = int(rates[: int(np.searchsorted(sizes, part, side="right"))].argmax())
            each.gpus, each.rate = int(sizes[best]), float(rates[best])
            each.target = each.credit + each.rate * max(0.0, self.deal_s - self.lost_s)
