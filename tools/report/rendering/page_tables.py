"""The tables of the HTML page that other formats do not have: figures with the best value marked, changes
with intervals, fairness, users and teams, and where everything comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pliant.schemas.metrics import RunMetrics
from pliant.tools.report.fairness import REFERENCES
from pliant.tools.report.figures.curves import REFERENCE_NAMES
from pliant.tools.report.headline import better, change
from pliant.tools.report.metrics import mean
from pliant.tools.report.records import JobRecord, kind, parameters_text
from pliant.tools.report.rendering.page_data import team_label
from pliant.tools.report.rendering.sections import (
    FIGURES,
    NOTHING,
    Section,
    duration,
    number,
    p_text,
    percent,
    ratio_text,
    ratio_to,
    value_of,
)
from pliant.tools.report.report import Report, RunReport

_ARROWS: Final = {"lower": "↓ lower", "higher": "↑ higher", None: ""}
_WORST: Final = 5
"""Jobs of a run that are named."""
_MOST_GROUPS: Final = 40
"""Users or teams of a run; the others are one row."""
_EPOCH_S: Final = 3e8
"""Submission times above this (1979) are seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, whether it is the best of its row, and what is to be said about it."""

    text: str
    best: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of every run."""

    title: str
    better: str
    cells: tuple[Cell, ...]


def figure_rows(report: Report, names: Iterable[str] | None = None) -> list[FigureRow]:
    """A row for each figure, in the order of ``names``. Default: all that any run has or should have."""
    known = {figure.name: figure for figure in FIGURES}
    rows = []
    for name in known if names is None else names:
        if names is None and not _shows(report, name):
            continue
        write = _writers[known[name].kind]
        values = [value_of(each.metrics, name) for each in report.runs]
        best = _best(name, values)
        cells = tuple(
            Cell(
                write(value) + _beside(each, report.baseline, name),
                value is not None and value == best,
                each.unknown.get(name, ""),
            )
            for each, value in zip(report.runs, values, strict=True)
        )
        rows.append(FigureRow(known[name].title, _ARROWS[better(name)], cells))
    return rows


def finished_row(report: Report) -> FigureRow:
    counts = [(each.metrics.jobs_finished, each.metrics.jobs_submitted) for each in report.runs]
    most = max(finished for finished, _ in counts)
    differ = len(set(counts)) > 1
    cells = (Cell(f"{done:,} of {all_of:,}", differ and done == most) for done, all_of in counts)
    return FigureRow("jobs finished", _ARROWS["higher"], tuple(cells))


def completed_rows(report: Report) -> list[FigureRow]:
    """Jobs that finished by the times that were asked for."""
    counts = [each.metrics.jobs_completed_at for each in report.runs]
    return [
        FigureRow(
            f"jobs finished by {duration(at[0][0])}",
            _ARROWS["higher"],
            tuple(Cell(f"{finished:,}") for _, finished in at),
        )
        for at in zip(*counts, strict=True)
    ]


def _shows(report: Report, name: str) -> bool:
    """Of the three references, the one of the report; the section on fairness has them all."""
    if name.startswith(("mean_ftf", "worst_ftf", "unfair_fraction")):
        suffix = {"fair-share": ("ftf", "fraction"), "gps": ("gps",), "isolated": ("isolated",)}
        if not name.endswith(suffix[report.reference]):
            return False
    if name == "drop_ratio" and not any(each.metrics.jobs_rejected for each in report.runs):
        return False
    return any(name in each.unknown or value_of(each.metrics, name) is not None for each in report.runs)


def _best(name: str, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    direction = better(name)
    if direction is None or len(set(known)) < 2:
        return None
    return min(known) if direction == "lower" else max(known)


def _beside(each: RunReport, base: RunReport | None, name: str) -> str:
    ratio = None if base in (None, each) else ratio_to(each.metrics, base.metrics, name)
    return "" if ratio is None else f" ({ratio_text(ratio)}×)"


def _time(value_s: float | None) -> str:
    return NOTHING if value_s is None else ("-" if value_s < 0 else "") + duration(abs(value_s))


_writers: Final[Mapping[str, Callable[[float | None], str]]] = {
    "time": _time,
    "percent": lambda value: percent(value) + ("" if value is None else " %"),
    "ratio": lambda value: number(value, 3),
    "count": lambda value: number(value, 0),
    "ms": lambda value: number(value, 3) + ("" if value is None else " ms"),
}


def change_section(report: Report) -> Section:
    """Mean JCTs against the baseline's, over the same jobs; empty without a baseline."""
    base = report.baseline
    rows = []
    for each in report.runs:
        found = None if base is None or each is base else change(each, base)
        if found is None:
            continue
        test = report.paired.get(each.label)
        interval = NOTHING
        if found.low is not None and found.high is not None:
            interval = f"{number(found.low, 3)} to {number(found.high, 3)}"
        rows.append(
            (
                each.label,
                number(found.ratio, 3),
                interval,
                number(found.pairs, 0),
                *(NOTHING if test is None else p_text(p) for p in _tails(test)),
            )
        )
    label = "" if base is None else base.label
    headers = (
        "run",
        "mean JCT, ratio",
        "95 % interval",
        "jobs in both",
        "p, two-sided",
        "p, larger",
        "p, smaller",
    )
    notes = (
        f"ratio: mean JCT divided by that of {label}, over the jobs that finished in both; below 1 is better",
        "interval: by the normal approximation of paired jobs; one that holds 1 shows no difference",
        f"p: Wilcoxon's signed-rank test of paired JCTs; near 0: not those of {label}, or larger, or smaller",
    )
    return Section(f"Against {label}, job by job", headers, tuple(rows), 1, notes)


def _tails(test: object) -> tuple[float, ...]:
    return tuple(getattr(test, name) for name in ("two_sided", "greater", "less"))


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
        _time(mean(jcts)),
        _time(mean(waited)),
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


def explained(metrics: Iterable[RunMetrics]) -> list[tuple[str, str]]:
    """Terms of the page, a line each."""
    promised = any(each.gps_bound_s is not None for each in metrics)
    terms = [
        ("↓ lower, ↑ higher", "the direction in which a figure is better; ★ marks the best of a row"),
        ("JCT", "job completion time: from submission to completion, of finished jobs"),
        ("queueing delay", "from submission to the first start, of jobs that started"),
        ("makespan", "from the first submission to the last completion"),
        ("FTF", "finish-time fairness: JCT divided by the JCT under fair sharing; above 1 is unfair"),
        ("unfair fraction", "the share of finished jobs with an FTF above 1"),
        ("GPUs held", "GPU time that jobs held, of what was up until the last completion"),
        ("preemption", "GPUs taken from a running job, which waits again"),
        ("rescale, move", "a running job gets another number of GPUs or batch; as many other GPUs"),
        ("stall", "time in which a job held GPUs without training: starts, rescales, checkpoints"),
        ("SJS efficiency", "time of the jobs on one GPU each, divided by the GPU time that they held"),
        ("95 % interval", "the range in which the true ratio lies in 95 of 100 such comparisons"),
    ]
    if promised:
        terms.append(("GPS bound", "how much later than under linear sharing the policy lets a job end"))
    return terms
