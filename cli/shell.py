"""``pliant shell``: a terminal on a node, as a job like others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from pliant.cli.config import state_directory
from pliant.cli.console import is_terminal, note
from pliant.cli.option_types import DURATION_SHOWN, SIZE_SHOWN, duration, size, where_of
from pliant.cli.orders import STATE
from pliant.cli.submit_options import COMMAND_LINE, job_fields, of_script
from pliant.schemas.errors import JobsFailedError, PliantError, UsageError

if TYPE_CHECKING:
    from pliant.schemas.job import Job
    from pliant.tools.run.gateway.client import Client

_POLL_S: Final = 0.2
_LOOK_S: Final = 2.0
"""Seconds between two looks at why the job waits."""
_END_S: Final = 10.0
"""Seconds for the run to say why a session has ended."""


def shell(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="Instead of your shell.", show_default=False),
    ] = None,
    *,
    state: STATE = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="GPUs; 0: none.", show_default="1")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--for",
            parser=duration(least=1.0),
            metavar=DURATION_SHOWN,
            help="For how long at most.",
            show_default="1h",
        ),
    ] = 3600.0,
    gpu_type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE,…", help="GPU types that it may have.", show_default="any"),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(
            "--cpus", min=0, help="CPU cores for each GPU; with --gpus 0 in all.", show_default="none"
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            parser=size(least=10**6),
            metavar=SIZE_SHOWN,
            help="Main memory for each GPU; with --gpus 0 in all.",
            show_default="none",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NODE,…", help="Nodes that it may be on.", show_default="all"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="ID", help="Id of the job.", show_default="shell, numbered"),
    ] = None,
) -> None:
    """Open a terminal on a node, with GPUs of its own.

    It is a job like others: it waits for its GPUs, counts for limits and shares,
    and ends with its shell, with this command, at --for, or by the rule about idle
    jobs; nothing that it started goes on. Ctrl-C while it waits cancels it. The
    exit code is that of the shell. Under Slurm the way there is srun --overlap.

    Example: pliant shell --gpus 1 --for 2h --type t4

    Example: pliant shell --gpus 0 -- htop
    """
    from pliant.tools.run.backends.terminal import LOST
    from pliant.tools.run.gateway.connect import client_for

    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise UsageError("a shell needs a terminal: give commands that need none to pliant submit")
    directory = state_directory(state)
    client = client_for(directory)
    kind = {"types": None if gpu_type is None else gpu_type.split(",")}
    starts = where_of(None, only, None, {"cpu": cpus, "memory": memory})
    fields = job_fields(gpus or "1", kind, starts, None, name, relaunch=False)
    own: dict[str, Any] = {"launcher": "program", "elastic": "none", "retries": 0}
    job = of_script(("shell",), {**fields, **own, "limits": {"run_seconds": limit}}, directory)[0]
    job_id = _submitted(client, job, command or [os.environ.get("SHELL") or "/bin/sh"], numbered=name is None)
    with _cancelled(client, job_id) as leave:
        place = _waited(client, job_id)
        code = _attached(client, job_id, place)
        if code != LOST:
            leave()  # it ends by itself
        else:
            _explain(client, job_id)
    raise typer.Exit(code)


def _submitted(client: Client, job: Job, words: list[str], *, numbered: bool) -> str:
    from pliant.tools.run.backends import terminal
    from pliant.tools.run.service.submitter import of_submitter

    if job.container is not None:
        note("it runs on the node itself, not in the container that pliant.toml names")
    terminal_of_user = {"TERM": os.environ.get("TERM") or "dumb"}
    command = (sys.executable, "-I", "-S", str(Path(terminal.__file__)), "serve", *words)
    changed = {"command": command, "container": None, "env": {**job.env, **terminal_of_user}}
    job = of_submitter(job.model_copy(update=changed), os.environ)
    done = client.submit(
        (job,), COMMAND_LINE, folder=Path.cwd(), now_s=time.time(), check_scripts=False, numbered=numbered
    )
    if not client.is_served:
        note(f"no run uses {client.state} now: it waits for one, pliant run --follow --state {client.state}")
    return done.ids[0]


@contextmanager
def _cancelled(client: Client, job_id: str) -> Iterator[Callable[[], None]]:
    """Cancel the job at the end, however that comes about, unless what it yields was called."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    left = list[bool]()
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield lambda: left.append(True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not left:
            with suppress(PliantError):
                client.cancel([job_id])


def _waited(client: Client, job_id: str) -> dict[str, str]:
    """Where the shell is, once it waits for its client; says meanwhile what the job waits for.

    :raises JobsFailedError: it has ended before.
    """
    from pliant.tools.run.backends.terminal import PLACE
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.watch.job_status import status_of

    file = StateDir(client.state.resolve()).job(job_id).path / PLACE
    said, look_s = "", 0.0
    while True:
        with suppress(OSError, ValueError):
            place: dict[str, str] = json.loads(file.read_bytes())
            return place
        if time.monotonic() >= look_s:
            look_s = time.monotonic() + _LOOK_S
            job = status_of(client.status(ahead=True), job_id, time.time())
            if job is not None and job.log.ended:
                raise JobsFailedError(f"job {job_id} {job.log.end}: {job.log.reason}")
            words = f"job {job_id} {'waits' if job is None else job.state}"
            words += f": {job.why}" if job is not None and job.why else ""
            if words != said:
                note(words)
            said = words
        time.sleep(_POLL_S)


def _attached(client: Client, job_id: str, place: dict[str, str]) -> int:
    """The exit code of the session.

    :raises UsageError: it cannot be reached from here.
    """
    from pliant.tools.run.backends import terminal
    from pliant.tools.run.backends.slurm.commands import shell_step
    from pliant.tools.run.statedir.directory import StateDir

    folder = StateDir(client.state.resolve()).job(job_id).path
    if slurm_job := place.get("slurm"):
        python = (sys.executable, "-I", "-S", str(Path(terminal.__file__)), "attach", str(folder))
        return subprocess.run(shell_step(slurm_job, place.get("node", ""), python), check=False).returncode
    if place["host"] != os.uname().nodename:
        raise UsageError(
            f"its shell is on {place['host']}, which no Slurm job leads to: run pliant shell there"
        )
    try:
        return terminal.attach(str(folder))
    except OSError as error:
        note(f"its shell does not answer: {error.strerror}")
        return terminal.LOST


def _explain(client: Client, job_id: str) -> None:
    """Say why a session ended that its shell did not end."""
    until_s = time.monotonic() + _END_S
    for end in client.ends_of([job_id]):
        if end is not None:
            note(f"job {job_id} {end.phase}{f': {end.reason}' if end.reason else ''}")
        elif time.monotonic() >= until_s:
            note(f"the way to job {job_id} is lost: it is cancelled")
            return
