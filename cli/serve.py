"""``pliant serve``: one run for all accounts of a machine."""

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
    OPERATION,
    PROFILE,
    RESTORED,
    RETRIES,
    STOP_TIMEOUT,
    WAIT,
    RunArguments,
)


def serve(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP)
    ] = None,
    roles: Annotated[
        Path | None,
        typer.Option(
            "--roles",
            metavar="FILE",
            help="Who may do what, what others see, and limits (JSON).",
            show_default="only root has a role",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides; or its file.",
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
            help="The cluster (JSON) that a run begins with; later the same.",
            show_default="cluster in pliant.toml",
        ),
    ] = None,
    profile: PROFILE = None,
    backend: BACKEND = None,
    munge: Annotated[
        bool, typer.Option("--munge", help="Serve the other hosts of a Slurm cluster, too.")
    ] = False,
    allow_root_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-root-jobs",
            help="Start jobs that root submits, too, as root.",
            rich_help_panel=OPERATION,
        ),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
    dry_run: DRY_RUN = False,
    wait: WAIT = 0.0,
    restored: RESTORED = False,
    retries: RETRIES = 3,
    stop_timeout: STOP_TIMEOUT = 60.0,
    log_bytes: LOG_BYTES = None,
    metrics: METRICS = None,
) -> None:
    """Run the jobs that all accounts of a machine submit, each as its own user; only root can.

    It takes up what pliant submit and others ask for, until Ctrl-C. The jobs
    train on, and serve with the same --state takes them up again. Each account
    orders its own jobs and sees of the others what the file of --roles lets it
    see.

    Example: pliant serve --state /srv/pliant/state --policy fair-share --cluster cluster.json
    """
    RunArguments(follow=True, shared=True, **locals()).run()
