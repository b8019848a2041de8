"""``pliant stack``, and what is kept of workers that are ended because they hang."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import run_once
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.stacks import (
    Frame,
    StackAnswer,
    ThreadStack,
    WorkerStack,
    answer,
    keep_stacks,
    question,
    read_dump,
    stacks_text,
    worker_stacks,
)
from pliant.tools.run.statedir.directory import StateDir
from tests.cli.calling import call
from tests.tools.run.conftest import left_running
from tests.tools.run.scripts import PlainBackend
from tests.tools.run.site import Site, until

WATCHED = """
import json, os, pathlib, time
from pliant.tools.run.elastic.stack_watch import StackWatch
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.liveness import LivenessFile

job, worker = JobDir(pathlib.Path(os.environ["PLIANT_JOB_DIR"])), int(os.environ["PLIANT_WORKER"])
attempt = job.attempt(1)
LivenessFile(attempt.presence(worker)).begin()
attempt.progress.touch()
StackWatch(attempt, worker, held_s=0.5 if worker == 1 else 600.0).begin()

def reads_data():
    time.sleep(600)

def holds_the_interpreter():
    import ctypes
    ctypes.PyDLL(None).sleep(600)

if worker == 1 and HOW == "held":
    holds_the_interpreter()
if worker != 0:
    reads_data()
while True:
    plan = json.loads(job.plan.read_text())
    for member in plan["members"]:
        while not attempt.presence(member["worker"]).exists():
            time.sleep(0.01)
    (attempt.path / "reached.new").write_text(f"{plan['generation']}\\n")
    (attempt.path / "reached.new").replace(attempt.reached)
    time.sleep(0.05)
"""
"""Trains nothing, and is present as an elastic worker is; the first one says what generation trains."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """All that it runs ends with the test."""
    monkeypatch.setattr(runner, "open_backend", lambda _name, nodes, dirs: PlainBackend(nodes, dirs.jobs))
    found = Site(tmp_path / "with blank", 3)
    yield found
    for process in left_running(found.folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_workers_at_one_place_are_one_group(site: Site) -> None:
    site.job("a", text=f"HOW = ''\n{WATCHED}", gpus=3, high=3)
    attempt = StateDir(site.state).job("a").attempt(1)
    run_once(site.options())
    until(lambda: all(attempt.held_stack(worker).exists() for worker in range(3)))
    until(attempt.reached.exists)
    said = call("stack", "a", "--state", str(site.state), "--within", "10m")
    assert said.exit_code == 0, said.output
    headlines = [line for line in said.stdout.splitlines() if line.startswith(("1", "2"))]
    assert headlines == ["2 workers (n0/1 n0/2)", "1 worker (n0/0)"]
    assert "\n  reads_data (" in said.stdout
    document = json.loads(call("stack", "a", "-f", "json", "--state", str(site.state)).stdout)
    assert document["groups"] == [["n0/1", "n0/2"], ["n0/0"]]
    assert document["workers"][1]["threads"][0]["frames"][0]["function"] == "reads_data"


def test_cron_replaces_a_worker_that_stands_still(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.job("a", text=f"HOW = 'held'\n{WATCHED}", gpus=2, high=2)
    attempt = StateDir(site.state).job("a").attempt(1)
    run_once(site.options())
    until(lambda: attempt.reached.exists() and read_dump(attempt, 1))
    run_once(site.options())
    assert attempt.reached.read_text() == "1\n", "all live: nothing is changed"
    os.utime(attempt.presence(1), (1.0, 1.0))  # a minute goes by
    run_once(site.options())
    kept = "stacks: jobs/a/attempts/1/logs/stacks.log"
    assert f"the workers on n0/1 stand still: killed; its {kept}" in caplog.text
    assert "holds_the_interpreter" in attempt.kept_stacks.read_text()
    assert "holds_the_interpreter" in call("log", "a", "--state", str(site.state)).stdout
    until(lambda: attempt.reached.read_text() == "3\n")
    assert attempt.presence(2).exists(), "one plan without it, one with another in its place"


FAKE = """#!/bin/sh
echo "$@" >> "{calls}"
echo '[{{"thread_name": "reader", "frames": []}}, {{"thread_name": "MainThread", "frames":
 [{{"name": "waits", "filename": "/x/site-packages/torch/y.py", "line": 7}}]}}]'
"""


def test_jobs_without_the_library_are_shown_by_py_spy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.job("a", text="import time\ntime.sleep(600)\n", gpus=1)
    site.job("over", text="pass\n", gpus=1)
    run_once(site.options())
    until(lambda: run_once(site.options())[0].jobs["over"].ended)
    said = call("stack", "over", "--state", str(site.state))
    assert said.exit_code == 2
    assert "job over has no workers: it is finished" in said.stderr
    assert call("stack", "b", "--state", str(site.state)).exit_code == 2
    programs = site.folder / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    without = call("stack", "a", "--state", str(site.state))
    assert without.exit_code == 69
    assert "py-spy is not on PATH" in without.stderr
    fake = programs / "py-spy"
    fake.write_text(FAKE.format(calls=site.folder / "calls"))
    fake.chmod(0o755)
    said = call("stack", "a", "--state", str(site.state))
    assert said.stdout == "1 worker (n0/0)\n  waits (torch/y.py:7)\n"
    (asked,) = (site.folder / "calls").read_text().splitlines()
    assert asked.startswith("dump --json --pid ")
    fake.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    said = call("stack", "a", "--state", str(site.state))
    assert "1 worker (n0/0): py-spy: Error: Permission Denied" in said.stdout


def test_long_calls_fit_and_what_is_not_known_comes_last() -> None:
    frame = Frame("/home/ada/" + "deep/" * 30 + "train.py", 3, "main\x1b[31m")
    stacks = [
        WorkerStack("n0/0", (), "it has ended"),
        WorkerStack("n1/0", (ThreadStack(name="m", frames=(frame,)),)),
    ]
    lines = stacks_text(stacks, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "1 worker (n1/0)"
    assert lines[1].endswith("(…/deep/train.py:3)")
    assert lines[-1] == "1 worker (n0/0): it has ended"
    assert "\x1b" not in "".join(lines)


def in_a_function(name: str, *others: str) -> tuple[ThreadStack, ...]:
    return tuple(
        ThreadStack(name=thread, frames=(Frame("train.py", 3, name),)) for thread in ("MainThread", *others)
    )


def test_only_answers_of_live_workers_are_waited_for(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    attempt.logs.mkdir()
    attempt.exit_code(1).write_text("0")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        stale = StackAnswer(question="another", threads=in_a_function("before"))
        found = StackAnswer(question=question(attempt), threads=in_a_function("now"))
        answer(attempt, 0, stale if len(slept) == 1 else found)

    stacks = worker_stacks(attempt, {0: "n0/0", 1: "n0/1"}, sleep=sleep)
    assert stacks == [WorkerStack("n0/0", in_a_function("now")), WorkerStack("n0/1", (), "it has ended")]
    assert len(slept) == 2
    quick = worker_stacks(attempt, {0: "n0/0", 2: "n1/0"}, within_s=0.0, sleep=sleep)
    assert [(each.slot, each.threads, each.remark) for each in quick] == [
        (slot, (), "its script has not called elastic.init yet") for slot in ("n0/0", "n1/0")
    ]
    attempt.held_stack(2).touch()
    (silent,) = worker_stacks(attempt, {2: "n1/0"}, within_s=0.0, sleep=sleep)
    assert silent.remark == "no answer: its process or its host stands still"
    assert len(slept) == 2


def test_what_is_kept_of_workers_has_all_threads_equal_ones_once(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    attempt.logs.mkdir()
    alike = [WorkerStack(f"n0/{slot}", in_a_function("waits", "reader")) for slot in range(2)]
    nothing = WorkerStack("n1/0", (), "it has ended")
    assert keep_stacks(attempt, [nothing], "in vain") is None
    assert not attempt.kept_stacks.exists()
    assert keep_stacks(attempt, [*alike, nothing], "these hang") == attempt.kept_stacks
    assert attempt.kept_stacks.read_text() == (
        "these hang\n\n2 workers (n0/0 n0/1)\n  waits (train.py:3)\n"
        "  thread reader of 2 workers\n    waits (train.py:3)\n\n"
    )
