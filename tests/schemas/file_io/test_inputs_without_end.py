"""What does not end, or never begins, is refused in one line: a device, a pipe without a writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io import files, limits
from pliant.schemas.file_io import files as pipes
from pliant.schemas.kinds import validate_file
from pliant.tools.replay.engine.failures import read_failures
from pliant.tools.replay.importers.reading import first_line
from pliant.tools.replay.sweep.recipe import read_sweep
from pliant.tools.replay.traces.recipe import read_recipe
from pliant.tools.report.expectations import read_expectations
from pliant.tools.report.read_run import read_run
from tests.builders import cluster, job

ADVICE = "PLIANT_INPUT_LIMITS=10 in the environment makes all such limits ten times as large"
READERS = [
    io.read_cluster,
    io.read_convergence,
    io.read_events,
    io.read_jobs,
    io.read_metrics,
    io.read_predictor,
    io.read_profile,
    io.read_schedule,
    read_expectations,
    read_failures,
    partial(read_recipe, overrides={}),
    read_run,
    read_sweep,
    validate_file,
]


def refusal(read: Callable[[Any], Any], path: str | Path) -> str:
    with pytest.raises(BadInputError) as caught:
        read(path)
    return str(caught.value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "STREAM_BYTES", 5000)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.usefixtures("small")
def test_a_device_without_an_end_is_refused_by_every_reader(read: Callable[[Any], Any]) -> None:
    assert refusal(read, "/dev/zero") == f"/dev/zero: has more than 5,000 bytes; {ADVICE}"


def test_a_document_that_is_too_large_is_refused_before_any_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    with path.open("wb") as file:
        file.truncate(limits.DOCUMENT_BYTES + 1)
    assert refusal(io.read_cluster, path) == f"{path}: has more than 268,435,456 bytes; {ADVICE}"


@pytest.mark.usefixtures("small")
def test_the_environment_raises_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.FACTOR, "3")
    assert "has more than 15,000 bytes" in refusal(io.read_jobs, "/dev/zero")


def test_a_pipe_that_no_process_writes_to_is_refused_and_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "WRITER_S", 0.1)
    os.mkfifo(tmp_path / "jobs")
    expected = f"{tmp_path}/jobs: is a pipe, and no process has opened it for writing within 0.1 s"
    for read in (validate_file, io.read_jobs, first_line):
        assert refusal(read, str(tmp_path / "jobs")) == expected


def test_a_pipe_whose_writer_comes_later_and_writes_slowly_is_read_to_its_end(tmp_path: Path) -> None:
    path, source = tmp_path / "pipe", tmp_path / "jobs.jsonl"
    os.mkfifo(path)
    io.write_jobs([job("a"), job("b")], source)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for byte in source.read_bytes():
                pipe.write(bytes([byte]))

    writer = threading.Timer(0.2, write)
    writer.start()
    assert [each.id for each in io.read_jobs(path)] == ["a", "b"]
    writer.join()


def test_a_process_substitution_is_read_though_its_writer_has_left(tmp_path: Path) -> None:
    io.write_cluster(cluster(4), tmp_path / "c.json")
    ours, theirs = os.pipe()
    os.write(theirs, (tmp_path / "c.json").read_bytes())
    os.close(theirs)
    try:
        assert io.read_cluster(f"/dev/fd/{ours}") == cluster(4)
    finally:
        os.close(ours)
