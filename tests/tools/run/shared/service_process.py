"""``pliant run --until-done --shared`` in a process of its own: STATE UIDS [SCHEDULE], UIDS by job."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.service import decisions
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.log.events import submit_event


def proven(uids: Mapping[str, int]) -> None:
    """Let the log get submissions as if these accounts had been proven."""

    def event(job: Job, time_s: float, detail: Mapping[str, Any] | None = None) -> Event:
        uid = {"uid": uids[job.id]} if job.id in uids else {}
        return submit_event(job, time_s, {**(detail or {}), **uid})

    vars(decisions)["submit_event"] = event


if __name__ == "__main__":
    state, known, *schedule = sys.argv[1:]
    proven(json.loads(known))
    run_until_done(RunOptions(Path(state), *schedule, shared=True), lambda _log, _time_s: None)
