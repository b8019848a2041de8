"""What a decision or a replay takes for granted."""

from __future__ import annotations

from typing import Literal

from pliant.schemas.file_io.record import Record


class Assumption(Record):
    """One thing that the inputs leave open or that an option says in vain."""

    kind: Literal[
        "speed",
        "gpu_type",
        "progress",
        "unused_option",
        "priority",
        "sharing",
        "busy_profile",
        "rigid",
        "cost",
        "recording",
    ]
    """``speed``: there is no profile; ``gpu_type``: it lacks a GPU type of the cluster; ``progress``: jobs
    name validation runs that are not there; ``unused_option``: an option names a model that no job has;
    ``priority``: the policy does not look at priorities that jobs state; ``sharing``: how fast jobs are on
    the same GPUs that were not measured together; ``busy_profile``: the machine was busy when speeds were
    measured, measurements disagree, or the throughput model misses them; ``rigid``: no job is elastic, and
    the policy then decides as another one does, which ``--strict`` lets pass; ``cost``: no start or no
    rescale cost is known; ``recording``: what a trace recorded cannot have been on this cluster."""
    text: str
    """One line for people."""
