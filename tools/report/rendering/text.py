"""Sections as text for a terminal, Markdown and CSV. Pure: data in, text out."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from pliant.schemas.metrics import PairedJcts
from pliant.tools.report.labels import parameters_text
from pliant.tools.report.rendering.blocks import drawn
from pliant.tools.report.rendering.markdown import markdown_table
from pliant.tools.report.rendering.sections import FIGURES, Section, ratio_to
from pliant.tools.report.report import Report


def as_table(sections: Sequence[Section], width: int | None = None) -> str:
    """Tables for a terminal of ``width`` columns; None: as wide as they need to be."""
    return "\n".join(drawn(section, width) for section in sections)


def as_markdown(sections: Sequence[Section]) -> str:
    """The tables in Markdown."""
    return "\n".join(_markdown(section) for section in sections)


def _markdown(section: Section) -> str:
    table = markdown_table(section.headers, section.rows, section.text_columns)
    notes = "".join(f"- {note}\n" for note in section.notes)
    return f"## {section.title}\n\n{table}\n" + (f"\n{notes}" if notes else "")


def metrics_rows(report: Report) -> list[dict[str, Any]]:
    """One row a run: its label, every figure, and the ratios to the baseline if there is one."""
    rows = []
    for each in report.runs:
        row = {"run": each.label, **each.metrics.model_dump(mode="json")}
        row["jobs_completed_at"] = " ".join(f"{at:g}={jobs}" for at, jobs in each.metrics.jobs_completed_at)
        row["parameters"] = " ".join(parameters_text(each.run))
        if report.baseline is not None:
            base = report.baseline.metrics
            row |= {f"{f.name}_ratio": ratio_to(each.metrics, base, f.name) for f in FIGURES}
            found = report.paired.get(each.label)
            row |= {f"paired_{name}": getattr(found, name, None) for name in PairedJcts.model_fields}
        rows.append(row)
    return rows


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as CSV with a header; null is empty, numbers keep all their digits."""
    text = StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
