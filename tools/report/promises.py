"""What the policy of a run promises, held against what happened: how late each job was allowed to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pliant.tools.report.fairness import TOLERANCE, Fairness
from pliant.tools.report.records import Outcome, RunRecord
from pliant.tools.report.references.equal_deals import equal_deal_finishes
from pliant.tools.report.references.jobs import reference_jobs
from pliant.tools.report.usage import Usage

_STOPPED: Final[tuple[Outcome, ...]] = ("failed", "cancelled", "rejected")


@dataclass(frozen=True, slots=True)
class Promise:
    """One run against what its policy promises, by job that finished and that the reference knows."""

    allowed_s: Mapping[str, float]
    """Completion minus completion in GPS, at most. Of one bound for all jobs it is the same for all."""
    past: tuple[str, ...]
    """The jobs that ended later than that, by more than rounding."""
    worst_used: float | None
    """The largest part that a job took of the time in which it was to end, from its submission on."""

    @property
    def bound_s(self) -> float | None:
        """The largest delay that any job was allowed."""
        return max(self.allowed_s.values(), default=None)


def promise(run: RunRecord, gps: Fairness, usage: Usage) -> Promise | None:
    """The run against what its policy promises; None: it promises nothing.

    Premises of such bounds often fail on real traces, so the jobs past it are counted instead of denied.
    """
    allowed_s = _allowed_s(run, gps, usage)
    if allowed_s is None:
        return None
    rounding_s = TOLERANCE * max(1.0, run.last_event_s)
    past = [job for job, allowed in allowed_s.items() if gps.delays_s[job] > allowed + rounding_s]
    jcts_s = {job.id: job.jct_s for job in run.with_outcome("finished") if job.jct_s}
    used = [
        jct_s / (jct_s - gps.delays_s[job] + allowed_s[job])
        for job, jct_s in jcts_s.items()
        if job in allowed_s
    ]
    return Promise(allowed_s, tuple(past), max(used, default=None))


def _allowed_s(run: RunRecord, gps: Fairness, usage: Usage) -> dict[str, float] | None:
    promised = run.info.bounds
    if promised is None:
        return None
    if promised.equal_deals is not None:
        left_s = {job.id: job.end_s for kind in _STOPPED for job in run.with_outcome(kind)}
        stopped = {job_id: end_s for job_id, end_s in left_s.items() if end_s is not None}
        finishes = equal_deal_finishes(reference_jobs(run), run.capacity, promised.equal_deals, stopped)
        return {job: finishes[job] - gps.finish_s[job] for job in gps.delays_s if job in finishes}
    if promised.gps_delay is not None:
        return dict.fromkeys(gps.delays_s, promised.gps_delay * usage.longest_full_s())
    return None
