"""``pliant run``: execute a schedule on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.common import DEMAND, PARAM, PREDICTOR, PREEMPTIBLE, SEED, TIME_BUDGET
from pliant.cli.config import STATE_HELP
from pliant.cli.run_options import (
    BACKEND,
    DRY_RUN,
    LOG_BYTES,
    METRICS,
    PROFILE,
    RESTORED,
    RETRIES,
    STOP_TIMEOUT,
    WAIT,
    RunArguments,
)


def run(
    schedule: Annotated[
        str | None,
        typer.Argument(help="Schedule file; - is stdin, also the default in a pipe.", show_default=False),
    ] = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="State directory.", show_default=f"{STATE_HELP}, else a new ./pliant-state"
        ),
    ] = None,
    backend: BACKEND = None,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", help="Stay until all jobs have ended; ask the policy again at every end."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Stay until Ctrl-C; ask the policy as jobs are submitted and end."),
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides, with --follow; or its file.",
            show_default="policy in pliant.toml, else the one before",
        ),
    ] = None,
    param: PARAM = None,
    time_budget: TIME_BUDGET = None,
    seed: SEED = 0,
    demand: DEMAND = None,
    preemptible: PREEMPTIBLE = None,
    predictor: PREDICTOR = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The cluster (JSON) that --follow begins a run with; later the same.",
            show_default="cluster in pliant.toml",
        ),
    ] = None,
    profile: PROFILE = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Leave jobs running (the default); with --follow also the loop.",
        ),
    ] = False,
    dry_run: DRY_RUN = False,
    wait: WAIT = 0.0,
    restored: RESTORED = False,
    retries: RETRIES = 3,
    stop_timeout: STOP_TIMEOUT = 60.0,
    log_bytes: LOG_BYTES = None,
    metrics: METRICS = None,
) -> None:
    """Execute a schedule on real processes: start, stop, resize and resume jobs with torchrun.

    Without --until-done it starts what the schedule says and leaves; the
    jobs train on. With it, submit_time counts from now and the policy
    decides again whenever something happens; events go to stdout where that
    is not a terminal. Ctrl-C stops all jobs with checkpoints (twice: kills
    them); --until-done with the same --state and no schedule goes on.

    With --follow it takes up what pliant submit and others ask for, until
    Ctrl-C; the jobs train on, and --follow with the same --state takes them
    up again. pliant serve does so for all accounts.

    Example: pliant run --follow --state live --policy fair-share --cluster cluster.json

    Example: pliant schedule jobs.jsonl --cluster cluster.json --policy fifo | pliant run --until-done
    """
    RunArguments(**locals()).run()
