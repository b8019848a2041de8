"""What the commands share that order something of a state directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.cli.console import note
from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from pliant.tools.run.statedir.orders import JobAction


def order(state: Path, action: JobAction, jobs: Sequence[str], priority: float | None = None) -> None:
    """Order the same of several jobs, and name those that have ended."""
    from pliant.tools.run.service.operate import order_jobs

    for job_id in order_jobs(state, action, jobs, priority=priority):
        note(f"job {job_id} has ended: it stays as it is")
    say_when(state)


def check_priority(priority: float) -> None:
    """Refuse what a job cannot state.

    :raises UsageError: it is not a finite number, or too large.
    """
    from pliant.schemas.file_io.record import MOST

    if not -MOST <= priority <= MOST:
        raise UsageError(f"priority {priority:g}: expected a number from {-MOST:g} to {MOST:g}")


def say_unheeded(state: Path) -> None:
    """Say so where the policy that decides there does not look at priorities."""
    from pliant.tools.run.service.operate import deaf_to_priorities

    policy = deaf_to_priorities(state)
    if policy is not None:
        note(f'policy "{policy}" does not look at priorities: they count once another one decides')


def say_when(state: Path) -> None:
    """Say so where nothing executes orders at the moment."""
    from pliant.tools.run.statedir.layout import StateDir
    from pliant.tools.run.statedir.lock import holder_of

    if holder_of(StateDir(state).lock) is None:
        note(f"no run uses {state}: it takes effect with the next pliant run --state {state}")
