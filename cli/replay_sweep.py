"""``pliant replay --recipe``: many replays from one file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from annotated_types import Ge

from pliant.cli.console import note, progress
from pliant.schemas.errors import JobsFailedError, UsageError
from pliant.schemas.text import counted
from pliant.tools.replay.options import Option

if TYPE_CHECKING:
    from pliant.tools.replay.sweep.run import SweepTask


SWEEPS: Final = "Sweeps"


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What the command takes for a sweep, beside the place for its output."""

    recipe: Annotated[
        str | None,
        Option(
            "Carry out a sweep (TOML or JSON) into the folder -o; what is finished there is kept.",
            SWEEPS,
            metavar="FILE",
        ),
    ] = None
    executor: Annotated[
        Literal["local", "slurm-array"],
        Option("Where a sweep runs: here, or as a Slurm job array.", SWEEPS),
    ] = "local"
    task: Annotated[
        int | None, Ge(0), Option("Carry out one task of the sweep in the folder -o.", SWEEPS)
    ] = None
    table: Annotated[
        str | None,
        Option(
            "Refuse --task where the sweep's task table is not the one with this digest; scripts of "
            "--executor slurm-array say it.",
            SWEEPS,
            metavar="DIGEST",
        ),
    ] = None
    max_array_size: Annotated[
        int | None,
        Ge(1),
        Option(
            "Slurm's MaxArraySize: a larger sweep becomes several job arrays.",
            SWEEPS,
            default="what scontrol says, else 1001",
        ),
    ] = None


_BESIDE: Final = frozenset({"--workers", "--output", "--debug", "--quiet"})
"""Options that a sweep also takes."""


def check_sweep_options(given: Sequence[str], options: SweepOptions) -> None:
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
    own = {f"--{field.name.replace('_', '-')}" for field in fields(SweepOptions)}
    beside = [name for name in given if name not in own | _BESIDE]
    if beside and (recipe is not None or task is not None):
        raise UsageError(f"{beside[0]} does not go with --recipe or --task: the recipe says it")


def replay_sweep(recipe: str, output: str, workers: int | None, options: SweepOptions) -> None:
    """:param workers: replays at a time. Default: as many as cores, or as Slurm likes.
    :raises UsageError: no folder is named.
    :raises JobsFailedError: some replays failed; the others are done.
    :raises ServiceMissingError: the job array cannot be submitted from here; its files are written.
    """
    from pliant.schemas.file_io.files import make_folder
    from pliant.tools.replay.sweep.recipe import read_sweep
    from pliant.tools.replay.sweep.run import outdated, strangers, sweep_tasks, write_table

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


def replay_task(task: int, table: str | None, output: str) -> None:
    """:param table: digest of the task table that the task must be from.
    :raises UsageError: there is no such task.
    :raises BadInputError: it is another table, or what the task was made from has changed since.
    """
    from pliant.tools.replay.sweep.run import carry_out, task_of

    folder = _folder(output)
    carry_out(task_of(folder, task, table), folder)


def _folder(output: str) -> Path:
    if output == "-":
        raise UsageError("a sweep writes many files: name a folder with -o")
    return Path(output).resolve()


def _carry_out(tasks: Sequence[SweepTask], folder: Path, workers: int | None) -> None:
    from pliant.tools.replay.sweep.run import assumptions, sweep

    with progress("sweep", "replays") as advance:
        cores = len(os.sched_getaffinity(0))
        failures = sweep(tasks, folder, workers=workers or cores, advance=advance)
    for text, replays in assumptions(tasks, folder).items():
        note(f"{text} ({replays} of {counted(len(tasks), 'replay')})")
    note(f"{len(tasks) - len(failures)} of {len(tasks)} replays are in {folder}")
    if failures:
        lines = [f"{failure.name}: {failure.message}" for failure in failures]
        raise JobsFailedError("\n".join([*lines, "the same command does what is missing"]))


def _submit(tasks: Sequence[SweepTask], folder: Path, workers: int | None, size: int | None) -> None:
    from pliant.tools.replay.sweep.run import is_finished, table_digest
    from pliant.tools.replay.sweep.slurm_array import array_scripts, array_size, submit, write_scripts

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
