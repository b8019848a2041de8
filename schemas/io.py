"""Read and write the eight kinds of file.

Jobs are JSON Lines or Parquet; clusters, schedules, metrics and predictors are JSON documents; profiles and
convergence tables are Parquet; events are either. What equals its default is left out, but for metrics, where
null stands for a figure that does not apply.

``path`` is a name or ``-`` for stdin or stdout; ``mode`` is that of a new file, less the umask. Readers raise
:class:`~pliant.schemas.errors.BadInputError` with every problem of the file; writers replace a file as a
whole or leave it as it was. Equal data gives equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pliant.schemas.cluster import USER, Cluster, Shares
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.archives import all_events, archives_of
from pliant.schemas.file_io.columns import rows_from_columns
from pliant.schemas.file_io.documents import (
    document_bytes,
    job_lines,
    parse_document,
    parse_job_table,
    parse_jobs,
)
from pliant.schemas.file_io.events import event_lines, parse_events
from pliant.schemas.file_io.files import PARQUET_MAGIC, PIPE, read_bytes, source_name, write_bytes
from pliant.schemas.file_io.json_lines import header
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.parquet import columns_hash, parquet_bytes, parse_parquet, to_columns
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Job
from pliant.schemas.job_table import JobTable

if TYPE_CHECKING:
    from pliant.schemas.metrics import Metrics
    from pliant.schemas.predictor import Predictor
    from pliant.schemas.profile import ConvergenceRow, Profile, ProfileRow
    from pliant.schemas.schedule import Schedule


JOBS: Final = "jobs.jsonl"
"""The job file in a folder of jobs and measurements."""
PROFILE: Final = "profile.parquet"
CONVERGENCE: Final = "convergence.parquet"
HISTORY: Final = "history.jsonl"


def imported_files(folder: str | Path) -> list[Path]:
    """The files in a folder that are named as an import names what it writes there."""
    return [file for name in (JOBS, PROFILE, CONVERGENCE, HISTORY) if (file := Path(folder) / name).is_file()]


def read_jobs(path: str | Path, defaults: Mapping[str, Any] | None = None) -> tuple[Job, ...]:
    """:param path: a file, JSON Lines or Parquet, or a folder of :data:`JOBS`.
    :param defaults: JSON values of fields for jobs that do not state them.
    """
    path = jobs_file(path)
    return jobs_of(read_bytes(path, most=ROWS_BYTES), source_name(path), defaults)


def jobs_of(data: bytes, source: str, defaults: Mapping[str, Any] | None = None) -> tuple[Job, ...]:
    """The jobs in the bytes of a file, as :func:`read_jobs`."""
    if data.startswith(PARQUET_MAGIC):
        data = job_lines(_job_table_of(data, source))
    return parse_jobs(data, source, defaults)


def read_job_table(path: str | Path) -> JobTable:
    """The same in columns, for traces."""
    path = jobs_file(path)
    return _job_table_of(read_bytes(path, most=ROWS_BYTES), source_name(path))


def _job_table_of(data: bytes, source: str) -> JobTable:
    if data.startswith(PARQUET_MAGIC):
        from pliant.schemas.job_parquet import parse_job_parquet

        return parse_job_parquet(data, source)
    return parse_job_table(data, source)


def jobs_file(path: str | Path) -> str | Path:
    """The job file of a folder that an import wrote, else the path."""
    inner = Path(path) / JOBS
    return inner if str(path) != PIPE and inner.is_file() else path


def write_jobs(jobs: Iterable[Job], path: str | Path, *, mode: int = 0o666) -> None:
    if str(path).endswith(".parquet"):
        from pliant.schemas.job_parquet import job_parquet

        write_bytes(path, job_parquet(jobs), mode=mode)
    else:
        write_bytes(path, job_file(jobs), mode=mode)


def job_file(jobs: Iterable[Job]) -> bytes:
    """A job file's bytes."""
    listed = list(jobs)
    minor = max((job.minor for job in listed), default=0)
    return header("job", minor) + job_lines(listed)


def read_cluster(path: str | Path) -> Cluster:
    return cluster_of(read_bytes(path), source_name(path))


def cluster_of(data: bytes, source: str) -> Cluster:
    """The cluster in the bytes of a file, as :func:`read_cluster`."""
    return parse_document(data, source, "cluster", Cluster, schema_required=False)


def write_cluster(cluster: Cluster, path: str | Path, *, mode: int = 0o666) -> None:
    write_bytes(path, document_bytes(cluster, "cluster"), mode=mode)


def read_schedule(path: str | Path) -> Schedule:
    from pliant.schemas.schedule import Schedule

    return parse_document(read_bytes(path), source_name(path), "schedule", Schedule)


def write_schedule(schedule: Schedule, path: str | Path, *, mode: int = 0o666) -> None:
    write_bytes(path, document_bytes(schedule, "schedule"), mode=mode)


def read_shares(text: str) -> Shares:
    """The teams in a file, as the ``shares`` of a cluster; or, of ``user`` and ``label:NAME``, one for each
    user, or for each value of a label of jobs.
    """
    if text == USER or text.startswith("label:"):
        try:
            return Shares.by_label(text.removeprefix("label:"))
        except ValidationError:
            expected = "expected label:NAME, a name of letters, digits, '.', '_' and '-'"
            raise UsageError(f"--shares {text}: {expected}") from None
    data, source = read_bytes(text), source_name(text)
    try:
        return Shares.model_validate_json(data)
    except ValidationError as error:
        raise BadInputError(problems_of(error, source)) from error


def read_metrics(path: str | Path) -> Metrics:
    from pliant.schemas.metrics import Metrics

    return parse_document(read_bytes(path), source_name(path), "metrics", Metrics)


def write_metrics(metrics: Metrics, path: str | Path) -> None:
    write_bytes(path, document_bytes(metrics, "metrics", with_defaults=True))


def read_predictor(path: str | Path) -> Predictor:
    from pliant.schemas.predictor import Predictor

    return parse_document(read_bytes(path), source_name(path), "predictor", Predictor)


def write_predictor(predictor: Predictor, path: str | Path, *, mode: int = 0o666) -> None:
    write_bytes(path, document_bytes(predictor, "predictor"), mode=mode)


def read_profile(path: str | Path) -> Profile:
    from pliant.schemas.profile import PROFILE, Profile

    source = source_name(path)
    rows, metadata = parse_parquet(read_bytes(path, most=ROWS_BYTES), source, PROFILE)
    return Profile(rows, metadata, source)


def write_profile(profile: Profile, path: str | Path, *, mode: int = 0o666) -> None:
    from pliant.schemas.profile import PROFILE

    write_bytes(path, parquet_bytes(profile.rows, PROFILE, profile.metadata), mode=mode)


def read_convergence(path: str | Path) -> tuple[ConvergenceRow, ...]:
    from pliant.schemas.profile import CONVERGENCE

    return parse_parquet(read_bytes(path, most=ROWS_BYTES), source_name(path), CONVERGENCE)[0]


def write_convergence(rows: Iterable[ConvergenceRow], path: str | Path) -> None:
    from pliant.schemas.profile import CONVERGENCE

    write_bytes(path, parquet_bytes(tuple(rows), CONVERGENCE))


def read_events(path: str | Path) -> tuple[Event, ...]:
    """Read JSON Lines or Parquet, by content; of a log its archives, too.

    A torn last line of JSON Lines (a crash while writing) is dropped with a warning on the logger "pliant".
    """
    if str(path) != PIPE and Path(path).is_file() and archives_of(Path(path)):
        return tuple(event for block in all_events(Path(path)) for event in block)
    return parse_events(read_bytes(path, most=ROWS_BYTES), source_name(path))


def write_events(events: Iterable[Event], path: str | Path) -> None:
    """Write events: Parquet to ``-`` and to a name that ends in ``.parquet``, else JSON Lines."""
    rows = tuple(events)
    as_parquet = str(path) == PIPE or str(path).endswith(".parquet")
    write_bytes(path, parquet_bytes(rows, EVENT) if as_parquet else header("event") + event_lines(rows))


def profile_to_columns(rows: Sequence[ProfileRow]) -> dict[str, list[Any]]:
    """The form embedded in schedules and event files."""
    from pliant.schemas.profile import OF_PAIRS, OF_TRUST, PROFILE

    columns = to_columns(rows, PROFILE)
    if all(row.kind != "pair" for row in rows):
        for name in OF_PAIRS:
            del columns[name]
    for name in OF_TRUST:
        if all(value is None for value in columns[name]):
            del columns[name]
    return columns


def profile_hash(columns: Mapping[str, Sequence[Any]]) -> str:
    """SHA-256, in hexadecimal: equal for equal rows in the same order."""
    return columns_hash(columns)


def profile_from_columns(
    columns: Mapping[str, Sequence[Any]], source: str = "profile"
) -> tuple[ProfileRow, ...]:
    """``source`` is what messages call the columns."""
    from pliant.schemas.profile import PROFILE

    return rows_from_columns(columns, PROFILE, source)
