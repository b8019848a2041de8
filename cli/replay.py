"""``pliant replay``: what would have happened under these policies; with ``--recipe`` a whole sweep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

import typer
from annotated_types import Ge

from pliant.cli.common import print_assumptions, stated
from pliant.cli.config import configuration
from pliant.cli.console import note, note_sentence, progress
from pliant.cli.option_types import DURATION_SHOWN, duration
from pliant.schemas.errors import JobsFailedError, UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.quantities import Duration
from pliant.schemas.text import counted
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
    from pliant.tools.replay.sweep import SweepTask


_SWEEPS: Final = "Sweeps"


@dataclass(frozen=True, kw_only=True)
class _SweepOptions:
    """What the command takes for a sweep, beside the place for its output."""

    recipe: Annotated[
        str | None,
        Option(
            "Carry out a sweep (TOML or JSON) into the folder -o; what is finished there is kept.",
            _SWEEPS,
            metavar="FILE",
        ),
    ] = None
    executor: Annotated[
        Literal["local", "slurm-array"],
        Option("Where a sweep runs: here, or as a Slurm job array.", _SWEEPS),
    ] = "local"
    task: Annotated[
        int | None, Ge(0), Option("Carry out one task of the sweep in the folder -o.", _SWEEPS)
    ] = None
    table: Annotated[
        str | None,
        Option(
            "Refuse --task where the sweep's task table is not the one with this digest; scripts of "
            "--executor slurm-array say it.",
            _SWEEPS,
            metavar="DIGEST",
        ),
    ] = None
    max_array_size: Annotated[
        int | None,
        Ge(1),
        Option(
            "Slurm's MaxArraySize: a larger sweep becomes several job arrays.",
            _SWEEPS,
            default="what scontrol says, else 1001",
        ),
    ] = None


_BESIDE: Final = frozenset({"--workers", "--output", "--debug", "--quiet"})
"""Options that a sweep also takes."""


def _check_sweep_options(given: Sequence[str], options: _SweepOptions) -> None:
    """:param given: options on the command line, by their long names.
    :raises UsageError: some contradict each other, or what a sweep's recipe says.
    """
    recipe, task, is_local = options.recipe, options.task, options.executor == "local"
    if recipe is None and task is None and not is_local:
        raise UsageError(f"--executor {options.executor} needs a sweep: name its --recipe")
    if task is None and "--table" in given:
        raise UsageError("--table belongs to --task")
    if is_local and "--max-array-size" in given:
        raise UsageError("--max-array-size belongs to --executor slurm-array")
    if task is not None and (recipe is not None or not is_local):
        raise UsageError("--task carries out one task here, without --recipe and --executor")
    own = {f"--{field.name.replace('_', '-')}" for field in fields(_SweepOptions)}
    beside = [name for name in given if name not in own | _BESIDE]
    if beside and (recipe is not None or task is not None):
        raise UsageError(f"{beside[0]} does not go with --recipe or --task: the recipe says it")


def _replay_sweep(recipe: str, output: str, workers: int | None, options: _SweepOptions) -> None:
    """:param workers: replays at a time. Default: as many as cores, or as Slurm likes.
    :raises UsageError: no folder is named.
    :raises JobsFailedError: some replays failed; the others are done.
    :raises ServiceMissingError: the job array cannot be submitted from here; its files are written.
    """
    from pliant.schemas.file_io.files import make_folder
    from pliant.tools.replay.sweep import outdated, strangers, sweep_tasks, write_table
    from pliant.tools.replay.sweep_recipe import read_sweep

    folder = _folder(output)
    read = read_sweep(recipe)
    make_folder(folder)
    tasks = sweep_tasks(read, folder)
    write_table(tasks, folder)
    for name in strangers(tasks, folder):
        note(f"{output}/{name} is of no replay of this sweep, but a report of the folder would show it")
    for changed, count in outdated(tasks, folder).items():
        note(f"{counted(count, 'result')} to be made again: {changed} changed")
    if options.executor == "slurm-array":
        _submit(tasks, folder, workers, options.max_array_size)
    else:
        _carry_out(tasks, folder, workers)


def _replay_task(task: int, table: str | None, output: str) -> None:
    """:param table: digest of the task table that the task must be from.
    :raises UsageError: there is no such task.
    :raises BadInputError: it is another table, or what the task was made from has changed since.
    """
    from pliant.tools.replay.sweep import carry_out, task_of

    folder = _folder(output)
    carry_out(task_of(folder, task, table), folder)


def _folder(output: str) -> Path:
    if output == "-":
        raise UsageError("a sweep writes many files: name a folder with -o")
    return Path(output).resolve()


def _carry_out(tasks: Sequence[SweepTask], folder: Path, workers: int | None) -> None:
    from pliant.tools.replay.batch import usable_cores
    from pliant.tools.replay.sweep import assumptions, sweep

    with progress("sweep", "replays") as advance:
        failures = sweep(tasks, folder, workers=workers or usable_cores(), advance=advance)
    for text, replays in assumptions(tasks, folder).items():
        note(f"{text} ({replays} of {counted(len(tasks), 'replay')})")
    note(f"{len(tasks) - len(failures)} of {len(tasks)} replays are in {folder}")
    if failures:
        lines = [f"{failure.name}: {failure.message}" for failure in failures]
        raise JobsFailedError("\n".join([*lines, "the same command does what is missing"]))


def _submit(tasks: Sequence[SweepTask], folder: Path, workers: int | None, size: int | None) -> None:
    from pliant.tools.replay.sweep import (
        array_scripts,
        array_size,
        is_finished,
        submit,
        table_digest,
        write_scripts,
    )

    numbers = [number for number, task in enumerate(tasks) if not is_finished(task, folder)]
    if not numbers:
        note(f"all {len(tasks)} replays are in {folder}")
        return
    command = [sys.executable, "-m", "pliant.cli"]
    table = table_digest(folder)
    scripts = array_scripts(
        str(folder), numbers, command, workers, table=table, size=array_size() if size is None else size
    )
    ids = submit(write_scripts(scripts, folder), in_turn=workers is not None)
    note(f"{len(numbers)} of {len(tasks)} replays are left: submitted as {', '.join(ids)}")


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
class CommandOptions(_SweepOptions, ReplayOptions, PolicyOptions):
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
    parameters = [_option(field, hints[field.name]) for field in fields(record)]
    parameters.sort(key=lambda each: panels.index(each[0]) if each[0] else len(panels))
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    by_name = Annotated[str | None, typer.Option("--jobs", hidden=True)]
    jobs_by_name = Parameter("jobs_by_name", Parameter.KEYWORD_ONLY, default=None, annotation=by_name)

    def give(command: Command) -> Command:
        signature = Signature([context, *(parameter for _, parameter in parameters), jobs_by_name])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return give


def _option(field: Field[Any], hint: object) -> tuple[str | None, Parameter]:
    kind, *notes = get_args(hint)
    option = next(note for note in notes if isinstance(note, Option))
    shown = _shown(field.name, option, notes)
    annotation = Annotated[option.given_as or kind, shown]  # type: ignore[valid-type]
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


@options_of(CommandOptions, (INPUTS, POLICIES, CLUSTER, _SWEEPS))
def replay(context: typer.Context, *, jobs_by_name: str | None, **given: Any) -> None:
    """Simulate a trace under one or more policies; equal inputs give equal files.

    Example: pliant replay trace.jsonl --cluster cluster.json --profile profile.parquet
    --policy fifo,ares --rescale-cost 30s -o replays && pliant report replays/*.parquet
    """
    if jobs_by_name is not None:
        if given["jobs"] is not None:
            raise UsageError(
                f"--jobs {jobs_by_name}: the argument {given['jobs']} is the trace: give one of them"
            )
        given["jobs"] = jobs_by_name
    noise_scale = parse_noise_scales(given.pop("noise_scale"))
    options = CommandOptions(**given, noise_scale=noise_scale)
    _check_sweep_options(stated(context), options)
    if options.recipe is not None:
        _replay_sweep(options.recipe, options.output, options.workers, options)
    elif options.task is not None:
        _replay_task(options.task, options.table, options.output)
    else:
        _replay(options)


def _replay(options: CommandOptions) -> None:
    """One trace, read and checked once for all policies."""
    if options.jobs is not None and options.jobs.endswith(".toml"):
        raise UsageError(f"{options.jobs}: a trace is JSON Lines; the recipe of a sweep goes with --recipe")
    options = _of_folder(_configured(options))
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
            on_assumptions=print_assumptions,
            warn=note_sentence,
        )
    _show(tasks, summaries)


def _of_folder(options: CommandOptions) -> CommandOptions:
    """With the files of a folder that an import wrote, where the command line names it as the trace."""
    if options.jobs is None or not Path(options.jobs).is_dir():
        return options
    from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE

    folder = Path(options.jobs)
    if not (folder / JOBS).is_file():
        raise UsageError(
            f"{folder}: is a folder without {JOBS}, expected a trace, or a folder of trace import"
        )
    profile, convergence = (
        str(path) if stated is None and (path := folder / name).is_file() else stated
        for name, stated in ((PROFILE, options.profile), (CONVERGENCE, options.convergence))
    )
    if (profile, convergence) != (options.profile, options.convergence):
        note(f"{folder}: also the measurements of its import")
    return replace(options, jobs=str(folder / JOBS), profile=profile, convergence=convergence)


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
    for task, summary in zip(tasks, summaries, strict=True):
        for line in summary.lines():
            note_sentence(line)
        if task.path != "-":
            note(f"{summary.policy}: events in {task.path}")
