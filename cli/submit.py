"""``pliant submit``: give jobs to a state directory, one or an array, now, at a time, or after other jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pliant.cli.config import STATE_HELP, changed_cluster, configuration, state_directory
from pliant.cli.console import named_or_piped, note, out_text
from pliant.cli.option_types import DURATION_SHOWN, SIZE_SHOWN, duration, gpu_types, size, where_of
from pliant.cli.script import SubmittedScript, stated_in
from pliant.cli.submit_options import (
    COMMAND_LINE,
    container_field,
    job_fields,
    numbers_of,
    of_script,
    with_options,
)
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.job import Job
    from pliant.tools.run.gateway.client import Client
    from pliant.tools.run.service.submit import SubmissionResult

_OF_SCRIPTS: Final = (
    "--gpus, --gpu-type, --gpu-memory, --cpus, --memory, --constraint, --only, --exclude, --batch, --name, "
    "--limit, --retries, --relaunch, --torchrun, --tasks, --python, --container, --array and arguments are "
    "about a script: in a file each job states them"
)
_LAUNCHERS: Final = {None: None, True: "torchrun", False: "python"}
_OF_SHELLS: Final = frozenset({"|", "||", "&&", ">", ">>", "<", "2>&1"})


SCRIPT_ARGUMENTS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENT…]", help="Arguments of the script.", show_default=False),
]


def submit(
    context: typer.Context,
    jobs: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|SCRIPT]",
            help="Jobs (JSON Lines), or a script or program; - is stdin, also the default in a pipe.",
            show_default=False,
        ),
    ] = None,
    arguments: SCRIPT_ARGUMENTS = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="State directory; made if it is not there.",
            show_default=STATE_HELP,
            readable=False,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N|N-M|N,M",
            help="Script only: GPUs; N-M or sizes like 1,2,4 make the job elastic; 0: none.",
            show_default="1, or what pliant.toml says",
        ),
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option(
            "--gpu-type",
            metavar="TYPE,…",
            help="Script only: GPU types that it may run on.",
            show_default="any",
        ),
    ] = None,
    gpu_memory: Annotated[
        int | None,
        typer.Option(
            "--gpu-memory",
            parser=size(least=10**6),
            metavar=SIZE_SHOWN,
            help="Script only: least memory of each GPU.",
            show_default="any",
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(
            "--cpus",
            min=0,
            help="Script only: CPU cores for each GPU; with --gpus 0 in all.",
            show_default="none in particular",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            parser=size(least=10**6),
            metavar=SIZE_SHOWN,
            help="Script only: main memory for each GPU; with --gpus 0 in all.",
            show_default="none in particular",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            "--constraint",
            metavar="EXPRESSION",
            help='Script only: labels of the nodes that it may run on, as nvlink, "!old", rack=a or '
            '"rack in (a,b)"; several all hold.',
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="NODE,…",
            help="Script only: nodes that it may run on, as node1,node[3-5].",
            show_default="any",
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            "--exclude",
            metavar="NODE,…",
            help="Script only: nodes that it may not run on.",
            show_default="none",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Script only: global batch.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Script only: id of the job.", show_default="the script's name"),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            "--limit",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Script only: save and end after holding GPUs for this long.",
            show_default="none",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries",
            min=0,
            max=1000,
            help="Script only: failures in a row that are retried.",
            show_default="as the run says",
        ),
    ] = None,
    relaunch: Annotated[
        bool,
        typer.Option("--relaunch", help="Script only: resize it by saving and starting again."),
    ] = False,
    torchrun: Annotated[
        bool | None,
        typer.Option(
            "--torchrun/--no-torchrun",
            help="Script only: a worker for each GPU, or one process.",
            show_default="what its imports say",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="node|slot",
            help="Script only: start it once for each node, or for each GPU.",
            show_default="once in all",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Script only: Python that runs it.",
            show_default="that of the active environment",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATTERN",
            help="A file for what all these jobs print, as logs/%j.out: %j job, %a number in the array, else "
            "attempt, %r rank.",
            show_default="in the state directory alone",
        ),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            "--error",
            "-e",
            metavar="PATTERN",
            help="A file for what they print on stderr.",
            show_default="that of --output",
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            metavar="IMAGE",
            help="Script only: image in which its processes run.",
            show_default=False,
        ),
    ] = None,
    container_runtime: Annotated[
        str | None,
        typer.Option(
            "--container-runtime",
            metavar="NAME",
            help="Runtime of --container: podman, apptainer, docker or pyxis.",
            show_default="podman",
        ),
    ] = None,
    container_mount: Annotated[
        list[str] | None,
        typer.Option(
            "--container-mount",
            metavar="SOURCE[:TARGET[:ro]]",
            help="File or folder that the container sees, too.",
            show_default=False,
        ),
    ] = None,
    container_option: Annotated[
        list[str] | None,
        typer.Option(
            "--container-option",
            metavar="WORD",
            help="Option of the runtime, as --container-option=--shm-size=8g.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]|all",
            help="A variable of all these jobs, by default with its value here; all: every one.",
            show_default=False,
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A variable of all these jobs whose value is kept in a file of its own.",
            show_default=False,
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            "--array",
            metavar="0-9[%4]|@FILE",
            help="Of a script: a job for each number, NAME-0 to NAME-9, at most 4 of them at a time; or for "
            "each line of a file.",
            show_default=False,
        ),
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            min=0,
            help="Array only: cancel the others once more than this many jobs have failed.",
            show_default="none is",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="JOB[:ok|failed|any]",
            help="All these jobs start once that job or array has finished, with :any has ended, or with "
            ":failed has ended in another way; else they are cancelled.",
            show_default=False,
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--begin", metavar="WHEN", help="Arrival of these jobs, instead of now.", show_default=False
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="WHEN",
            help="Deadline of these jobs, for policies that use deadlines.",
            show_default=False,
        ),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot",
            help="They run from a read-only copy of their code, made now: what git tracks or does not "
            "ignore; links lead to the rest.",
        ),
    ] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Hold these jobs until pliant release.")] = False,
    priority: Annotated[
        float | None,
        typer.Option(
            "--priority", help="Priority of all these jobs, instead of their own.", show_default=False
        ),
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Accept jobs even if their script is not found here.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until they have ended, and say how, as pliant wait does."),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="First pliant verify each script, and submit none if one fails."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Submit none: print them as JSON Lines, and on stderr what would happen in --state.",
        ),
    ] = False,
) -> None:
    """Submit jobs, all of them or none, and print their ids.

    A run in progress (pliant run --follow, --until-done) gets them at once;
    otherwise they wait for the next one. When an id is printed, the job is on
    disk. submit_time counts from now. A job is refused if its script is
    missing, seen from the job's workdir. Options marked "script only" do not
    apply to a file of jobs.

    A script or program is started once. torchrun starts a worker for each GPU
    of a script that imports torch.distributed, Lightning and the like; a line
    says so. Lines "#PLIANT --gpus 2" at the top of a script are options; those
    of the command line take precedence.

    WHEN is seconds from now, a time like +2h, a time of day like 22:00, or a
    date like 2026-03-01T08:30. A job of an array finds its number in
    PLIANT_ARRAY_INDEX, and its line of a file in PLIANT_ARRAY_LINE.

    Example: pliant submit jobs.jsonl --state live

    Example: pliant submit train.py --gpus 1-4 --batch 128 --state live -- --epochs 90
    """
    given = dict(locals())
    from pliant.cli.orders import check_priority
    from pliant.schemas.io import write_jobs
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.service.submitter import (
        hidden_values,
        of_submitter,
        with_output,
        with_variables,
        without,
    )

    script = SubmittedScript.of(context, jobs, arguments or ())
    if script is not None and (lines := script.take_options()):
        submit(**given | stated_in(context, script.name, lines))
        return
    kind = {"types": None if gpu_type is None else gpu_types(gpu_type), "memory": gpu_memory}
    image = container_field(container, container_runtime, container_mount, container_option)
    starts = {"launcher": _LAUNCHERS[torchrun], "tasks": tasks, "python": python, "container": image}
    ends = {"limits": None if limit is None else {"run_seconds": limit}, "retries": retries}
    starts |= where_of(constraint, only, exclude, {"cpu": cpus, "memory": memory})
    fields, now_s = job_fields(gpus, kind, starts | ends, batch, name, relaunch=relaunch), time.time()
    if script is not None and script.command:
        source, directory = COMMAND_LINE, _named(state) if dry_run else state_directory(state)
        if max_failures is not None and array is None:
            raise UsageError("--max-failures needs an array: give --array, too")
        numbers = None if array is None else numbers_of(array, max_failures)
        submitted = of_script(script.command, fields, directory, numbers, dry_run=dry_run)
    else:
        submitted, source = _of_file(jobs, b"" if script is None else script.jobs)
        if fields or arguments or array is not None:
            raise UsageError(_OF_SCRIPTS)
    hidden = hidden_values(secret or (), os.environ)
    submitted = tuple(without(with_variables(job, env or (), os.environ), hidden) for job in submitted)
    submitted = tuple(with_output(job, output, error) for job in submitted)
    if priority is not None:
        check_priority(priority)
        submitted = tuple(job.model_copy(update={"priority": priority}) for job in submitted)
    where = _named(state) if dry_run else state_directory(state)
    submitted = with_options(submitted, after or (), begin, deadline, where, now_s=now_s, hold=hold)
    if verify:
        _verify(submitted, source)
    if wait and dry_run:
        raise UsageError("--dry-run submits nothing that --wait could wait for: leave one out")
    if dry_run:
        write_jobs(submitted, "-")
        _print_dry_run(submitted, source, where, now_s)
        return
    directory = state_directory(state)
    client = client_for(directory)
    submitted = tuple(without(of_submitter(job, os.environ), hidden) for job in submitted)
    for line in dict.fromkeys([*_starts(submitted), *_shared_files(submitted)]):
        note(line)
    with (
        _none_submitted(len(submitted), directory),
        _copied(directory, submitted, snapshot=snapshot) as submitted,
    ):
        done = client.submit(
            *(submitted, source),
            folder=Path.cwd(),
            now_s=now_s,
            check_scripts=not no_check,
            numbered=source == COMMAND_LINE and name is None,
            hidden=hidden,
        )
    _print_submitted(done, client, () if source == COMMAND_LINE and name is None else submitted)
    if wait:
        from pliant.cli.job import wait_for

        wait_for(client, done.ids)


@contextmanager
def _none_submitted(count: int, state: Path) -> Iterator[None]:
    try:
        yield
    except BadInputError:
        if (named := changed_cluster(state)) is not None:
            note(f"{named} has changed, and the run does not know yet: pliant reload, then submit again")
        if count > 1:
            note(f"none of the {count} jobs was submitted:")
        raise


def _copied(state: Path, jobs: tuple[Job, ...], *, snapshot: bool) -> AbstractContextManager[tuple[Job, ...]]:
    """The jobs, with ``snapshot`` each to be run from a copy of its code; an error within takes it back."""
    from pliant.tools.run.service.code_copy import from_copies

    if snapshot and os.geteuid() == 0:
        note(f"root can write to the copy: results that a job writes there stay in {state / 'code'}")
    return from_copies(state, jobs, Path.cwd()) if snapshot else nullcontext(jobs)


def _shared_files(jobs: Iterable[Job]) -> Iterator[str]:
    """Remarks on the output files that several of these jobs write to."""
    from pliant.tools.run.service.launching import at_home
    from pliant.tools.run.service.submitter import shared_files

    for path, count in shared_files(at_home(job, Path.cwd()) for job in jobs):
        yield f"{count} jobs write to {path}, line by line; with %j in its name each has a file of its own"


def _print_submitted(done: SubmissionResult, client: Client, named: Sequence[Job]) -> None:
    """The ids, and notes on other names, on what the policy overlooks, and on who takes the jobs up."""
    out_text("".join(f"{job_id}\n" for job_id in done.ids))
    if not done.ids:
        note("no job came in, so none was submitted")
        return
    new = [(job.id, job_id) for job, job_id in zip(named, done.ids, strict=False) if job_id != job.id]
    if new:
        others = f", and so for {counted(len(new) - 1, 'other job')}" if new[1:] else ""
        note(f'a job "{new[0][0]}" has ended before: it means the new one, {new[0][1]}, from now on{others}')
    from pliant.cli.orders import note_ignored_priority

    note_ignored_priority(done.ignores_priority)
    if done.ignores_weight is not None:
        note(f'policy "{done.ignores_weight}" ignores weights: they count under another policy')
    if done.overlooked_deadlines is not None:
        note(f"{done.overlooked_deadlines}: they count under another policy")
    if not client.is_served:
        state = client.state
        by = f"from cron, or pliant run --follow --state {state}"
        note(f"no run uses {state} now: they wait for the next one, {by}")


def _of_file(path: str | None, data: bytes) -> tuple[tuple[Job, ...], str]:
    """The jobs of a file, or of what stdin has brought, and what messages call them."""
    from pliant.schemas.file_io.files import read_bytes, source_name
    from pliant.schemas.file_io.limits import ROWS_BYTES
    from pliant.schemas.io import jobs_file
    from pliant.tools.run.statedir.requests import submitted_jobs

    path = named_or_piped(path, "no jobs to submit: name a file or a script, or pipe one in")
    file = jobs_file(path)
    source = source_name(file)
    return submitted_jobs(data or read_bytes(file, most=ROWS_BYTES), source, configuration().job), source


def _starts(jobs: Iterable[Job]) -> Iterator[str]:
    """What starts each job that is not resized, and why, where that is not plain; and what does not count."""
    from pliant.tools.run.service.launching import at_home
    from pliant.tools.run.service.starters import by_what, settled

    for job in jobs:
        if words := _OF_SHELLS.intersection(job.command or ()):
            yield f'{job.model}: no shell reads "{min(words)}" in its command: bash -c "…" has one'
        job_settled, why = settled(at_home(job, Path.cwd()))
        if why and (
            job_settled.launcher is not None or job_settled.names_torchrun or job_settled.gpus.requested > 1
        ):
            yield f"{job_settled.model}: {by_what(job_settled)}: {why}"


def _verify(jobs: Sequence[Job], source: str) -> None:
    """:raises JobsFailedError: a script does not train alike everywhere; a table says what is lost."""
    from pliant.tools.run.verify.report import check_kept, page
    from pliant.tools.run.verify.verify import Part, verify_all

    results = verify_all(jobs, source, Part(), note)
    for each in results:
        if not each.kept:
            note(f"job {each.job.id} was not submitted:\n{page(each, None)}")
    check_kept(results)


def _named(state: Path | None) -> Path | None:
    """The state directory of a dry run, which needs none."""
    path = configuration().state
    return Path(path) if state is None and path is not None else state


def _print_dry_run(jobs: Sequence[Job], source: str, state: Path | None, now_s: float) -> None:
    """When jobs would start in a run that has begun, and which others they would delay.

    :raises BadInputError: they would be refused.
    """
    from pliant.schemas.io import job_file
    from pliant.schemas.job import arriving_at
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.service.launching import at_home
    from pliant.tools.run.service.submit import in_utc

    if state is None:
        return
    client = client_for(state)
    if not client.has_begun:
        note(f"no run has begun in {state}: nothing can be predicted")
        return
    from pliant.cli.whatif_answer import answer_whatif, of_new_jobs, remarks
    from pliant.tools.run.gateway.protocol import WhatIfQuestion

    new = [in_utc(at_home(job, Path.cwd()), now_s) for job in arriving_at(jobs, 0.0)]
    answer = answer_whatif(client, WhatIfQuestion(jobs=job_file(new).decode(), source=source))
    for line in [*of_new_jobs(answer, [job.id for job in new]), *remarks(answer)]:
        note(line)
