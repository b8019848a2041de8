"""``pliant top``: what the jobs that run use at this moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import is_screen, note, width_for
from pliant.cli.grammar import FORM, TO_FILE, Form, form_and_file, out_or_file
from pliant.cli.watching import EVERY, LOOK_S, Screen, check_every, refuse_watched, repeat, show


def top(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    sort: Annotated[
        Literal["gpus", "speed", "job", "heard"],
        typer.Option("--sort", help="Most GPUs, fastest, by id, or longest silent first."),
    ] = "gpus",
    watch: Annotated[bool, typer.Option("--watch", help="Go on; q or Ctrl-C leaves.")] = False,
    every: EVERY = None,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show what each job that runs uses: GPUs, speed, step time, batch, loss, and when it was heard of last.

    The figures are those that the job's workers report about once a second.
    It only reads, so it works while a run holds the directory.

    Example: pliant top --state live --watch
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.door.asking import measuring
    from pliant.tools.run.watch.top import sorted_uses, summary_line, top_document, top_text

    form, output = form_and_file(format, output)
    check_every(every, watch=watch)
    if watch:
        refuse_watched(form, output)
    by, meter = sort, measuring(state_directory(state))
    if not watch:
        check_output(output)
        log, uses = meter.look()
        if form is Form.json:
            out_or_file(top_document(log, sorted_uses(uses, by)), output)
            return
        width = width_for(sys.stdout) if output == "-" else None
        out_or_file(top_text(sorted_uses(uses, by), time.time(), width), output)
        note(summary_line(log, uses))
        return

    def look(width: int | None) -> Screen:
        log, uses = meter.look()
        return top_text(sorted_uses(uses, by), time.time(), width), [summary_line(log, uses)]

    def changed() -> tuple[object, Callable[[], Screen]]:
        log, uses = meter.look()
        mark = [(use.id, use.job.placement, use.progress) for use in uses]
        return mark, lambda: (top_text(sorted_uses(uses, by), time.time()), [summary_line(log, uses)])

    if is_screen(sys.stdout):
        show(look, every or LOOK_S)
    else:
        repeat(changed, every)
