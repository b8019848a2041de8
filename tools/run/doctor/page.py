"""What was found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pliant.schemas.text.fitting import one_line, wrapped
from pliant.schemas.text.times import iso_time
from pliant.tools.run.doctor.check import Check
from pliant.tools.run.doctor.examine import worst

SCHEMA: Final = "pliant.doctor/1"
_VERDICT: Final = 9
_AREA: Final = 10


def page(checks: Sequence[Check], width: int | None) -> str:
    """A line for each check; those wider than the terminal go on in further lines.

    :param width: of the terminal; None: there is none.
    """
    return "".join(f"{line}\n" for check in checks for line in _lines(check, width))


def document(checks: Sequence[Check], now_s: float) -> str:
    """The same as JSON; ``now_s`` is UTC."""
    listed = [
        {"area": each.area, "verdict": each.verdict, "text": each.text, "advice": each.advice or None}
        for each in checks
    ]
    found = {"schema": SCHEMA, "time": iso_time(now_s), "verdict": worst(checks), "checks": listed}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _lines(check: Check, width: int | None) -> list[str]:
    head = f"{check.verdict:{_VERDICT}}{check.area:{_AREA}}"
    text = one_line(f"{check.text}; {check.advice}" if check.advice else check.text)
    if width is None or width <= 2 * len(head):
        return [head + text]
    first, *rest = wrapped(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]
