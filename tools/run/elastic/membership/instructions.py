"""What the training loop is told to do: :class:`Membership` returns one of these, and calls nothing back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Continue:
    """What was asked is done."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """The workers change, or one was lost: leave the process group, call ``regroup``, then ask again."""


@dataclass(frozen=True, slots=True)
class Resplit:
    """Other workers train, or the batch is split otherwise: take the state, split, then call ``settle``."""

    state: Mapping[str, Any] | None = None
    """State of a worker that is further; None if this worker's own counts."""
    fresh: bool = False
    """Whether this worker had no state before."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the script with this exit code; the outcome is written."""

    code: int = 0


Instruction = Continue | Regroup | Resplit | Leave
CONTINUE: Final = Continue()
REGROUP: Final = Regroup()
