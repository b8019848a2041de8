"""``pliant run``: execute a schedule on real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    run_command,
)
from pliant.cli.config import STATE_HELP, configuration
from pliant.cli.console import is_screen, is_terminal, note, out_text, stderr
from pliant.cli.option_types import DURATION_SHOWN, SIZE_SHOWN, duration, size
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import write_stdout
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.event import Event
    from pliant.tools.run.service.loop import RunOptions
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.statedir.log.fold import RunLog
    from pliant.tools.run.statedir.state import Sink
    from pliant.tools.run.watch.screen import Screen
    from pliant.tools.schedule.decide import Question


def run(
    schedule: Annotated[
        str | None,
        typer.Argument(help="Schedule file; - is stdin, also the default in a pipe.", show_default=False),
    ] = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="State directory.", show_default=f"{STATE_HELP}, else a new ./pliant-state"
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="Where to run: local, slurm or slurm-jobs.", show_default="as the cluster says"
        ),
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", help="Stay until all jobs have ended; ask the policy again at every end."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Stay until Ctrl-C; ask the policy as jobs are submitted and end."),
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides, with --follow; or its file.",
            show_default="policy in pliant.toml, else the one before",
        ),
    ] = None,
    param: PARAM = None,
    time_budget: TIME_BUDGET = None,
    seed: SEED = 0,
    demand: DEMAND = None,
    preemptible: PREEMPTIBLE = None,
    predictor: PREDICTOR = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The cluster (JSON) that --follow begins a run with; later the same.",
            show_default="cluster in pliant.toml",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Measured speeds (Parquet), likewise.")
    ] = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="With --follow, as root: serve all accounts of this machine, whose jobs run as them.",
        ),
    ] = False,
    allow_root_jobs: Annotated[
        bool,
        typer.Option("--allow-root-jobs", help="With --shared: start jobs that root submits, too, as root."),
    ] = False,
    roles: Annotated[
        Path | None,
        typer.Option(
            "--roles",
            metavar="FILE",
            help="With --shared: who may do what, what others see, and limits (JSON).",
            show_default="only root has a role",
        ),
    ] = None,
    munge: Annotated[
        bool,
        typer.Option("--munge", help="With --shared: serve the other hosts of a Slurm cluster, too."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Leave jobs running (the default); with --follow also the loop.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps and the exact commands; do nothing.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Wait for a state directory that another process writes to.",
        ),
    ] = 0.0,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="The state directory is a copy, and nothing of the one that it was made of runs any more.",
        ),
    ] = False,
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, help="How many failures in a row, without progress, are retried."),
    ] = 3,
    stop_timeout: Annotated[
        float,
        typer.Option(
            "--stop-timeout",
            parser=duration(least=0.1),
            metavar=DURATION_SHOWN,
            help="Time for a checkpoint before SIGTERM is sent.",
        ),
    ] = 60.0,
    log_bytes: Annotated[
        int | None,
        typer.Option(
            "--log-bytes",
            parser=size(least=1 << 17),
            metavar=SIZE_SHOWN,
            help="Most bytes on disk for each output stream of a worker; the oldest are dropped.",
            show_default="64 MiB",
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE",
            help="Keep figures for a monitoring system in this file (OpenMetrics).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Execute a schedule on real processes: start, stop, resize and resume jobs with torchrun.

    Without --until-done it starts what the schedule says and leaves; the
    jobs train on. With it, submit_time counts from now and the policy
    decides again whenever something happens; events go to stdout where that
    is not a terminal. Ctrl-C stops all jobs with checkpoints (twice: kills
    them); --until-done with the same --state and no schedule goes on.

    With --follow it takes up what pliant submit and others ask for, until
    Ctrl-C; the jobs train on, and --follow with the same --state takes them
    up again. With --shared other accounts may ask, too.

    Example: pliant run --follow --state live --policy fair-share --cluster cluster.json

    Example: pliant schedule jobs.jsonl --cluster cluster.json --policy fifo | pliant run --until-done
    """
    from pliant.tools.run.service.loop import RunOptions, free_state_name
    from pliant.tools.run.service.members import Timeouts
    from pliant.tools.run.service.run import check_failed, dry_run_text, run_once

    config = configuration()
    if state is None and config.state is not None:
        state = Path(config.state)
        if until_done and schedule is None and _holds_run(state) and _something_is_piped_in():
            note(
                f"{state} holds a run, which goes on: no schedule is read from the pipe; for a new run name "
                "another folder with --state, to add jobs use pliant submit"
            )
    _refuse_contradictions(until_done=until_done, follow=follow, detach=detach, policy=policy, state=state)
    given = _only_shared(roles, munge=munge, root=allow_root_jobs)
    _check_shared(given, shared=shared, follow=follow)
    parameters = policy_parameters(param, time_budget)
    if not follow and (cluster or profile or parameters):
        raise UsageError(
            "--cluster, --profile, --param and --time-budget go with --follow: "
            "elsewhere the schedule says them"
        )
    begins = follow and state is not None and not _holds_run(state)
    if follow and policy is None and schedule is None:
        if config.policy is not None and not (begins and _something_is_piped_in()):
            policy, parameters = config.policy_of(None, parameters)
            note(f"policy {policy}, as {config.origins['policy']} says")
        else:
            _refuse_to_follow_without_policy(state)
    if cluster is None:
        cluster = _configured_cluster(state, config.cluster, begins=begins and policy is not None)
    options = RunOptions(
        state=state or free_state_name(Path()),
        schedule=schedule,
        question=_question(policy, parameters, seed, demand, predictor),
        cluster=cluster,
        profile=profile,
        backend=backend,
        preemptible=preemptible,
        wait_s=wait,
        restored=restored,
        retries=retries,
        timeouts=Timeouts(abort_s=stop_timeout),
        log_bytes=log_bytes,
        metrics=metrics,
        shared=shared,
        allow_root_jobs=allow_root_jobs,
        beside=_door(roles, munge=munge) if shared else None,
    )
    if begins and cluster is not None:
        _name_assumptions(cluster, profile, options.question)
    if dry_run:
        out_text(dry_run_text(options, resume=until_done or follow))
    elif until_done:
        _watch(options)
    elif follow:
        (_serve_in_background if detach else _serve)(options)
    else:
        from pliant.tools.run.watch.screen import line

        log, failed = run_once(replace(options, sinks_of_news=_words()))
        note(f"{line(log)}; state directory: {options.state}")
        check_failed(log, options.state, failed)


def _configured_cluster(state: Path | None, named: str | None, *, begins: bool) -> str | None:
    """The cluster file that the configuration names, for a run that begins.

    One that goes on keeps its cluster; how the file differs from it is said.
    """
    from pliant.schemas.errors import PliantError
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.statedir.kept_inputs import changes_not_taken

    if begins or state is None or named is None:
        return named if begins else None
    kept = StateDir(state).cluster
    if kept.exists() and Path(named).exists():
        try:
            lines = changes_not_taken(kept, named)
        except PliantError as error:  # it is not used
            lines = [str(error)]
        for line in lines:
            note(line)
    return None


def _refuse_contradictions(
    *, until_done: bool, follow: bool, detach: bool, policy: str | None, state: Path | None
) -> None:
    if until_done and (detach or follow):
        raise UsageError(f"--until-done and --{'follow' if follow else 'detach'} contradict each other")
    if policy is not None and not follow:
        raise UsageError("--policy goes with --follow: elsewhere the schedule says who decides")
    if follow and state is None:
        raise UsageError("--follow needs --state: the folder that jobs are submitted to")


def _only_shared(roles: Path | None, *, munge: bool, root: bool) -> list[str]:
    """The options that were given and go with --shared."""
    given = {"--roles": roles is not None, "--munge": munge, "--allow-root-jobs": root}
    return [name for name, is_given in given.items() if is_given]


def _check_shared(given: Sequence[str], *, shared: bool, follow: bool) -> None:
    """:raises UsageError: this account, or this way to run, cannot serve other accounts."""
    import os

    if given and not shared:
        raise UsageError(f"{given[0]} goes with --shared")
    if shared and not follow:
        raise UsageError("--shared goes with --follow: others ask while a run is there")
    if shared and os.geteuid() != 0:
        raise UsageError("--shared serves other accounts, whose jobs it starts as them: only root can")


def _door(roles: Path | None, *, munge: bool) -> Callable[[StateDir], AbstractContextManager[None]]:
    from functools import partial

    from pliant.tools.run.gateway.supervisor import supervised_gateway

    return partial(supervised_gateway, roles=roles, munge=munge)


def _refuse_to_follow_without_policy(state: Path | None) -> None:
    """A loop needs a policy: of the run that it continues, by name, or from a schedule."""
    if not (state is not None and _holds_run(state)) and not _something_is_piped_in():
        raise UsageError(
            f"{state} holds no run: name --policy and --cluster to begin one; pliant init writes both"
        )


def _holds_run(state: Path) -> bool:
    from pliant.tools.run.statedir.directory import StateDir

    return StateDir(state).events.exists()


def _something_is_piped_in() -> bool:
    """Whether stdin is a pipe, or a file that is not empty."""
    import os
    import stat

    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or found.st_size > 0


def _name_assumptions(cluster: str, profile: str | None, question: Question | None) -> None:
    """Say which speeds decisions about future jobs assume, and whether they leave out levels."""
    from pliant.schemas.io import read_cluster, read_profile
    from pliant.tools.schedule.assumptions import (
        kinds_measured,
        levels_ignored,
        speeds_assumed,
        speeds_doubted,
        trust_of,
    )

    rows = () if profile is None else read_profile(profile).rows
    kinds = None if profile is None else list(kinds_measured(rows))
    models = {model for model, _ in kinds or ()}
    doubted = speeds_doubted(models, trust_of(rows))
    nodes = read_cluster(cluster)
    levels = levels_ignored(nodes, question.policy, question.parameters) if question is not None else []
    print_assumptions([*speeds_assumed(models, nodes, kinds), *doubted, *levels])


def _question(
    policy: str | None,
    parameters: dict[str, str],
    seed: int,
    demand: Literal["stated", "predicted"] | None,
    predictor: str | None,
) -> Question | None:
    from pliant.schemas.io import read_predictor
    from pliant.tools.schedule.decide import Question

    if policy is None:
        if demand is not None or predictor is not None:
            raise UsageError("--demand and --predictor go with --policy: elsewhere the schedule says them")
        return None
    start = None if predictor is None else read_predictor(predictor)
    return Question(policy, parameters, seed, demand=demand, predictor=start)


def _watch(options: RunOptions) -> None:
    from pliant.tools.run.service.run import check_failed, run_until_done

    with _screen(options) as screen:
        log, stopped_by = run_until_done(replace(options, sinks=_sinks(), sinks_of_news=_words()), screen)
        screen.end(log)
    if stopped_by is not None:
        note(f"stopped; go on with: pliant run --until-done --state {options.state}")
        raise typer.Exit(128 + stopped_by)
    check_failed(log, options.state)


def _serve(options: RunOptions) -> None:
    from pliant.tools.run.service.run import run_and_follow

    with _screen(options) as screen:
        log, left_by = run_and_follow(replace(options, sinks=_sinks(), sinks_of_news=_words()), screen)
    running = sum(job.phase == "running" for job in log.active.values())
    left = f"{counted(running, 'job')} {'trains' if running == 1 else 'train'} on"
    note(f"left; {left}; go on with: pliant run --follow --state {options.state}")
    raise typer.Exit(128 + (left_by or 0))


def _serve_in_background(options: RunOptions) -> None:
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
            said = replace(options, sinks_of_news=(_say_trouble,))
            run_and_follow(said, look)

        return run_command(serve)

    dirs = StateDir(options.state.resolve())
    make_own(dirs)
    log = dirs.run_log
    started = in_background(body, log)
    if started.failed is not None:
        print(started.said, end="", file=sys.stderr)
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
    return () if sys.stderr is None or is_screen(sys.stderr) else (_say_trouble,)


def _say_trouble(events: Sequence[Event]) -> None:
    from pliant.tools.run.watch.screen import trouble

    for line in trouble(events):
        note(line)
