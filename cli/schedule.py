"""``pliant schedule``: which job gets which GPUs now."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from pliant.cli.common import (
    DEMAND,
    PARAM,
    PREDICTOR,
    PREEMPTIBLE,
    SEED,
    TIME_BUDGET,
    policy_parameters,
    print_assumptions,
)
from pliant.cli.config import STATE_HELP, configuration
from pliant.cli.console import note, stderr, width_for
from pliant.cli.option_types import DURATION_SHOWN, TIME_SHOWN, duration, moment
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused

if TYPE_CHECKING:
    from pliant.schemas.cluster import Preemptible
    from pliant.schemas.profile import Profile
    from pliant.schemas.runinfo import Assumption
    from pliant.schemas.schedule import Schedule
    from pliant.tools.schedule.decide import Question

T = TypeVar("T")

SILENCE_S: Final = 2.0
"""Seconds of silence on a pipe after which a note says that the command waits for it."""

REJECTED_SHOWN: Final = 20


@garbage_collection_paused(to_the_end=True)
def schedule(
    jobs: Annotated[
        str | None,
        typer.Argument(metavar="JOBS", help="Jobs to schedule (JSON Lines); - is stdin.", show_default=False),
    ] = None,
    *,
    jobs_by_name: Annotated[str | None, typer.Option("--jobs", hidden=True)] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides (`pliant policies`), or its file: ./policy.py.",
            show_default="policy in pliant.toml",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Measured speeds (Parquet); - is stdin.",
            show_default="stdin if one is piped in, else none",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="The cluster (JSON).", show_default="cluster in pliant.toml"),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Take the inputs from this state directory; before its first run name a --cluster.",
            show_default=f"without JOBS: {STATE_HELP}",
        ),
    ] = None,
    param: PARAM = None,
    time_budget: TIME_BUDGET = None,
    now: Annotated[
        float | None,
        typer.Option(
            "--now",
            parser=moment,
            metavar=TIME_SHOWN,
            help="Decide at this time.",
            show_default="first arrival; the clock with --state",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Wait for a state directory that a run writes to.",
        ),
    ] = 0.0,
    seed: SEED = 0,
    demand: DEMAND = None,
    preemptible: PREEMPTIBLE = None,
    predictor: PREDICTOR = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show reasons, starts and ends of jobs in a table on stderr.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail where the inputs leave something open, instead of assuming it."),
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Accept jobs even if their script is not found here.")
    ] = False,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Write how long the decision took.")
    ] = True,
    output: Annotated[str, typer.Option("-o", "--output", help="The schedule (JSON); - is stdout.")] = "-",
) -> None:
    """Decide which job gets which GPUs now, and with which batch size.

    A job that the cluster or the policy cannot serve is rejected, with the
    reason on stderr and in the schedule; the exit code stays 0, and is 4
    where no job is left, unless a --state directory is to record that.

    With --state it decides for a run that is not in progress. For one that is,
    pliant status --explain shows the decisions and their reasons.

    Example: pliant schedule jobs.jsonl --profile profile.parquet --cluster cluster.json --policy ares
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import read_predictor, write_schedule
    from pliant.tools.schedule.decide import Question

    check_output(output)
    if jobs_by_name is not None:  # the argument is the profile then
        if jobs is not None and profile is not None:
            raise UsageError(f"{jobs}: --jobs and --profile name both files: leave it out")
        jobs, profile = jobs_by_name, jobs or profile
    config = configuration()
    policy, parameters = config.policy_of(policy, policy_parameters(param, time_budget))
    start = None if predictor is None else read_predictor(predictor)
    question = Question(policy, parameters, seed, explain, timing, demand, start)
    if jobs is None and state is None:
        state = config.state
    if state is not None:
        if jobs is not None:
            raise UsageError(f"--state brings its own jobs: leave {jobs} out")
        from pliant.tools.run.watch.status import decide_between_runs

        decided = decide_between_runs(
            state,
            question,
            now,
            wait_s=wait,
            cluster=cluster,
            profile=profile,
            usual_cluster=config.cluster,
            preemptible=preemptible,
        )
    elif jobs is None or (cluster := cluster or config.cluster) is None:
        if jobs is not None:
            raise UsageError("name the --cluster: pliant cluster discover -o cluster.json writes one")
        raise UsageError("name the jobs and --cluster, or a --state directory")
    else:
        decided = _from_files(
            *(profile, jobs, cluster, question, now),
            preemptible=preemptible,
            defaults=config.job,
            check=not no_check,
        )
    print_assumptions(_assumed(decided), strict=strict)
    if explain:
        from pliant.tools.schedule.explain import table

        stderr().print(table(decided, width_for(sys.stderr)), end="", markup=False, soft_wrap=True)
    _name_rejected(decided)
    write_schedule(decided, output)


def _name_rejected(found: Schedule) -> None:
    for verdict in found.rejected[:REJECTED_SHOWN]:
        note(f'job "{verdict.job}" is rejected: {verdict.reason}')
    if len(found.rejected) > REJECTED_SHOWN:
        note(f"… and {len(found.rejected) - REJECTED_SHOWN} more are rejected: the schedule says why")


def _assumed(found: Schedule) -> Sequence[Assumption]:
    """The speeds that a schedule assumes, and the priorities that its policy ignores."""
    from pliant.tools.schedule.assumptions import (
        demands_unlimited,
        levels_ignored,
        nothing_to_resize,
        order_assumed,
        priorities_ignored,
        speeds_assumed,
        speeds_doubted,
        trust_of_columns,
        weights_ignored,
    )
    from pliant.tools.schedule.registry import policy_class

    profile, measured = found.profile, None
    if profile is not None:
        rows = zip(profile["kind"], profile["model"], profile["gpu_type"], strict=True)
        measured = [(model, gpu_type) for kind, model, gpu_type in rows if kind == "train"]
    policy = policy_class(found.policy.name)
    models = {job.model for job in found.jobs}
    return [
        *speeds_assumed(models, found.cluster, measured),
        *speeds_doubted(models, () if profile is None else trust_of_columns(profile)),
        *order_assumed(found.jobs, policy, profiled=profile is not None),
        *priorities_ignored(found.jobs, policy),
        *weights_ignored(found.jobs, policy),
        *demands_unlimited(found.jobs, found.cluster),
        *levels_ignored(found.cluster, found.policy.name, found.policy.parameters),
        *nothing_to_resize(found.jobs, policy),
    ]


def _from_files(
    profile: str | None,
    jobs: str,
    cluster: str,
    question: Question,
    now: float | None,
    *,
    preemptible: Preemptible | None,
    defaults: Mapping[str, Any],
    check: bool,
) -> Schedule:
    from pliant.schemas.file_io.files import source_name
    from pliant.schemas.io import read_cluster, read_jobs
    from pliant.schemas.job import arriving_at
    from pliant.tools.schedule.decide import decide

    if [profile, jobs, cluster].count("-") > 1:
        raise UsageError("only one input can come from stdin")
    read, source = read_jobs(jobs, defaults), source_name(jobs)
    if check and any(job.command for job in read):
        from pliant.tools.run.service.submit import check_scripts

        check_scripts(read, source, folder=Path())
    return decide(
        read if now is None else arriving_at(read, now),
        read_cluster(cluster).with_preemptible(preemptible),
        _profile(profile, stdin_is_taken="-" in (jobs, cluster)),
        question,
        now_s=now,
        source=source,
    )


def _profile(path: str | None, *, stdin_is_taken: bool) -> Profile | None:
    """The profile that was named, else one that is piped in."""
    from pliant.schemas.io import read_profile

    if path is not None:
        return read_profile(path)
    return None if stdin_is_taken or not _something_is_piped_in() else read_profile("-")


def _something_is_piped_in() -> bool:
    """Whether a profile may be on stdin: a pipe with content, or a Parquet file.

    Waits for a pipe's first byte or its end. Another file belongs to another program, like the list of a
    loop in a shell; not a byte of it is consumed.
    """
    import os
    import stat
    import sys

    from pliant.schemas.file_io.files import PARQUET_MAGIC

    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            at = os.lseek(descriptor, 0, os.SEEK_CUR)
            return os.pread(descriptor, len(PARQUET_MAGIC), at) == PARQUET_MAGIC
    except (OSError, ValueError, AttributeError):
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    _note_wait_for_stdin(descriptor)
    stdin: Any = sys.stdin.buffer
    if stdin.peek(1):
        return True
    note("nothing came in through the pipe: the command before this one wrote no profile")
    return False


def _note_wait_for_stdin(descriptor: int) -> None:
    import select

    if not select.select([descriptor], [], [], SILENCE_S)[0]:
        note("waiting for a profile on stdin; give < /dev/null for none")
