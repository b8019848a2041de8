"""``pliant serve``: one run for all accounts of a machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.config import STATE_HELP
from pliant.cli.option_types import with_options_of
from pliant.cli.run_options import RunArguments


@with_options_of(
    RunArguments,
    without=("schedule", "until_done", "follow"),
    state=Annotated[Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP)],
    policy=Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides; or its file.",
            show_default="policy in pliant.toml, else the one before",
        ),
    ],
    cluster=Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The cluster (JSON) of a new run.",
            show_default="cluster in pliant.toml",
        ),
    ],
    detach=Annotated[bool, typer.Option("--detach", help="Run in the background.")],
)
def serve(arguments: RunArguments) -> None:
    """Run the jobs of all accounts of a machine, each as its own user; only root can.

    It executes submissions and other orders until Ctrl-C. The jobs train on,
    and serve with the same --state adopts them. Each account orders its own
    jobs and sees of the others what the file of --roles allows.

    Example: pliant serve --state /srv/pliant/state --policy fair-share --cluster cluster.json
    """
    replace(arguments, follow=True, shared=True).run()
