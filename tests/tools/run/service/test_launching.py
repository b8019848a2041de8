"""Whether jobs can be started here: folders, commands and scripts."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.backends.protocol import NodeInfo, ProcessLimits
from pliant.tools.run.service import launching
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import aborted
from pliant.tools.run.service.launching import Launching, Submitters, runnable, script_obstacle
from pliant.tools.run.service.members import Timeouts
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend


def schedule(jobs: list[Job], *allocations: dict[str, Any]) -> Schedule:
    record = {
        "time": 0.0,
        "policy": {"name": "fifo"},
        "cluster": cluster(2, 2).model_dump(mode="json", by_alias=True),
        "jobs": [found.model_dump(mode="json") for found in jobs],
        "allocations": [{"action": "start", **allocation} for allocation in allocations],
    }
    return Schedule.model_validate(record, strict=False)


def problems(found: Schedule, folder: Path) -> list[str]:
    with pytest.raises(BadInputError) as caught:
        runnable(found, "schedule.json", folder)
    return [str(problem) for problem in caught.value.problems]


def test_jobs_start_in_the_folder_they_name_or_where_the_command_is_given(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    jobs = [job("a", command=("t.py",)), job("b", command=("t.py",), workdir="sub")]
    found = runnable(schedule(jobs), "s", tmp_path)
    assert [found_job.workdir for found_job in found.jobs] == [str(tmp_path), str(tmp_path / "sub")]


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    found = schedule(
        [job("a", gpus=2), job("b", command=("t.py",), workdir="nowhere"), job("d", command=("t.py",))],
        {"job": "c", "gpus": 1, "placement": [["n0", 1]]},
        {"job": "a", "gpus": 2, "placement": [["n0", 2]]},
        {"job": "b", "gpus": 1, "placement": [["n7", 1]]},
        {"job": "d", "gpus": 1},
    )
    assert problems(found, tmp_path) == [
        'schedule.json: /jobs/0/command: job "a" has no command: it can be replayed, but not run',
        f'schedule.json: /jobs/1/workdir: job "b": no such folder: {tmp_path}/nowhere',
        'schedule.json: /allocations/0/job: "c" is not among the jobs',
        "schedule.json: /allocations/1/placement: node n0 has fewer free GPUs than that",
        "schedule.json: /allocations/2/placement: node n7 has fewer free GPUs than that",
        "schedule.json: /allocations/3/placement: is empty, expected nodes",
    ]


def test_what_torchrun_cannot_give_to_workers_is_refused(tmp_path: Path) -> None:
    found = schedule(
        [
            job("a", command=("t.py",), resources={"worker": {"cpu": 1.0}, "ps": {"cpu": 2.0}}),
            job("b", command=("t.py",), resources={"worker": {"gpu": 2.0}}),
            job("c", command=("t.py",), gpus=4, low=2, each=2),
        ]
    )
    cannot = "it can be replayed, but not run"
    assert problems(found, tmp_path) == [
        f'schedule.json: /jobs/0/resources/ps: job "a" has parameter servers: {cannot}',
        'schedule.json: /jobs/1/resources/worker/gpu: job "b" needs 2 GPUs for each worker, which gets one',
        f'schedule.json: /jobs/2/gpus/per_replica: job "c" resizes replicas of 2 GPUs in place: {cannot}',
    ]


def test_a_replica_on_two_nodes_is_refused_where_one_would_hold_it(tmp_path: Path) -> None:
    jobs = [job("a", command=("t.py",), gpus=2, each=2), job("b", command=("t.py",), gpus=3, each=3)]
    found = schedule(
        jobs,
        {"job": "a", "gpus": 2, "placement": [["n0", 1], ["n1", 1]]},
        {"job": "b", "gpus": 3, "placement": [["n0", 1], ["n1", 2]]},
    )
    assert problems(found, tmp_path) == [
        "schedule.json: /allocations/0/placement: a replica of 2 GPUs is not on one node",
        "schedule.json: /allocations/1/placement: node n1 has fewer free GPUs than that",
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a job starts, with a script, a package, a folder and things that are not Python."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__main__.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "marked").write_text("#!/usr/bin/env python3\nprint('hello')\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\npython train.py\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01\0\0")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print('hello')")
    return tmp_path


def test_what_python_finds_and_what_cannot_be_known_is_taken(folder: Path, tmp_path: Path) -> None:
    for command in (
        *("train.py --lr 1", "./train.py", "own", "marked", "app.pyz"),
        *("-m own", "-m json.tool x", "-X dev gone.py"),
    ):
        assert script_obstacle(command.split(), folder) is None
    assert script_obstacle([str(folder / "train.py")], tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("gone.py", "no such script: {folder}/gone.py"),
        ("../up/gone.py", "no such script: {folder}/../up/gone.py"),
        ("data", "{folder}/data is a folder without __main__.py"),
        ("./train.sh", '{folder}/train.sh is a script for "/bin/sh", but torchrun starts Python scripts'),
        ("program", "{folder}/program is a compiled program, but torchrun starts Python scripts"),
        ("-m", "-m names no module"),
        ("-m nowhere.main", 'no module "nowhere.main" in {folder} or among the installed packages'),
        ("/usr/bin/python3.12-none train.py", "no such script: /usr/bin/python3.12-none"),
    ],
)
def test_what_python_would_not_find_says_which_path_was_looked_at(
    folder: Path, command: str, complaint: str
) -> None:
    assert script_obstacle(command.split(), folder) == complaint.format(folder=folder)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", '["train.py", "--lr", "1"]'),
        ("torchrun --nproc-per-node=2 train.py", '["train.py"]'),
        ("python3 -m own", '["-m", "own"]'),
        ("bash -c x", '["train.py"]'),
    ],
)
def test_a_command_that_begins_with_a_program_says_what_it_should_be(
    folder: Path, command: str, expected: str
) -> None:
    first, *_ = words = command.split()
    complaint = f'starts with "{first}", but torchrun itself starts Python: expected "command": {expected}'
    assert script_obstacle(words, folder) == complaint


def test_a_script_that_cannot_be_read_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be read" in str(script_obstacle(["x" * 5000], folder)), "no file system takes that name"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    complaint = f"script {folder}/train.py cannot be read: Permission denied"
    assert script_obstacle(["train.py"], folder) == complaint


def test_submit_refuses_all_jobs_where_one_script_is_missing(folder: Path):
    dirs = StateDir(folder / "state")
    (folder / "sub").mkdir()
    jobs = [job("good", command=("train.py",)), job("lost", command=("train.py",), workdir="sub")]
    with pytest.raises(BadInputError) as caught:
        submit(dirs.path, jobs, "jobs.jsonl", folder=folder, now_s=0.0)
    assert str(caught.value) == (
        f'jobs.jsonl: /command: job "lost": no such script: {folder}/sub/train.py '
        "(--no-check skips this check)"
    )
    assert not dirs.spool.exists()
    assert submit(dirs.path, jobs, "jobs.jsonl", folder=folder, now_s=0.0, check_scripts=False) == [
        "good",
        "lost",
    ]


def test_in_a_shared_run_a_job_runs_as_its_submitter_and_one_of_nobody_as_root_or_not_at_all() -> None:
    log = RunLog(
        jobs={name: JobLog(job(name), 0.0, uid=uid) for name, uid in (("a", 4711), ("b", 0), ("c", None))}
    )
    for may_be_root in (False, True):
        submitters = Submitters(ProcessLimits(), root=may_be_root)
        submitters.log = log
        assert submitters.of("a").uid == 4711
        for name in ("b", "c", "unknown"):
            if may_be_root:
                assert submitters.of(name).uid == 0
            else:
                with pytest.raises(BadInputError, match="root's jobs do not run here"):
                    submitters.of(name)


def test_the_parts_of_a_rigid_job_meet_at_a_port_that_is_free_on_the_first_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(launching, "port_to_meet_at", lambda address: asked.append(address) or 4711)
    nodes = {name: NodeInfo(name, 1, address=f"10.0.0.{i}") for i, name in enumerate(("n0", "n1", "n2"))}
    dirs = StateDir(tmp_path)
    starting = Launching(InstantBackend(cluster(1, 1, 1), {}), dirs, Timeouts())
    for name, places in (("a", ("n1", "n0")), ("b", ("n2",))):
        target = Assignment.of(
            job(name, gpus=len(places), command=("t.py",), workdir=str(tmp_path)),
            tuple(Slot(node, 0) for node in places),
            (8, 1, 1.0),
        )
        gang = starting.prepare(name, target, nodes)
        assert (gang.starting, gang.handle.files.exit_code(0).exists()) == (False, False), "nothing runs yet"
        starting.start(gang, nodes)
        assert [status.state for status in gang.statuses] == ["running"] * len(places), (
            "until it is looked at"
        )
        assert gang.starting
    assert asked == ["10.0.0.1"], "where the first of them is, and for several nodes only"


def test_a_new_attempt_says_why_the_one_before_was_left_and_its_plan_is_newer_than_all_before(
    tmp_path: Path,
) -> None:
    nodes, dirs = {"n0": NodeInfo("n0", 1)}, StateDir(tmp_path)
    starting = Launching(InstantBackend(cluster(1), {}), dirs, Timeouts())
    spec = job("a", command=("t.py",), workdir=str(tmp_path))
    target = Assignment.of(spec, (Slot("n0", 0),), (8, 1, 1.0))
    first = starting.prepare("a", target, nodes)
    assert (first.handle.attempt, first.plan.generation, first.plan.reason) == (1, 1, "")
    starting.publish(first, aborted(first.plan, "it is resized by a relaunch"))
    second = starting.prepare("a", target, nodes)
    assert (second.handle.attempt, second.plan.generation) == (2, 3)
    assert (second.plan.reason, second.plan.abort) == ("it is resized by a relaunch", False)
    third = starting.prepare("a", target, nodes)
    assert (third.handle.attempt, third.plan.generation, third.plan.reason) == (3, 4, "")
    dirs.job("a").plan.write_text("{")
    dirs.job("a").attempt(3).kept_plan(4).write_text("{")
    assert starting.prepare("a", target, nodes).plan.generation == 5, "what is damaged has a number, too"
