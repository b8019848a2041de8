"""``pliant run``: execute a schedule on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.option_types import with_options_of
from pliant.cli.run_options import RunArguments


@with_options_of(
    RunArguments,
    # run --follow --shared, as scripts have it, is pliant serve
    shared=Annotated[bool, typer.Option("--shared", hidden=True)],
    roles=Annotated[Path | None, typer.Option("--roles", hidden=True)],
    munge=Annotated[bool, typer.Option("--munge", hidden=True)],
    allow_root_jobs=Annotated[bool, typer.Option("--allow-root-jobs", hidden=True)],
)
def run(arguments: RunArguments) -> None:
    """Execute a schedule: start, stop, resize and resume real jobs.

    Without --until-done it starts what the schedule says and leaves; the
    jobs train on. With it, submit_time counts from now and the policy
    decides again whenever something happens; events go to stdout where that
    is not a terminal. Ctrl-C stops all jobs with checkpoints (twice: kills
    them); --until-done with the same --state and no schedule goes on.

    With --follow it executes submissions and other orders until Ctrl-C; the
    jobs train on, and --follow with the same --state adopts them. pliant
    serve does so for all accounts.

    Example: pliant run --follow --state live --policy fair-share --cluster cluster.json

    Example: pliant schedule jobs.jsonl --cluster cluster.json --policy fifo | pliant run --until-done
    """
    arguments.run()
