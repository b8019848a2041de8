"""What a doctor found, as short texts."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.tools.run.doctor.checks import Check


def found(checks: Iterable[Check], area: str | None = None) -> list[str]:
    """``problem: text; advice`` of each check, or of those of one area."""
    return [
        f"{each.verdict}: {each.text}" + (f"; {each.advice}" if each.advice else "")
        for each in checks
        if area in (None, each.area)
    ]


def not_ok(checks: Iterable[Check]) -> list[str]:
    return [text for text in found(checks) if not text.startswith("ok: ")]
