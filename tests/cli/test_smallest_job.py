"""The smallest job through every command that reads jobs."""

from __future__ import annotations

import json
from pathlib import Path

from pliant.schemas.io import write_cluster
from tests.builders import cluster
from tests.cli.calling import call


def test_the_smallest_job_passes_through_all_commands(here: Path) -> None:
    (here / "a.jsonl").write_text('{"id": "a", "command": ["train.py"]}\n')
    (here / "train.py").write_text("print('trained')\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    assert call("validate", "a.jsonl").stdout == "a.jsonl: job, 1 record\n"
    decided = call("schedule", "a.jsonl", "--cluster", "cluster.json", "--policy", "fifo", "--now", "50")
    result = json.loads(decided.stdout)
    assert [given["action"] for given in result["allocations"]] == ["start"]
    assert (result["jobs"][0]["submit_time"], result["jobs"][0]["model"]) == (50.0, "train")
    assert call("submit", "a.jsonl", "--state", "live").stdout == "a\n"
    assert json.loads(call("status", "--state", "live", "-f", "json").stdout)["jobs"][0]["id"] == "a"
    (here / "s.json").write_text(decided.stdout)
    shown = call("run", "s.json", "--dry-run", "--state", "other")
    assert (shown.exit_code, "train.py" in shown.stdout) == (0, True)
