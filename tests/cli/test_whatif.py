"""What would happen: to new jobs (``submit --dry-run``), and to all jobs (``whatif``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant.schemas.io import write_jobs
from pliant.tools.run.service.submit import submit
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.run.live_states import a_queue, live_state

NODES = cluster(4, 4)


def asked(*words: str) -> dict:
    return json.loads(call("whatif", "--state", "live", "--json", *words).stdout)


def test_more_nodes_shorten_the_queue_and_nothing_is_written(here: Path):
    state = live_state(here / "live", a_queue(6, (10_000.0,)), NODES)
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    result = asked("--add-nodes", "1")
    jobs = {each["job"]: each for each in result["jobs"]}
    assert jobs["j0"]["now"]["gpus"] == 4
    assert (jobs["j0"]["delay_seconds"], jobs["j2"]["delay_seconds"]) == (0.0, pytest.approx(-9900, abs=60))
    assert result["mean_jct_seconds"]["then"] < result["mean_jct_seconds"]["now"]
    assert result["errors"]["starts"]["reason"].startswith("no ranges of starts: 0 of 5 past predictions")
    text = call("whatif", "--state", "live", "--add-nodes", "1:gpu")
    assert "and 3 jobs that it does not change (--all shows them)" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_a_cancelled_job_cancels_those_that_wait_for_it(here: Path):
    later = job("later", gpus=4, gpu_seconds=400, after={"j0": "ok"})
    live_state(here / "live", [*a_queue(3, (10_000.0,)), later], NODES)
    jobs = {each["job"]: each for each in asked("--cancel", "j0")["jobs"]}
    assert jobs["j2"]["delay_seconds"] == pytest.approx(-9900, abs=60)
    assert (jobs["later"]["now"]["end"], jobs["later"]["then"]["end"]) == ("finished", "cancelled")


def test_without_a_node_its_job_waits(here: Path):
    live_state(here / "live", a_queue(3, (10_000.0,)), NODES)
    jobs = {each["job"]: each for each in asked("--remove-node", "n0")["jobs"]}
    assert jobs["j0"]["delay_seconds"] + jobs["j1"]["delay_seconds"] > 9000
    assert call("whatif", "--state", "live", "--policy", "fair-share").exit_code == 0


def test_ranges_come_from_what_earlier_predictions_were_worth(here: Path):
    live_state(here / "live", a_queue(30, (100.0, 300.0, 4000.0)), NODES, ago_s=5020, lasted_s=5000)
    result = asked("--add-nodes", "1")
    assert result["errors"]["starts"]["comparisons"] >= 5
    assert result["errors"]["starts"]["low"] == pytest.approx(1.0, abs=0.05)
    waiting = [each["then"] for each in result["jobs"] if each["now"]["starts"]]
    assert all(each["starts_between"] for each in waiting)


def test_a_dry_run_predicts_starts_and_delays(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    live_state(here / "live", a_queue(3, (10_000.0,)), NODES)
    fields = {"command": ("train.py",), "gpus": 4, "gpu_seconds": 4000}
    write_jobs([job("new", **fields)], "jobs.jsonl")
    message = call("submit", "jobs.jsonl", "--dry-run", "--state", "live", columns=200)
    assert '"id":"new"' in message.stdout
    assert "new: would start in 2 h 45 min on 4 GPUs, and end in 3 h 2 min" in message.stderr
    assert "no job would be delayed" in message.stderr
    write_jobs([job("new", priority=5.0, **fields)], "jobs.jsonl")
    live_state(here / "other", a_queue(3, (10_000.0,)), NODES, policy="fair-share")
    early = call("submit", "jobs.jsonl", "--dry-run", "--state", "other", columns=200)
    assert "delayed" in early.stderr
    assert not (here / "live" / "spool").exists() or not list((here / "live" / "spool").glob("*.jsonl"))


def test_a_dry_run_refuses_and_may_have_no_prediction(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    live_state(here / "live", a_queue(1), NODES)
    big = call("submit", "train.py", "--gpus", "9", "--dry-run", "--state", "live", columns=200)
    assert (big.exit_code, "needs 9 GPUs, the cluster has 8" in big.stderr) == (3, True)
    empty = call("submit", "train.py", "--dry-run", "--state", "empty", columns=200)
    assert (empty.exit_code, (here / "empty").exists()) == (0, False)
    assert "no run has begun in empty: nothing can be predicted" in empty.stderr
    submit(here / "empty", [job("a", command=("train.py",))], "jobs", folder=here, now_s=0.0)
    none = call("whatif", "--state", "empty", "--add-nodes", "1")
    assert (none.exit_code, "there is nothing to predict from" in none.stderr) == (2, True)
