import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import job_table
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.file_io.events import parse_events
from pliant.schemas.io import read_events, write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.replay import batch, output
from pliant.tools.replay.batch import Task
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.run import Run
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.profile.rows_builder import step

FILES = ["jobs.jsonl", "--cluster", "cluster.json"]
FREE = ["--start-cost", "0", "--rescale-cost", "0"]


@pytest.fixture
def here(here: Path) -> Path:
    write_jobs([job("a", gpus=2, gpu_seconds=20), job("b", at=1, gpus=2, gpu_seconds=30)], "jobs.jsonl")
    write_cluster(cluster(2), "cluster.json")
    return here


def test_events_on_stdout_are_valid_and_have_a_summary(here: Path) -> None:
    done = call("replay", *FILES, *FREE, "--policy", "fifo")
    assert done.exit_code == 0
    events = parse_events(done.stdout_bytes, "stdout")
    assert [(event.time, event.job) for event in events if event.event == "finish"] == [(10, "a"), (25, "b")]
    assert "pliant: no profile: every GPU is taken to train 1 sample per second\n" in done.stderr
    assert "fifo: 2 of 2 jobs finished, ends after 25 s, 4 decisions" in done.stderr
    assert call("replay", *FILES, *FREE, "--policy", "fifo").stdout_bytes == done.stdout_bytes
    # A file of either form is valid and has a summary.
    for name in ("x.parquet", "y.jsonl"):
        assert call("replay", *FILES, "--policy", "ares", "-o", name).exit_code == 0
    assert read_events("x.parquet") == read_events("y.jsonl")
    assert call("validate", "x.parquet", "y.jsonl", "jobs.jsonl", "cluster.json").exit_code == 0
    assert json.loads((here / "x.summary.json").read_text())["finished"] == 2


def refuses_memory_after(calls: int, allowed: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the system grants no more memory after so many calls."""
    left = iter(range(calls))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise MemoryError
        return allowed(*args, **kwargs)

    return call


def test_a_trace_too_large_for_memory_is_exit_69(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "from_json", refuses_memory_after(3, job_table.from_json))
    done = call("replay", *FILES, "--policy", "fifo", "-o", "out/")
    assert (done.exit_code, done.stdout) == (69, "")
    assert done.stderr.startswith("pliant: memory ran out after 1 records of jobs.jsonl; nothing was half-")
    assert done.stderr.count("\n") == 1
    assert not (here / "out").exists()


def test_a_replay_out_of_memory_counts_the_jobs_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLog, "add", refuses_memory_after(3, EventLog.add))
    done = call("replay", *FILES, "--policy", "fifo,las", "-o", "out", "--quiet")
    assert done.exit_code == 69
    reported = "memory ran out after 2 jobs were read; nothing was half-written"
    assert done.stderr.startswith(f"pliant: {reported}")
    assert not (here / "out").exists()
    with pytest.raises(batch.WorkerError, match=reported) as raised:
        batch._in_worker(Sources("jobs.jsonl", "cluster.json"), Task(Run("fifo"), "out/fifo.parquet"))
    received = copy.copy(raised.value)  # made as the process that waits for it makes it
    assert (received.exit_code, str(received)) == (69, str(raised.value))


def test_files_too_large_for_memory_are_not_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "parquet_bytes", refuses_memory_after(0, output.parquet_bytes))
    assert call("replay", *FILES, "--policy", "fifo", "-o", "out/").exit_code == 69
    assert list((here / "out").iterdir()) == []


def test_traces_come_from_pipes_with_limits_intervals_and_seeds(here: Path) -> None:
    options = ["-", "--cluster", "cluster.json", "--policy", "fifo"]
    done = call("replay", *options, stdin=(here / "jobs.jsonl").read_bytes())
    named = call("replay", *FILES, "--policy", "fifo").stdout_bytes
    assert done.stdout_bytes == named.replace(b'"trace":"jobs",', b"")  # a pipe has no name
    # A limit an interval and a seed.
    options = ["--policy", "fifo", "--jobs-limit", "1", "--interval", "60", "--seed", "5", "--timing"]
    done = call("replay", *FILES, *options)
    info = parse_events(done.stdout_bytes, "stdout")[0].detail
    assert info is not None
    assert (info["interval_s"], info["seed"]) == (60.0, 5)
    assert "decision_seconds" in info["counters"]
    assert "1 of 1 job finished" in done.stderr


def test_a_trace_is_made_from_options_and_classes(here: Path) -> None:
    arrivals = ["--seed", "4", "--elastic", "size", "--jobs", "30", "--rate", "60"]
    options = [*arrivals, "--gpus", "1,2=3", "--models", "net:64=2,mlp", "--classes", "S=1"]
    done = call("trace", "synth", "poisson", *options)
    jobs = parse_jobs(done.stdout_bytes, "stdout")
    assert len(jobs) == 30
    assert {(one.model, one.batch.size) for one in jobs} == {("net", 64), ("mlp", None)}
    assert {one.gpus.requested for one in jobs} == {1, 2}
    assert call("trace", "synth", "poisson", *options, "-o", "t.jsonl").stdout == ""
    assert (here / "t.jsonl").read_bytes() == done.stdout_bytes
    # Classes replace the distribution of a recipe.
    (here / "r.toml").write_text("jobs = 5\n[gpu_time]\nmedian_s = 1.0\nsigma = 0.1\n")
    shorts = parse_jobs(call("trace", "synth", "r.toml").stdout_bytes, "stdout")
    longs = parse_jobs(call("trace", "synth", "r.toml", "--classes", "XL").stdout_bytes, "stdout")
    assert max(one.work.gpu_seconds for one in shorts) < 10  # type: ignore[union-attr]
    assert min(one.work.gpu_seconds for one in longs) > 360_000  # type: ignore[union-attr]


def test_a_folder_that_an_import_wrote_is_an_input(here: Path) -> None:
    """Its jobs, and its profile unless another one is named."""
    (here / "w6").mkdir()
    write_jobs([job("a", gpus=2, model="m", work={"samples": 100})], "w6/jobs.jsonl")
    for name, step_s in (("w6/profile.parquet", 2.0), ("fast.parquet", 1.0)):
        write_profile(Profile((step(2, 5, step_s, model="m"),)), name)
    replay = ("replay", "w6", "--cluster", "cluster.json", *FREE, "--policy", "fifo")
    done, named = call(*replay), call(*replay, "--profile", "fast.parquet")
    ends = [parse_events(each.stdout_bytes, "stdout")[-1].time for each in (done, named)]
    assert ends == [20.0, 10.0]
    said = "w6: also the measurements of its import"
    assert (said in done.stderr, said in named.stderr) == (True, False)
    assert call("trace", "describe", "w6").stdout.startswith("1 job of no named user")
    valid = ["w6/jobs.jsonl: job, 1 record", "w6/profile.parquet: profile, 1 record"]
    assert call("validate", "w6").stdout.splitlines() == valid
    assert "pliant replay w6 -o FILE" in call("report", "w6").stderr
    (here / "jobs.jsonl").unlink()
    done = call("replay", ".", "--policy", "fifo")
    assert (done.exit_code, "is a folder without jobs.jsonl" in done.stderr) == (2, True)
