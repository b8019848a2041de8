"""One hash for a trace, so that results say which jobs they are about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from pliant.schemas.job import Job
from pliant.schemas.jobs_io import job_fields


def trace_hash(jobs: Iterable[Job]) -> str:
    """SHA-256, in hexadecimal, of the jobs as canonical JSON in (submit_time, id) order.

    Equal for equal jobs, in whatever order and layout a file has them. Fields that equal their default do
    not enter, so a field that a later version adds leaves the hash of an older trace as it is.
    """
    digest = hashlib.sha256()
    for job in sorted(jobs, key=lambda job: (job.submit_time, job.id)):
        digest.update(json.dumps(job_fields(job), sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()
