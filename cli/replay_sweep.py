"""``pliant replay --recipe``: many replays from one file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pliant.cli.console import note, progress
from pliant.schemas.errors import JobsFailedError, UsageError

if TYPE_CHECKING:
    from pliant.tools.replay.sweep_tasks import SweepTask


class Executor(StrEnum):
    """Where the tasks of a sweep run."""

    local = "local"
    slurm_array = "slurm-array"


_OF_A_SWEEP: Final = frozenset(
    {"--recipe", "--task", "--executor", "--workers", "--output", "--debug", "--quiet"}
)


def refuse_beside_a_sweep(options: Iterable[str]) -> None:
    """Options that say what a sweep's recipe says.

    :param options: those that were stated, by their long names.
    :raises UsageError: one of them is given.
    """
    given = [name for name in options if name not in _OF_A_SWEEP]
    if given:
        raise UsageError(f"{given[0]} does not go with --recipe or --task: the recipe says it")


def replay_sweep(
    recipe: str | None, task: int | None, output: str, workers: int | None, executor: Executor
) -> None:
    """Carry out a sweep, or one task of it, into the folder ``output``.

    :param workers: replays at a time; None: as many as cores, or as Slurm likes.
    :raises UsageError: it is not said where to, or a task is asked for and a sweep, too.
    :raises JobsFailedError: some replays failed; the others are done.
    :raises ServiceMissingError: the job array cannot be submitted from here; its files are written.
    """
    from pliant.schemas.files import make_folder
    from pliant.tools.replay.sweep import carry_out, strangers
    from pliant.tools.replay.sweep_recipe import read_sweep
    from pliant.tools.replay.sweep_tasks import sweep_tasks, task_of, write_table

    if output == "-":
        raise UsageError("a sweep writes many files: name a folder with -o")
    folder = Path(output).resolve()
    if task is not None:
        if recipe is not None or executor is not Executor.local:
            raise UsageError("--task carries out one task here, without --recipe and --executor")
        carry_out(task_of(folder, task), folder)
        return
    read = read_sweep(str(recipe))
    make_folder(folder)
    tasks = sweep_tasks(read, folder)
    write_table(tasks, folder)
    for name in strangers(tasks, folder):
        note(f"{output}/{name} is of no replay of this sweep, but a report of the folder would show it")
    if executor is Executor.slurm_array:
        _submit(tasks, folder, workers)
    else:
        _carry_out(tasks, folder, workers)


def _carry_out(tasks: Sequence[SweepTask], folder: Path, workers: int | None) -> None:
    from pliant.tools.replay.sweep import sweep

    with progress("sweep", "replays") as advance:
        cores = len(os.sched_getaffinity(0))
        failures = sweep(tasks, folder, workers=workers or cores, advance=advance)
    if any(task.profile is None for task in tasks):
        note("no profile for some: their speed is assumed to grow in proportion to the GPUs")
    note(f"{len(tasks) - len(failures)} of {len(tasks)} replays are in {folder}")
    if failures:
        lines = [f"{failure.name}: {failure.message}" for failure in failures]
        raise JobsFailedError("\n".join([*lines, "the same command does what is missing"]))


def _submit(tasks: Sequence[SweepTask], folder: Path, workers: int | None) -> None:
    from pliant.tools.replay.array_job import array_script, submit, write_script
    from pliant.tools.replay.sweep import is_finished

    numbers = [number for number, task in enumerate(tasks) if not is_finished(task, folder)]
    if not numbers:
        note(f"all {len(tasks)} replays are in {folder}")
        return
    command = [sys.executable, "-m", "pliant.cli"]
    text = array_script(str(folder), numbers, command, workers)
    note(f"{len(numbers)} of {len(tasks)} replays are left: {submit(write_script(text, folder))}")
