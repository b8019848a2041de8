"""Names of output files, with placeholders as sbatch has them: ``logs/%j-%r.out``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pliant.schemas.job import Job

_PLACE: Final = re.compile(r"%(\d?)(.?)")
PLACES: Final = {
    "j": "its id",
    "x": "the same",
    "A": "the name of its array, else its id",
    "a": "its number in the array, else the attempt",
    "r": "the rank of the worker",
    "t": "the same",
    "N": "the node",
    "u": "the user",
    "%": "a percent sign",
}


def pattern_fault(pattern: str) -> str | None:
    """What is wrong with the pattern of an output file. Returns None if nothing is."""
    if not pattern or pattern.endswith("/"):
        return "names no file"
    known = ", ".join(f"%{letter}" for letter in PLACES)
    for found in _PLACE.finditer(pattern):
        if found[2] not in PLACES:
            return f"has {found[0]}, expected {known}"
    return None


def output_file(pattern: str, job: Job, *, attempt: int | str, node: str, rank: int | str, user: str) -> str:
    """The path of the file of one worker.

    :param attempt: its number; ``*`` for any attempt.
    :param node: where it runs; ``*`` for any node.
    :param rank: its number; ``*`` for any worker.
    :param user: name of the account, if the job states none.
    """
    array = job.array
    values: dict[str, int | str] = {
        "j": job.id,
        "x": job.id,
        "A": job.id if array is None else array.name,
        "a": attempt if array is None else array.index,
        "r": rank,
        "t": rank,
        "N": node,
        "u": job.user or user,
        "%": "%",
    }

    def filled(found: re.Match[str]) -> str:
        value = values[found[2]]
        return str(value).zfill(int(found[1] or 0)) if isinstance(value, int) else value

    return os.path.join(job.workdir or os.getcwd(), _PLACE.sub(filled, pattern))
