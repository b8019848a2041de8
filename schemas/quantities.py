"""Lengths of time, sizes and dates as people type them: ``5m``, ``64GiB``, ``2026-03-01T08:30``.

The command line, parameters of policies and recipes of sweeps read them here. A plain number is in the unit
that the option states: seconds, hours or bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

Unit = Literal["s", "h"]

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|min|[smhdw])", re.ASCII)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([kmgtp])(?:(i)b?|b)", re.ASCII | re.IGNORECASE)
_PREFIXES: Final = "kmgtp"
_OF_SLURM: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", re.ASCII)
"""Days, hours, minutes and seconds of ``sbatch --time``."""
_UNITS: Final[dict[Unit, str]] = {"s": "seconds", "h": "hours"}
_OF_DAY: Final = re.compile(r"\d\d:\d\d(:\d\d)?", re.ASCII)

AHEAD: Final = "seconds from now, a time like +2h, a time of day like 22:00, or a date like 2026-03-01T08:30"
TIME: Final = "seconds, or a date like 2026-03-01 or 2026-03-01T08:30"
SIZE: Final = "bytes, or a size like 64GB or 64GiB"


def duration_words(unit: Unit = "s") -> str:
    """What :func:`read_duration` accepts."""
    return f"{_UNITS[unit]}, or a time like 30s, 5m, 2h or 1d"


def read_duration(text: str, unit: Unit = "s") -> float:
    """A length of time in ``unit``: a plain number, or ``30s``, ``5m``, ``2h``, ``1d``, ``1h30m``; or as
    Slurm has them ``1:30:00``, ``2-00:00:00``.

    :raises ValueError: it is something else, negative or infinite.
    """
    typed = text.strip().lower()
    number = _number(typed)
    if clock := _OF_SLURM.fullmatch(typed):
        typed = "{}d{}h{}m{}s".format(*(part or "0" for part in clock.groups()))
    if number is None and _PART.sub("", typed) == "" and typed:
        seconds = sum(float(count) * _SECONDS[name] for count, name in _PART.findall(typed))
        number = seconds / _SECONDS[unit]
    if number is None or not (isfinite(number) and number >= 0):
        raise ValueError(f"expected {duration_words(unit)}")
    return number


def read_size(text: str) -> int:
    """Bytes: a whole number, or with a unit: ``64GB`` (powers of 1000), ``64GiB`` or ``64Gi`` (powers of
    1024).

    :raises ValueError: it is something else.
    """
    typed = text.strip()
    if typed.isascii() and typed.isdigit() and len(typed) <= 18:
        return int(typed)
    match = _SIZE.fullmatch(typed.replace(" ", ""))
    if match is None or len(match[1]) > 18:
        raise ValueError(f"expected {SIZE}")
    power = 1 + _PREFIXES.index(match[2].lower())
    return round(float(match[1]) * float((1024 if match[3] else 1000) ** power))


def read_time(text: str) -> float:
    """A moment: a number of seconds, or an ISO 8601 date, which gives UTC seconds since the epoch.

    A date without an offset is local time, as ``status`` prints times.

    :raises ValueError: it is something else, negative or infinite.
    """
    typed = text.strip()
    seconds = _number(typed)
    if seconds is None:
        try:
            seconds = datetime.fromisoformat(typed).timestamp()
        except (ValueError, OverflowError, OSError):
            seconds = -1.0
    if not 0 <= seconds < inf:
        raise ValueError(f"expected {TIME}")
    return seconds


def read_ahead(text: str, now_s: float) -> float:
    """A moment to come, as UTC seconds since the epoch: seconds or a length of time from now, with or without
    a ``+`` before it; a time of day, the next one that the local clock shows; or an ISO 8601 date.

    :raises ValueError: it is something else, or lies in the past.
    """
    typed = text.strip()
    try:
        return now_s + read_duration(typed.removeprefix("+"))
    except ValueError:
        pass
    try:
        time_s = _next_time_of_day(typed, now_s) if _OF_DAY.fullmatch(typed) else read_time(typed)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"expected {AHEAD}") from None
    if time_s < now_s:
        raise ValueError("lies in the past")
    return time_s


def _next_time_of_day(text: str, now_s: float) -> float:
    """:raises ValueError: no day has that time."""
    today = datetime.fromtimestamp(now_s)
    at = datetime.combine(today, time.fromisoformat(text))
    return (at if at.timestamp() >= now_s else at + timedelta(days=1)).timestamp()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Duration:
    """Marks a number, as in ``Annotated[float, Duration()]``: text is read as a length of time."""

    unit: Unit = "s"

    def read(self, value: Any) -> Any:
        return read_duration(value, self.unit) if isinstance(value, str) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.read, handler(source))


class Moment:
    """Marks a number of seconds, as in ``Annotated[float, Moment()]``: text is read as a date."""

    @staticmethod
    def _read(value: Any) -> Any:
        return read_time(value) if isinstance(value, str) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string"}]}
