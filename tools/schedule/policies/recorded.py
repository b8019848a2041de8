"""What really happened, beside what policies would have done."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Traits


class Recorded(Fifo):
    """What really happened: a replay gives each job the GPUs that its trace recorded, when it did.

    For traces with starts and ends (label ``runs``, which ``pliant trace import`` writes). Nothing is
    simulated: costs, failures and the profile do not count. Where the trace holds more GPUs at a time
    than the cluster has, the replay says so and goes on. Where nothing is recorded, as in ``schedule``
    and ``run``, it is fifo.
    """

    name: ClassVar[str] = "recorded"
    traits: ClassVar[Traits] = replace(
        Fifo.traits,
        follows_recording=True,
    )

    def __init__(self) -> None:
        super().__init__()
