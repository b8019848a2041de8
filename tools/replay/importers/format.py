"""What an importer is, and what is common to those of production traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.convergence import ConvergenceRow
from pliant.schemas.event import Event
from pliant.schemas.job import Gpus, GpuTimeWork, Job
from pliant.schemas.profile import ProfileRow
from pliant.tools.replay.importers.conversion import Conversion, DroppedRowError
from pliant.tools.replay.importers.input_row import NOTHING

NO_GPU: Final = "asked for no GPU"
NO_SUBMISSION: Final = "had no time of submission"
NEVER_STARTED: Final = "never started"
NO_DURATION: Final = "ran for no time"
BACKWARDS: Final = "ended before they started"
NOT_FINISHED: Final = "had not finished when the trace ended"
UNKNOWN_MODEL: Final = "unknown"
MOST_GPUS: Final = 65_536
"""Of one measurement: its placement names every node."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format that holds jobs. ``jobs`` reads the given paths; ``absolute``: its times are shifted to 0.

    ``cluster`` reads the nodes of those paths that list some; None: there is no such path.
    """

    name: str
    jobs: Callable[[Sequence[str], Conversion], Iterator[Job]]
    absolute: bool = True
    cluster: Callable[[Sequence[str], Conversion], Cluster | None] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What a folder of measurements gives; ``jobs`` is empty without a workload."""

    jobs: Iterable[Job] = ()
    profile: Sequence[ProfileRow] = ()
    convergence: Sequence[ConvergenceRow] = ()
    history: Sequence[Event] = ()
    """What jobs reported that ran."""


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format that brings measurements: ``read`` takes its folder and the workload file, if one is wanted.

    ``workload`` reads a workload file alone, for formats whose jobs need no measurements.
    """

    name: str
    read: Callable[[Path, Path | None, Conversion], Imported]
    workload: Callable[[Path, Conversion], Iterator[Job]] | None = None


Format = TraceFormat | FolderFormat


def executed_job(
    job_id: str,
    submit_time_s: float,
    gpus: int,
    gpu_seconds: float,
    *,
    labels: Mapping[str, Any],
    user: str = "",
    model: str = UNKNOWN_MODEL,
) -> Job:
    """A rigid job known by what it executed; labels that say nothing are left out."""
    stated = {name: "" if value is None else str(value) for name, value in labels.items()}
    return Job(
        id=job_id,
        submit_time=submit_time_s,
        model=model,
        gpus=Gpus(requested=gpus),
        user=user,
        work=GpuTimeWork(gpu_seconds=gpu_seconds),
        labels={name: text for name, text in stated.items() if text.lower() not in NOTHING},
    )


def executed_seconds(start_s: float | None, end_s: float | None) -> float:
    """Seconds from start to end.

    :raises DroppedRowError: it did not start, did not end, took no time, or ended first.
    """
    if start_s is None:
        raise DroppedRowError(NEVER_STARTED)
    if end_s is None:
        raise DroppedRowError(NOT_FINISHED)
    if end_s < start_s:
        raise DroppedRowError(BACKWARDS)
    if end_s == start_s:
        raise DroppedRowError(NO_DURATION)
    return end_s - start_s


def assume_no_models(conversion: Conversion) -> None:
    """State what every trace without models has in common."""
    conversion.summary.assume(f"the trace names no models: every job has the model {UNKNOWN_MODEL!r}")
    conversion.summary.assume("work is the executed time times the GPUs requested; jobs do not change size")


def assume_utc(conversion: Conversion) -> None:
    """State how clock times are read."""
    conversion.summary.assume("clock times without a zone are read as UTC, without daylight saving")
