"""Paths of the files that jobs name for their output."""

from __future__ import annotations

import os
import re

from pliant.schemas.job import Job
from pliant.schemas.output_files import PLACE


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

    def filled(place: re.Match[str]) -> str:
        value = values.get(place[2], place[0])
        return str(value).zfill(int(place[1] or 0)) if isinstance(value, int) else value

    return os.path.join(job.workdir or os.getcwd(), PLACE.sub(filled, pattern))
