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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import floor, inf, log10
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pliant import __version__
from pliant.schemas.file_io.events import UNSTATED
from pliant.schemas.metrics import RUN_METRICS, Reference
from pliant.tools.report.fairness import REFERENCES, Fairness
from pliant.tools.report.figures.plots import REFERENCE_NAMES
from pliant.tools.report.figures.style import area_colour
from pliant.tools.report.groups import groups
from pliant.tools.report.job_arrays import OUTCOMES, Floats, Jobs, known, largest, mean_known, optional
from pliant.tools.report.records import RunRecord, in_turn, kind, parameters_text
from pliant.tools.report.rendering.charts import charts, swatches
from pliant.tools.report.rendering.sections import (
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
"""Stretches of all runs together at most: about 2 MB."""
_TEAMS: Final = ("team", "account", "group", "project", "vc", "queue", "partition")
"""Labels of jobs that name a team; the first that any job states counts."""
_COLOURS: Final = 36
_FIRST_GRAIN: Final = 1 / 20_000
"""Part of the length of the run."""


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
    team = _team_label(report)
    for each in report.runs:
        key = each.run.info.trace_hash, each.run.work_hash, tuple(each.run.jobs.ids())
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


def _team_label(report: Report) -> str | None:
    """The label that names teams. Returns None if no job has one."""
    forms = (names for each in report.runs for names in each.run.jobs.by_form(lambda job: tuple(job.labels)))
    stated = {name for names in forms for name in names or ()}
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
        place = self._numbers.get(text)
        if place is None:
            place = self._numbers[text] = len(self.known)
            self.known.append(text)
        return place


def _trace(run: RunRecord, words: _Words, team: str | None) -> dict[str, Any]:
    """What the jobs of a trace are, whatever a policy did."""
    jobs = run.jobs
    data: dict[str, Any] = {
        "id": jobs.ids(),
        "model": [words.number(model) for model in jobs.texts(lambda job: job.model)],
        "asked": jobs.counts(lambda job: job.gpus.requested).tolist(),
    }
    users = jobs.texts(lambda job: job.user)
    if any(users):
        data["user"] = [words.number(user) for user in users]
    if team is not None and jobs.any_form(lambda job: team in job.labels):
        data["team"] = [words.number(name) for name in _teams(jobs, team)]
    return data


def _run(each: RunReport, report: Report, words: _Words, tick_s: float, most: int) -> dict[str, Any]:
    run, jobs, until_s = each.run, each.run.jobs, each.run.last_event_s
    held, grain_s = stretches(jobs, until_s, most)

    def ticks(values: Floats) -> list[int | None]:
        return [None if value is None else round(value / tick_s) for value in optional(values)]

    def digits(values: Floats) -> list[float | None]:
        return [None if value is None else float(f"{value:.4g}") for value in optional(values)]

    return {
        "label": each.label,
        "slots": "GPUs" if run.info.cluster.slots == "gpu" else "CPU slots",
        "gpus": max((gpus for _, gpus in run.capacity), default=0),
        "tick": tick_s,
        "end": round(until_s / tick_s),
        "grain": float(f"{grain_s:.3g}"),
        "outcome": [words.number(OUTCOMES[outcome]) for outcome in jobs.outcome.tolist()],
        "submit": ticks(jobs.submit_s),
        "wait": ticks(jobs.queueing_delay_s),
        "jct": ticks(jobs.jct_s),
        "ftf": digits(each.fair[report.reference].ftf),
        "gpu_h": digits(jobs.gpu_seconds(until_s) / 3600),
        "stall": ticks(jobs.stalled_s()),
        "preemptions": jobs.preemptions.tolist(),
        "rescales": jobs.rescales_until(inf).tolist(),
        "moves": jobs.moves.tolist(),
        "restarts": jobs.restarts.tolist(),
        "held": _flat(jobs, held, tick_s, words),
    }


def _flat(jobs: Jobs, held: Sequence[Sequence[_Stretch]], tick_s: float, words: _Words) -> list[float]:
    numbers: list[float] = []
    for submit_s, own in zip(jobs.submit_s.tolist(), held, strict=True):
        numbers.append(len(own))
        before = round(submit_s / tick_s)
        for start_s, end_s, gpus, batch, stall_s in own:
            start, end = round(start_s / tick_s), round(end_s / tick_s)
            named = words.number("" if batch is None else str(batch))
            whole = int(gpus) if gpus == int(gpus) else round(gpus, 2)
            numbers += (start - before, end - start, whole, named, round(stall_s / tick_s))
            before = end
    return numbers


def stretches(jobs: Jobs, until_s: float, most: int) -> tuple[list[list[_Stretch]], float]:
    """What each job held, and the grain in seconds: 0 where every change is there.

    There are never fewer stretches than jobs that held anything, even if these are more than ``most``.
    """
    held = _held(jobs, until_s)
    grain_s, least = 0.0, sum(1 for own in held if own)
    while sum(map(len, held)) > max(most, least) and grain_s < until_s:
        grain_s = max(2 * grain_s, _FIRST_GRAIN * until_s)
        held = [_coarser(own, grain_s) for own in held]
    return held, grain_s


def _held(jobs: Jobs, until_s: float) -> list[list[_Stretch]]:
    """Stretches of each job; those that follow each other without a change that shows are joined."""
    stretches: list[list[_Stretch]] = [[] for _ in range(len(jobs))]
    held, steps = jobs.held(until_s), jobs.steps
    for job, start_s, end_s, gpus, batch, stall_s in zip(
        held.job.tolist(),
        held.start_s.tolist(),
        held.end_s.tolist(),
        held.counted_gpus.tolist(),
        steps.batch[held.step].tolist(),
        steps.stalled_s[held.step].tolist(),
        strict=True,
    ):
        own = stretches[job]
        new = _Stretch(start_s, end_s, gpus, None if batch == UNSTATED else batch, stall_s)
        last = own[-1] if own else None
        if last is not None and (last.end_s, *last[2:4], new.stall_s) == (start_s, *new[2:4], 0.0):
            own[-1] = last._replace(end_s=end_s)
        else:
            own.append(new)
    return stretches


def _coarser(own: Sequence[_Stretch], grain_s: float) -> list[_Stretch]:
    merged: list[_Stretch] = []
    for new in own:
        last = merged[-1] if merged else None
        if last is not None and new.end_s - last.start_s <= grain_s:
            worked = last.gpus * (last.end_s - last.start_s) + new.gpus * (new.end_s - new.start_s)
            mean = worked / (new.end_s - last.start_s)
            batch = last.batch if last.batch == new.batch else None
            merged[-1] = _Stretch(last.start_s, new.end_s, mean, batch, last.stall_s + new.stall_s)
        else:
            merged.append(new)
    return merged


_ARROWS: Final[Mapping[str | None, str]] = {"lower": "↓ lower", "higher": "↑ higher", None: ""}
_WORST: Final = 5
"""Jobs of a run that are named."""
_MOST_GROUPS: Final = 40
"""Users or teams of a run; the others are one row."""
_LEAST_P: Final = 0.001
"""A smaller p value is not told exactly."""
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
    """Figures side by side: a column is a run, or several that differ in their seed only."""

    labels: tuple[str, ...]
    rows: tuple[_FigureRow, ...]


def _figure_table(table: Section) -> _FigureTable:
    """The table of a summary, its marks apart from its values."""
    directions = {metric.title: metric.better for metric in RUN_METRICS.values()}
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
            named = ", ".join(f"{job} {number(ftf, 2)}" for job, ftf in _worst_off(each, name)) or NOTHING
            rows.append(
                (each.label, REFERENCE_NAMES[name], *(number(ftf, 3) for ftf in figures), unfair, named)
            )
    headers = ("run", "against", "FTF, mean", "FTF, worst", "above 1, % of jobs", "worst-off jobs")
    notes = (
        "FTF: JCT divided by the JCT under fair sharing; below 1 is better than a fair share, 1 is as good",
    )
    return Section("Fairness", headers, tuple(rows), 2, notes)


def _worst_off(each: RunReport, name: Reference) -> list[tuple[str, float]]:
    """The jobs with the largest FTF, and these; among equal ones in order of their ids."""
    ftf = each.fair[name].ftf
    there = np.flatnonzero(~np.isnan(ftf))
    if len(there) > _WORST:
        there = there[ftf[there] >= np.sort(ftf[there])[-_WORST]]
    pairs = [(each.run.jobs.id(row), ftf.item(row)) for row in there.tolist()]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:_WORST]


def _group_sections(report: Report) -> list[Section]:
    """Users and teams, each a table; none where jobs do not state them."""
    result = []
    if any(each.run.jobs.any_form(lambda job: job.user) for each in report.runs):
        result.append(_group_section("Users", "user", report, lambda jobs: jobs.texts(lambda job: job.user)))
    team = _team_label(report)
    if team is not None:
        result.append(_group_section(f"Teams (label {team})", team, report, lambda jobs: _teams(jobs, team)))
    return result


def _teams(jobs: Jobs, label: str) -> list[str]:
    """The team of each job, which its label names; empty where it has none."""
    return jobs.label_texts(lambda job: job.labels.get(label, ""))


def _group_section(title: str, word: str, report: Report, key: Callable[[Jobs], list[str]]) -> Section:
    """:param key: gives the group of each job, empty where none is stated."""
    rows: list[tuple[str, ...]] = []
    for each in report.runs:
        groups: dict[str, list[int]] = {}
        for row, name in enumerate(key(each.run.jobs)):
            groups.setdefault(name or "not stated", []).append(row)
        gpu_s, waited_s = each.run.jobs.gpu_seconds(each.run.last_event_s), each.run.jobs.queueing_delay_s
        used = {name: in_turn(gpu_s[own]) for name, own in groups.items()}
        order = sorted(groups, key=lambda name: (-used[name], name))
        shown, rest = order[:_MOST_GROUPS], order[_MOST_GROUPS:]
        named = [(name, groups[name]) for name in shown]
        if rest:
            named.append((f"{len(rest)} others", [row for name in rest for row in groups[name]]))
        fair, total = each.fair[report.reference], in_turn(gpu_s)
        rows += [
            (name, each.label, *_group_cells(fair, own, gpu_s[own], waited_s[own], total))
            for name, own in named
        ]
    headers = (word, "run", "jobs", "finished", "JCT, mean", "waited, mean", "FTF, mean", "FTF, worst")
    notes = (f"ordered by GPU time; FTF against {REFERENCE_NAMES[report.reference]}, over finished jobs",)
    return Section(title, (*headers, "GPU hours", "% of all"), tuple(rows), 2, notes)


def _group_cells(
    fair: Fairness, own: Sequence[int], gpu_s: Floats, waited_s: Floats, total: float
) -> tuple[str, ...]:
    """:param own: rows of its jobs.
    :param gpu_s: GPU-seconds of each of these, as the time that it waited.
    :param total: GPU-seconds of all jobs.
    """
    jobs, ftf, used = fair.run.jobs, fair.ftf[own], in_turn(gpu_s)
    return (
        number(len(own), 0),
        number(len(known(jobs.jct_s[own])), 0),
        _span(mean_known(jobs.jct_s[own])),
        _span(mean_known(waited_s)),
        number(mean_known(ftf), 3),
        number(largest(ftf), 3),
        number(used / 3600, 2),
        percent(used / total if total else None),
    )


def _provenance_section(report: Report, command: str, version: str) -> Section:
    """A column a run; what a reader needs to do it again."""
    facts = [_facts(each) for each in report.runs]
    names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    rows = tuple((name, *(of_run.get(name, NOTHING) for of_run in facts)) for name in names)
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
    facts = {
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
    return {name: text for name, text in facts.items() if text}


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
    """A date and time; simulated traces mostly begin at 0 and have none."""
    if not _EPOCH_S < time_s < 32_503_680_000:
        return ""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(section: Section) -> Section:
    """A section without columns in which nothing is known, and with p values as people write them."""
    shown = [
        at
        for at, header in enumerate(section.headers)
        if at < section.text_columns or any(row[at] not in (NOTHING, "") for row in section.rows)
    ]
    is_p = [header.startswith("p, ") for header in section.headers]
    return replace(
        section,
        headers=tuple(section.headers[at] for at in shown),
        rows=tuple(tuple(_short_p(row[at]) if is_p[at] else row[at] for at in shown) for row in section.rows),
    )


def _short_p(text: str) -> str:
    """``0.012``, ``< 0.001``."""
    if text == NOTHING:
        return text
    return f"{float(text):.3f}" if float(text) >= _LEAST_P else f"< {_LEAST_P}"


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
        notes=full.caveats,
        compared=[_plain(section) for section in (full.against, *sections) if section and section.rows],
        charts=charts(report),
        swatches=swatches(report),
        fairness=_plain(_fairness_section(report)),
        groups=[_plain(section) for section in _group_sections(report)],
        profiled=[_plain(section) for section in profiled],
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
