"""``pliant replay``: what would have happened under these policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from annotated_types import Ge

from pliant.cli.common import heed, stated
from pliant.cli.config import configuration
from pliant.cli.console import note, note_sentence, progress
from pliant.cli.grammar import DURATION_SHOWN, Formerly, duration
from pliant.cli.replay_sweep import SWEEPS, SweepOptions, check_sweep_options, replay_sweep, replay_task
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.quantities import Duration
from pliant.tools.replay.options import (
    CLUSTER,
    INPUTS,
    POLICIES,
    Option,
    ReplayOptions,
    parse_noise_scales,
)

if TYPE_CHECKING:
    from pliant.tools.replay.batch import Task
    from pliant.tools.replay.output import Summary


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The policies under which a trace is replayed."""

    policy: Annotated[
        list[str] | None,
        Option(
            "One policy or several (`pliant policies`), or files: ./policy.py.",
            POLICIES,
            metavar="NAME[,NAME…]",
        ),
    ] = None
    param: Annotated[
        list[str] | None,
        Option(
            "A parameter of a policy; with one policy its name may be left out.",
            POLICIES,
            metavar="[POLICY.]KEY=VALUE",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CommandOptions(SweepOptions, ReplayOptions, PolicyOptions):
    """The help lists the fields of the last base first."""

    workers: Annotated[
        int | None, Ge(1), Option("Replays at a time.", default="1; of a sweep as many as cores")
    ] = None
    timing: Annotated[
        bool | None,
        Option(
            "Also write how long decisions took into the event file.",
            default="into the summary",
            names=("--timing/--no-timing",),
        ),
    ] = None
    output: Annotated[
        str,
        Option(
            "Event file of one policy (.parquet or .jsonl; - is stdout, JSON Lines), or a folder. "
            "NAME.summary.json is written beside NAME.parquet.",
            names=("-o", "--output"),
        ),
    ] = "-"


Command = Callable[..., None]


def options_of(record: type, panels: Sequence[str]) -> Callable[[Command], Command]:
    """Give a command that takes a context and keywords an option for each field of ``record``.

    :param panels: headings of the help in order; options without one come last.
    """
    hints = get_type_hints(record, include_extras=True)
    found = [_option(field, hints[field.name]) for field in fields(record)]
    found.sort(key=lambda each: panels.index(each[0]) if each[0] else len(panels))
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def give(command: Command) -> Command:
        signature = Signature([context, *(parameter for _, parameter in found)])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return give


def _option(field: Field[Any], hint: object) -> tuple[str | None, Parameter]:
    kind, *notes = get_args(hint)
    option = next(note for note in notes if isinstance(note, Option))
    shown = _shown(field.name, option, notes)
    annotation = Annotated[option.given_as or kind, shown, Formerly(*option.formerly)]  # type: ignore[valid-type]
    return option.panel, Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
    )


def _shown(name: str, option: Option, notes: Sequence[object]) -> Any:
    """The field as Typer knows it."""
    least: Any = next((note.ge for note in notes if isinstance(note, Ge)), None)
    span = next((note for note in notes if isinstance(note, Duration)), None)
    how: dict[str, Any] = {"metavar": option.metavar, "min": least}
    if span is not None:
        how = {"metavar": DURATION_SHOWN, "parser": duration(least=least or 0, unit=span.unit)}
    how |= {"help": option.help, "rich_help_panel": option.panel}
    if option.is_argument:
        return typer.Argument(show_default=option.default or False, **how)
    names = option.names or (f"--{name.replace('_', '-')}",)
    return typer.Option(*names, show_default=option.default or True, **how)


@options_of(CommandOptions, (INPUTS, POLICIES, CLUSTER, SWEEPS))
def replay(context: typer.Context, **given: Any) -> None:
    """Replay a trace under one or more policies, by discrete events; equal inputs give equal files.

    Example: pliant replay trace.jsonl --cluster cluster.json --profile profile.parquet
    --policy fifo,ares --rescale-cost 30s -o replays && pliant report replays/*.parquet
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle threads of numpy would cost more than a replay
    noise_scale = parse_noise_scales(given.pop("noise_scale"))
    options = CommandOptions(**given, noise_scale=noise_scale)
    check_sweep_options(stated(context), options)
    if options.recipe is not None:
        replay_sweep(options.recipe, options.output, options.workers, options)
    elif options.task is not None:
        replay_task(options.task, options.table, options.output)
    else:
        _replay(options)


def _replay(options: CommandOptions) -> None:
    """One trace, read and checked once for all policies."""
    if options.jobs is not None and options.jobs.endswith(".toml"):
        raise UsageError(f"{options.jobs}: a trace is JSON Lines; the recipe of a sweep goes with --recipe")
    options = _configured(options)
    if options.jobs is None or not options.policy:
        given = {"the trace": options.jobs, "--cluster": options.cluster, "--policy": options.policy}
        missing = " and ".join(name for name, value in given.items() if not value)
        raise UsageError(f"{missing} missing: a replay needs a trace, --cluster and --policy, or --recipe")
    for name, text in options.wrong():
        raise UsageError(f"--{name} {text}")
    with garbage_collection_paused():  # imports leave none
        from pliant.tools.replay.batch import replay_all, tasks_of
        from pliant.tools.replay.inputs import Sources

    names = [name for names in options.policy for name in names.split(",")]
    sources = Sources(
        *(options.jobs, options.cluster, options.profile, options.jobs_limit, options.convergence),
        shares=options.shares,
    )
    tasks = tasks_of(options, names, options.param or [], options.output, timing=options.timing)
    with progress("replay", "jobs") as advance:
        summaries = replay_all(
            sources,
            tasks,
            workers=options.workers or 1,
            advance=advance,
            heed=heed,
            warn=note_sentence,
        )
    _show(tasks, summaries)


def _configured(options: CommandOptions) -> CommandOptions:
    """With cluster and policy of pliant.toml, where the command line names none."""
    config = configuration()
    cluster = options.cluster or config.cluster
    if options.policy or config.policy is None:
        return replace(options, cluster=cluster)
    given = options.param or []
    named = {pair.partition("=")[0].rpartition(".")[2] for pair in given}
    own = [f"{key}={value}" for key, value in config.parameters.items() if key not in named]
    note(f"policy {config.policy}, as {config.origins['policy']} says")
    return replace(options, cluster=cluster, policy=[config.policy], param=[*own, *given])


def _show(tasks: Sequence[Task], summaries: Sequence[Summary]) -> None:
    for task, found in zip(tasks, summaries, strict=True):
        for line in found.lines():
            note_sentence(line)
        if task.path != "-":
            note(f"{found.policy}: events in {task.path}")
