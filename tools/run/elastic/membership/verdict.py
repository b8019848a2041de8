"""What membership tells the loop to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on: what was asked is done."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """The workers change, or one was lost: let go of the process group, ask ``regroup``, then ask again."""


@dataclass(frozen=True, slots=True)
class NewDivision:
    """From here on other workers share the work, or share it otherwise: take the state, then ``settle``."""

    state: Mapping[str, Any] | None = None
    """Of a worker that is further; None: this one's own counts."""
    fresh: bool = False
    """This worker had no state before."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the script with this exit code; the outcome is written."""

    code: int = 0


Verdict = Continue | Regroup | NewDivision | Leave
CONTINUE: Final = Continue()
REGROUP: Final = Regroup()
