"""Figures of a replay that no report has: its costs, and fairness under another reading of fair sharing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pliant.schemas.job import Job
from pliant.tools.replay.output import read_summary, summary_path
from pliant.tools.report.equal_shares import fluid_finishes
from pliant.tools.report.fairness import TOLERANCE
from pliant.tools.report.isolated import reference_jobs
from pliant.tools.report.records import RunRecord


def fold(run: RunRecord, events: Path) -> Mapping[str, float]:
    """Costs of the replay, and FTF against fair sharing that gives no job more GPUs than it asks for."""
    return {**_costs(events), **_against_requests(run)}


def _costs(events: Path) -> dict[str, float]:
    summary = read_summary(summary_path(str(events)))
    return {"decision_ms": 1000 * summary["mean_decision_seconds"], "cpu_s": summary["cpu_seconds"]}


def _against_requests(run: RunRecord) -> dict[str, float]:
    jobs = reference_jobs(run, _no_wider_than_requested)
    fair = fluid_finishes(jobs, run.capacity)
    jct_s = run.jobs.jct_s[jobs.job]
    known = ~np.isnan(jct_s) & (fair > jobs.arrival_s)
    ftf = jct_s[known] / (fair - jobs.arrival_s)[known]
    unfair = int((ftf > 1 + TOLERANCE).sum())
    if not len(ftf):
        return {}
    return {"unfair_fraction_requested": unfair / len(ftf), "worst_ftf_requested": float(ftf.max())}


def _no_wider_than_requested(job: Job) -> Job:
    return job.model_copy(update={"gpus": job.gpus.model_copy(update={"max": job.gpus.requested})})
