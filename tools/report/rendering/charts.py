"""Charts of the HTML page as ``<svg>`` elements: light, without a library, in the colours of the page.

Lines have the colour, dashes and mark of their run, as in the figures for papers. Text is text, so that it
can be searched and read aloud; colours come from style sheets, so that a dark page has dark charts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

from markupsafe import Markup, escape

from pliant.tools.report.figures.plots import REFERENCE_NAMES, cumulated, jcts
from pliant.tools.report.figures.style import LineStyle, run_styles
from pliant.tools.report.job_arrays import known
from pliant.tools.report.metrics import completions
from pliant.tools.report.rendering.sections import TimeUnit, time_unit
from pliant.tools.report.report import Report

_WIDTH: Final = 440
_HEIGHT: Final = 270
_LEFT: Final = 46
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 42
_POINTS: Final = 300
"""Points of a line at most; more would not show."""
_MARKS: Final = 7
_WIDE: Final = 30
"""The axis is logarithmic where the largest value is more than this many times the median."""
_DASHES: Final = {"-": "", "--": "7 4", "-.": "9 3 2 3", ":": "2 3"}
_SHAPES: Final = {
    "o": "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0",
    "s": "m-3.4-3.4h6.8v6.8h-6.8z",
    "^": "m0-4.2l4.2 7.6h-8.4z",
    "v": "m0 4.2l4.2-7.6h-8.4z",
    "D": "m0-4.8l4.8 4.8l-4.8 4.8l-4.8-4.8z",
    "P": "m-1.4-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
    "<": "m-4.2 0l7.6-4.2v8.4z",
    "X": "m-3.4-3.4l6.8 6.8m0-6.8l-6.8 6.8",
}
"""Marks by Matplotlib's names, as paths around a point."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A step function of one run, x ascending."""

    label: str
    style: LineStyle
    points: Points


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, and in words what it shows."""

    name: str
    title: str
    better: str
    svg: Markup


def charts(report: Report) -> list[Chart]:
    """Those that would not be empty."""
    styles = run_styles(report.runs)
    all_charts = [
        _distribution("jct-cdf", "Job completion time", report, [jcts(each) for each in report.runs], styles),
        _distribution(
            "ftf-cdf",
            f"Finish-time fairness against {REFERENCE_NAMES[report.reference]}",
            report,
            [sorted(known(each.fair[report.reference].ftf)) for each in report.runs],
            styles,
            of_time=False,
        ),
        _completed(report, styles),
        _gpu_use(report, styles),
    ]
    return [chart for chart in all_charts if chart is not None]


def swatches(report: Report) -> list[tuple[str, Markup]]:
    """A legend: label and mark of each run."""
    legends = []
    for each, style in zip(report.runs, run_styles(report.runs), strict=True):
        line = f'<path class="line" d="M1 8H35" {_stroke(style)}/>{_mark(18, 8, style)}'
        svg = f'<svg viewBox="0 0 36 16" class="swatch" aria-hidden="true">{line}</svg>'
        legends.append((each.label, Markup(svg)))  # noqa: S704 - it holds no word of a file
    return legends


def _distribution(
    name: str,
    title: str,
    report: Report,
    values_by_run: Sequence[Sequence[float]],
    styles: Sequence[LineStyle],
    *,
    of_time: bool = True,
) -> Chart | None:
    if not any(values_by_run):
        return None
    unit = time_unit(value for values in values_by_run for value in values) if of_time else TimeUnit("", 1.0)
    lines = []
    for each, values, style in zip(report.runs, values_by_run, styles, strict=True):
        if values:
            x, y = cumulated(values)
            points = [(value / unit.seconds, share) for value, share in zip(x, y, strict=True)]
            lines.append(Line(each.label, style, points))
    ordered = sorted(value / unit.seconds for values in values_by_run for value in values)
    log = ordered[0] > 0 and ordered[-1] > _WIDE * ordered[len(ordered) // 2]
    low, high = (ordered[0], ordered[-1]) if log else (0.0, ordered[-1])
    label = f"JCT, {unit.name}" if of_time else "FTF = JCT / JCT under fair sharing"
    words = f"{title}: share of finished jobs at or below each value"
    svg = _svg(words, lines, (low, high), 1.0, label, shares=True, log=log)
    return Chart(name, title, "further left is better", svg)


def _completed(report: Report, styles: Sequence[LineStyle]) -> Chart | None:
    ends_by_run = [completions(each.run) for each in report.runs]
    if not any(ends_by_run):
        return None
    end_s = max(each.run.last_event_s for each in report.runs)
    unit = time_unit([end_s])
    lines = []
    for each, ends, style in zip(report.runs, ends_by_run, styles, strict=True):
        points = [(0.0, 0.0), *((end / unit.seconds, float(at)) for at, end in enumerate(ends, 1))]
        points.append((each.run.last_event_s / unit.seconds, float(len(ends))))
        lines.append(Line(each.label, style, points))
    svg = _svg(
        "Finished jobs over time",
        lines,
        (0.0, end_s / unit.seconds),
        float(max(map(len, ends_by_run))),
        f"time since the first submission, {unit.name}",
    )
    return Chart("completed", "Jobs completed", "higher is better", svg)


def _gpu_use(report: Report, styles: Sequence[LineStyle]) -> Chart | None:
    end_s = max(each.run.last_event_s for each in report.runs)
    if end_s <= 0:
        return None
    unit = time_unit([end_s])
    lines = []
    for each, style in zip(report.runs, styles, strict=True):
        pairs = zip(each.usage.times_s.tolist(), each.usage.held.tolist(), strict=True)
        steps = [(time / unit.seconds, float(held)) for time, held in pairs]
        lines.append(Line(each.label, style, _mean_steps(steps)))
    most = max(max(each.usage.available.tolist(), default=0) for each in report.runs)
    high = max([float(most), *(y for line in lines for _, y in line.points)])
    slots = "GPUs" if report.runs[0].run.info.cluster.slots == "gpu" else "CPU slots"
    label = f"time since the first submission, {unit.name}"
    svg = _svg(f"{slots} held over time, of {most}", lines, (0.0, end_s / unit.seconds), high, label)
    return Chart("gpu-use", f"{slots} held", "higher while jobs wait is better", svg)


def _mean_steps(points: Points) -> Points:
    """Means over equal intervals of a step function that has too many steps to show."""
    if len(points) <= _POINTS or points[-1][0] <= points[0][0]:
        return points
    start, end = points[0][0], points[-1][0]
    width = (end - start) / _POINTS
    area = [0.0] * (_POINTS + 1)
    for (left, value), (right, _) in pairwise(points):
        at = left
        while at < right:
            index = min(_POINTS - 1, int((at - start) / width))
            until = right if index == _POINTS - 1 else min(right, start + (index + 1) * width)
            if until <= at:
                index, until = index + 1, min(right, start + (index + 2) * width)
            area[index] += value * (until - at)
            at = until
    return [*((start + index * width, area[index] / width) for index in range(_POINTS)), (end, points[-1][1])]


def _svg(
    words: str,
    lines: Sequence[Line],
    across: tuple[float, float],
    high: float,
    label: str,
    *,
    shares: bool = False,
    log: bool = False,
) -> Markup:
    """An ``<svg>`` element of lines over two axes; the y axis starts at 0.

    :param shares: of the y axis, from 0 to 1, in percent.
    """
    scale = _Scale(across, high, log=log)
    described = escape(_described(words, lines))
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{described}">']
    for value in _ticks(high, 5):
        y = scale.y(value)
        text = f"{value:.0%}" if shares else _plain(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{text}</text>')
    for value in _log_ticks(*across) if log else _ticks(across[1], 6):
        x = scale.x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" class="middle">{_plain(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" class="middle">{escape(label)}</text>')
    for line in lines:
        parts += _drawn(line, scale)
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 - all text in it is escaped


class _Scale:
    """From values to places in the chart."""

    def __init__(self, across: tuple[float, float], high: float, *, log: bool) -> None:
        self._log = log
        self._low, top = (log10(across[0]), log10(across[1])) if log else across
        self._span = (top - self._low) or 1.0
        self._high = high or 1.0

    def x(self, value: float) -> float:
        at = (log10(value) if self._log else value) - self._low
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / self._span

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / self._high


def _drawn(line: Line, scale: _Scale) -> Iterator[str]:
    points = _thinned(line.points)
    (x0, y0), *rest = [(round(scale.x(x), 1), round(scale.y(y), 1)) for x, y in points]
    steps = [f"M{x0:g} {y0:g}"]
    x_before, y_before = x0, y0
    for x, y in rest:
        steps.append((f"H{x:g}" if x != x_before else "") + (f"V{y:g}" if y != y_before else ""))
        x_before, y_before = x, y
    title = f"<title>{escape(line.label)}</title>"
    yield f'<path class="line" d="{"".join(steps)}" {_stroke(line.style)}>{title}</path>'
    ends = [x for x, _ in rest] or [x0]
    for mark in range(1, _MARKS):
        x = x0 + (ends[-1] - x0) * (mark - line.style.phase) / _MARKS
        at = max(0, bisect_right(ends, x) - 1)
        yield _mark(x, rest[at][1] if rest and x >= ends[0] else y0, line.style)


def _thinned(points: Points) -> Points:
    """At most :data:`_POINTS` of a rising line, the first and the last among them."""
    if len(points) <= _POINTS + 1:
        return points
    step = (len(points) - 1) / _POINTS
    return [points[round(index * step)] for index in range(_POINTS + 1)]


def _stroke(style: LineStyle) -> str:
    dashes = _DASHES[style.dashes]
    return f'style="--c:{style.colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def _mark(x: float, y: float, style: LineStyle) -> str:
    """The mark of Matplotlib's name as a path around (x, y)."""
    return f'<path class="mark" d="M{x:.1f} {y:.1f}{_SHAPES[style.mark]}" style="--c:{style.colour}"/>'


def _described(words: str, lines: Sequence[Line]) -> str:
    """The chart in words: of each run, where half of its height is reached."""
    texts = []
    for line in lines:
        top = line.points[-1][1]
        half = next((x for x, y in line.points if y >= top / 2), 0.0)
        texts.append(f"{line.label}: half at {half:.4g}, ends at {line.points[-1][0]:.4g}")
    return f"{words}. {'; '.join(texts)}"


def _ticks(high: float, most: int) -> list[float]:
    """Round values from 0 on, at most ``most`` + 1 of them."""
    if high <= 0:
        return [0.0]
    power = 10.0 ** floor(log10(high / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if high / (power * factor) <= most)
    return [index * step for index in range(floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    factors = (1, 2, 5) if high / low < 200 else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low <= value <= high]


def _plain(value: float) -> str:
    return f"{value:,.6g}"
