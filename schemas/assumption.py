"""What a decision or a replay takes for granted because its inputs do not say it."""

from __future__ import annotations

from typing import Literal

from pliant.schemas.file_io.record import Record

AssumptionKind = Literal["speed", "gpu_type", "progress", "unused_option"]


class Assumption(Record):
    """One thing that the inputs leave open or that an option says in vain."""

    kind: AssumptionKind
    """``speed``: there is no profile; ``gpu_type``: it lacks a GPU type of the cluster; ``progress``: jobs
    name validation runs that are not there; ``unused_option``: an option names a model that no job has."""
    text: str
    """One line for people."""
