"""Sections as text: tables for a terminal, Markdown and CSV; numbers as people say them. Data in, text out.

A table that is too wide for its terminal comes in blocks of columns. Tables of rich are not used: they cut
numbers on a narrow terminal, and have no blocks. The docs and the pages of experiments use the Markdown.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import zip_longest
from math import floor, log10
from textwrap import wrap
from typing import Any, Final

from pliant.schemas.metrics import RUN_METRICS, RUN_ROWS, Kind, PairedJcts
from pliant.schemas.text import narrowest, one_line, width_of, wrapped
from pliant.tools.report.groups import groups
from pliant.tools.report.records import parameters_text
from pliant.tools.report.rendering.sections import NOTHING, Section, ratios_to
from pliant.tools.report.report import Report, baseline_of

_GAP: Final = "   "
_MARGIN: Final = " "
_NARROW_WORDS: Final = 8
"""Columns of words are narrower only where numbers would be broken otherwise."""
_PROSE_WIDTH: Final = 100
_VERBATIM: Final = re.compile(r"```| {4}|\||#|<|!\[|\s*$")
"""Beginnings of lines of code, tables, headings, comments and figures, and blank lines."""
_ITEM: Final = re.compile(r" *(?:[*-]|\d+\.) ")
_PARAMETER: Final = re.compile(r"\w+: ")


def as_table(sections: Sequence[Section], width: int | None = None) -> str:
    """``width``: columns of the terminal, if there is one."""
    return "\n".join(drawn(section, width) for section in sections)


def as_markdown(sections: Sequence[Section]) -> str:
    return "\n".join(_markdown(section) for section in sections)


def _markdown(section: Section) -> str:
    table = markdown_table(section.headers, section.rows, section.text_columns)
    notes = "".join(f"- {note}\n" for note in section.notes)
    return f"## {section.title}\n\n{table}\n" + (f"\n{notes}" if notes else "")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as CSV with a header; null is empty, numbers keep all their digits."""
    text = StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def metrics_rows(report: Report) -> list[dict[str, Any]]:
    """One row a run: its label, every figure, and the ratios to the baseline if there is one."""
    rows = []
    for each in report.runs:
        row = {"run": each.label, **each.metrics.model_dump(mode="json")}
        row["jobs_completed_at"] = " ".join(f"{at:g}={jobs}" for at, jobs in each.metrics.jobs_completed_at)
        row["parameters"] = " ".join(parameters_text(each.run))
        if report.baseline is not None or report.base_policy is not None:
            base = baseline_of(report, each)
            ratios = {} if base is None else ratios_to(each.metrics, base.metrics)
            row |= {f"{name}_ratio": ratios.get(name) for name in RUN_ROWS}
        if report.baseline is not None:
            paired = report.paired.get(each.label)
            row |= {f"paired_{name}": getattr(paired, name, None) for name in PairedJcts.model_fields}
        rows.append(row)
    return rows


def long_rows(report: Report, *, each_run: bool = False) -> list[dict[str, Any]]:
    """One row for each run and figure that any run has; a figure that a run lacks is empty."""
    columns = groups(report, each_run=each_run)
    of_runs = {each.label: group.label for group in columns for each in group.runs}
    known = [
        name for name in RUN_METRICS if any(getattr(each.metrics, name) is not None for each in report.runs)
    ]
    return [
        {
            "run": each.label,
            "group": of_runs[each.label],
            "policy": each.metrics.policy,
            "trace": each.run.info.trace,
            "trace_hash": each.metrics.trace_hash,
            "seed": each.metrics.seed,
            "parameters": " ".join(parameters_text(each.run)),
            "simulated": each.metrics.simulated,
            "metric": name,
            "value": getattr(each.metrics, name),
        }
        for each in report.runs
        for name in known
    ]


def drawn(section: Section, width: int | None = None) -> str:
    """A titled table and its notes.

    Headers and words are broken between words where a block is too wide for ``width``; numbers stay whole.
    """
    shown = replace(
        section,
        headers=tuple(map(one_line, section.headers)),
        rows=tuple(tuple(map(one_line, row)) for row in section.rows),
    )
    blocks = [range(len(shown.headers))] if width is None else _blocks(shown, width)
    parts = [_lines(shown, list(block), width) for block in blocks]
    lines = [section.title, ""] if width is None else [*wrapped(section.title, width), ""]
    for part in parts:
        lines += [*part, ""]
    for note in section.notes:
        broken = [note] if width is None else wrapped(note, width - 2, indent="  ")
        lines += [f"  {line}" for line in broken]
    return "".join(f"{line.rstrip()}\n" for line in "\n".join(lines).rstrip().splitlines())


def _blocks(section: Section, width: int) -> list[list[int]]:
    """Columns that fit beside each other, the first ``keys`` of them in every block."""
    keys, others = range(section.keys), range(section.keys, len(section.headers))
    if _total([_natural(section, at) for at in range(len(section.headers))]) <= width:
        return [[*keys, *others]]
    blocks: list[list[int]] = []
    for at in others:
        if blocks and _total([_key_width(section, each, width) for each in [*blocks[-1], at]]) <= width:
            blocks[-1].append(at)
        else:
            blocks.append([*keys, at])
    return blocks or [[*keys]]


def _lines(section: Section, columns: Sequence[int], width: int | None) -> list[str]:
    widths = [_natural(section, at) for at in columns]
    if width is not None and _total(widths) > width:
        widths = _narrowed(section, columns, width)
    table = [section.headers, *section.rows]
    lines: list[str] = []
    for number, row in enumerate(table):
        cells = [
            [row[at]] if width_of(row[at]) <= room else wrapped(row[at], room)
            for at, room in zip(columns, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            placed = [
                _placed(text, room, right=at >= section.text_columns)
                for text, at, room in zip(parts, columns, widths, strict=True)
            ]
            lines.append(_MARGIN + _GAP.join(placed))
        if number == 0:
            lines.append(_MARGIN + "─" * (_total(widths) - len(_MARGIN)))
    return lines


def _narrowed(section: Section, columns: Sequence[int], width: int) -> list[int]:
    """Widths that fit: words are broken into lines first, then the headers of numbers, never a number."""
    widths = [_key_width(section, at, width) for at in columns]
    last = [_least(section, at) for at in columns]
    first = [
        max(_NARROW_WORDS, least) if at < section.text_columns else have
        for at, have, least in zip(columns, widths, last, strict=True)
    ]
    for floors in (first, last):
        while (excess := _total(widths) - width) > 0:
            room = [have - floor for have, floor in zip(widths, floors, strict=True)]
            widest = max(range(len(room)), key=room.__getitem__)
            if room[widest] <= 0:
                break
            widths[widest] -= min(excess, room[widest])
    return widths


def _least(section: Section, at: int) -> int:
    """The least width of a column without breaking a number."""
    words = [section.headers[at], *(row[at] for row in section.rows if at < section.text_columns)]
    numbers = [row[at] for row in section.rows if at >= section.text_columns]
    return max(1, *map(narrowest, words), *map(width_of, numbers))


def _natural(section: Section, at: int) -> int:
    return max(width_of(row[at]) for row in [section.headers, *section.rows])


def _key_width(section: Section, at: int, width: int) -> int:
    """The least width of a column without breaking a word or a cell; half of the terminal for words."""
    header = max(map(width_of, section.headers[at].split()), default=0)
    widest = max([header, *(width_of(row[at]) for row in section.rows)])
    return min(widest, width // 2) if at < section.text_columns else widest


def _total(widths: Sequence[int]) -> int:
    return len(_MARGIN) + sum(widths) + len(_GAP) * (len(widths) - 1)


def _placed(text: str, width: int, *, right: bool) -> str:
    blank = " " * max(0, width - width_of(text))
    return blank + text if right else text + blank


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table, without a last line end; the first columns are words, the others numbers."""
    rule = ["---" if index < text_columns else "---:" for index in range(len(headers))]
    cells = ([cell.replace("|", r"\|") for cell in row] for row in (headers, rule, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def wrapped_prose(text: str) -> str:
    """Wrap each paragraph, item and parameter that has a line over 100 characters."""
    lines: list[str] = []
    unit: list[str] = []
    is_code = False
    for line in text.split("\n"):
        is_code ^= line.startswith("```")
        is_verbatim = is_code or _VERBATIM.match(line)
        if is_verbatim or _ITEM.match(line) or _PARAMETER.match(line):
            lines += _wrapped(unit)
            unit = []
        (lines if is_verbatim else unit).append(line)
    return "\n".join([*lines, *_wrapped(unit)])


def _wrapped(unit: Sequence[str]) -> Sequence[str]:
    if max(map(len, unit), default=0) <= _PROSE_WIDTH:
        return unit
    item = _ITEM.match(unit[0])
    joined = " ".join([unit[0].rstrip(), *(line.strip() for line in unit[1:])])
    indent = " " * len(item[0]) if item else ""
    return wrap(
        joined, _PROSE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


_LEAST_S: Final = 1e-3
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_LINE: Final = 80
_GLUE: Final = "\ue000"
"""Character for a blank at which no line ends: a no-break space would count as one between words."""


def readable(value: float | None, kind: Kind | None) -> str:
    """A figure with its unit."""
    if value is None:
        return NOTHING
    match kind:
        case "time":
            return span(value)
        case "percent":
            return f"{three_digits(100 * value)} %"
        case "ms":
            return f"{three_digits(value)} ms"
        case "count" if value == round(value):
            return f"{value:,.0f}"
    return three_digits(value)


def readable_slack(value: float, kind: Kind | None) -> str:
    """Half of an interval in one unit and two digits: ``3.1 min``."""
    if kind != "time":
        text = _two_digits(100 * value if kind == "percent" else value)
        return f"{text} {'%' if kind == 'percent' else kind}" if kind in ("percent", "ms") else text
    for name, seconds in (("h", _HOUR_S), ("min", _MINUTE_S)):
        if value >= seconds:
            return f"{_two_digits(value / seconds)} {name}"
    return f"{_two_digits(value)} s"


def three_digits(value: float) -> str:
    """Three significant digits, all digits before the point, thousands separated; zero is 0."""
    return _digits(value, 3)


def _two_digits(value: float) -> str:
    return _digits(value, 2)


def _digits(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    # the power of ten after rounding: 99.96 has three digits as 100, not as 100.0
    power = floor(log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{value:,.{max(0, digits - 1 - power)}f}"


def span(seconds: float) -> str:
    """A length of time with three digits, in one unit or two: ``3.42 s``, ``9 min 5 s``, ``27 h 14 min``.

    A negative one has a minus sign: it is early by so much.
    """
    if seconds < 0:
        text = span(-seconds)
        return text if text == span(0) else f"−{text}"
    if seconds < _LEAST_S:
        return "0 s"
    if seconds < _MINUTE_S and float(three_digits(seconds)) < _MINUTE_S:
        return f"{three_digits(seconds)} s"
    if round(seconds) < _HOUR_S:
        return _two(seconds, _MINUTE_S, "min", 1, "s")
    if round(seconds / _MINUTE_S) < 100 * 60:
        return _two(seconds, _HOUR_S, "h", _MINUTE_S, "min")
    if round(seconds / _HOUR_S) < 1000:
        return f"{round(seconds / _HOUR_S)} h"
    if round(seconds / _HOUR_S) < 100 * 24:
        return _two(seconds, _DAY_S, "d", _HOUR_S, "h")
    return f"{round(seconds / _DAY_S):,} d"


def _two(seconds: float, large_s: int, large: str, small_s: int, small: str) -> str:
    whole, rest = divmod(round(seconds / small_s), large_s // small_s)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def percents(*fractions: float) -> list[str]:
    """Percentages, all with as many decimals as the smallest of them needs; without signs."""
    values = [100 * abs(each) for each in fractions]
    digits = 0 if min(values) >= 9.5 or max(values) >= 95 else 1 if max(values) >= 0.95 else 2
    return [f"{value:,.{digits}f}" for value in values]


def paragraph(text: str, width: int | None = None) -> str:
    """Prose in lines, with a line end; no line begins with a percent sign."""
    lines = wrapped(text.replace(" %", f"{_GLUE}%"), width or _LINE)
    return "".join(f"{line.replace(_GLUE, ' ')}\n" for line in lines)


def terms_text(words: Mapping[str, str], width: int | None = None) -> str:
    """Terms and what they mean, a line each."""
    lines = (f"{term}: {meaning}" for term, meaning in words.items())
    return "".join(
        f"  {line}\n" for each in lines for line in wrapped(each, (width or _LINE) - 2, indent="  ")
    )
