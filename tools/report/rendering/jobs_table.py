"""The jobs of a run one by one."""

from __future__ import annotations

from typing import Any

from pliant.tools.report.fairness import REFERENCES
from pliant.tools.report.rendering.sections import Section
from pliant.tools.report.rendering.units import number, time_unit
from pliant.tools.report.report import RunReport

Row = dict[str, Any]


def job_rows(each: RunReport) -> list[Row]:
    """One row a job, in order of submission; times in seconds, null where one does not apply."""
    fair, gps, isolated = (each.fair[name].ftf for name in REFERENCES)
    until = each.run.last_event_s
    return [
        {
            "run": each.label,
            "job": job.id,
            "model": job.job.model,
            "outcome": job.outcome,
            "submit_s": job.submit_s,
            "queueing_delay_s": job.queueing_delay_s,
            "jct_s": job.jct_s,
            "ftf": fair.get(job.id),
            "ftf_gps": gps.get(job.id),
            "ftf_isolated": isolated.get(job.id),
            "gpu_seconds": job.gpu_seconds(until),
            "overhead_s": sum(step.overhead_s + step.checkpoint_s for step in job.steps),
            "preemptions": job.preemptions,
            "rescales": job.rescales,
            "moves": job.moves,
            "restarts": job.restarts,
            "utility": job.utility,
            "late_s": job.late_s,
            "admission": dict(job.admission) or None,
            "first_loss": job.first_loss,
            "last_loss": job.last_loss,
        }
        for job in each.run.jobs
    ]


def jobs_section(each: RunReport) -> Section:
    """The jobs as a table; the losses only where a run has any."""
    rows = job_rows(each)
    unit = time_unit([row["jct_s"] for row in rows] + [row["submit_s"] for row in rows])
    with_loss = any(row["last_loss"] is not None for row in rows)
    losses = (f"{name} loss" for name in ("first", "last") if with_loss)
    with_worth = any(row["utility"] is not None for row in rows)
    with_payoff = any(row["admission"] for row in rows)
    headers = (
        *("job", "outcome", f"submitted, {unit.name}", f"waited, {unit.name}", f"JCT, {unit.name}"),
        *("FTF (fair share)", "FTF (linear GPS)", "preemptions", "rescales", "moves"),
        *(("utility", f"late, {unit.name}") if with_worth else ()),
        *(("payoff",) if with_payoff else ()),
        *losses,
    )
    cells = []
    for row in rows:
        times = (unit.text(row[name]) for name in ("submit_s", "queueing_delay_s", "jct_s"))
        fair = (number(row[name], 3) for name in ("ftf", "ftf_gps"))
        counts = (str(row[name]) for name in ("preemptions", "rescales", "moves"))
        loss = (number(row[name], 4) for name in ("first_loss", "last_loss") if with_loss)
        worth = (number(row["utility"], 4), unit.text(row["late_s"])) if with_worth else ()
        payoff = (number((row["admission"] or {}).get("payoff"), 4),) if with_payoff else ()
        cells.append((row["job"], row["outcome"], *times, *fair, *counts, *worth, *payoff, *loss))
    return Section(f"Jobs of {each.label}", headers, tuple(cells), 2)
