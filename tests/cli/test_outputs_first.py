"""Commands find out before their work that they could not write what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_events, write_jobs
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.report.runs import first_come

FILES = ["jobs.jsonl", "--cluster", "cluster.json", "--policy", "fifo"]
WORK = (
    "pliant.tools.profile.measuring.run.measure",
    "pliant.tools.replay.batch.replay_all",
    "pliant.tools.report.report.read_report",
    "pliant.tools.schedule.decide.decide",
    "pliant.tools.replay.synthetic.synthesize",
    "pliant.tools.replay.importers.run.SortedJobs",
)
"""What takes the time."""


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_jobs([job("a", model="m", gpu_seconds=20)], "jobs.jsonl")
    write_cluster(cluster(2), "cluster.json")
    write_events(first_come(), "events.jsonl")
    (here / "folder").mkdir()
    (here / "file").write_text("kept")

    def work(*_arguments: object, **_more: object) -> None:
        raise AssertionError("work is done whose product cannot be written")

    for name in WORK:
        monkeypatch.setattr(name, work)
    return here


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "jobs.jsonl", "-o", "folder"],
        ["profile", "jobs.jsonl", "-o", "gone/profile.parquet"],
        ["profile", "jobs.jsonl", "-o", "p.parquet", "--allreduce", "--allreduce-file", "gone/a.parquet"],
        ["profile", "jobs.jsonl", "--predict", "profile.parquet", "-o", "gone/x"],
        ["replay", *FILES, "-o", "file/out.parquet"],
        ["replay", *FILES, "-o", "file/out/"],
        ["report", "events.jsonl", "-o", "folder"],
        ["report", "events.jsonl", "-o", "gone/report.html"],
        ["report", "events.jsonl", "--figures", "file"],
        ["report", "events.jsonl", "--figures", "file/figures"],
        ["schedule", *FILES, "-o", "gone/s.json"],
        ["trace", "synth", "poisson", "-o", "gone/jobs.jsonl"],
        ["trace", "import", "philly", "jobs.jsonl", "-o", "gone/jobs.jsonl"],
        ["trace", "import", "pollux", "folder", "-o", "file/out"],
    ],
    ids=" ".join,
)
def test_a_place_that_cannot_be_written_ends_a_command_at_once(here: Path, arguments: list[str]) -> None:
    before = sorted(here.rglob("*"))
    done = call(*arguments, columns=200)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.count("\n") == 1, done.stderr
    assert arguments[-1].rstrip("/") in done.stderr
    assert sorted(here.rglob("*")) == before
    assert (here / "file").read_text() == "kept"
