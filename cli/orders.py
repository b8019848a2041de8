"""The commands that order something about jobs or nodes of a state directory.

``cancel``, ``hold``, ``release``, ``priority``, ``update`` and ``requeue`` are about jobs, ``drain`` and
``resume`` about nodes. Each writes requests, which the run of the directory executes at once, or the next one
does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Unpack, cast

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import note
from pliant.cli.option_types import DURATION_SHOWN, SIZE_SHOWN, duration, gpu_types, size, sizes_of, where_of
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted, in_gpu_hours

if TYPE_CHECKING:
    from pliant.schemas.job import Changes
    from pliant.tools.run.gateway.client import Client, JobOrder
    from pliant.tools.run.statedir.requests import JobAction

ENDED_SHOWN: Final = 20
STATE = Annotated[
    Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
]
NODES = Annotated[
    list[str], typer.Argument(metavar="NODE…", help="Nodes of the cluster.", show_default=False)
]


USERS = Annotated[
    list[str] | None,
    typer.Option("--user", "-u", metavar="NAME,…", help="Only jobs of these users.", show_default=False),
]
STATES_ARE = Annotated[
    list[str] | None,
    typer.Option(
        "--state-is",
        metavar="STATE,…",
        help="Only jobs in these states, like running,waiting.",
        show_default=False,
    ),
]


def ids(help_text: str) -> Any:
    """The argument of a command about many jobs."""
    also = "Names of arrays and patterns like 'sweep-*' are all their jobs."
    return typer.Argument(metavar="ID…", help=f"{help_text} {also}", show_default=False)


def chosen_jobs(
    client: Client, names: Sequence[str] | None, users: list[str] | None, states: list[str] | None
) -> list[str]:
    """The ids of the jobs that a command is about; a note says if the options leave none.

    :raises UsageError: nothing is named, or a pattern fits no job.
    """
    from pliant.cli.status import job_filter
    from pliant.tools.run.gateway.client import chosen

    job_ids = chosen(client, names or (), job_filter(users, None, states, None))
    if not job_ids:
        note(f"{client.state} has no such job in the states and of the users that were named: nothing to do")
    return job_ids


def cancel(
    jobs: Annotated[list[str] | None, ids("Jobs to end.")] = None,
    state: STATE = None,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Cancel running or waiting jobs: all that are named, or none.

    Workers stop at a step boundary with a checkpoint. Without a run in progress
    it takes effect with the next one. A job that has ended stays as it is.

    Example: pliant cancel char-lm --state live

    Example: pliant cancel 'sweep-*' --state-is waiting --state live
    """
    client = _client(state)
    if job_ids := chosen_jobs(client, jobs, user, states):
        client.cancel(job_ids)
        _note_unserved(client)


def hold(
    jobs: Annotated[list[str] | None, ids("Jobs to hold.")] = None,
    state: STATE = None,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Keep jobs from running until pliant release: all that are named, or none.

    A running job stops with a checkpoint at the next decision and keeps its
    work. A job that is held gets no GPUs and counts in no share. Without a run
    in progress it takes effect with the next one.

    Example: pliant hold char-lm --state live
    """
    client = _client(state)
    _order(client, "hold", chosen_jobs(client, jobs, user, states))


def release(
    jobs: Annotated[list[str] | None, ids("Jobs to release.")] = None,
    state: STATE = None,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Let held jobs run again: all that are named, or none.

    They wait for GPUs again and go on from their last checkpoint. Nothing
    happens to a job that is not held.

    Example: pliant release char-lm --state live
    """
    client = _client(state)
    _order(client, "release", chosen_jobs(client, jobs, user, states))


def priority(
    jobs: Annotated[list[str] | None, ids("Jobs.")] = None,
    *,
    value: Annotated[
        float,
        typer.Argument(
            metavar="N", help="Larger is more important; put -- before a negative one.", show_default=False
        ),
    ],
    state: STATE = None,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Change the priority of running or waiting jobs.

    pliant policies NAME says how the policy uses priorities. The policy
    decides again at once; without a run in progress it takes effect with the
    next one.

    Example: pliant priority char-lm 10 --state live
    """
    check_priority(value)
    client = _client(state)
    _order(client, "priority", chosen_jobs(client, jobs, user, states), priority=value)


def _new(name: str, metavar: str, text: str, **more: Any) -> Any:
    """An option that states a new value."""
    return typer.Option(name, metavar=metavar, help=text, show_default=False, **more)


def update(
    jobs: Annotated[list[str] | None, ids("Jobs to change.")] = None,
    *,
    state: STATE = None,
    gpus: Annotated[str | None, _new("--gpus", "N|N-M|N,M", "Its GPUs, of an elastic job also N-M.")] = None,
    gpu_type: Annotated[
        str | None, _new("--gpu-type", "TYPE,…|any", "The only GPU types that it may run on.")
    ] = None,
    gpu_memory: Annotated[
        int | None, _new("--gpu-memory", SIZE_SHOWN, "The least memory of each of its GPUs.", parser=size())
    ] = None,
    cpus: Annotated[float | None, _new("--cpus", "N", "CPU cores for each of its GPUs.", min=0)] = None,
    memory: Annotated[
        int | None, _new("--memory", SIZE_SHOWN, "Main memory for each of its GPUs.", parser=size())
    ] = None,
    constraint: Annotated[
        list[str] | None,
        _new("--constraint", "EXPRESSION|any", "Labels of the nodes that it may run on; several all hold."),
    ] = None,
    only: Annotated[str | None, _new("--only", "NODE,…|any", "The only nodes that it may run on.")] = None,
    exclude: Annotated[str | None, _new("--exclude", "NODE,…|none", "Nodes that it may not run on.")] = None,
    batch: Annotated[int | None, _new("--batch", "N", "Global batch.", min=1)] = None,
    limit: Annotated[
        str | None, _new("--limit", f"{DURATION_SHOWN}|none", "For how long it may hold GPUs, in all.")
    ] = None,
    retries: Annotated[
        int | None, _new("--retries", "N", "How many failures in a row are retried.", min=0, max=1000)
    ] = None,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Change the GPUs, nodes and limits of jobs: of all that are named, or of none.

    A running job continues if it may keep its GPUs after the change. Else, and
    with another batch, CPUs or memory, it stops with a checkpoint and starts
    again. Without a run in progress it takes effect with the next one.

    Example: pliant update char-lm --gpus 1-8 --state live

    Example: pliant update 'sweep-*' --limit 4h --gpu-type a100 --state live
    """
    own: dict[str, Any] = {} if gpus is None else sizes_of(gpus)
    if gpu_type is not None:
        own["types"] = None if gpu_type == "any" else gpu_types(gpu_type)
    if gpu_memory is not None:
        own["memory"] = gpu_memory
    run_s = None if limit in (None, "none") else duration()(str(limit))
    back = {
        name: None
        for name, given, word in (
            ("nodes", constraint, ["any"]),
            ("only", only, "any"),
            ("exclude", exclude, "none"),
        )
        if given == word
    }
    where = where_of(
        None if "nodes" in back else constraint,
        None if "only" in back else only,
        None if "exclude" in back else exclude,
        {"cpu": cpus, "memory": memory},
    )
    changes: dict[str, Any] = {
        "gpus": own,
        "batch": {} if batch is None else {"size": batch},
        "limits": {} if limit is None else {"run_seconds": run_s},
        "retries": {} if retries is None else retries,
    }
    stated = {name: change for name, change in changes.items() if change != {}} | back
    stated |= {name: change for name, change in where.items() if change is not None}
    if not stated:
        raise UsageError("name what to change: --gpus, --gpu-type, --batch, --limit or another option")
    client = _client(state)
    _order(client, "update", chosen_jobs(client, jobs, user, states), changes=cast("Changes", stated))


def requeue(
    jobs: Annotated[list[str] | None, ids("Jobs to start again.")] = None,
    state: STATE = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Without their checkpoints, which are put aside.")
    ] = False,
    user: USERS = None,
    states: STATES_ARE = None,
) -> None:
    """Start jobs again, also ended ones: all that are named, or none.

    A running job stops with a checkpoint. It goes on from its last checkpoint;
    one that has finished begins at the start. Earlier failures no longer count.
    Without a run in progress it takes effect with the next one.

    Example: pliant requeue char-lm --state live

    Example: pliant requeue --state-is failed --from-start --state live
    """
    client = _client(state)
    _order(client, "requeue", chosen_jobs(client, jobs, user, states), from_start=from_start)


def drain(
    nodes: NODES,
    state: STATE = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown by status.", show_default=False)
    ] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Let the jobs that run there leave at the next decision.")
    ] = False,
    within: Annotated[
        float | None,
        typer.Option(
            "--within",
            parser=duration(least=1.0),
            metavar=DURATION_SHOWN,
            help="As --now, and nothing runs there after this time.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start no more jobs on nodes until pliant resume: on all that are named, or none.

    Running jobs finish there at their size. With --now they leave: elastic
    jobs shrink to their GPUs on other nodes, or move there, the others stop
    with a checkpoint and wait. Without a run in progress it takes effect with
    the next one.

    --within is for a node that will be taken away: jobs that have not left by
    half of the time save and stop.

    Example: pliant drain spot3 --state live --within 90s

    Example: pliant drain node7 --state live --reason "new power supply" --now
    """
    client, leaves = _client(state), now or within is not None
    if leaves:
        _note_losses(client, nodes)
    client.order_nodes("drain", nodes, reason=reason, now=leaves, within_s=within)
    _note_unserved(client)


def resume(nodes: NODES, state: STATE = None) -> None:
    """Return drained nodes to service: all that are named, or none.

    Slots of the node on which workers of several jobs died return, too.

    Example: pliant resume node7 --state live
    """
    client = _client(state)
    client.order_nodes("resume", nodes)
    _note_unserved(client)


def _client(state: Path | None) -> Client:
    from pliant.tools.run.gateway.connect import client_for

    return client_for(state_directory(state))


def _order(client: Client, action: JobAction, jobs: Sequence[str], **order: Unpack[JobOrder]) -> None:
    """Order the same for several jobs, and name those that have ended."""
    if not jobs:
        return
    ended, ignores = client.order_jobs(action, jobs, **order)
    for job_id in ended[:ENDED_SHOWN]:
        note(f"job {job_id} has ended: it stays as it is")
    if len(ended) > ENDED_SHOWN:
        note(f"… and {counted(len(ended) - ENDED_SHOWN, 'more job')} that ended stay as they are")
    _note_unserved(client)
    note_ignored_priority(ignores)


def _note_losses(client: Client, nodes: Sequence[str]) -> None:
    """What jobs on these nodes lose by leaving, which cannot save."""
    from pliant.tools.run.watch.job_status import lost_on

    jobs = client.status().log.active.values()
    for job_id, gpu_s in sorted(lost_on(jobs, nodes, time.time()).items())[:ENDED_SHOWN]:
        note(f"job {job_id} loses {in_gpu_hours(gpu_s)}: it has to leave, and does not say that it can save")


def _note_unserved(client: Client) -> None:
    """Say so if nothing executes orders at the moment."""
    if not client.is_served:
        state = client.state
        note(f"no run uses {state}: it takes effect with the next pliant run --state {state}")


def check_priority(priority: float) -> None:
    """:raises UsageError: a job cannot state this priority."""
    from pliant.schemas.file_io.record import MOST

    if not -MOST <= priority <= MOST:
        raise UsageError(f"priority {priority:g}: expected a number from {-MOST:g} to {MOST:g}")


def note_ignored_priority(policy: str | None) -> None:
    """Say so if there is a policy that ignores the priorities that were stated."""
    if policy is not None:
        note(f'policy "{policy}" ignores priorities: they count under another policy')
