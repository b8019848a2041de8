"""Numbers as people read them: one unit of time a table, few digits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NOTHING: Final = "–"
"""Stands where a figure does not apply."""


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time and its length in seconds."""

    name: str
    seconds: float

    def text(self, value_s: float | None) -> str:
        """A duration in this unit, without its name."""
        return NOTHING if value_s is None else number(value_s / self.seconds, 2)


SECONDS: Final = TimeUnit("s", 1.0)
MINUTES: Final = TimeUnit("min", 60.0)
HOURS: Final = TimeUnit("h", 3600.0)


def time_unit(values_s: Iterable[float | None]) -> TimeUnit:
    """The unit in which the largest of these durations reads best."""
    largest = max((value for value in values_s if value is not None), default=0.0)
    if largest < 10 * 60:
        return SECONDS
    return MINUTES if largest < 10 * 3600 else HOURS


def duration(value_s: float) -> str:
    """A single time with the unit in which it reads best."""
    unit = next((unit for unit in (HOURS, MINUTES) if value_s >= unit.seconds), SECONDS)
    return f"{value_s / unit.seconds:,.4g} {unit.name}"


def number(value: float | None, digits: int) -> str:
    """A number with thousands separated; no minus sign on zero."""
    if value is None:
        return NOTHING
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def ratio_text(value: float) -> str:
    """A ratio with two decimals, a small one with two digits that say something: 0.0042."""
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    return number(value, 2)


def p_text(p: float) -> str:
    """A p value: five decimals, or its power of ten where they would all be 0."""
    return f"{p:.5f}" if p >= 0.00001 or not p else f"{p:.1e}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, without the sign."""
    return NOTHING if value is None else number(100 * value, 1)
