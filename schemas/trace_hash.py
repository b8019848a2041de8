"""One hash for a trace, so that results say which jobs they are about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Final

from pydantic.fields import FieldInfo

from pliant.schemas.file_io.record import Record
from pliant.schemas.job import Job

_REQUIRED: Final = object()


def trace_hash(jobs: Iterable[Job]) -> str:
    """SHA-256, in hexadecimal, of the jobs as canonical JSON in (submit_time, id) order.

    Equal for equal jobs, in whatever order and layout a file has them. Fields that equal their default do
    not enter, so a field that a later version adds leaves the hash of an older trace as it is.
    """
    digest = hashlib.sha256()
    for job in sorted(jobs, key=lambda job: (job.submit_time, job.id)):
        digest.update(canonical_json(job).encode() + b"\n")
    return digest.hexdigest()


def canonical_json(record: Record) -> str:
    """A record as JSON with sorted keys, in ASCII, without spaces and fields that equal their default.

    The same as ``json.dumps`` of :func:`~pliant.schemas.file_io.jobs.job_fields`, in a fifth of the time.
    """
    values = record.__dict__
    found = [
        f"{key}{_text(value)}"
        for name, key, default in _fields(type(record))
        if (value := values[name]) is not default and value != default
    ]
    return f"{{{','.join(found)}}}"


def _text(value: object) -> str:
    if type(value) is str:
        return encode_basestring_ascii(value)
    if type(value) is float or type(value) is int:
        return repr(value)
    if isinstance(value, Record):
        return canonical_json(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@cache
def _fields(record: type[Record]) -> tuple[tuple[str, str, object], ...]:
    """Name, key in the text and default of each field, sorted by name."""
    return tuple(
        (name, f"{encode_basestring_ascii(name)}:", _default(field))
        for name, field in sorted(record.model_fields.items())
    )


def _default(field: FieldInfo) -> object:
    """The very object that records share, where they do."""
    if field.is_required():
        return _REQUIRED
    return field.default if field.default_factory is None else field.get_default(call_default_factory=True)
