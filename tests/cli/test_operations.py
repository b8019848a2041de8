"""Orders as people type them: in a shell, with names that are wrong, and where nothing runs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from tests.builders import cluster, job


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_cluster(cluster(2, slots="cpu", gpu_type="cpu"), "cluster.json")
    (tmp_path / "train.py").write_text("print('done')\n")
    write_jobs([job(each, command=("train.py",)) for each in "ab"], "jobs.jsonl")
    return tmp_path


def shell(line: str) -> subprocess.CompletedProcess[str]:
    text = line.replace("pliant", shlex.join([sys.executable, "-m", "pliant.cli"]))
    wide = {**os.environ, "COLUMNS": "200"}  # so that no word of a message stands on a line of its own
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False, env=wide)


def test_all_jobs_of_a_pipe_are_held_before_the_first_run_and_status_says_who_ordered_it(here: Path) -> None:
    done = shell("pliant submit jobs.jsonl --state live -q | xargs pliant hold --state live")
    assert done.returncode == 0, done.stderr
    assert "it takes effect with the next pliant run --state live" in done.stderr
    found = json.loads(shell("pliant status --state live -o json").stdout)
    assert [each["state"] for each in found["jobs"]] == ["submitted", "submitted"]
    assert all("has ordered to hold it" in each["why"] for each in found["jobs"])
    decided = shell("pliant schedule --state live --cluster cluster.json --policy fifo -q")
    assert [each["reason"].split()[:2] for each in json.loads(decided.stdout)["waiting"]] == [
        ["held", "by"]
    ] * 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pliant hold a --state nowhere", "nowhere: no state directory"),
        (
            "pliant submit jobs.jsonl --state s -q && pliant release a c --state s",
            "s has no job c: nothing was",
        ),
        ("pliant hold --state s", "Missing argument 'ID…'"),
        ("pliant submit jobs.jsonl --state s --priority nan", "priority nan: expected a number from -1e+18"),
        ("pliant priority a high --state s", "Invalid value for 'N'"),
    ],
)
def test_what_is_not_there_is_named_and_nothing_is_ordered(here: Path, line: str, said: str) -> None:
    done = shell(line)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(here.glob("*/spool/*.order.json")) == []


def test_a_priority_is_stated_on_submission_and_changed_later_also_to_a_negative_one(here: Path) -> None:
    done = shell(
        "pliant submit jobs.jsonl --state live --priority 3 -q && pliant priority b --state live -- -2.5"
        " && pliant schedule --state live --cluster cluster.json --policy ares -q | pliant validate -"
    )
    assert done.returncode == 0, done.stderr
    decided = shell("pliant schedule --state live --cluster cluster.json --policy ares")
    found = {each["id"]: each["priority"] for each in json.loads(decided.stdout)["jobs"]}
    assert found == {"a": 3.0, "b": -2.5}
    assert 'policy "ares" does not look at priorities: 2 jobs state one' in decided.stderr


def test_a_priority_that_the_policy_of_the_run_does_not_look_at_is_taken_and_said_to_have_no_effect(
    here: Path,
) -> None:
    found = {
        policy: shell(
            f"pliant submit jobs.jsonl --state {policy} --priority 3 -q"
            f" && pliant schedule --state {policy} --cluster cluster.json --policy {policy} -qo new.json"
            f" && mv new.json {policy}/schedule.json && pliant priority a 2 --state {policy}"
        )
        for policy in ("ares", "fifo")
    }
    assert [done.returncode for done in found.values()] == [0, 0]
    assert ["does not look at priorities" in done.stderr for done in found.values()] == [True, False]
