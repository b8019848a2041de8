"""Fields of rows as numbers, times and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pliant.tools.replay.importers.rows import MalformedRowError, Record

NOTHING: Final = frozenset({"", "none", "null", "nan", "n/a", "unknown"})
"""How traces write a missing value, in lower case."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE: Final = datetime(1970, 1, 1)


def text(row: Record, name: str) -> str:
    """A field without the blanks around it; empty where nothing is stated."""
    value = str(row.values[name]).strip()
    return "" if value.lower() in NOTHING else value


def word(row: Record, name: str) -> str:
    """A field that has to say something."""
    found = text(row, name)
    if not found:
        raise MalformedRowError(name, "is empty, expected some text")
    return found


def number(row: Record, name: str) -> float:
    """A finite number, 0 or more."""
    value = optional_number(row, name)
    if value is None:
        raise MalformedRowError(name, "is empty, expected a number")
    return value


def optional_number(row: Record, name: str) -> float | None:
    """A finite number, 0 or more; None where nothing is stated."""
    found = text(row, name)
    return parse_number(found, name) if found else None


def parse_number(found: str, name: str) -> float:
    """A finite number, 0 or more, of a text."""
    try:
        value = float(found.replace("_", "?"))  # Python reads 1_000 as a number, traces do not write it
    except ValueError:
        raise MalformedRowError(name, f"{found!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise MalformedRowError(name, f"{found!r}, expected a finite number, 0 or more")
    return value


def count(row: Record, name: str) -> int:
    """A whole number, 0 or more; ``20.0`` is one."""
    value = number(row, name)
    if value != int(value):
        raise MalformedRowError(name, f"{row.values[name]!r} is not a whole number")
    return int(value)


def some(row: Record, name: str) -> int:
    """A whole number, 1 or more."""
    value = count(row, name)
    if not value:
        raise MalformedRowError(name, "is 0, expected 1 or more")
    return value


def moment(row: Record, name: str) -> float | None:
    """Seconds since 1970, times without a zone taken as UTC; None where nothing is stated."""
    return parse_moment(row.values[name], name)


def submitted(row: Record, name: str) -> float:
    """A time that has to be there."""
    found = moment(row, name)
    if found is None:
        raise MalformedRowError(name, "is empty, expected a time")
    return found


def parse_moment(value: object, name: str) -> float | None:
    """A date and time, or seconds since 1970, as seconds since 1970; None for nothing."""
    found = "" if value is None else str(value).strip()
    if found.lower() in NOTHING:
        return None
    if found[0].isdecimal() and found.replace(".", "", 1).isdecimal():
        return parse_number(found, name)
    try:
        stamp = datetime.fromisoformat(found)
    except ValueError:
        raise MalformedRowError(name, f"{found!r}, expected a time like 2017-10-09 07:01:55") from None
    origin = _EPOCH_NAIVE if stamp.tzinfo is None else _EPOCH
    return (stamp - origin).total_seconds()


def stated(labels: Mapping[str, Any]) -> dict[str, str]:
    """Labels as text, without those that say nothing."""
    found = {name: "" if value is None else str(value) for name, value in labels.items()}
    return {name: value for name, value in found.items() if value.lower() not in NOTHING}
