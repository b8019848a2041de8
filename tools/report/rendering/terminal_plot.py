"""The JCT distribution as characters, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pliant.schemas.text import width_of, wrapped
from pliant.tools.report.figures.curves import cumulated, jcts
from pliant.tools.report.rendering.sections import time_unit
from pliant.tools.report.report import Report

_MARKERS: Final = ("●", "+", "x", "o", "*", "#")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_HEIGHT: Final = 16
_INDENT: Final = "     "


def jct_plot(report: Report, width: int) -> str:
    """Share of finished jobs by JCT, ``width`` characters wide; empty if nothing finished."""
    import plotext

    found = [(each.label, jcts(each)) for each in report.runs]
    if not any(values for _, values in found):
        return ""
    unit = time_unit(value for _, values in found for value in values)
    figure = plotext.figure.clear()
    figure.plot_size(width, _HEIGHT)
    figure.theme("colorless")
    figure.title("share of finished jobs by JCT").label(f"JCT, {unit.name}")
    figure.ruler("x").lim(0, max(value for _, values in found for value in values) / unit.seconds)
    figure.ruler("y").lim(0, 1)
    for index, (_, values) in enumerate(found):
        if values:
            x, y = _corners([value / unit.seconds for value in values])
            figure.draw(figure.signal(x, y, marker=_MARKERS[index % len(_MARKERS)]).lines())
    drawn = _ESCAPES.sub("", str(figure.build()))
    figure.clear()
    names = (f"{_MARKERS[index % len(_MARKERS)]} {label}" for index, (label, _) in enumerate(found))
    return "\n".join([*(line.rstrip() for line in drawn.splitlines()), *_legend(names, width)])


def _legend(names: Iterable[str], width: int) -> list[str]:
    """Names beside each other as far as they fit, a longer one on several lines."""
    lines: list[str] = []
    for name in names:
        joined = f"{lines[-1]}   {name}" if lines else ""
        if lines and width_of(joined) <= width:
            lines[-1] = joined
        else:
            lines += [f"{_INDENT}{line}" for line in wrapped(name, width - len(_INDENT), indent="  ")]
    return lines


def _corners(values: list[float]) -> tuple[list[float], list[float]]:
    """The distribution with the corners of its steps written out."""
    x, y = cumulated(values)
    return [each for each in x for _ in range(2)][1:], [each for each in y for _ in range(2)][:-1]
