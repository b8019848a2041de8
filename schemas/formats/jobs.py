"""Job files: JSON Lines in which every id occurs once."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.formats.jsonlines import encode, read_lines
from pliant.schemas.formats.sharing import Sharing
from pliant.schemas.job import Job


def parse_jobs(data: bytes, source: str) -> tuple[Job, ...]:
    """All jobs of a file, in its order; a file without any schema is read as version 1."""
    share = Sharing().share
    lines, problems = read_lines(
        data, source, "job", lambda line: share(Job.model_validate_json(line)), written_by_people=True
    )
    problems = sorted(problems + _duplicates(lines, source), key=lambda problem: problem.line or 0)
    if problems:
        raise BadInputError(problems)
    return tuple(job for _, job in lines)


def job_fields(job: Job) -> dict[str, object]:
    """A job as JSON values, without the fields that equal their default."""
    return job.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def job_lines(jobs: Iterable[Job]) -> bytes:
    """Jobs as JSON Lines, without the header.

    :raises ValueError: an id occurs twice.
    """
    listed = tuple(jobs)
    if len({job.id for job in listed}) < len(listed):
        raise ValueError("two jobs have the same id")
    return b"".join(encode(job_fields(job)) for job in listed)


def _duplicates(lines: list[tuple[int, Job]], source: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for number, job in lines:
        known = first.setdefault(job.id, number)
        if known != number:
            text = f'"{job.id}" is used twice, first on line {known}, expected unique ids'
            problems.append(Problem(source, number, "/id", text))
    return problems
