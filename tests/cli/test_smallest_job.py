"""The smallest job through every command that reads jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster
from tests.builders import cluster
from tests.cli.calling import call


@pytest.fixture(autouse=True)
def _a_job(here: Path) -> None:
    (here / "a.jsonl").write_text('{"id": "a", "command": ["train.py"]}\n')
    (here / "train.py").write_text("print('trained')\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")


SCHEDULE = ("schedule", "a.jsonl", "--cluster", "cluster.json", "--policy")


def test_validate_knows_it_without_being_told_its_kind() -> None:
    assert call("validate", "a.jsonl").stdout == "a.jsonl: job, 1 record\n"


def test_schedule_starts_it_at_the_time_of_the_decision() -> None:
    found = json.loads(call(*SCHEDULE, "fifo", "--now", "50").stdout)
    assert [given["action"] for given in found["allocations"]] == ["start"]
    assert (found["jobs"][0]["submit_time"], found["jobs"][0]["model"]) == (50.0, "train")


def test_submit_takes_it_now() -> None:
    assert call("submit", "a.jsonl", "--state", "live").stdout == "a\n"
    status = json.loads(call("status", "--state", "live", "-f", "json").stdout)
    assert status["jobs"][0]["id"] == "a"


def test_run_starts_its_script(here: Path) -> None:
    (here / "s.json").write_text(call(*SCHEDULE, "fifo").stdout)
    shown = call("run", "s.json", "--dry-run", "--state", "live")
    assert shown.exit_code == 0
    assert "train.py" in shown.stdout
