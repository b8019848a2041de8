"""``pliant top``: what the jobs that run use at this moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import is_screen, note, out_text, width_for
from pliant.cli.status import Form
from pliant.cli.watching import EVERY, LOOK_S, Shown, check_every, repeat, show
from pliant.schemas.errors import UsageError


def top(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP)
    ] = None,
    sort: Annotated[
        Literal["gpus", "speed", "job", "heard"],
        typer.Option("--sort", help="Most GPUs, fastest, by id, or longest silent first."),
    ] = "gpus",
    watch: Annotated[bool, typer.Option("--watch", help="Go on; q or Ctrl-C leaves.")] = False,
    every: EVERY = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.table,
) -> None:
    """Show what each job that runs uses: GPUs, speed, step time, batch, loss, and when it was heard of last.

    The figures are those that the job's workers report about once a second.
    It only reads, so it works while a run holds the directory.

    Example: pliant top --state live --watch
    """
    from pliant.tools.run.watch.top import UseMeter, sorted_uses, summary_line, top_document, top_text

    check_every(every, watch=watch)
    if watch and output is Form.json:
        raise UsageError("--watch shows a table: leave -o json out")
    by, meter = sort, UseMeter(state_directory(state))
    if not watch:
        log, uses = meter.look()
        if output is Form.json:
            out_text(top_document(log, sorted_uses(uses, by)))
            return
        out_text(top_text(sorted_uses(uses, by), time.time(), width_for(sys.stdout)))
        note(summary_line(log, uses))
        return

    def look(width: int | None) -> Shown:
        log, uses = meter.look()
        return top_text(sorted_uses(uses, by), time.time(), width), [summary_line(log, uses)]

    def changed() -> tuple[object, Callable[[], Shown]]:
        log, uses = meter.look()
        mark = [(use.id, use.job.placement, use.progress) for use in uses]
        return mark, lambda: (top_text(sorted_uses(uses, by), time.time()), [summary_line(log, uses)])

    if is_screen(sys.stdout):
        show(look, every or LOOK_S)
    else:
        repeat(changed, every)
