"""CPU seconds to read and write large files: 100,000 jobs and 300,000 events."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.parts import typed_events
from benchmarks.parts.figure import Figure
from pliant.schemas import io
from pliant.schemas.event import Event
from pliant.schemas.events import typed
from pliant.schemas.job import Gpus, Job, SampleWork

MEASURES: Final = ("schemas",)

JOBS = 100_000
EVENTS = 300_000
SEED = 20250117
LIMIT_S = 5.0


def figures(jobs: int = JOBS, events: int = EVENTS, replays: int = 200, lives: int = 20) -> list[Figure]:
    """One reading and one writing of each form; writing includes making the records.

    :param replays: logs of replays and of live runs that are typed and given back.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed, lines, table = (
            Path(folder) / name for name in ("jobs.jsonl", "events.jsonl", "events.parquet")
        )
        return [
            _figure("io_write_100k_jobs_s", lambda: io.write_jobs(_jobs(jobs), listed), None),
            _figure("io_read_100k_jobs_s", lambda: io.read_jobs(listed)),
            _figure("io_write_300k_events_s", lambda: io.write_events(_events(events), lines), None),
            _figure("io_read_300k_events_s", lambda: io.read_events(lines)),
            _figure("io_write_300k_events_parquet_s", lambda: io.write_events(_events(events), table), None),
            _figure("io_read_300k_events_parquet_s", lambda: io.read_events(table)),
            _figure("io_type_300k_events_s", lambda: [*map(typed, _events(events))]),
            *typed_events.figures(replays, lives),
        ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(jobs=100, events=300, replays=2, lives=1)


def _figure(name: str, work: Callable[[], object], limit: float | None = LIMIT_S) -> Figure:
    before = time.process_time()
    work()
    return Figure(name, round(time.process_time() - before, 3), "s", limit)


def _jobs(count: int) -> list[Job]:
    return [
        Job(
            id=f"job-{i}",
            submit_time=float(i),
            model="resnet",
            gpus=Gpus(requested=1 + i % 8),
            work=SampleWork(samples=1e6),
        )
        for i in range(count)
    ]


def _events(count: int) -> list[Event]:
    """Their times differ as those of a replay do: a file of equal steps is refused as expanding too far."""
    drawn = random.Random(SEED)  # noqa: S311
    return [
        Event(
            i + drawn.random(),
            "grow",
            f"job-{i % 1000}",
            4,
            (("n0", 4),),
            256,
            float(i),
            detail={"reason": "grew"},
        )
        for i in range(count)
    ]
