"""A sweep as Slurm job arrays: the scripts are text, and submitting each is one command."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.file_io.files import write_bytes

SCRIPT: Final = "sweep.sbatch"
USUAL_ARRAY_SIZE: Final = 1001
"""Slurm's own default of MaxArraySize; the indices of an array stay below it."""
_SIZE: Final = re.compile(r"^\s*MaxArraySize\s*=\s*(\d{1,18})\s*$", re.MULTILINE)
_ASKING_S: Final = 30.0


def array_size() -> int:
    """The MaxArraySize of the Slurm here; its usual value where no Slurm answers."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return USUAL_ARRAY_SIZE
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [scontrol, "show", "config"], capture_output=True, text=True, check=False, timeout=_ASKING_S
        )
        stated = _SIZE.search(done.stdout)
        if stated is not None:
            return int(stated[1])
    return USUAL_ARRAY_SIZE


def array_scripts(
    folder: str,
    numbers: Sequence[int],
    command: Sequence[str],
    at_once: int | None,
    *,
    table: str,
    size: int = USUAL_ARRAY_SIZE,
) -> list[str]:
    """The sbatch scripts that carry out the tasks ``numbers`` of the table in ``folder``: an array each.

    :param command: what starts ``pliant`` on a node.
    :param at_once: most tasks of an array at a time.
    :param table: digest of the task table that the numbers are of.
    :param size: the MaxArraySize of Slurm: indices of one array stay below it.
    """
    if any(sign in folder for sign in '"\n\\'):
        raise UsageError(f"{folder!r}: sbatch cannot name this folder, choose another with -o")
    if size < 1:
        raise ServiceMissingError("this Slurm takes no job arrays: its MaxArraySize is 0")
    task = [*command, "replay", "-o", folder, "--table", table, "--task"]
    arrays = groupby(sorted(numbers), lambda number: number // size)
    return [
        _array_script(folder, [number % size for number in array], shlex.join(task), at_once, part * size)
        for part, array in arrays
    ]


def _array_script(folder: str, indices: Sequence[int], task: str, at_once: int | None, first: int) -> str:
    limit = "" if at_once is None else f"%{at_once}"
    log, number = ("%a", "$SLURM_ARRAY_TASK_ID")
    if first:
        log, number = (f"{first}+%a", f"$(({first} + SLURM_ARRAY_TASK_ID))")
    return f"""\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array={_ranges(indices)}{limit}
#SBATCH --output="{folder.replace("%", "%%")}/.sweep/{log}.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec {task} "{number}"
"""


def write_scripts(texts: Sequence[str], folder: Path) -> list[Path]:
    """Write ``sweep.sbatch``, ``sweep-2.sbatch``, … beside the task table; those of a longer sweep go."""
    (folder / ".sweep").mkdir(parents=True, exist_ok=True)
    first = folder / SCRIPT
    for left in folder.glob(f"{first.stem}-*{first.suffix}"):
        left.unlink()
    paths = [first, *(folder / f"{first.stem}-{part}{first.suffix}" for part in range(2, len(texts) + 1))]
    for path, text in zip(paths, texts, strict=True):
        write_bytes(path, text.encode())
    return paths


def submit(scripts: Sequence[Path], *, in_turn: bool) -> list[str]:
    """Hand the scripts to Slurm; returns the ids of their jobs.

    :param in_turn: each array waits for the end of the one before it.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        each = ", ".join(map(str, scripts))
        turns = ", each after the end of the one before it," if in_turn and len(scripts) > 1 else ""
        raise ServiceMissingError(f"no sbatch here: submit {each}{turns} where there is one")
    ids: list[str] = []
    for script in scripts:
        turn = [f"--dependency=afterany:{ids[-1]}"] if in_turn and ids else []
        done = subprocess.run(
            [sbatch, "--parsable", *turn, str(script)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            before = f" (submitted before it: {', '.join(ids)})" if ids else ""
            raise ServiceMissingError(
                f"sbatch refuses {script}: {done.stderr.strip() or done.returncode}{before}"
            )
        ids.append(done.stdout.strip().partition(";")[0])
    return ids


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3 and 7."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
