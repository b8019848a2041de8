"""The report as one HTML page that loads nothing: tables and charts that work without JavaScript, and on top
of them a chart of allocations to zoom into and a table of jobs to filter and sort.

The same report gives the same bytes. Whatever a file says is escaped: in the page by Jinja, in its data by
:func:`page_data`, and the script writes text alone.

Of the data for the script, times are whole numbers of ticks, at most a second each. Columns that runs of one
trace share are written once. What a job held is a flat list: the number of its stretches, then for each the
gap before it, its length, GPUs, global batch (an index) and the time without training. Where there are too
many stretches, those closer together than a grain are one, with the mean of their GPUs; the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import floor, log10
from pathlib import Path
from typing import Any, Final, NamedTuple

from pliant import __version__
from pliant.schemas.job import Job
from pliant.schemas.metrics import better
from pliant.tools.report.fairness import REFERENCES
from pliant.tools.report.figures.plots import REFERENCE_NAMES
from pliant.tools.report.figures.style import area_colour
from pliant.tools.report.groups import groups
from pliant.tools.report.metrics import mean
from pliant.tools.report.records import JobRecord, RunRecord, kind, parameters_text
from pliant.tools.report.rendering.charts import charts, swatches
from pliant.tools.report.rendering.sections import (
    FIGURES,
    NOTHING,
    GivenProfile,
    Section,
    number,
    percent,
    step_time_sections,
    steps_section,
    summary_section,
)
from pliant.tools.report.rendering.summary import BEST, SHORT, Shown, summary
from pliant.tools.report.rendering.text import span
from pliant.tools.report.report import Report, RunReport, against, warnings_of

MOST_STRETCHES: Final = 100_000
"""Of all runs together: about 2 MB."""
_TEAMS: Final = ("team", "account", "group", "project", "vc", "queue", "partition")
"""Labels of jobs that name a team; the first that any job states counts."""
_COLOURS: Final = 36
_FIRST_GRAIN: Final = 1 / 20_000
"""Of the length of the run."""


class _Stretch(NamedTuple):
    """A time in which a job held the same GPUs with the same batch."""

    start_s: float
    end_s: float
    gpus: float
    batch: int | None
    stall_s: float
    """Without training: start-up, rescales and checkpoints."""


def page_data(report: Report, most: int = MOST_STRETCHES) -> str:
    """JSON that may stand in a ``<script>`` element: it holds no ``<``."""
    words = _Words()
    traces: dict[tuple[str, str | None, tuple[str, ...]], int] = {}
    columns: list[dict[str, Any]] = []
    runs = []
    team = _team_label(job.job for each in report.runs for job in each.run.jobs)
    for each in report.runs:
        key = each.run.info.trace_hash, each.run.work_hash, tuple(job.id for job in each.run.jobs)
        tick_s = _tick_of(each.run)
        if key not in traces:
            traces[key] = len(columns)
            columns.append(_trace(each.run, words, team))
        runs.append({"trace": traces[key], **_run(each, report, words, tick_s, most // len(report.runs))})
    document = {
        "words": words.known,
        "traces": columns,
        "runs": runs,
        "reference": report.reference,
        "colours": [area_colour(index) for index in range(_COLOURS)],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def _team_label(jobs: Iterable[Job]) -> str | None:
    """The label that names teams. Returns None if no job has one."""
    stated = {name for job in jobs for name in job.labels}
    return next((name for name in _TEAMS if name in stated), None)


def _tick_of(run: RunRecord) -> float:
    """A millionth of the run, rounded to a power of ten; a second at most."""
    return min(1.0, 10.0 ** floor(log10(run.last_event_s) - 6)) if run.last_event_s > 0 else 1.0


class _Words:
    """Texts by number, in order of appearance."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.known)
            self.known.append(text)
        return found


def _trace(run: RunRecord, words: _Words, team: str | None) -> dict[str, Any]:
    """What the jobs of a trace are, whatever a policy did."""
    jobs = [job.job for job in run.jobs]
    found: dict[str, Any] = {
        "id": [job.id for job in jobs],
        "model": [words.number(job.model) for job in jobs],
        "asked": [job.gpus.requested for job in jobs],
    }
    if any(job.user for job in jobs):
        found["user"] = [words.number(job.user) for job in jobs]
    if team is not None and any(team in job.labels for job in jobs):
        found["team"] = [words.number(job.labels.get(team, "")) for job in jobs]
    return found


def _run(each: RunReport, report: Report, words: _Words, tick_s: float, most: int) -> dict[str, Any]:
    run, fair = each.run, each.fair[report.reference].ftf
    jobs, until_s = run.jobs, run.last_event_s
    held, grain_s = stretches(jobs, until_s, most)

    def ticks(values: Iterable[float | None]) -> list[int | None]:
        return [None if value is None else round(value / tick_s) for value in values]

    return {
        "label": each.label,
        "slots": "GPUs" if run.info.cluster.slots == "gpu" else "CPU slots",
        "gpus": max((gpus for _, gpus in run.capacity), default=0),
        "tick": tick_s,
        "end": round(until_s / tick_s),
        "grain": float(f"{grain_s:.3g}"),
        "outcome": [words.number(job.outcome) for job in jobs],
        "submit": ticks(job.submit_s for job in jobs),
        "wait": ticks(job.queueing_delay_s for job in jobs),
        "jct": ticks(job.jct_s for job in jobs),
        "ftf": [None if (ftf := fair.get(job.id)) is None else float(f"{ftf:.4g}") for job in jobs],
        "gpu_h": [float(f"{job.gpu_seconds(until_s) / 3600:.4g}") for job in jobs],
        "stall": ticks(sum(step.overhead_s + step.checkpoint_s for step in job.steps) for job in jobs),
        "preemptions": [job.preemptions for job in jobs],
        "rescales": [job.rescales for job in jobs],
        "moves": [job.moves for job in jobs],
        "restarts": [job.restarts for job in jobs],
        "held": _flat(jobs, held, tick_s, words),
    }


def _flat(
    jobs: Sequence[JobRecord], held: Sequence[Sequence[_Stretch]], tick_s: float, words: _Words
) -> list[float]:
    found: list[float] = []
    for job, own in zip(jobs, held, strict=True):
        found.append(len(own))
        before = round(job.submit_s / tick_s)
        for start_s, end_s, gpus, batch, stall_s in own:
            start, end = round(start_s / tick_s), round(end_s / tick_s)
            named = words.number("" if batch is None else str(batch))
            whole = int(gpus) if gpus == int(gpus) else round(gpus, 2)
            found += (start - before, end - start, whole, named, round(stall_s / tick_s))
            before = end
    return found


def stretches(jobs: Sequence[JobRecord], until_s: float, most: int) -> tuple[list[list[_Stretch]], float]:
    """What each job held, and the grain in seconds: 0 where every change is there.

    There are never fewer stretches than jobs that held anything, even if these are more than ``most``.
    """
    held = [_held(job, until_s) for job in jobs]
    grain_s, least = 0.0, sum(1 for own in held if own)
    while sum(map(len, held)) > max(most, least) and grain_s < until_s:
        grain_s = max(2 * grain_s, _FIRST_GRAIN * until_s)
        held = [_coarser(own, grain_s) for own in held]
    return held, grain_s


def _held(job: JobRecord, until_s: float) -> list[_Stretch]:
    """Joins what follows upon each other without a change that shows."""
    found: list[_Stretch] = []
    for start, end, step in job.held(until_s):
        new = _Stretch(start, end, step.counted_gpus, step.batch, step.overhead_s + step.checkpoint_s)
        last = found[-1] if found else None
        if last is not None and (last.end_s, *last[2:4], new.stall_s) == (start, *new[2:4], 0.0):
            found[-1] = last._replace(end_s=end)
        else:
            found.append(new)
    return found


def _coarser(own: Sequence[_Stretch], grain_s: float) -> list[_Stretch]:
    found: list[_Stretch] = []
    for new in own:
        last = found[-1] if found else None
        if last is not None and new.end_s - last.start_s <= grain_s:
            worked = last.gpus * (last.end_s - last.start_s) + new.gpus * (new.end_s - new.start_s)
            mean = worked / (new.end_s - last.start_s)
            batch = last.batch if last.batch == new.batch else None
            found[-1] = _Stretch(last.start_s, new.end_s, mean, batch, last.stall_s + new.stall_s)
        else:
            found.append(new)
    return found


_ARROWS: Final[Mapping[str | None, str]] = {"lower": "↓ lower", "higher": "↑ higher", None: ""}
_WORST: Final = 5
"""Jobs of a run that are named."""
_MOST_GROUPS: Final = 40
"""Users or teams of a run; the others are one row."""
_EPOCH_S: Final = 3e8
"""Submission times above this (1979) are seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _TableCell:
    """A value, and whether it is the best of its row."""

    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class _FigureRow:
    """One figure of every column."""

    title: str
    better: str
    cells: tuple[_TableCell, ...]


@dataclass(frozen=True, slots=True)
class _FigureTable:
    """Figures side by side: a column is a run, or several that differ in seed or trace only."""

    labels: tuple[str, ...]
    rows: tuple[_FigureRow, ...]


def _figure_table(table: Section) -> _FigureTable:
    """The table of a summary, its marks apart from its values."""
    directions = {figure.title: better(figure.name) for figure in FIGURES} | {"jobs finished": "higher"}
    rows = tuple(
        _FigureRow(
            title,
            _ARROWS[directions.get(title)],
            tuple(_TableCell(cell.removeprefix(BEST), cell.startswith(BEST)) for cell in cells),
        )
        for title, *cells in table.rows
    )
    return _FigureTable(table.headers[1:], rows)


def _fairness_section(report: Report) -> Section:
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


def _group_sections(report: Report) -> list[Section]:
    """Users and teams, each a table; none where jobs do not state them."""
    jobs = [job.job for each in report.runs for job in each.run.jobs]
    found = []
    if any(job.user for job in jobs):
        found.append(_group_section("Users", "user", report, lambda job: job.job.user))
    team = _team_label(jobs)
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


def _provenance_section(report: Report, command: str, version: str) -> Section:
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


def _notes(report: Report) -> list[tuple[str, Sequence[str]]]:
    """What must be known about each run."""
    return [(each.label, each.caveats) for each in report.runs if each.caveats]


def _explained(terms: Mapping[str, str]) -> dict[str, str]:
    """Terms of the page, a line each: those of its figures, then those of its other tables."""
    return {
        "↓ lower, ↑ higher": "the direction in which a figure is better; ★ marks the best of a row",
        "JCT": "job completion time: from submission to completion, of finished jobs",
        "FTF": "finish-time fairness: JCT divided by the JCT under fair sharing; above 1 is unfair",
        "stall": "time in which a job held GPUs without training: starts, rescales, checkpoints",
        "95 % interval": "holds the true value in 95 of 100 such comparisons",
        **terms,
    }


_TEMPLATES: Final = Path(__file__).parent / "templates"


def page(
    report: Report,
    sections: Sequence[Section] = (),
    *,
    shown: Shown = SHORT,
    command: str = "",
    profile: GivenProfile | None = None,
) -> str:
    """The whole page.

    :param sections: what was asked for beside the figures.
    :param command: the command that made it, to be shown.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    compared = report
    alone = len(groups(report, each_run=shown.each_run)) == len(report.runs) > 1
    if report.baseline is None and report.base_policy is None and alone:
        compared = against(report, report.runs[0])  # the first run is what the others stand beside
    short = summary(compared, replace(shown, all_rows=False, explain=False, verbose=False))
    full = summary(compared, replace(shown, all_rows=True, explain=True, verbose=True))
    profiled = [] if profile is None else [summary_section(profile, _hashes(report)), steps_section(profile)]
    profiled += step_time_sections(report)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html").render(
        title="Report: " + ", ".join(each.label for each in report.runs),
        sentences=short.answer.sentences,
        base=short.answer.base.label if short.answer.base is not None else "",
        warnings=report.warnings if shown.each_run else warnings_of(report),
        six=_figure_table(short.table),
        all_figures=_figure_table(full.table),
        of_means=[note for note in short.table.notes if note.startswith("means over")],
        marks=[_first_run(label, compared, shown) for label in short.table.headers[1:]],
        notes=_notes(report),
        compared=[section for section in (full.against, *sections) if section and section.rows],
        charts=charts(report),
        swatches=swatches(report),
        fairness=_fairness_section(report),
        groups=_group_sections(report),
        profiled=profiled,
        provenance=_provenance_section(report, command, __version__),
        terms=_explained(full.terms),
        jobs=sum(len(each.run.jobs) for each in report.runs),
        data=Markup(page_data(report)),  # noqa: S704 - it holds no "<"
    )


def _first_run(label: str, report: Report, shown: Shown) -> int:
    """The run whose mark stands for a column."""
    column = next(each for each in groups(report, each_run=shown.each_run) if each.label == label)
    return report.runs.index(column.runs[0])


def _hashes(report: Report) -> list[str | None]:
    return [each.run.info.profile_hash for each in report.runs]
