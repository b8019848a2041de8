"""``pliant why``: why a job waits, and what it has cost."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import page_width
from pliant.cli.grammar import FORM, TO_FILE, Form, out_or_file

if TYPE_CHECKING:
    from pliant.schemas.event import Event
    from pliant.tools.report.job_cost import JobCost
    from pliant.tools.run.watch.job_page import Happened
    from pliant.tools.run.watch.job_status import JobStatus
    from pliant.tools.run.watch.status import Status
    from pliant.tools.run.watch.waiting import Waiting

SCHEMA: Final = "pliant.why/1"
_CHANGES: Final = frozenset(
    {"start", "resume", "grow", "shrink", "move", "preempt", "requeue", "lost", "replaced"}
)
"""What happens to the GPUs of a job."""


def why(
    job: Annotated[str, typer.Argument(metavar="ID", help="Job.", show_default=False)],
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    format: FORM = Form.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: TO_FILE = "-",
) -> None:
    """Say why a job waits, or what it has cost.

    Of a waiting job: the policy's reason, what it needs, which jobs hold the
    GPUs, when they end and when it starts. Of a job that has held GPUs: the GPU
    time that it held, trained, and lost to starts, changes, checkpoints and
    failures; its speed against its profile; the size at which it is cheapest
    by its profile; and each change of its GPUs.

    Example: pliant why char-lm --state live
    """
    from pliant.schemas.file_io.files import check_output

    check_output(output)
    found = _Answer(state_directory(state), job)
    if as_json or format is Form.json:
        out_or_file(found.document(), output)
    else:
        out_or_file(found.text(page_width(sys.stdout) if output == "-" else None), output)


class _Answer:
    """All that is known of one job.

    :raises UsageError: no such state directory, or no such job in it.
    """

    def __init__(self, state: Path, job_id: str) -> None:
        from pliant.tools.run.door.asking import looking
        from pliant.tools.run.statedir.state import no_such_job
        from pliant.tools.run.watch.job_status import known_ids, statuses
        from pliant.tools.run.watch.waiting import waiting_for

        run = looking(state)
        self.status: Status = run.look(ahead=True)
        self.now_s = time.time()
        everything = statuses(self.status, self.now_s)
        found = next((each for each in everything if each.id == job_id), None)
        if found is None:
            raise no_such_job(state, [job_id], known_ids(self.status))
        self.job: JobStatus = found
        self.waiting: Waiting | None = waiting_for(found, everything, self.status)
        happened = run.history(job_id)
        self.changes: list[Happened] = [each for each in happened if each.event in _CHANGES]
        events = run.cost_events(found) if found.log.started_s is not None else None
        self.cost: JobCost | None = None if events is None else self._cost(events)

    def _cost(self, events: list[Event]) -> JobCost:
        from pliant.tools.report.job_cost import job_cost

        over = self.job.id in self.status.over
        until_s = self.status.log.last_s if over else self.now_s
        done = self.job.log.samples_done or None
        return job_cost(events, self.job.id, until_s, done)

    def text(self, width: int | None) -> str:
        from pliant.tools.report.rendering.job_cost import cost_facts
        from pliant.tools.run.watch.job_page import fact_lines, history_lines
        from pliant.tools.run.watch.waiting import holder_lines, waiting_facts

        job = self.job
        facts = [("job", job.id), ("state", job.state), ("why", job.why)]
        facts += waiting_facts(job, self.waiting, self.status, self.now_s)
        lines = fact_lines(facts, width)
        if self.waiting is not None:
            lines += holder_lines(self.waiting, self.now_s, width)
        if self.cost is not None:
            lines += fact_lines(cost_facts(self.cost), width)
        lines += history_lines(self.changes, self.now_s, width)
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def document(self) -> str:
        from pliant.schemas.text import iso_time
        from pliant.tools.report.rendering.job_cost import cost_fields
        from pliant.tools.run.watch.job_page import history_fields, job_fields
        from pliant.tools.run.watch.waiting import waiting_fields

        found: dict[str, Any] = {
            "schema": SCHEMA,
            "time": iso_time(self.now_s),
            "job": job_fields(self.job),
            "waiting": None if self.waiting is None else waiting_fields(self.waiting),
            "cost": None if self.cost is None else cost_fields(self.cost),
            "changes": history_fields(self.changes),
        }
        return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
