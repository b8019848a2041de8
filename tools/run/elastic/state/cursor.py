"""How far a worker is, so that after a disturbance the one that is furthest can take the others along."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

BETWEEN_EPOCHS: Final = 0
"""The epoch has not begun: the workers have yet to agree that it shall."""
IN_EPOCH: Final = 1
"""Between two steps of the epoch."""
EPOCH_THROUGH: Final = 2
"""Its steps and what the author does after them are done; what is missing is the loss of all workers."""


class Cursor(NamedTuple):
    """Where the next collective operation of a worker lies; they are ordered by how far that is.

    Workers differ by one operation at most, because none completes before all have begun it.
    """

    epoch: int
    step: int
    phase: int
    agreed: int = 0
    """Values of rank 0 that it knows since the last step of the epoch."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The cursor that ``str`` of a tuple's numbers wrote; None of a worker that has no state yet."""
        return cls(*map(int, text.split())) if text != "-" else None


def written(cursor: Cursor | None) -> str:
    """The cursor as text."""
    return "-" if cursor is None else " ".join(map(str, cursor))
