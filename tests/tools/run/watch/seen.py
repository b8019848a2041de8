"""What ``status`` shows of a state directory."""

from __future__ import annotations

from pathlib import Path

from pliant.tools.run.watch.job_status import CHANGING, statuses
from pliant.tools.run.watch.status import Watcher


def jobs_shown_running(state: Path) -> set[str]:
    found = Watcher(state).look()
    shown = statuses(found, found.log.last_s)
    return {job.id for job in shown if job.state in ("running", *CHANGING.values())}
