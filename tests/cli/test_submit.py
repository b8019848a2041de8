"""``pliant submit``, and the smallest job through every command that reads jobs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.io import write_cluster, write_jobs, write_schedule
from pliant.schemas.job import ArrayPlace, Job
from pliant.schemas.quantities import read_ahead
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.schedule.registry import make_policy
from tests.builders import cluster, job
from tests.cli.calling import call

SUBMIT = ("submit", "jobs.jsonl", "--state", "live")


@pytest.fixture
def here(here: Path) -> Path:
    (here / "train.py").write_text("print('hello')\n")
    return here


def test_a_missing_script_is_refused_without_no_check(here: Path):
    write_jobs([job("a", command=("train.py",)), job("b", command=("trian.py",))], "jobs.jsonl")
    refused = call(*SUBMIT, columns=200)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f'job "b": no such script: {here}/trian.py (--no-check skips this check)' in refused.stderr
    assert "none of the 2 jobs was submitted:" in refused.stderr
    assert call("status", "--state", "live").exit_code == 2
    done = call(*SUBMIT, "--no-check")
    assert done.stdout == "a\nb\n"
    assert "train.py" not in done.stderr


def dry_run(*words: str) -> Job:
    shown = call("submit", "train.py", *words)
    assert (shown.exit_code, Path("live").exists()) == (0, False)
    [result] = parse_jobs(shown.stdout.encode(), "shown")
    return result


def test_a_script_is_a_job_without_a_file(here: Path):
    options = ("--gpus", "1-4", "--batch", "128", "--priority", "2", "--dry-run", "--", "--epochs", "90")
    asked = dry_run(*options)
    assert asked.command == ("train.py", "--epochs", "90")
    assert (asked.id, asked.gpus.min, asked.gpus.max, asked.elastic) == ("train", 1, 4, "size")
    assert (asked.batch.size, asked.priority) == (128, 2)
    asked = dry_run("--gpu-type", "a100,h100", "--gpu-memory", "40GB", "--gpus", "2", "--dry-run")
    where = (asked.gpus.types, asked.gpus.memory, asked.gpus.requested)
    assert where == (("a100", "h100"), 40 * 10**9, 2)
    asked = dry_run("--gpus", "1,2,4", "--dry-run")
    assert (asked.gpus.sizes, asked.gpus.requested, asked.elastic) == ((1, 2, 4), 4, "size")


def test_a_script_that_is_submitted_again_gets_a_new_id(here: Path):
    printed = [call("submit", "train.py", "--state", "live").stdout for _ in range(3)]
    assert printed == ["train\n", "train-2\n", "train-3\n"]
    assert call("submit", "train.py", "--name", "train", "--state", "live").exit_code == 3


def test_what_a_dry_run_prints_can_be_submitted(here: Path):
    shown = call("submit", "train.py", "--gpus", "2", "--relaunch", "--dry-run").stdout
    (here / "jobs.jsonl").write_text(shown)
    assert '"resize":"relaunch"' in shown
    assert call(*SUBMIT).stdout == "train\n"


def submitted(here: Path) -> dict[str, Any]:
    requests = Spool(StateDir(here / "live")).requests()
    return {job.id: job for request in requests for job in request.jobs}


def test_an_array_is_a_job_for_each_number(here: Path):
    assert call("submit", "train.py", "--array", "0-4:2,7%2", "--state", "live").stdout.split() == [
        *("train-0", "train-2", "train-4", "train-7")
    ]
    assert (
        call("submit", "train.py", "--name", "sum", "--after", "train:any", "--state", "live").exit_code == 0
    )
    assert call("submit", "train.py", "--array", "0", "--state", "live").stdout == "train-2-0\n"
    result = submitted(here)
    assert result["train-7"].array == ArrayPlace(name="train", index=7, limit=2)
    assert result["sum"].after == dict.fromkeys(("train-0", "train-2", "train-4", "train-7"), "any")


def test_jobs_of_a_file_are_given_times_and_a_hold(here: Path):
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    before = time.time()
    assert call(*SUBMIT, "--begin", "+2h", "--deadline", "12h", "--hold").exit_code == 0
    result = submitted(here)["a"]
    assert 7200 <= result.submit_time - before < 7300
    assert (result.utility.shape, result.utility.target, result.hold) == ("step", pytest.approx(36000), True)


def test_times_ahead_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    now_s = datetime(2026, 11, 23, 20, 30, tzinfo=UTC).timestamp()  # 21:30 there
    wanted = {"22:00": 1800, "21:00": 23.5 * 3600, "+2h": 7200, "90": 90, "2026-11-24T06:00": 8.5 * 3600}
    try:
        assert {text: read_ahead(text, now_s) - now_s for text in wanted} == wanted
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_policy_that_knows_no_deadlines_is_named_once(here: Path):
    for policy, message in (("fifo", 1), ("oasis", 0), ("shadow-price", 1)):
        (here / policy).mkdir(mode=0o700)
        used = PolicyUse(name=policy, parameters=dict(make_policy(policy, {}).parameters))
        write_schedule(Schedule(time=0.0, policy=used, cluster=cluster(4)), here / policy / "schedule.json")
        words = ("--deadline", "+2h", "--array", "0-1", "--state", policy)
        assert call("submit", "train.py", *words).stderr.count("does not look at deadlines") == message


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
