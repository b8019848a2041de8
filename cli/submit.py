"""``pliant submit``: give jobs to a state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.config import STATE_HELP, configuration, state_directory
from pliant.cli.console import named_or_piped, note, out_text
from pliant.schemas.errors import BadInputError


def submit(
    jobs: Annotated[
        str | None,
        typer.Argument(help="Jobs (JSON Lines); - is stdin, also the default in a pipe.", show_default=False),
    ] = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory; made if it is not there.", show_default=STATE_HELP),
    ] = None,
    priority: Annotated[
        float | None,
        typer.Option("--priority", help="Of all these jobs, instead of what they state.", show_default=False),
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Take jobs even if their script is not found here.")
    ] = False,
) -> None:
    """Give jobs to a state directory, all of them or none, and print their ids.

    A run in progress (pliant run --follow, --until-done) takes them up at
    once; otherwise they wait for the next one. When an id is printed, the job
    is on disk. submit_time counts from now. A job is refused if its script is
    missing or is not Python, seen from the job's workdir. Fields that jobs do
    not state come from [job] of pliant.toml.

    Example: pliant submit jobs.jsonl --state live
    """
    import time

    from pliant.cli.orders import check_priority, say_unheeded
    from pliant.schemas.file_io.files import source_name
    from pliant.schemas.io import read_jobs
    from pliant.tools.run.service.submit import submit as ask
    from pliant.tools.run.statedir.directory import StateDir, holder_of

    path = named_or_piped(jobs, "no jobs to submit: name a file, or pipe one in")
    directory = state_directory(state)
    found = read_jobs(path, configuration().job)
    if priority is not None:
        check_priority(priority)
        found = tuple(job.model_copy(update={"priority": priority}) for job in found)
    try:
        ids = ask(
            directory,
            found,
            source_name(path),
            folder=Path.cwd(),
            now_s=time.time(),
            check_scripts=not no_check,
        )
    except BadInputError:
        if len(found) > 1:
            note(f"none of the {len(found)} jobs was submitted:")
        raise
    out_text("".join(f"{job_id}\n" for job_id in ids))
    if any(job.priority for job in found):
        say_unheeded(directory)
    if holder_of(StateDir(directory).lock) is None:
        by = f"from cron, or pliant run --follow --state {directory}"
        note(f"no run uses {directory} now: they wait for the next one, {by}")
