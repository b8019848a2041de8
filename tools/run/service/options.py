"""What the command line says about a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Final

from pliant.tools.run.backends.credentials import ProcessLimits
from pliant.tools.run.service.members import Timeouts
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.state import Sink
from pliant.tools.schedule.decide import Question

STATE_NAME: Final = "pliant-state"
RETRIES: Final = 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run is, what it executes, and by which rules."""

    state: Path
    """The state directory; it need not be there."""
    schedule: str | None = None
    """File of the schedule; None for what the state directory goes on with, or stdin."""
    question: Question | None = None
    """Which policy decides from now on; None for that of the schedule."""
    cluster: str | None = None
    """File of the cluster, if a run begins with a policy and without a schedule."""
    profile: str | None = None
    """File of the profile, likewise; None for speeds in proportion to the GPUs."""
    backend: str | None = None
    """None for what the cluster says."""
    wait_s: float = 0.0
    """How long to wait for a state directory that another process writes to."""
    restored: bool = False
    """The user says that no job runs any more in the directory that this is a copy of."""
    shared: bool = False
    """Several accounts submit jobs, which run as these; then root has to run it."""
    allow_root_jobs: bool = False
    """In a shared run root's jobs are refused otherwise."""
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    """What the jobs of one account may take in a shared run."""
    retries: int = RETRIES
    timeouts: Timeouts = field(default_factory=Timeouts)
    log_bytes: int | None = None
    """Most bytes of each output file of a worker that stay on disk; None for the keeper's default."""
    beside: Callable[[StateDir], AbstractContextManager[None]] | None = None
    """Entered once the directory is this run's, and left with it."""
    sinks: tuple[Sink, ...] = ()
    """They get every event as it is written; unless the run follows, past events first."""
    metrics: Path | None = None
    """File for the operator's monitoring."""


def free_state_name(folder: Path) -> Path:
    """The first of pliant-state, pliant-state-2, … in ``folder`` that is not there yet."""
    names = chain([STATE_NAME], (f"{STATE_NAME}-{number}" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())
