"""The report as one HTML page that loads nothing: tables and charts that work without JavaScript, and on top
of them a chart of allocations to zoom into and a table of jobs to filter and sort.

The same report gives the same bytes. Whatever a file says is escaped: in the page by Jinja, in its data by
:mod:`pliant.tools.report.rendering.page_data`, and the script writes text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pliant.tools.report.groups import groups
from pliant.tools.report.rendering.charts import charts, swatches
from pliant.tools.report.rendering.page_data import page_data
from pliant.tools.report.rendering.page_tables import (
    explained,
    fairness_section,
    figure_table,
    group_sections,
    notes,
    provenance_section,
)
from pliant.tools.report.rendering.profile_table import (
    GivenProfile,
    step_time_sections,
    steps_section,
    summary_section,
)
from pliant.tools.report.rendering.sections import Section
from pliant.tools.report.rendering.summary import SHORT, Shown, summary
from pliant.tools.report.report import Report, against, warnings_of

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
        six=figure_table(short.table),
        all_figures=figure_table(full.table),
        of_means=[note for note in short.table.notes if note.startswith("means over")],
        marks=[_first_run(label, compared, shown) for label in short.table.headers[1:]],
        notes=notes(report),
        compared=[section for section in (full.against, *sections) if section and section.rows],
        charts=charts(report),
        swatches=swatches(report),
        fairness=fairness_section(report),
        groups=group_sections(report),
        profiled=profiled,
        provenance=provenance_section(report, command, version("pliant")),
        terms=explained(full.terms),
        jobs=sum(len(each.run.jobs) for each in report.runs),
        data=Markup(page_data(report)),  # noqa: S704 - it holds no "<"
    )


def _first_run(label: str, report: Report, shown: Shown) -> int:
    """The run whose mark stands for a column."""
    column = next(each for each in groups(report, each_run=shown.each_run) if each.label == label)
    return report.runs.index(column.runs[0])


def _hashes(report: Report) -> list[str | None]:
    return [each.run.info.profile_hash for each in report.runs]
