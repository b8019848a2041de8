from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas import io
from pliant.schemas.file_io.files import write_chunks
from pliant.schemas.job import Job
from pliant.tools.replay.importers import run
from pliant.tools.replay.importers.run import SortedJobs
from tests.builders import job


def written(jobs: list[Job], *, from_zero: bool) -> tuple[Job, ...]:
    with tempfile.TemporaryDirectory() as folder, SortedJobs() as spool:
        spool.add(jobs)
        write_chunks(Path(folder) / "jobs.jsonl", spool.chunks(from_zero=from_zero))
        return io.read_jobs(Path(folder) / "jobs.jsonl")


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_jobs_come_out_by_time_and_otherwise_as_they_went_in(times: list[float]) -> None:
    jobs = [job(f"j{i}", at=at, gpus=1 + i % 3) for i, at in enumerate(times)]
    assert list(written(jobs, from_zero=False)) == sorted(jobs, key=lambda found: found.submit_time)


def test_the_first_submission_is_zero() -> None:
    found = written([job("a", at=1500.5), job("b", at=1000.25)], from_zero=True)
    assert [(each.id, each.submit_time) for each in found] == [("b", 0.0), ("a", 500.25)]


def test_more_jobs_than_memory_allows_for_go_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_IN_MEMORY", 1000)
    monkeypatch.setattr(run, "_CHUNK", 300)
    jobs = [job(f"j{i}", at=float(99 - i)) for i in range(100)]
    assert list(written(jobs, from_zero=False)) == jobs[::-1]
