"""What an executor reports of its gangs, for the loop that writes the log."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.schemas.event import Event
from pliant.tools.run.service.setback import Setback
from pliant.tools.run.service.steps import Share
from pliant.tools.run.statedir.contract.outcome import Verdict
from pliant.tools.run.statedir.contract.progress import Progress
from pliant.tools.run.statedir.slots import Slot


@dataclass(frozen=True, slots=True)
class Said:
    """What the workers of an attempt reported since the last tick."""

    job_id: str
    attempt: int
    events: tuple[Event, ...]
    settled: bool
    """The job's last change was in force: the attempt is not on its way out, nor under an older plan."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over, and nothing of it is left."""

    job_id: str
    attempt: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Hindered:
    """New workers of an attempt died on some slots, and the others train on without those."""

    job_id: str
    attempt: int
    setback: Setback
    share: Share
    """What the job has now; fewer GPUs than it can run on: it stops, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Proven:
    """Workers have trained on these slots for long enough, though others died there."""

    job_id: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far an attempt is now."""

    job_id: str
    progress: Progress
    settled: bool
    """It was measured while the job's last change was in force."""


Report = Said | Progressed | Ended | Hindered | Proven
