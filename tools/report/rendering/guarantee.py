"""What policies promise of every run, and the jobs for which it did not hold."""

from __future__ import annotations

from typing import Final

from pliant.tools.report.promises import promise
from pliant.tools.report.rendering.sections import Section
from pliant.tools.report.rendering.units import duration, number, percent
from pliant.tools.report.report import Report, RunReport

_NAMED: Final = 5
"""Jobs named, those that are latest."""


def guarantee_section(report: Report) -> Section:
    """A row for each run whose policy promises a bound on delays against GPS; none: no rows."""
    rows = tuple(_row(each) for each in report.runs if each.metrics.gps_bound_s is not None)
    headers = (
        *("", "bound", "worst delay", "time taken, % of that of the bound"),
        *("jobs past it", "of", "the latest of them, after GPS"),
    )
    notes = (
        "delay: completion time minus that in GPS (generalized processor sharing)",
        "bound: where each job has its own, the largest; it counts from the job's completion in GPS as well",
        "a bound rests on premises, which `pliant policies` names; where they fail, jobs can be past it",
    )
    return Section("What the policy promises against GPS", headers, rows, 1, notes)


def _row(each: RunReport) -> tuple[str, ...]:
    delays_s = each.fair["gps"].delays_s
    bound_s, worst_s = each.metrics.gps_bound_s or 0.0, each.metrics.worst_gps_delay_s
    held = promise(each.run, each.fair["gps"], each.usage)
    past = () if held is None else held.past
    used = each.metrics.worst_bound_used
    latest = sorted(past, key=lambda job_id: (-delays_s[job_id], job_id))
    named = [f"{job_id} {duration(delays_s[job_id])}" for job_id in latest[:_NAMED]]
    more = [f"{len(latest) - _NAMED} more"] if len(latest) > _NAMED else []
    worst = "–" if worst_s is None else _signed(worst_s)
    return (
        each.label,
        duration(bound_s),
        worst,
        percent(used),
        number(len(past), 0),
        number(len(delays_s), 0),
        ", ".join(named + more),
    )


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else ''}{duration(abs(value_s))}"
