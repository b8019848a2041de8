"""Finish-time fairness: a job's JCT over its JCT under fair sharing; and what the policy of a run promises,
held against how late each job was.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ulp
from typing import Final

import numpy as np

from pliant.schemas.metrics import Reference
from pliant.tools.report.equal_shares import (
    dealt_jobs,
    equal_deal_ends,
    fluid_finishes,
    gps_jobs,
    kept_from_promise,
)
from pliant.tools.report.isolated import ReferenceJobs, isolated_finishes, reference_jobs
from pliant.tools.report.job_arrays import Floats, Integers, largest, mean_known
from pliant.tools.report.records import RunRecord, Usage

REFERENCES: Final[tuple[Reference, ...]] = ("fair-share", "gps", "isolated")
TOLERANCE: Final = 1e-9
"""A job counts as unfairly treated when its FTF exceeds 1 by more than this: rounding is not unfair."""
Shared = tuple[tuple[tuple[float, int], ...], ReferenceJobs]
"""GPUs over time, and jobs: runs of one trace share them, and so their references."""
_Finishes = tuple[Floats, Floats]
"""Finish times of such jobs under fluid fair sharing and in GPS."""


@dataclass(frozen=True, slots=True, eq=False)
class Fairness:
    """One run against one reference, with a row for each job of the run; seconds since the first submission.

    NaN where something is not known.
    """

    run: RunRecord
    finish_s: Floats
    """In the reference."""
    ftf: Floats
    """Values of the jobs that finished, took time and are known to the reference."""

    def delays_s(self) -> Floats:
        """Completion minus completion in the reference, of the jobs with an FTF."""
        return np.where(np.isnan(self.ftf), np.nan, self.run.jobs.end_s - self.finish_s)

    @property
    def jobs(self) -> int:
        """Those with an FTF."""
        return int(np.count_nonzero(~np.isnan(self.ftf)))

    @property
    def mean(self) -> float | None:
        return mean_known(self.ftf)

    @property
    def worst(self) -> float | None:
        return largest(self.ftf)

    @property
    def unfair_fraction(self) -> float | None:
        """Share of jobs with an FTF above 1."""
        return int(np.count_nonzero(self.ftf > 1 + TOLERANCE)) / self.jobs if self.jobs else None


class References:
    """The reference systems, computed once for equal jobs on equal GPUs, since policies share a trace.

    The isolated one depends on what the policy did, and is computed for every run.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Shared, _Finishes]] = []

    def fairness(self, run: RunRecord) -> dict[Reference, Fairness]:
        jobs = reference_jobs(run)
        shared, in_gps = self._finishes(run.capacity, jobs)
        gps = _against(run, jobs, in_gps)
        fluid = gps if shared is in_gps else _against(run, jobs, shared)
        isolated = _against(run, jobs, isolated_finishes(run, jobs))
        return {"fair-share": fluid, "gps": gps, "isolated": isolated}

    def _finishes(self, capacity: tuple[tuple[float, int], ...], jobs: ReferenceJobs) -> _Finishes:
        for (gpus, known), finishes in self._known:
            if gpus == capacity and known.have_load_of(jobs):
                return finishes
        fluid, in_gps = fluid_finishes(jobs, capacity), gps_jobs(jobs)
        # where speeds are in proportion to GPUs, as without a profile, the two are one
        made = fluid, fluid if in_gps.has_curves_of(jobs) else fluid_finishes(in_gps, capacity)
        self._known.append(((capacity, jobs), made))
        return made


def fairness(run: RunRecord) -> dict[Reference, Fairness]:
    return References().fairness(run)


def _against(run: RunRecord, jobs: ReferenceJobs, finishes_s: Floats) -> Fairness:
    """:param finishes_s: of the jobs of the reference."""
    finish_s, ftf = np.full(len(run.jobs), np.nan), np.full(len(run.jobs), np.nan)
    finish_s[jobs.job] = finishes_s
    jct_s, submit_s = run.jobs.jct_s, run.jobs.submit_s
    known = (jct_s != 0) & ~np.isnan(jct_s) & (finish_s > submit_s)
    ftf[known] = jct_s[known] / (finish_s[known] - submit_s[known])
    return Fairness(run, finish_s, ftf)


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """One run against what its policy promises; a row for each job of the run."""

    allowed_s: Floats
    """Completion minus completion in GPS, at most, of the jobs that finished and that the reference knows;
    else NaN. Of one bound for all jobs it is the same for all."""
    past: Integers
    """Rows of the jobs that ended later."""
    worst_used: float | None
    """The largest share of its allowed time, from submission on, that a job took."""

    @property
    def bound_s(self) -> float | None:
        return largest(self.allowed_s)


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
    past = np.flatnonzero(delays_s > allowed_s + rounding_s)
    jct_s = run.jobs.jct_s
    counts = np.flatnonzero((jct_s > 0) & ~np.isnan(allowed_s))
    used = jct_s[counts] / (jct_s[counts] - delays_s[counts] + allowed_s[counts])
    return Promise(allowed_s, past, largest(used))


def _allowed_s(run: RunRecord, gps: Fairness, delays_s: Floats, usage: Usage) -> Floats | None:
    promised = run.info.bounds
    if promised is None:
        return None
    if promised.equal_deals is not None:
        ends_s = allowed_ends_s(run)
        if ends_s is None:
            return None
        return np.where(np.isnan(delays_s), np.nan, ends_s - gps.finish_s)
    if promised.gps_delay is not None:
        return np.where(np.isnan(delays_s), np.nan, promised.gps_delay * usage.longest_full_s())
    return None


def allowed_ends_s(run: RunRecord) -> Floats | None:
    """The time by which each job is to end as its policy promises, NaN: none. Returns None if the policy
    promises no such times.
    """
    terms = None if run.info.bounds is None else run.info.bounds.equal_deals
    if terms is None or why_unpromised(run) is not None:
        return None
    ends_s = np.full(len(run.jobs), np.nan)
    nodes = run.info.cluster.expanded()
    for job, end_s in equal_deal_ends(dealt_jobs(run, terms), run.capacity, terms, nodes):
        ends_s[job.row] = end_s
    return ends_s


def why_unpromised(run: RunRecord) -> str | None:
    """Why a policy that promises a time to each job does not promise it in this run, as a clause."""
    promised = run.info.bounds
    if promised is None or promised.equal_deals is None:
        return None
    return promised.void or kept_from_promise(run, promised.equal_deals)
