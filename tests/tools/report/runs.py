"""Small event lists, so that tests name only what they are about."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.job import Job
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from tests.builders import cluster, job

LINEAR = tuple((size, float(size)) for size in (1, 2, 4, 8, 16))


def begin(nodes: Cluster | None = None, *, at: float = 0.0, **more: Any) -> Event:
    """The first event of a run: fifo on four GPUs, simulated."""
    info = {
        "policy": "fifo",
        "simulated": True,
        "trace_hash": "ab" * 32,
        "cluster": (nodes or cluster(4)).model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "pliant_version": "0.1.0",
        **more,
    }
    return Event(at, "decision", detail=info)


def story(*events: Event, **info: Any) -> RunRecord:
    return fold([begin(**info), *events])


def ran(name: str, start: float, end: float, gpus: int = 1) -> list[Event]:
    return [Event(start, "start", name, gpus), Event(end, "finish", name, 0)]


def one_by_one(work: Sequence[float] = (8.0, 8.0, 16.0), **info: Any) -> RunRecord:
    """Jobs a, b, c, … from time 0 on all four GPUs, one after another."""
    works = dict(zip("abcdefghijkl", work, strict=False))
    events, now = [submit(job(name, gpus=4, low=1), samples) for name, samples in works.items()], 0.0
    for name, samples in works.items():
        events += ran(name, now, now + samples / 4, 4)
        now += samples / 4
    return story(*events, **info)


def submit(
    spec: Job,
    samples: float | None = None,
    curve: tuple[tuple[int, float], ...] = LINEAR,
    at: float | None = None,
) -> Event:
    """A job arrives, by default with a linear curve of one sample per GPU-second."""
    detail: dict[str, Any] = {"job": job_fields(spec), "curve": [list(point) for point in curve]}
    if samples is not None:
        detail["samples"] = samples
    return Event(spec.submit_time if at is None else at, "submit", spec.id, detail=detail)


def first_come(**more: Any) -> list[Event]:
    """Three jobs on four GPUs, one after another, the last one never started."""
    return [
        begin(**more),
        submit(job("a", gpus=4, low=1), 480.0),
        submit(job("b", at=10, gpus=2, low=1), 240.0),
        submit(job("c", at=20), 60.0),
        Event(0, "start", "a", 4),
        Event(120, "finish", "a", 0),
        Event(120, "start", "b", 2),
        Event(240, "finish", "b", 0),
    ]


def shared(**more: Any) -> list[Event]:
    """The same jobs, resized and preempted so that all of them finish; losses as a live run reports them."""
    return [
        begin(policy="ares", parameters={"alpha": 0.75}, bounds={"gps_delay": 1 / 0.75 - 1}, **more),
        submit(job("a", gpus=4, low=1), 480.0),
        submit(job("b", at=10, gpus=2, low=1), 240.0),
        submit(job("c", at=20), 60.0),
        Event(0, "start", "a", 4, overhead_seconds=2.0),
        Event(10, "shrink", "a", 2, overhead_seconds=1.0),
        Event(10, "start", "b", 2, overhead_seconds=2.0),
        Event(15, "progress", "b", loss=2.5),
        Event(20, "preempt", "b", 0),
        Event(20, "start", "c", 1, overhead_seconds=2.0),
        Event(82, "finish", "c", 0),
        Event(82, "resume", "b", 2, overhead_seconds=2.0),
        Event(195, "progress", "b", loss=0.25, samples_done=238.0),
        Event(196, "finish", "b", 0, samples_done=240.0),
        Event(196, "grow", "a", 4, overhead_seconds=1.0),
        Event(214, "finish", "a", 0, samples_done=480.0),
    ]


def by_id(run: RunRecord, values: NDArray[Any]) -> dict[str, float]:
    return {job.id: value for job, value in zip(run.jobs, values.tolist(), strict=True) if value == value}


def check_golden(name: str, text: str) -> None:
    """Compare with a file of golden/; with PLIANT_WRITE_GOLDEN=1 in the environment, write it."""
    path = Path(__file__).parent / "golden" / name
    if os.environ.get("PLIANT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
