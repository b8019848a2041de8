"""Job files: JSON Lines in which every id occurs once."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.jsonlines import encode, read_lines
from pliant.schemas.file_io.record import Record
from pliant.schemas.job import Job


def parse_jobs(data: bytes, source: str) -> tuple[Job, ...]:
    """All jobs of a file, in its order; a file without any schema is read as version 1."""
    share = _Sharing().share
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


class _Sharing:
    """Equal parts of the jobs of one file, kept once: jobs are much alike, and take a third of the memory.

    Records never change, so sharing them has no effect.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[object, ...], Record] = {}
        self._names: dict[frozenset[str], set[str]] = {}

    def share(self, job: Job) -> Job:
        """The same job, with the parts of earlier jobs where its own are equal to them."""
        values = job.__dict__
        for name in ("gpus", "batch"):
            record = values[name]
            values[name] = self._records.setdefault((name, *record.__dict__.values()), record)
        self._share_names(job)
        if job.work is not None:
            self._share_names(job.work)
        return job

    def _share_names(self, record: Record) -> None:
        """Pydantic notes for each record which fields were given; copies of a record copy the note."""
        names = record.model_fields_set
        shared = self._names.setdefault(frozenset(names), names)
        object.__setattr__(record, "__pydantic_fields_set__", shared)
