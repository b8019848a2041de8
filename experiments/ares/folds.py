"""Figures of a replay that no report has: its costs, and fairness under another reading of fair sharing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pliant.tools.replay.output import read_summary, summary_path
from pliant.tools.report.equal_shares import fluid_finishes
from pliant.tools.report.fairness import TOLERANCE
from pliant.tools.report.isolated import reference_jobs
from pliant.tools.report.records import JobRecord, RunRecord, Specs


def fold(run: RunRecord, events: Path) -> Mapping[str, float]:
    """Costs of the replay, and FTF against fair sharing that gives no job more GPUs than it asks for."""
    return {**_costs(events), **_against_requests(run)}


def _costs(events: Path) -> dict[str, float]:
    summary = read_summary(summary_path(str(events)))
    return {"decision_ms": 1000 * summary["mean_decision_seconds"], "cpu_s": summary["cpu_seconds"]}


def _against_requests(run: RunRecord) -> dict[str, float]:
    capped = replace(run, jobs=tuple(map(_no_wider_than_requested, run.jobs)))
    fair = fluid_finishes(reference_jobs(capped), capped.capacity)
    ftf = [
        job.jct_s / (fair[job.id] - job.submit_s)
        for job in run.jobs
        if job.jct_s is not None and fair.get(job.id, 0.0) > job.submit_s
    ]
    unfair = sum(each > 1 + TOLERANCE for each in ftf)
    return {"unfair_fraction_requested": unfair / len(ftf), "worst_ftf_requested": max(ftf)} if ftf else {}


def _no_wider_than_requested(record: JobRecord) -> JobRecord:
    gpus, specs = record.job.gpus, Specs()
    narrow = record.job.model_copy(update={"gpus": gpus.model_copy(update={"max": gpus.requested})})
    return replace(record, specs=specs, row=specs.table.append(narrow))
