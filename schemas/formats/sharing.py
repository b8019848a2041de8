"""Jobs of a trace are much alike: what is equal in them is kept once, in a third of the memory."""

from __future__ import annotations

from pliant.schemas.formats.record import Record
from pliant.schemas.job import Job


class Sharing:
    """Parts of the jobs of one file, by their values. Records never change, so nobody can tell."""

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
