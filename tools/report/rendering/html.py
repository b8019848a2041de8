"""A report as one self-contained HTML page: tables, notes and inline figures, no scripts, nothing to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pliant.tools.report.rendering.sections import Section

_TEMPLATES: Final = Path(__file__).parent / "templates"


def as_html(sections: Sequence[Section], figures: Mapping[str, str], title: str) -> str:
    """The page; ``figures`` are ``<svg>`` elements by name."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html").render(sections=sections, figures=figures, title=title)
