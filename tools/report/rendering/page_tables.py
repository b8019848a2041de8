"""The tables of the HTML page that other formats do not have: figures with their directions, fairness, users
and teams, and where everything comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pliant.schemas.metrics import better
from pliant.tools.report.fairness import REFERENCES
from pliant.tools.report.figures.curves import REFERENCE_NAMES
from pliant.tools.report.metrics import mean
from pliant.tools.report.records import JobRecord, kind, parameters_text
from pliant.tools.report.rendering.page_data import team_label
from pliant.tools.report.rendering.readable import span
from pliant.tools.report.rendering.sections import (
    FIGURES,
    NOTHING,
    Section,
    number,
    percent,
)
from pliant.tools.report.rendering.summary import BEST
from pliant.tools.report.report import Report, RunReport

_ARROWS: Final[Mapping[str | None, str]] = {"lower": "↓ lower", "higher": "↑ higher", None: ""}
_WORST: Final = 5
"""Jobs of a run that are named."""
_MOST_GROUPS: Final = 40
"""Users or teams of a run; the others are one row."""
_EPOCH_S: Final = 3e8
"""Submission times above this (1979) are seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A value, and whether it is the best of its row."""

    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of every column."""

    title: str
    better: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Figures side by side: a column is a run, or several that differ in seed or trace only."""

    labels: tuple[str, ...]
    rows: tuple[FigureRow, ...]


def figure_table(table: Section) -> FigureTable:
    """The table of a summary, its marks apart from its values."""
    directions = {figure.title: better(figure.name) for figure in FIGURES} | {"jobs finished": "higher"}
    rows = tuple(
        FigureRow(
            title,
            _ARROWS[directions.get(title)],
            tuple(TableCell(cell.removeprefix(BEST), cell.startswith(BEST)) for cell in cells),
        )
        for title, *cells in table.rows
    )
    return FigureTable(table.headers[1:], rows)


def fairness_section(report: Report) -> Section:
    rows = []
    for each in report.runs:
        for name in REFERENCES:
            suffix = "" if name == "fair-share" else f"_{name}"
            figures = (getattr(each.metrics, f"{of}{suffix}") for of in ("mean_ftf", "worst_ftf"))
            unfair = percent(getattr(each.metrics, f"unfair_fraction{suffix}"))
            worst = sorted(each.fair[name].ftf.items(), key=lambda pair: (-pair[1], pair[0]))[:_WORST]
            named = ", ".join(f"{job} {number(ftf, 2)}" for job, ftf in worst) or NOTHING
            rows.append(
                (each.label, REFERENCE_NAMES[name], *(number(ftf, 3) for ftf in figures), unfair, named)
            )
    headers = ("run", "against", "FTF, mean", "FTF, worst", "above 1, % of jobs", "worst-off jobs")
    notes = (
        "FTF: JCT divided by the JCT under fair sharing; below 1 is better than a fair share, 1 is as good",
    )
    return Section("Fairness", headers, tuple(rows), 2, notes)


def group_sections(report: Report) -> list[Section]:
    """Users and teams, each a table; none where jobs do not state them."""
    jobs = [job.job for each in report.runs for job in each.run.jobs]
    found = []
    if any(job.user for job in jobs):
        found.append(_group_section("Users", "user", report, lambda job: job.job.user))
    team = team_label(jobs)
    if team is not None:
        found.append(
            _group_section(f"Teams (label {team})", team, report, lambda job: job.job.labels.get(team, ""))
        )
    return found


def _group_section(title: str, word: str, report: Report, key: Callable[[JobRecord], str]) -> Section:
    rows: list[tuple[str, ...]] = []
    for each in report.runs:
        groups: dict[str, list[JobRecord]] = {}
        for job in each.run.jobs:
            groups.setdefault(key(job) or "not stated", []).append(job)
        until_s = each.run.last_event_s
        used = {name: sum(job.gpu_seconds(until_s) for job in own) for name, own in groups.items()}
        order = sorted(groups, key=lambda name: (-used[name], name))
        shown, rest = order[:_MOST_GROUPS], order[_MOST_GROUPS:]
        named = [(name, groups[name]) for name in shown]
        if rest:
            named.append((f"{len(rest)} others", [job for name in rest for job in groups[name]]))
        total = sum(used.values())
        fair = each.fair[report.reference].ftf
        rows += [_group_row(name, each, own, fair, total) for name, own in named]
    headers = (word, "run", "jobs", "finished", "JCT, mean", "waited, mean", "FTF, mean", "FTF, worst")
    notes = (f"ordered by GPU time; FTF against {REFERENCE_NAMES[report.reference]}, over finished jobs",)
    return Section(title, (*headers, "GPU hours", "% of all"), tuple(rows), 2, notes)


def _group_row(
    name: str, each: RunReport, own: Sequence[JobRecord], fair: Mapping[str, float], total: float
) -> tuple[str, ...]:
    ftfs = [fair[job.id] for job in own if job.id in fair]
    used = sum(job.gpu_seconds(each.run.last_event_s) for job in own)
    jcts = [job.jct_s for job in own if job.jct_s is not None]
    waited = [job.queueing_delay_s for job in own if job.queueing_delay_s is not None]
    return (
        name,
        each.label,
        number(len(own), 0),
        number(len(jcts), 0),
        _span(mean(jcts)),
        _span(mean(waited)),
        number(mean(ftfs), 3),
        number(max(ftfs, default=None), 3),
        number(used / 3600, 2),
        percent(used / total if total else None),
    )


def provenance_section(report: Report, command: str, version: str) -> Section:
    """A column a run; what a reader needs to do it again."""
    facts = [_facts(each) for each in report.runs]
    names = list(dict.fromkeys(name for found in facts for name in found))
    rows = tuple((name, *(found.get(name, NOTHING) for found in facts)) for name in names)
    notes = tuple(
        filter(None, (f"command: {command}" if command else "", f"page written by pliant {version}"))
    )
    headers = ("", *(each.label for each in report.runs))
    return Section("Where this comes from", headers, rows, len(headers), notes)


def _facts(each: RunReport) -> dict[str, str]:
    run, info = each.run, each.run.info
    nodes = [f"{node.count or 1} × {node.gpus} {node.gpu_type}" for node in info.cluster.nodes]
    slots = "GPUs" if info.cluster.slots == "gpu" else "CPU slots"
    shown = ", ".join([*nodes[:_WORST], *(["…"] if len(nodes) > _WORST else [])])
    found = {
        "policy": ", ".join(run.policies) or info.policy,
        "parameters": " ".join(parameters_text(run)),
        "seed": str(info.seed),
        "kind": kind(run) + (f", as {info.compat} does" if info.compat else ""),
        "work of jobs": f"{info.demand} demand" + (", oracle" if info.oracle else ""),
        "cluster": f"{run.total_gpus:,} {slots}: {shown}",
        "first submission": _date(run.origin_s),
        "last event": _date(run.origin_s + run.last_event_s) if run.origin_s > _EPOCH_S else "",
        "start, rescale, resume cost, s": _costs(info.start_cost_s, info.rescale_cost_s, info.resume_cost_s),
        "round, s": "" if info.interval_s is None else f"{info.interval_s:g}",
        "trace": info.trace or "",
        "trace, SHA-256": info.trace_hash,
        "profile, SHA-256": info.profile_hash or "",
        "event file": run.source,
        "event file, SHA-256": run.sha256,
        "pliant": info.pliant_version,
    }
    return {name: text for name, text in found.items() if text}


def _span(value_s: float | None) -> str:
    return NOTHING if value_s is None else span(value_s)


def _costs(*costs: Mapping[str, float] | float | None) -> str:
    if all(cost is None for cost in costs):
        return ""
    return ", ".join(map(_cost, costs))


def _cost(cost: Mapping[str, float] | float | None) -> str:
    if cost is None:
        return NOTHING
    return f"{cost:g}" if isinstance(cost, int | float) else "by model"


def _date(time_s: float) -> str:
    """Of a clock; simulated traces mostly begin at 0 and have none."""
    if not _EPOCH_S < time_s < 32_503_680_000:
        return ""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def notes(report: Report) -> list[tuple[str, Sequence[str]]]:
    """What must be known about each run."""
    return [(each.label, each.caveats) for each in report.runs if each.caveats]


def explained(terms: Mapping[str, str]) -> dict[str, str]:
    """Terms of the page, a line each: those of its figures, then those of its other tables."""
    return {
        "↓ lower, ↑ higher": "the direction in which a figure is better; ★ marks the best of a row",
        "JCT": "job completion time: from submission to completion, of finished jobs",
        "FTF": "finish-time fairness: JCT divided by the JCT under fair sharing; above 1 is unfair",
        "stall": "time in which a job held GPUs without training: starts, rescales, checkpoints",
        "95 % interval": "holds the true value in 95 of 100 such comparisons",
        **terms,
    }
