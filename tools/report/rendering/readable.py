"""Numbers as people say them: ``2 h 14 min``, ``31.2 %``, three significant digits, the unit beside them."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from typing import Final

from pliant.schemas.text import wrapped
from pliant.tools.report.rendering.sections import NOTHING, Kind

_LEAST_S: Final = 1e-3
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_LINE: Final = 80
_GLUE: Final = "\ue000"
"""Stands for a blank at which no line ends: a no-break space would count as one between words."""


def readable(value: float | None, kind: Kind) -> str:
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


def readable_slack(value: float, kind: Kind) -> str:
    """Half of an interval in one unit and two digits: ``3.1 min``."""
    if kind != "time":
        text = two_digits(100 * value if kind == "percent" else value)
        return f"{text} {'%' if kind == 'percent' else kind}" if kind in ("percent", "ms") else text
    for name, seconds in (("h", _HOUR_S), ("min", _MINUTE_S)):
        if value >= seconds:
            return f"{two_digits(value / seconds)} {name}"
    return f"{two_digits(value)} s"


def three_digits(value: float) -> str:
    """Three significant digits, all digits before the point, thousands separated; zero is 0."""
    return _digits(value, 3)


def two_digits(value: float) -> str:
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
