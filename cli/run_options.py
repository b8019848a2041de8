"""The options of ``pliant run`` and ``pliant serve``, and the run that they ask for."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

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
from pliant.cli.config import STATE_HELP, changed_cluster, configuration
from pliant.cli.console import note, out_text
from pliant.cli.option_types import DURATION_SHOWN, SIZE_SHOWN, duration, size
from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from pliant.tools.run.service.loop import RunOptions
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.schedule.decide import Question

_OPERATION: Final = "How it runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The options of both commands; without an annotation of its own a field is none."""

    schedule: Annotated[
        str | None,
        typer.Argument(help="Schedule file; - is stdin, also the default in a pipe.", show_default=False),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="State directory.", show_default=f"{STATE_HELP}, else a new ./pliant-state"
        ),
    ] = None
    roles: Annotated[
        Path | None,
        typer.Option(
            "--roles",
            metavar="FILE",
            help="Who may do what, what others see, and limits (JSON).",
            show_default="only root has a role",
        ),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            help="Where to run: local, slurm or slurm-jobs.",
            show_default="as the cluster says",
        ),
    ] = None
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Stay until all jobs have ended; decide again at every end."),
    ] = False
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Stay until Ctrl-C; decide as jobs are submitted and end."),
    ] = False
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy that decides, with --follow; or its file.",
            show_default="policy in pliant.toml, else the one before",
        ),
    ] = None
    param: PARAM = None
    time_budget: TIME_BUDGET = None
    seed: SEED = 0
    demand: DEMAND = None
    preemptible: PREEMPTIBLE = None
    predictor: PREDICTOR = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The cluster (JSON) of a new run with --follow.",
            show_default="cluster in pliant.toml",
        ),
    ] = None
    profile: Annotated[
        str | None, typer.Option("--profile", help="Measured speeds (Parquet) of a new run.")
    ] = None
    munge: Annotated[bool, typer.Option("--munge", help="Serve the other hosts of a Slurm cluster, too.")] = (
        False
    )
    allow_root_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-root-jobs",
            help="Start jobs that root submits, too, as root.",
            rich_help_panel=_OPERATION,
        ),
    ] = False
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Leave jobs running (the default); with --follow also the loop."),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps and the exact commands; do nothing.")
    ] = False
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Wait for a state directory that another process writes to.",
            rich_help_panel=_OPERATION,
        ),
    ] = 0.0
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="The state directory is a copy, and nothing of its original still runs.",
            rich_help_panel=_OPERATION,
        ),
    ] = False
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, help="How many failures in a row, without progress, are retried."),
    ] = 3
    stop_timeout: Annotated[
        float,
        typer.Option(
            "--stop-timeout",
            parser=duration(least=0.1),
            metavar=DURATION_SHOWN,
            help="Time for a checkpoint before SIGTERM is sent.",
            rich_help_panel=_OPERATION,
        ),
    ] = 60.0
    log_bytes: Annotated[
        int | None,
        typer.Option(
            "--log-bytes",
            parser=size(least=1 << 17),
            metavar=SIZE_SHOWN,
            help="Most bytes on disk for each output stream of a worker; the oldest are dropped.",
            show_default="64 MiB",
            rich_help_panel=_OPERATION,
        ),
    ] = None
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE",
            help="Keep figures for a monitoring system in this file (OpenMetrics).",
            show_default=False,
            rich_help_panel=_OPERATION,
        ),
    ] = None
    shared: bool = False
    """Whether it is that of all accounts."""

    def check(self, state: Path | None) -> None:
        """:raises UsageError: options contradict each other, or this account may not give them."""
        if self.until_done and (self.detach or self.follow):
            other = "follow" if self.follow else "detach"
            raise UsageError(f"--until-done and --{other} contradict each other")
        if self.policy is not None and not self.follow:
            raise UsageError("--policy goes with --follow: elsewhere the schedule says who decides")
        if self.follow and state is None:
            name = "pliant serve" if self.shared else "--follow"
            raise UsageError(f"{name} needs --state: the folder that jobs are submitted to")
        given = {"--roles": self.roles, "--munge": self.munge, "--allow-root-jobs": self.allow_root_jobs}
        for name in [name for name, value in given.items() if value] if not self.shared else ():
            raise UsageError(f"{name} goes with pliant serve")
        if self.shared and not self.follow:
            raise UsageError("--shared goes with --follow, as in pliant serve")
        if self.shared and os.geteuid() != 0:
            raise UsageError("pliant serve starts the jobs of other accounts as them: only root can")

    def run(self) -> None:
        """Run in the way that the options say.

        :raises UsageError: options contradict each other.
        """
        from pliant.cli import run_modes
        from pliant.tools.run.service.run import dry_run_text

        options = self._options()
        if self.dry_run:
            out_text(dry_run_text(options, resume=self.until_done or self.follow))
        elif self.until_done:
            run_modes.run_until_done(options)
        elif self.follow:
            (run_modes.follow_in_background if self.detach else run_modes.follow)(options)
        else:
            run_modes.run_once(options)

    def _options(self) -> RunOptions:
        from pliant.tools.run.service.loop import RunOptions, free_state_name
        from pliant.tools.run.service.stop_stages import Timeouts

        config, state = configuration(), self.state
        if state is None and config.state is not None:
            state = Path(config.state)
            if self.until_done and self.schedule is None and _holds_run(state) and _something_is_piped_in():
                note(
                    f"{state} holds a run, which goes on: no schedule is read from the pipe; for a new run "
                    "name another folder with --state, to add jobs use pliant submit"
                )
        self.check(state)
        policy, parameters = self.policy, policy_parameters(self.param, self.time_budget)
        if not self.follow and (self.cluster or self.profile or parameters):
            raise UsageError(
                "--cluster, --profile, --param and --time-budget go with --follow: "
                "elsewhere the schedule says them"
            )
        begins = self.follow and state is not None and not _holds_run(state)
        if self.follow and policy is None and self.schedule is None:
            if config.policy is not None and not (begins and _something_is_piped_in()):
                policy, parameters = config.policy_of(None, parameters)
                note(f"policy {policy}, as {config.origins['policy']} says")
            else:
                _refuse_to_follow_without_policy(state)
        cluster = self.cluster
        if cluster is None and begins and policy is not None:
            cluster = config.cluster
        elif cluster is None and self.follow and state is not None and not begins:
            if config.names_cluster_of(state):
                cluster = config.cluster
            elif (other := changed_cluster(state)) is not None:
                note(f"the run keeps its own cluster, not {other}: pliant reload {other} --state {state}")
        options = RunOptions(
            state=state or free_state_name(Path()),
            schedule=self.schedule,
            question=_question(policy, parameters, self.seed, self.demand, self.predictor),
            cluster=cluster,
            profile=self.profile,
            backend=self.backend,
            preemptible=self.preemptible,
            wait_s=self.wait,
            restored=self.restored,
            retries=self.retries,
            timeouts=Timeouts(abort_s=self.stop_timeout),
            log_bytes=self.log_bytes,
            metrics=self.metrics,
            shared=self.shared,
            allow_root_jobs=self.allow_root_jobs,
            beside=_gateway(self.roles, munge=self.munge) if self.shared else None,
        )
        if begins and cluster is not None:
            _name_assumptions(cluster, self.profile, options.question)
        return options


def _gateway(roles: Path | None, *, munge: bool) -> Callable[[StateDir], AbstractContextManager[None]]:
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
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or status.st_size > 0


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
