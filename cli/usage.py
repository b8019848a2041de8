"""``pliant usage``: GPU hours and money by user, team or label."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Literal

import typer

from pliant.cli.config import state_directory
from pliant.cli.console import note, out_text, page_width
from pliant.cli.option_types import moment
from pliant.cli.orders import STATE

_WHEN = "DATE|SECONDS"


def usage(
    *,
    state: STATE = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="user|team|model|job|LABEL,…", help="What groups jobs; a label by its name."
        ),
    ] = "user",
    since: Annotated[
        float | None,
        typer.Option("--since", parser=moment, metavar=_WHEN, help="From then on.", show_default="the start"),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option("--until", parser=moment, metavar=_WHEN, help="To then.", show_default="now"),
    ] = None,
    format: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", "-f", help="Form of the answer.")
    ] = "table",
) -> None:
    """Say what jobs used: GPU hours by type, share, the part that trained, and money.

    Money follows from price in the cluster file, by GPU type and hour. GPUs
    that two jobs share count one half for each. The part that trained leaves
    out starts, changes of size and checkpoints. Used are the GPUs (or CPU
    slots) and their memory, as parts, of jobs that ended. In a shared run accounts see
    what they may see of the jobs of others.

    Example: pliant usage --by team,user --since 2026-11-01 --state live

    Example: pliant usage --by project -f csv > november.csv
    """
    from pliant.tools.report.usage import UsageFold, take_lines, usage_csv, usage_document, usage_text
    from pliant.tools.run.gateway.connect import client_for

    client, now_s = client_for(state_directory(state)), time.time()
    since_s, until_s = since or 0.0, now_s if until is None else min(until, now_s)
    fold = UsageFold([name for name in by.split(",") if name], since_s, until_s)
    take_lines(client.whole_log(), fold, str(client.state))
    fold.finish(until_s if client.is_served else None)
    if format == "json":
        out_text(usage_document(fold, since_s, until_s))
    elif format == "csv":
        out_text(usage_csv(fold))
    else:
        out_text(usage_text(fold, page_width(sys.stdout)))
        if not fold.price:
            note('for money, say in the cluster file what a GPU costs an hour: "price": {"TYPE": 2.5}')
