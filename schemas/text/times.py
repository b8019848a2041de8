"""Times as people read them, and as programs do."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

EPOCH_LIKE_S: Final = 1e9
"""Times from this on (September 2001) are UTC seconds since the epoch; below, since the start of a trace."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_UNITS: Final = frozenset({"s", "min"})
"""Those of spans in one unit."""


def span_text(seconds: float) -> str:
    """A length of time in one unit or two: ``40 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    rounded = round(max(0.0, seconds))
    if rounded < _MINUTE_S:
        return f"{rounded} s"
    if rounded < _HOUR_S:
        return f"{round(rounded / _MINUTE_S)} min"
    if rounded < _DAY_S:
        return _two(rounded, _HOUR_S, "h", _MINUTE_S, "min")
    return _two(rounded, _DAY_S, "d", _HOUR_S, "h")


def between_text(first_s: float, last_s: float, now_s: float) -> str:
    """A time to come that is not known exactly: ``in 24 to 47 min``, ``in 50 min to 1 h 10 min``."""
    first, last = (span_text(max(0.0, at_s - now_s)) for at_s in (first_s, last_s))
    if first == last:
        return f"in {first}"
    number, _, unit = first.partition(" ")
    same = unit in _UNITS and last.partition(" ")[2] == unit
    return f"in {number if same else first} to {last}"


def when_text(at_s: float, now_s: float) -> str:
    """A time from now and by the clock: ``in 3 min (14:05)``, ``2 h ago (2026-03-01 23:50)``.

    :param at_s: UTC seconds since the epoch, or seconds since the start of a trace.
    :param now_s: the present on the same clock.
    """
    span = span_text(abs(at_s - now_s))
    relative = f"in {span}" if at_s > now_s else f"{span} ago"
    if abs(at_s - now_s) < 0.5:
        relative = "now"
    at = "at " if at_s < EPOCH_LIKE_S else ""
    return f"{relative} ({at}{clock_text(at_s, now_s)})"


def clock_text(at_s: float, now_s: float) -> str:
    """The local time of day, with the date where that is not today's; of a trace, its seconds."""
    if at_s < EPOCH_LIKE_S:
        return f"{at_s:,.0f} s"
    try:
        at, today = time.localtime(at_s), time.localtime(now_s)
    except (OverflowError, ValueError, OSError):
        return "far ahead"
    form = "%H:%M" if at[:3] == today[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, at)


def iso_time(at_s: float | None) -> str | None:
    """A UTC time as ISO 8601 with milliseconds; None where there is none, or none that a calendar has."""
    if at_s is None:
        return None
    try:
        found = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _two(seconds: int, large_s: int, large: str, small_s: int, small: str) -> str:
    smalls = round(seconds / small_s)
    whole, rest = divmod(smalls, large_s // small_s)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"
