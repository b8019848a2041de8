"""Finish-time fairness: a job's JCT over its JCT under fair sharing; and what the policy of a run promises,
held against how late each job was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ulp
from statistics import fmean
from typing import Final, Literal

from pliant.tools.report.equal_shares import (
    dealt_jobs,
    equal_deal_finishes,
    fluid_finishes,
    gps_jobs,
    kept_from_promise,
)
from pliant.tools.report.isolated import ReferenceJob, isolated_finishes, reference_jobs
from pliant.tools.report.records import RunRecord, Usage

Reference = Literal["fair-share", "gps", "isolated"]
REFERENCES: Final[tuple[Reference, ...]] = ("fair-share", "gps", "isolated")
TOLERANCE: Final = 1e-9
"""A job counts as unfairly treated when its FTF exceeds 1 by more than this: rounding is not unfair."""
Shared = tuple[tuple[tuple[float, int], ...], tuple[ReferenceJob, ...]]
"""GPUs over time, and jobs: runs of one trace share them, and so their references."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """One run against one reference. Times are seconds since the first submission."""

    run: RunRecord
    finish_s: Mapping[str, float]
    """By job, in the reference."""
    ftf: Mapping[str, float]
    """Of the jobs that finished, took time and are known to the reference."""

    def delays_s(self) -> dict[str, float]:
        """Completion minus completion in the reference, of the jobs in ``ftf``."""
        ends = ((job.id, job.end_s) for job in self.run.jobs if job.id in self.ftf)
        return {job_id: end_s - self.finish_s[job_id] for job_id, end_s in ends if end_s is not None}

    @property
    def mean(self) -> float | None:
        return fmean(self.ftf.values()) if self.ftf else None

    @property
    def worst(self) -> float | None:
        return max(self.ftf.values(), default=None)

    @property
    def unfair_fraction(self) -> float | None:
        """Share of jobs with an FTF above 1."""
        return sum(ftf > 1 + TOLERANCE for ftf in self.ftf.values()) / len(self.ftf) if self.ftf else None


class References:
    """The reference systems, computed once for equal jobs on equal GPUs, since policies share a trace.

    The isolated one depends on what the policy did, and is computed for every run.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Shared, Mapping[Reference, dict[str, float]]]] = []

    def fairness(self, run: RunRecord) -> dict[Reference, Fairness]:
        jobs = tuple(reference_jobs(run))
        shared = self._finishes((run.capacity, jobs))
        gps = _against(run, shared["gps"])
        fluid = gps if shared["fair-share"] is shared["gps"] else _against(run, shared["fair-share"])
        return {"fair-share": fluid, "gps": gps, "isolated": _against(run, isolated_finishes(run, jobs))}

    def _finishes(self, shared: Shared) -> Mapping[Reference, dict[str, float]]:
        """Compared one by one: different systems differ early, and hashing one costs more."""
        for known, finishes in self._known:
            if known == shared:
                return finishes
        capacity, jobs = shared
        fluid, in_gps = fluid_finishes(jobs, capacity), gps_jobs(jobs)
        made: Mapping[Reference, dict[str, float]] = {
            "fair-share": fluid,
            # where speeds are in proportion to GPUs, as without a profile, the two are one
            "gps": fluid if in_gps == jobs else fluid_finishes(in_gps, capacity),
        }
        self._known.append((shared, made))
        return made


def fairness(run: RunRecord) -> dict[Reference, Fairness]:
    return References().fairness(run)


def _against(run: RunRecord, finish_s: Mapping[str, float]) -> Fairness:
    ftf: dict[str, float] = {}
    for job in run.with_outcome("finished"):
        if job.end_s is not None and job.end_s != job.submit_s:
            reference_s = finish_s.get(job.id, 0.0)
            if reference_s > job.submit_s:
                ftf[job.id] = (job.end_s - job.submit_s) / (reference_s - job.submit_s)
    return Fairness(run, finish_s, ftf)


@dataclass(frozen=True, slots=True)
class Promise:
    """One run against what its policy promises, by job that finished and that the reference knows."""

    allowed_s: Mapping[str, float]
    """Completion minus completion in GPS, at most. Of one bound for all jobs it is the same for all."""
    past: tuple[str, ...]
    worst_used: float | None
    """The largest share of its allowed time, from submission on, that a job took."""

    @property
    def bound_s(self) -> float | None:
        return max(self.allowed_s.values(), default=None)


def promise(run: RunRecord, gps: Fairness, usage: Usage) -> Promise | None:
    """Returns None if the policy promises nothing.

    The premises of such bounds often fail on real traces, so jobs past the bound are counted, not denied.
    """
    delays_s = gps.delays_s()
    allowed_s = _allowed_s(run, gps, delays_s, usage)
    if allowed_s is None:
        return None
    stamp_s = ulp(run.origin_s + run.last_event_s)  # submission, end and origin are each known to half of it
    rounding_s = TOLERANCE * max(1.0, run.last_event_s) + 1.5 * stamp_s
    past = [job for job, allowed in allowed_s.items() if delays_s[job] > allowed + rounding_s]
    jcts_s = {job.id: job.jct_s for job in run.with_outcome("finished") if job.jct_s}
    used = [
        jct_s / (jct_s - delays_s[job] + allowed_s[job]) for job, jct_s in jcts_s.items() if job in allowed_s
    ]
    return Promise(allowed_s, tuple(past), max(used, default=None))


def _allowed_s(
    run: RunRecord, gps: Fairness, delays_s: Iterable[str], usage: Usage
) -> dict[str, float] | None:
    promised = run.info.bounds
    if promised is None:
        return None
    if promised.equal_deals is not None:
        finishes = allowed_ends_s(run)
        if finishes is None:
            return None
        return {job: finishes[job] - gps.finish_s[job] for job in delays_s if job in finishes}
    if promised.gps_delay is not None:
        return dict.fromkeys(delays_s, promised.gps_delay * usage.longest_full_s())
    return None


def allowed_ends_s(run: RunRecord) -> dict[str, float] | None:
    """By job, the time by which it is to end as its policy promises; None if it promises no such times."""
    terms = None if run.info.bounds is None else run.info.bounds.equal_deals
    if terms is None or why_unpromised(run) is not None:
        return None
    return equal_deal_finishes(dealt_jobs(run, terms), run.capacity, terms, run.info.cluster.expanded())


def why_unpromised(run: RunRecord) -> str | None:
    """Why a policy that promises a time to each job does not promise it in this run, as a clause."""
    promised = run.info.bounds
    if promised is None or promised.equal_deals is None:
        return None
    return promised.void or kept_from_promise(run, promised.equal_deals)
