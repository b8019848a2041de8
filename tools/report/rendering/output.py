"""The product of ``pliant report`` in each of its formats. The metrics document holds all that was asked
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.documents import document_bytes
from pliant.schemas.metrics import (
    RUN_METRICS,
    CheckedFigure,
    FigureEstimate,
    JctDifference,
    JobFigures,
    Metrics,
    ReportedRun,
    RunGroup,
)
from pliant.tools.report.comparisons import ComparedJob, comparison_rows, comparison_section
from pliant.tools.report.expectations import expectations_section
from pliant.tools.report.groups import Group, MeanRatio, groups
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.sections import (
    GivenProfile,
    Section,
    guarantee_section,
    job_rows,
    jobs_section,
    ratios_to,
    step_time_sections,
    summary_section,
    team_sections,
)
from pliant.tools.report.rendering.summary import SHORT, Shown, answer, summary
from pliant.tools.report.rendering.text import (
    as_csv,
    as_markdown,
    as_table,
    long_rows,
    metrics_rows,
)
from pliant.tools.report.report import Report, RunReport, baseline_of, warnings_of

ReportFormat = Literal["table", "json", "csv", "csv-long", "md", "html"]
UNKNOWN_WIDTH: Final = 80
"""Columns of text that goes into a file or a pipe."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What is shown beside the metrics."""

    jobs: bool = False
    compared: tuple[ComparedJob, ...] = ()
    simulated: RunRecord | None = None
    """The simulated run of ``compared``."""
    checked: tuple[CheckedFigure, ...] = ()
    shown: Shown = SHORT
    """How much of the metrics is shown in text."""
    profile: GivenProfile | None = None
    command: str = ""
    """The command that makes the report; a page names it."""


NO_EXTRAS = Extras()


def render(report: Report, kind: ReportFormat, extras: Extras, *, width: int | None = None) -> str:
    """The report in one format; ``width`` is that of the terminal. Without one, text is 80 columns wide.

    :raises UsageError: the format has no place for what is asked.
    """
    if extras.profile is not None and kind in ("json", "csv", "csv-long"):
        raise UsageError(f"{kind} has no place for --profile: use --format table, md or html")
    if kind == "json":
        if extras.simulated is not None:
            raise UsageError("the metrics document has no place for --simulated: use --format csv")
        return document_bytes(document(report, extras), "metrics", with_defaults=True).decode()
    if kind == "csv":
        return as_csv(_csv_rows(report, extras))
    if kind == "csv-long":
        if extras.jobs or extras.simulated is not None:
            raise UsageError(
                "csv-long holds the figures of runs: give --jobs or --simulated with --format csv"
            )
        return as_csv(long_rows(report, each_run=extras.shown.each_run))
    if kind == "html":
        from pliant.tools.report.rendering.page import page

        sections = _asked_for(report, extras)
        return page(report, sections, shown=extras.shown, command=extras.command, profile=extras.profile)
    first = summary(report, extras.shown)
    against = [first.against] if first.against else []
    table = [first.table] if any(each.run.jobs for each in report.runs) else []
    sections = [*table, *against, *_beside(report, extras)]
    if kind == "md":
        said = "\n\n".join(first.answer.sentences)
        terms = "".join(f"- **{term}**: {meaning}\n" for term, meaning in first.terms.items())
        return f"{said}\n\n{as_markdown(sections)}" + (f"\n{terms}" if terms else "")
    width = width or UNKNOWN_WIDTH
    terms = f"\n{first.terms_text(width)}" if first.terms else ""
    return f"{first.text(width)}\n{as_table(sections, width)}{terms}"


def shows_expectations(kind: ReportFormat) -> bool:
    return kind in ("table", "md", "html")


def _beside(report: Report, extras: Extras) -> Sequence[Section]:
    """What is shown on demand, after the figures of the runs."""
    sections = team_sections(report)
    promised = guarantee_section(report)
    if report.reference == "gps" and promised.rows:
        sections.append(promised)
    if extras.checked:
        sections.append(expectations_section(extras.checked))
    if extras.simulated is not None:
        sections.append(comparison_section(extras.compared, extras.simulated))
    if extras.shown.all_rows:
        sections += step_time_sections(report)
    if extras.profile is not None:
        used = [each.run.info.profile_hash for each in report.runs]
        sections.append(summary_section(extras.profile, used))
    if extras.jobs:
        sections += [jobs_section(each) for each in report.runs if each.run.jobs]
    return sections


def _asked_for(report: Report, extras: Extras) -> Sequence[Section]:
    """Sections after the figures of a page, which has sections of its own for tests, jobs and the profile."""
    sections = [guarantee_section(report), *team_sections(report)]
    if extras.checked:
        sections.append(expectations_section(extras.checked))
    if extras.simulated is not None:
        sections.append(comparison_section(extras.compared, extras.simulated))
    return sections


def _csv_rows(report: Report, extras: Extras) -> list[dict[str, Any]]:
    if extras.jobs and extras.simulated is not None:
        raise UsageError("CSV holds one table: give either --jobs or --simulated")
    if extras.simulated is not None:
        return comparison_rows(extras.compared)
    if extras.jobs:
        return [row for each in report.runs for row in job_rows(each)]
    return metrics_rows(report)


def document(report: Report, extras: Extras = NO_EXTRAS) -> Metrics:
    columns = groups(report, each_run=extras.shown.each_run)
    said = answer(columns, report.reference, base_policy=report.base_policy)
    return Metrics(
        runs=tuple(_run(each, report, with_jobs=extras.jobs) for each in report.runs),
        baseline=report.base_policy if report.baseline is None else report.baseline.label,
        warnings=warnings_of(report),
        expectations=extras.checked or None,
        answer=said.sentences,
        groups=tuple(_group(*column) for column in zip(columns, said.differences, said.bases, strict=True)),
    )


def _group(each: Group, difference: MeanRatio | None, base: Group) -> RunGroup:
    estimates = {name: each.estimate(name) for name in RUN_METRICS}
    return RunGroup(
        name=each.label,
        runs=tuple(run.label for run in each.runs),
        figures={name: FigureEstimate(**asdict(known)) for name, known in estimates.items() if known},
        mean_jct=None if difference is None else JctDifference(of=base.label, **asdict(difference)),
    )


def _run(each: RunReport, report: Report, *, with_jobs: bool) -> ReportedRun:
    return ReportedRun(
        **dict(each.metrics),
        run=each.label,
        trace=each.run.info.trace,
        caveats=tuple(each.caveats),
        ratios=_ratios(each, report),
        paired=report.paired.get(each.label),
        jobs=_jobs(each) if with_jobs else None,
        step_times=each.step_times or None,
        teams=each.teams or None,
    )


def _ratios(each: RunReport, report: Report) -> dict[str, float] | None:
    base = baseline_of(report, each)
    return None if base is None else ratios_to(each.metrics, base.metrics)


def _jobs(each: RunReport) -> tuple[JobFigures, ...]:
    rows = ({name: value for name, value in row.items() if name != "run"} for row in job_rows(each))
    return tuple(JobFigures.model_validate(row, strict=False) for row in rows)
