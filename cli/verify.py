"""``pliant verify``: does a script keep what the elastic library promises?"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from pliant.cli.config import configuration
from pliant.cli.console import named_or_piped, note, width_for
from pliant.cli.option_types import DURATION_SHOWN, FORM, TO_FILE, Form, duration, out_or_file
from pliant.cli.submit import SCRIPT_ARGUMENTS
from pliant.cli.submit_options import COMMAND_LINE, of_script
from pliant.schemas.errors import UsageError


def verify(
    jobs: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|SCRIPT]",
            help="A script (*.py), or jobs (JSON Lines; - is stdin, also the default in a pipe).",
            show_default=False,
        ),
    ] = None,
    arguments: SCRIPT_ARGUMENTS = None,
    *,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=2, help="Global batch.", show_default="what the job or script says"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=8, help="Samples of an epoch.", show_default="5.5 batches"),
    ] = None,
    slots: Annotated[
        Literal["cpu", "gpu"], typer.Option("--slots", help="Two CPU slots, or two GPUs of this machine.")
    ] = "cpu",
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            parser=duration(least=1.0),
            metavar=DURATION_SHOWN,
            help="Longest time of a run.",
            show_default="a minute, and 20 times the plain process",
        ),
    ] = None,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Check that a script trains the same on any number of workers.

    Three epochs of a few batches run as one plain process, on two workers, in
    micro-steps, through 1 → 2 → 1 workers, a worker that joins, a stop, and a
    worker that is killed. The table says whether samples, their order, weights,
    learning rates and losses stay those of the plain process; if not, the exit
    code is 5, and likely causes are listed.

    The script runs as it is, about ten times: give it a small data set and
    another folder for its files by its own arguments, after --.

    Example: pliant verify train.py -- --data small --out /tmp/verify

    Example: pliant verify jobs.jsonl -f json
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import read_jobs
    from pliant.schemas.job import Batch
    from pliant.tools.run.verify.report import check_kept, page, text_of
    from pliant.tools.run.verify.verify import Part, verify_all

    check_output(output)
    if jobs is not None and jobs.endswith(".py"):
        stated: dict[str, Any] = {"elastic": "size", "gpus": {"min": 1, "max": 2}}
        verified = of_script([jobs, *(arguments or ())], stated, None)
    elif arguments:
        raise UsageError("arguments after -- need a script (*.py): in a file each job states its own")
    else:
        path = named_or_piped(jobs, "nothing to verify: name a script or a file")
        verified = read_jobs(path, configuration().job)
    if batch is not None:
        verified = tuple(job.model_copy(update={"batch": Batch(size=batch)}) for job in verified)
    results = verify_all(verified, COMMAND_LINE, Part(samples, time_limit, slots), note)
    if format is Form.json:
        out_or_file(text_of(results), output)
    else:
        width = width_for(sys.stdout) if output == "-" else None
        titled = len(results) > 1
        pages = (f"job {each.job.id}: " * titled + page(each, width) for each in results)
        out_or_file("\n".join(pages), output)
    check_kept(results)
    note("all is kept")
