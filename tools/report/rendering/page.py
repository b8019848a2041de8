"""The report as one HTML page that loads nothing: tables and charts that work without JavaScript, and on top
of them a chart of allocations to zoom into and a table of jobs to filter and sort.

The same report gives the same bytes. Whatever a file says is escaped: in the page by Jinja, in its data by
:mod:`pliant.tools.report.rendering.page_data`, and the script writes text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pliant.tools.report.headline import headline
from pliant.tools.report.rendering.charts import charts, swatches
from pliant.tools.report.rendering.page_data import page_data
from pliant.tools.report.rendering.page_tables import (
    change_section,
    completed_rows,
    explained,
    fairness_section,
    figure_rows,
    finished_row,
    group_sections,
    notes,
    provenance_section,
)
from pliant.tools.report.rendering.profile_table import GivenProfile, steps_section, summary_section
from pliant.tools.report.rendering.sections import Section
from pliant.tools.report.report import Report, against

_TEMPLATES: Final = Path(__file__).parent / "templates"


def page(
    report: Report,
    sections: Sequence[Section] = (),
    *,
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
    if report.baseline is None and len(report.runs) > 1:
        compared = against(report, report.runs[0])  # the first run is what the others stand beside
    head = headline(compared)
    changes = change_section(compared)
    profiled = [] if profile is None else [summary_section(profile, _hashes(report)), steps_section(profile)]
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
        sentence=head.sentence,
        warnings=report.warnings,
        labels=[each.label for each in report.runs],
        six=figure_rows(compared, head.figures),
        all_rows=[finished_row(report), *completed_rows(report), *figure_rows(compared)],
        base=compared.baseline.label if compared.baseline is not None and len(report.runs) > 1 else "",
        notes=notes(report),
        compared=[section for section in (changes, *sections) if section.rows],
        charts=charts(report),
        swatches=swatches(report),
        fairness=fairness_section(report),
        groups=group_sections(report),
        profiled=profiled,
        provenance=provenance_section(report, command, version("pliant")),
        terms=explained([each.metrics for each in report.runs]),
        jobs=sum(len(each.run.jobs) for each in report.runs),
        data=Markup(page_data(report)),  # noqa: S704 - it holds no "<"
    )


def _hashes(report: Report) -> list[str | None]:
    return [each.run.info.profile_hash for each in report.runs]
