import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from pliant.schemas import frames, io
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.kinds import validate_file
from pliant.schemas.metrics import JobFigures, Metrics, ReportedRun
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import Schedule
from tests.builders import cluster, job

PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
EVENTS = (
    Event(0.0, "decision", detail={"reason": "first"}),
    Event(1.5, "start", "a", 2, (("n0", 2),), 960, samples_done=0.0),
)


def blocks(language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))


def test_the_page_works_as_written(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(f"{blocks('python')}\nassert len(done) == 120\n")
    commands = blocks("sh").replace("pliant ", f"{shlex.join([sys.executable, '-m', 'pliant.cli'])} ")
    environment = os.environ | {"MPLBACKEND": "Agg"}
    for line in (["sh", "-e", "-c", commands], [sys.executable, str(script)]):
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_field_within_a_field_has_a_column_of_its_own(tmp_path: Path) -> None:
    io.write_jobs([job("a", gpus=2, gpu_seconds=20), job("b", low=1, high=4)], tmp_path / "jobs.jsonl")
    jobs = frames.read(tmp_path / "jobs.jsonl").set_index("id")
    assert list(jobs["gpus.requested"]) == [2, 1]
    assert jobs.loc["a", "work.gpu_seconds"] == 20.0
    assert jobs.loc["a", ["gpus.max", "work.samples"]].isna().all()
    assert jobs.loc["b", "gpus.max"] == 4
    assert jobs["labels"].tolist() == [{}, {}]


def test_a_column_has_the_same_type_whatever_a_file_holds(tmp_path: Path) -> None:
    row = ProfileRow("train", "m", "t4", 1, 1, "1", 8, step_seconds=0.5, samples_per_second=16.0)
    unfit = ProfileRow("train", "m", "t4", 1, 1, "1", 8, feasible=False)
    io.write_profile(Profile((row,)), tmp_path / "fits.parquet")
    io.write_profile(Profile((unfit,)), tmp_path / "not.parquet")
    fits, does_not = (frames.read(tmp_path / name) for name in ("fits.parquet", "not.parquet"))
    assert fits.dtypes.equals(does_not.dtypes)
    assert fits.dtypes["gpus"] == pd.Int64Dtype()
    assert fits.dtypes["peak_memory"] == pd.Int64Dtype()
    assert fits.dtypes["step_seconds"] == "float64"
    assert fits.dtypes["feasible"] == pd.BooleanDtype()
    assert does_not["step_seconds"].isna().all()
    io.write_convergence([], tmp_path / "convergence.parquet")
    assert frames.read(tmp_path / "convergence.parquet").dtypes["iterations"] == "float64"


def test_events_and_nodes_as_frames(tmp_path: Path) -> None:
    for name in ("events.jsonl", "events.parquet"):
        io.write_events(EVENTS, tmp_path / name)
    lines, parquet = (frames.read(tmp_path / name) for name in ("events.jsonl", "events.parquet"))
    pd.testing.assert_frame_equal(lines, parquet)
    assert lines["detail"][0] == {"reason": "first"}
    assert lines["placement"][1] == (("n0", 2),)
    assert pd.isna(lines["job"][0])
    # Nodes that are alike are a row each.
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": [{"name": "n{}", "gpus": 4, "count": 3}]}')
    assert list(frames.read(path)["name"]) == ["n0", "n1", "n2"]


def test_a_schedule_and_a_report_hold_several_tables(tmp_path: Path) -> None:
    schedule = {
        "schema": "pliant.schedule/1",
        "time": 0.0,
        "policy": {"name": "fifo"},
        "allocations": ({"job": "a", "gpus": 2, "batch": {"global": 8, "local": 4}, "action": "start"},),
        "waiting": ({"job": "b", "reason": "no GPUs"},),
        "cluster": cluster(2).model_dump(by_alias=True),
    }
    io.write_schedule(Schedule.model_validate(schedule), tmp_path / "schedule.json")
    held = frames.read(tmp_path / "schedule.json")
    assert held.loc[0, ["job", "batch.global", "batch.local"]].tolist() == ["a", 8, 4]
    assert frames.read(tmp_path / "schedule.json", "waiting")["reason"].tolist() == ["no GPUs"]
    assert frames.read(tmp_path / "schedule.json", "rejected").empty
    counts = {"jobs_submitted": 1, "jobs_finished": 1, "jobs_rejected": 0}
    of_job = JobFigures(
        job="a", model="m", outcome="finish", submit_s=0, jct_s=7.5, gpu_seconds=15, overhead_s=0,
        preemptions=0, rescales=0, restarts=0,
    )  # fmt: skip
    seed = 2**64 - 1
    runs = tuple(
        ReportedRun(
            run=name, policy=name, trace_hash="0", simulated=True, seed=seed, jobs=(of_job,), **counts
        )
        for name in ("fifo", "las")
    )
    io.write_metrics(Metrics(runs=runs), tmp_path / "metrics.json")
    assert frames.read(tmp_path / "metrics.json")["seed"].tolist() == [seed, seed]
    jobs = frames.read(tmp_path / "metrics.json", "jobs")
    assert jobs[["policy", "job", "jct_s"]].values.tolist() == [["fifo", "a", 7.5], ["las", "a", 7.5]]
    assert frames.read(tmp_path / "metrics.json", "expectations").empty


def test_errors_are_those_of_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"id": "a", "submit_time": -1, "model": "m", "gpus": {"requested": 0}}\n')
    with pytest.raises(BadInputError) as expected:
        validate_file(path)
    with pytest.raises(BadInputError) as result:
        frames.read(path)
    assert str(result.value) == str(expected.value)
    with pytest.raises(BadInputError, match="no such file"):
        frames.read(tmp_path / "none.parquet")
    io.write_jobs([job("a")], path)
    with pytest.raises(UsageError, match="job files have no table 'waiting', expected one of jobs"):
        frames.read(path, "waiting")
    path.write_text(f'{{"nodes": [{{"name": "n", "gpus": 1, "memory": {2**63}}}]}}')
    with pytest.raises(BadInputError, match="holds a whole number beyond 64 bits"):
        frames.read(path)
