"""The ways to run: until jobs have ended, in the foreground, in the background; and what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from pliant.cli.common import run_command
from pliant.cli.console import is_screen, is_terminal, note, stderr
from pliant.schemas.file_io.files import write_stdout
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.event import Event
    from pliant.tools.run.service.loop import RunOptions
    from pliant.tools.run.statedir.log.fold import RunLog
    from pliant.tools.run.statedir.state import Sink
    from pliant.tools.run.watch.screen import Screen


def run_once(options: RunOptions) -> None:
    """Make one schedule true and leave."""
    from pliant.tools.run.service.run import check_failed
    from pliant.tools.run.service.run import run_once as once
    from pliant.tools.run.watch.screen import line

    log, failed = once(replace(options, sinks_of_news=_words()))
    note(f"{line(log)}; state directory: {options.state}")
    check_failed(log, options.state, failed)


def run_until_done(options: RunOptions) -> None:
    from pliant.tools.run.service.run import check_failed
    from pliant.tools.run.service.run import run_until_done as until_done

    with _screen(options) as screen:
        log, stopped_by = until_done(replace(options, sinks=_sinks(), sinks_of_news=_words()), screen)
        screen.end(log)
    if stopped_by is not None:
        note(f"stopped; go on with: pliant run --until-done --state {options.state}")
        raise typer.Exit(128 + stopped_by)
    check_failed(log, options.state)


def follow(options: RunOptions) -> None:
    from pliant.tools.run.service.run import run_and_follow

    with _screen(options) as screen:
        log, left_by = run_and_follow(replace(options, sinks=_sinks(), sinks_of_news=_words()), screen)
    running = sum(job.phase == "running" for job in log.active.values())
    left = f"{counted(running, 'job')} {'trains' if running == 1 else 'train'} on"
    command = "pliant serve" if options.shared else "pliant run --follow"
    note(f"left; {left}; go on with: {command} --state {options.state}")
    raise typer.Exit(128 + (left_by or 0))


def follow_in_background(options: RunOptions) -> None:
    import os

    from pliant.tools.run.service.run import in_background, reserve_space, run_and_follow
    from pliant.tools.run.statedir.directory import StateDir, make_own

    def body(ready: Callable[[], None]) -> int:
        size = -1

        def look(_log: RunLog, _now_s: float) -> None:
            nonlocal size
            ready()
            if (now := os.fstat(2).st_size) != size:
                size = now
                reserve_space(2)

        def serve() -> None:
            loud = replace(options, sinks_of_news=(_note_trouble,))
            run_and_follow(loud, look)

        return run_command(serve)

    dirs = StateDir(options.state.resolve())
    make_own(dirs)
    log = dirs.run_log
    started = in_background(body, log)
    if started.failed is not None:
        print(started.output, end="", file=sys.stderr)
        raise typer.Exit(started.failed)
    note(
        f"process {started.pid} runs {options.state} and says more in {log}; it ends with: kill {started.pid}"
    )


def _screen(options: RunOptions) -> Screen:
    from functools import partial

    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.watch.screen import Screen
    from pliant.tools.run.watch.status import launched_jobs

    dirs = StateDir(options.state.resolve())
    return Screen(stderr(), f"state directory: {options.state}", partial(launched_jobs, dirs))


def _sinks() -> tuple[Sink, ...]:
    """Events go to the next program in a pipe."""
    from pliant.tools.run.watch.output import EventStream

    return () if sys.stdout is None or is_terminal(sys.stdout) else (EventStream(write_stdout),)


def _words() -> tuple[Sink, ...]:
    """Trouble goes to stderr, unless a terminal shows the table of jobs."""
    return () if sys.stderr is None or is_screen(sys.stderr) else (_note_trouble,)


def _note_trouble(events: Sequence[Event]) -> None:
    from pliant.tools.run.watch.screen import trouble

    for line in trouble(events):
        note(line)
