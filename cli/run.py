"""``pliant run``: execute a schedule on real processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.console import is_terminal, note, out_bytes, out_text, stderr
from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from pliant.tools.run.fold import RunLog
    from pliant.tools.run.runner import Options


def run(
    schedule: Annotated[
        str | None,
        typer.Argument(help="Schedule file; - is stdin, also the default in a pipe.", show_default=False),
    ] = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory.", show_default="a new ./pliant-state"),
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="Where to run: local.", show_default="as the cluster says")
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Stay until all jobs have ended; ask the policy again as they do."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Start what the schedule says and leave it running (the default)."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps and the exact commands; do nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a state directory that another process writes to.")
    ] = False,
    retries: Annotated[
        int, typer.Option("--retries", min=0, help="Failures in a row, without progress, to retry after.")
    ] = 3,
    stop_timeout: Annotated[
        float,
        typer.Option("--stop-timeout", min=0.1, help="Seconds for a checkpoint before SIGTERM is sent."),
    ] = 60.0,
) -> None:
    """Execute a schedule on real processes: start, stop, resize and resume jobs with torchrun.

    Without --until-done it starts what the schedule says and leaves; the
    jobs train on. With it, submit_time counts from now and the policy
    decides again whenever something happens; events go to stdout where that
    is not a terminal. Ctrl-C stops all jobs with checkpoints (twice: kills
    them); --until-done with the same --state and no schedule goes on.

    Example: pliant schedule --jobs jobs.jsonl --cluster cluster.json --policy fifo | pliant run --until-done
    """
    from pliant.tools.run.gang import Timeouts
    from pliant.tools.run.runner import Options, check_failed, dry_run_text, free_state_name, run_once

    if until_done and detach:
        raise UsageError("--until-done and --detach contradict each other")
    options = Options(
        state=state or free_state_name(Path()),
        schedule=schedule,
        backend=backend,
        wait=wait,
        retries=retries,
        timeouts=Timeouts(abort_s=stop_timeout),
    )
    if dry_run:
        out_text(dry_run_text(options, until_done=until_done))
    elif until_done:
        _watch(options)
    else:
        log, failed = run_once(options)
        _tell(log, options.state)
        check_failed(log, options.state, failed)


def _watch(options: Options) -> None:
    from pliant.tools.run.runner import check_failed, run_until_done
    from pliant.tools.run.screen import Screen
    from pliant.tools.run.stream import EventStream

    sinks = () if sys.stdout is None or is_terminal(sys.stdout) else (EventStream(out_bytes),)
    with Screen(stderr(), f"state directory: {options.state}") as screen:
        log, stopped_by = run_until_done(replace(options, sinks=sinks), screen)
        screen.end(log)
    if stopped_by is not None:
        note(f"stopped; go on with: pliant run --until-done --state {options.state}")
        raise typer.Exit(128 + stopped_by)
    check_failed(log, options.state)


def _tell(log: RunLog, state: Path) -> None:
    from pliant.tools.run.view import line

    note(f"{line(log)}; state directory: {state}")
