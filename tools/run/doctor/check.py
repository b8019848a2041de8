"""One thing that was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.errors import PliantError

Verdict = Literal["ok", "warning", "problem"]
"""``problem``: runs fail, or lose something. ``warning``: they work, worse than they could."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it."""

    area: str
    verdict: Verdict
    text: str
    advice: str = ""
    """What to do; empty where all is well."""


def ok(area: str, text: str) -> Check:
    """Nothing to do."""
    return Check(area, "ok", text)


def warning(area: str, text: str, advice: str) -> Check:
    """Runs work, worse than they could."""
    return Check(area, "warning", text, advice)


def problem(area: str, text: str, advice: str) -> Check:
    """Runs fail, or lose something."""
    return Check(area, "problem", text, advice)


def guarded(area: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of an area; whatever goes wrong in them is a problem of that area, and ends it."""
    try:
        yield from look()
    except PliantError as error:
        yield problem(area, first_line(error), "mend that, and look again")
    except Exception as error:  # noqa: BLE001 - what is broken is what a doctor is asked about
        text = f"cannot be looked at: {type(error).__name__}: {first_line(error)}"
        yield problem(area, text, "mend that, and look again")


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
