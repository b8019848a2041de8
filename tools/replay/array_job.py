"""A sweep as a Slurm job array: the script is text, and submitting it is one command."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.files import write_bytes

SCRIPT: Final = "sweep.sbatch"


def array_script(folder: str, numbers: Sequence[int], command: Sequence[str], at_once: int | None) -> str:
    """The sbatch script that carries out the tasks ``numbers`` of the table in ``folder``.

    :param command: what starts ``pliant`` on a node.
    :param at_once: at most so many tasks at a time; None: as many as Slurm likes.
    :raises UsageError: no comment of a script could name the folder.
    """
    if any(sign in folder for sign in '"\n\\'):
        raise UsageError(f"{folder!r}: sbatch cannot name this folder, choose another with -o")
    limit = "" if at_once is None else f"%{at_once}"
    task = " ".join(map(shlex.quote, [*command, "replay", "-o", folder, "--task"]))
    return f"""\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array={_ranges(numbers)}{limit}
#SBATCH --output="{folder.replace("%", "%%")}/.sweep/%a.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec {task} "$SLURM_ARRAY_TASK_ID"
"""


def write_script(text: str, folder: Path) -> Path:
    """Write the script beside the task table, and make the folder of its logs."""
    (folder / ".sweep").mkdir(parents=True, exist_ok=True)
    path = folder / SCRIPT
    write_bytes(path, text.encode())
    return path


def submit(script: Path) -> str:
    """Hand the script to Slurm; returns what sbatch says.

    :raises ServiceMissingError: there is no sbatch here, or it refuses.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ServiceMissingError(f"no sbatch here: submit {script} where there is one")
    done = subprocess.run([sbatch, str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceMissingError(f"sbatch refuses {script}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3 and 7."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
