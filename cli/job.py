"""Commands about one job: ``pliant log``, ``wait``, ``stack`` and ``why``.

Without a job ``log`` shows or repairs the log of a state directory.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import Escaping, is_terminal, out_text, reader_left, width_for
from pliant.cli.option_types import DURATION_SHOWN, FORM, TO_FILE, Form, duration, out_or_file
from pliant.cli.orders import STATE, STATES_ARE, USERS, chosen_jobs, ids
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import write_stdout

if TYPE_CHECKING:
    from pliant.schemas.event import Event
    from pliant.tools.report.job_cost import JobCost
    from pliant.tools.run.gateway.client import Client
    from pliant.tools.run.watch.attempt_code import CodeRecord
    from pliant.tools.run.watch.job_page import Happened, Waiting
    from pliant.tools.run.watch.job_status import JobStatus
    from pliant.tools.run.watch.status import Status


def log(
    jobs: Annotated[list[str] | None, ids("Jobs.")] = None,
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new output until the job ends.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="N",
            min=0,
            help="Begin with the last N lines of each file; without a job: the last N events.",
            show_default=False,
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="N", min=1, help="Attempt to print.", show_default="the newest"),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", metavar="N", min=0, help="Worker to print.", show_default="all"),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop damaged lines from the event log, and write back lost ones."),
    ] = False,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Print the output of the newest attempt of each job, file by file.

    --attempt names another one, and --rank one worker: those of an elastic job
    keep the numbers in which they started.

    With -f and one job it goes on over all workers and further attempts. On a terminal
    control characters are shown, not obeyed; a pipe gets every byte.

    With --tail N, and without a job, it prints the last N events of the
    state directory as JSON Lines; with -f each event as it is written.

    With --repair, and without a job, it drops damaged lines of the event log,
    says which, writes back what the snapshot knows of lost ones, and keeps a
    copy of the log as it was.

    Example: pliant log char-lm --state pliant-state -f

    Example: pliant log --repair --state pliant-state
    """
    directory = state_directory(state)
    is_of_jobs = bool(jobs or user or states)
    if (attempt, rank) != (None, None) and (repair or not is_of_jobs):
        raise UsageError("--attempt and --rank choose output of a job: name one")
    if repair:
        if is_of_jobs or follow or tail is not None:
            text = "--repair mends the log of the state directory: name no job, and leave -f and --tail out"
            raise UsageError(text)
        from pliant.tools.run.statedir.log.repair import repair as repaired

        out_text("".join(f"{line}\n" for line in repaired(directory)))
        return
    from pliant.tools.run.gateway.connect import client_for

    client = client_for(directory)
    shown = Escaping(sys.stdout.encoding) if is_terminal(sys.stdout) else None
    if not is_of_jobs and tail is not None and not follow:
        for line in client.events(tail, follow=False):
            write_stdout(line if shown is None else shown.of(line))
        return
    if not (is_of_jobs or follow):
        raise UsageError("name the job whose output to print, or give --tail N, -f or --repair")
    chunks: Iterator[bytes] = client.events(tail or 0, follow=True)
    if is_of_jobs:
        job_ids = chosen_jobs(client, jobs, user, states)
        _check_followed(job_ids if follow else (), attempt)
        chunks = chain.from_iterable(
            client.output(each, follow=follow, lines=tail, attempt=attempt, rank=rank) for each in job_ids
        )
    for chunk in chunks:
        if chunk:
            write_stdout(chunk if shown is None else shown.of(chunk))
        elif reader_left(sys.stdout):
            raise BrokenPipeError


def _check_followed(jobs: Sequence[str], attempt: int | None) -> None:
    """:raises UsageError: it is not one job, or an attempt of it that nothing is added to."""
    if len(jobs) > 1:
        raise UsageError(f"-f follows one job, and these are {len(jobs)}: name one of {jobs[0]}, …")
    if jobs and attempt is not None:
        raise UsageError("-f follows the newest attempt: leave --attempt out")


def wait(
    jobs: Annotated[list[str] | None, ids("Jobs to wait for.")] = None,
    state: STATE = None,
    user: USERS = None,
    states: STATES_ARE = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Wait no longer; if a job has not ended then, the exit code is 75.",
            show_default="none",
        ),
    ] = math.inf,
) -> None:
    """Wait until jobs have ended; print a line for each as it ends.

    A line says finished, failed, timed out or cancelled, and why. The exit code
    is 5 unless all have finished, or 6 if only their own limits ended the
    others. A job that failed and is retried has not ended.

    Example: pliant submit jobs.jsonl | xargs pliant wait

    Example: pliant wait sweep --timeout 2h --state live
    """
    from pliant.tools.run.gateway.connect import client_for

    client = client_for(state_directory(state))
    wait_for(client, chosen_jobs(client, jobs, user, states), timeout)


def wait_for(client: Client, jobs: Sequence[str], timeout_s: float = math.inf) -> None:
    """Print a line for each job as it ends.

    :raises JobsFailedError: one has not finished.
    :raises JobsTimedOutError: the limits of those that have not ended them.
    :raises LockedError: the time is up.
    """
    from pliant.schemas.errors import JobsFailedError, JobsTimedOutError, LockedError
    from pliant.schemas.text import counted, one_line

    failed, late, total, until_s = 0, 0, 0, time.monotonic() + timeout_s
    for job in client.ends_of(jobs):
        if job is None:
            if reader_left(sys.stdout):
                raise BrokenPipeError
            if time.monotonic() >= until_s:
                left = counted(len(jobs) - total, "job")
                raise LockedError(f"{left} of {len(jobs)} had not ended after {timeout_s:g} s")
            continue
        why = f": {one_line(job.reason)}" if job.reason and job.phase != "finished" else ""
        out_text(f"{job.id} {job.phase}{why}\n")
        total += 1
        failed += job.phase != "finished"
        late += job.phase == "timed out"
    if failed and late == failed:
        raise JobsTimedOutError(f"{failed} of {counted(total, 'job')} timed out")
    if failed:
        raise JobsFailedError(f"{failed} of {counted(total, 'job')} did not finish")


def stack(
    job: Annotated[str, typer.Argument(metavar="ID", help="Job.", show_default=False)],
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    threads: Annotated[bool, typer.Option("--threads", help="Show all threads, not the main one only.")] = (
        False
    ),
    within: Annotated[
        float,
        typer.Option(
            "--within",
            parser=duration(least=0.1, most=86400),
            metavar=DURATION_SHOWN,
            help="How long to wait for answers.",
            show_default="20s",
        ),
    ] = 20.0,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show the Python stacks of all workers of a running job, equal ones once, the newest call first.

    Workers of the elastic library answer within a second or two, on any node;
    one whose interpreter is held up by a long call in 15 seconds. Jobs without
    the library are shown by py-spy, on this machine, if it is installed.

    Example: pliant stack char-lm --state live
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.gateway.client import id_of
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.statedir.contract.stacks import stacks_text
    from pliant.tools.run.watch.job_stacks import stacks_document

    check_output(output)
    client = client_for(state_directory(state))
    job = id_of(client, job)
    workers = client.stacks(job, within)
    if format is Form.json:
        out_or_file(stacks_document(job, workers), output)
    else:
        width = width_for(sys.stdout) if output == "-" else None
        out_or_file(stacks_text(workers, width, threads=threads), output)


SCHEMA: Final = "pliant.why/1.1"


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
    """Show why a job waits, or what it has cost.

    Of a waiting job: the policy's reason, what it needs, which jobs hold the
    GPUs, when they end and when it starts. Of a job that has held GPUs: the GPU
    time that it held, trained, and lost to starts, changes, checkpoints and
    failures; its speed against its profile; the size at which it is cheapest
    by its profile; and each change of its GPUs.

    Example: pliant why char-lm --state live
    """
    from pliant.schemas.file_io.files import check_output

    check_output(output)
    answer = _Answer(state_directory(state), job)
    if as_json or format is Form.json:
        out_or_file(answer.document(), output)
    else:
        from pliant.cli.status import with_colours

        out_or_file(answer.text(width_for(sys.stdout) if output == "-" else None), output, with_colours)


class _Answer:
    """All that is known of one job.

    :raises UsageError: no such state directory, or no such job in it.
    """

    def __init__(self, state: Path, job_id: str) -> None:
        from pliant.tools.run.gateway.client import id_of
        from pliant.tools.run.gateway.connect import client_for
        from pliant.tools.run.statedir.state import no_such_job
        from pliant.tools.run.watch.job_page import GPU_CHANGES, waiting_for
        from pliant.tools.run.watch.job_status import known_ids, status_of, statuses

        client = client_for(state)
        job_id = id_of(client, job_id)
        self.status: Status = client.status(ahead=True, archived=(job_id,))
        self.now_s = time.time()
        everything = statuses(self.status, self.now_s)
        job = status_of(self.status, job_id, self.now_s)
        if job is None:
            raise no_such_job(state, [job_id], known_ids(self.status))
        self.job: JobStatus = job
        self.waiting: Waiting | None = waiting_for(job, everything, self.status)
        job_id = job.id
        happened = client.history(job_id)
        self.changes: list[Happened] = [each for each in happened if each.event in GPU_CHANGES]
        events = client.cost_events(job) if job.log.started_s is not None else None
        self.cost: JobCost | None = None if events is None else self._cost(events)
        self.state = state
        self.code: list[CodeRecord] = client.code(job_id)

    def _cost(self, events: list[Event]) -> JobCost:
        from pliant.tools.report.job_cost import job_cost

        over = self.job.id in self.status.over
        until_s = self.status.log.last_s if over else self.now_s
        done = self.job.log.samples_done or None
        return job_cost(events, self.job.id, until_s, done)

    def text(self, width: int | None) -> str:
        from pliant.tools.report.job_cost import cost_facts
        from pliant.tools.run.watch.attempt_code import code_facts
        from pliant.tools.run.watch.job_page import fact_lines, history_lines, holder_lines, waiting_facts

        job = self.job
        facts = [("job", job.id), ("state", job.state), ("why", job.why)]
        facts += waiting_facts(job, self.waiting, self.status, self.now_s)
        lines = fact_lines(facts, width)
        if self.waiting is not None:
            lines += holder_lines(self.waiting, self.now_s, width)
        if self.cost is not None:
            lines += fact_lines(cost_facts(self.cost), width)
        lines += fact_lines(code_facts(self.code), width)
        lines += history_lines(self.changes, self.now_s, width)
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def document(self) -> str:
        from pliant.schemas.text import iso_time
        from pliant.tools.report.job_cost import cost_fields
        from pliant.tools.run.watch.attempt_code import code_fields
        from pliant.tools.run.watch.job_page import history_fields, job_fields, waiting_fields

        document: dict[str, Any] = {
            "schema": SCHEMA,
            "time": iso_time(self.now_s),
            "job": job_fields(self.job, self.state),
            "waiting": None if self.waiting is None else waiting_fields(self.waiting),
            "cost": None if self.cost is None else cost_fields(self.cost),
            "changes": history_fields(self.changes),
            **code_fields(self.code),
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
