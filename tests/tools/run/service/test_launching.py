"""Whether jobs can be started here: folders, commands and scripts."""

from __future__ import annotations

import os
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.io import read_schedule, write_schedule
from pliant.schemas.job import Gpus, Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.backends.protocol import NodeInfo, ProcessLimits
from pliant.tools.run.service import inputs, launching
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import aborted
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.launching import Launching, Submitters, runnable, script_obstacle
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.starters import python_obstacle, settled
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend, opens
from tests.tools.run.site import Site

NO_PATHS: Final = {"PYTHONPATH": ""}


def schedule(jobs: list[Job], *allocations: dict[str, Any]) -> Schedule:
    record = {
        "time": 0.0,
        "policy": {"name": "fifo"},
        "cluster": cluster(2, 2).model_dump(mode="json", by_alias=True),
        "jobs": [found.model_dump(mode="json") for found in jobs],
        "allocations": [{"action": "start", **allocation} for allocation in allocations],
    }
    return Schedule.model_validate(record, strict=False)


def problems(found: Schedule, folder: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        runnable(found, "schedule.json", folder)
    return "\n".join(map(str, caught.value.problems))


def test_jobs_start_in_the_folder_they_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    jobs = [job("a", command=("t.py",)), job("b", command=("t.py",), workdir="sub")]
    found = runnable(schedule(jobs), "s", tmp_path)
    assert [found_job.workdir for found_job in found.jobs] == [str(tmp_path), str(tmp_path / "sub")]


def test_every_problem_is_named_at_once(tmp_path: Path, golden_text: Callable[..., None]) -> None:
    found = schedule(
        [
            job("a", gpus=2),
            job("b", command=("t.py",), workdir="nowhere"),
            job("d", command=("t.py",)),
            job("ps", command=("t.py",), resources={"worker": {"cpu": 1.0}, "ps": {"cpu": 2.0}}),
            job("wide", command=("t.py",), resources={"worker": {"gpu": 2.0}}),
            job("replicas", command=("t.py",), gpus=4, low=2, each=2),
        ],
        {"job": "c", "gpus": 1, "placement": [["n0", 1]]},
        {"job": "a", "gpus": 2, "placement": [["n0", 2]]},
        {"job": "b", "gpus": 1, "placement": [["n7", 1]]},
        {"job": "d", "gpus": 1},
    )
    golden_text(problems(found, tmp_path))
    jobs = [job("a", command=("t.py",), gpus=2, each=2), job("b", command=("t.py",), gpus=3, each=3)]
    parted = schedule(
        jobs,
        {"job": "a", "gpus": 2, "placement": [["n0", 1], ["n1", 1]]},
        {"job": "b", "gpus": 3, "placement": [["n0", 1], ["n1", 2]]},
    )
    golden_text(problems(parted, tmp_path), "replicas on two nodes where one would hold them")


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


@pytest.mark.parametrize(
    "command",
    [
        *("train.py --lr 1", "./train.py", "own", "marked", "app.pyz"),
        *("-m own", "-m json.tool x", "-X dev gone.py"),  # what cannot be known
    ],
)
def test_what_python_finds_is_taken(folder: Path, command: str) -> None:
    assert script_obstacle(command.split(), folder) is None


def test_what_cannot_be_started_is_named(folder: Path, golden_text: Callable[..., None]) -> None:
    commands = (
        *("gone.py", "../up/gone.py", "data", "./train.sh", "program", "-m", "-m nowhere.main"),
        *("/usr/bin/python3.12-none train.py", "python train.py --lr 1", "python3 -m own", "bash -c x"),
        "torchrun --nproc-per-node=2 train.py",
    )
    golden_text("\n".join(f"{each}: {script_obstacle(each.split(), folder)}" for each in commands))


@pytest.mark.parametrize(
    ("command", "launcher", "started"),
    [
        ("train.py --lr 1", "python", "train.py --lr 1"),
        ("python -u train.py", "python", "python -u train.py"),
        ("-m own", "python", "-m own"),
        ("-c import(torch)", "python", "-c import(torch)"),
        ("spawns.py", "python", "spawns.py"),
        ("forks.py", "python", "forks.py"),
        ("torchrun --nnodes 1 ddp.py", "python", "-m torch.distributed.run --nnodes 1 ddp.py"),
        ("-m torch.distributed.run train.py", "python", "-m torch.distributed.run train.py"),
        ("ddp.py", None, "ddp.py"),
        ("python3 -X dev ddp.py", None, "python3 -X dev ddp.py"),
        ("helped.py", None, "helped.py"),
        ("hugging.py", None, "hugging.py"),
        ("ranks.py", None, "ranks.py"),
        ("torchrun train.py", None, "torchrun train.py"),
        ("gone.py", None, "gone.py"),
        ("sh -c x", "program", "sh -c x"),
        ("train.sh a", "program", "/bin/sh ./train.sh a"),
        ("bare.sh", "program", "bash ./bare.sh"),
        ("./able", "program", "./able"),
        ("able", "program", "./able"),
        ("marked", "python", "marked"),
        ("program", "python", "program"),
    ],
)
def test_what_starts_a_command(folder: Path, command: str, launcher: str | None, started: str) -> None:
    """On two GPUs: None stands for torchrun, or for what cannot be read."""
    scripts = {
        "ddp.py": "import torch.distributed as d\n",
        "helped.py": "from pack.part import go\n",
        "hugging.py": "from transformers import Seq2SeqTrainer\n",
        "ranks.py": "import os\nos.environ['LOCAL_RANK']\n",
        "spawns.py": "import torch.multiprocessing as mp, torch.distributed\nmp.spawn(main)\n",
        "forks.py": "from multiprocessing import Process\nx = 'MASTER_ADDR', Process, FSDP\n",
        "train.py": "'Not for torch.distributed, or FSDP.'  # nor for accelerate\n",
        "bare.sh": "true\n",
        "able": "#!/bin/sh\n",
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
    (folder / "able").chmod(0o755)
    (folder / "pack").mkdir()
    (folder / "pack" / "part.py").write_text("from .other import x\n")
    (folder / "pack" / "other.py").write_text("from torch.nn.parallel import DistributedDataParallel\n")
    path = {"PATH": "/usr/bin:/bin"}  # where there is no torchrun
    asked = job("a", gpus=2, command=tuple(command.split(" ")), workdir=str(folder), env=path)
    found, why = settled(asked)
    assert (found.launcher, " ".join(found.command or ())) == (launcher, started)
    assert bool(why) == (command != "gone.py")
    alone = settled(asked.model_copy(update={"gpus": Gpus(requested=1)}))[0]
    assert alone.launcher == ("program" if launcher == "program" else None)
    assert settled(found)[0] == found, "once is enough"
    if launcher == "program":  # also with --no-torchrun
        assert settled(asked.model_copy(update={"launcher": "python"}))[0] == found


def test_a_python_of_its_own_has_to_start_workers(folder: Path) -> None:
    """One with no PyTorch runs a script as one process; one that is not there runs none."""
    venv.create(folder / "v", with_pip=False)
    python, gone = str(folder / "v" / "bin" / "python"), str(folder / "gone" / "python")

    def obstacle(*command: str, **more: Any) -> str | None:
        return python_obstacle(job("a", command=command, workdir=str(folder), **more))

    assert obstacle(python, "train.py") is None
    assert obstacle("v/bin/python", "train.py", gpus=2, launcher="python") is None
    for more in ({"gpus": 2}, {"elastic": "size"}, {"launcher": "torchrun"}):
        assert f"{python} has no torch and no pliant" in str(
            obstacle(python, "train.py", env=NO_PATHS, **more)
        )
    assert obstacle(sys.executable, "train.py", gpus=2) is None
    assert obstacle(gone, "train.py") == f"no such Python: {gone}"


def test_a_script_that_cannot_be_read_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script_obstacle([str(folder / "train.py")], folder / "elsewhere") is None
    assert "cannot be read" in str(script_obstacle(["x" * 5000], folder)), "no file system takes that name"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    complaint = f"script {folder}/train.py cannot be read: Permission denied"
    assert script_obstacle(["train.py"], folder) == complaint


def test_jobs_of_a_shared_run_run_as_their_submitters() -> None:
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


def test_parts_of_a_rigid_job_meet_on_the_first_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_the_plan_of_a_new_attempt_is_newer_than_all_before(tmp_path: Path) -> None:
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


# What a run refuses before it touches anything, or does not ask for.


def prepared(options: RunOptions, *, dry: bool = False) -> PreparedRun:
    return PreparedRun.read(options, opens({}), resume=True, dry=dry)


def begin(options: RunOptions) -> None:
    """As far as the first decision."""
    found = prepared(options)
    with found.open() as state:
        found.loop(state, follow=False)


def test_a_schedule_with_an_unknown_parameter_is_refused(tmp_path: Path):
    site = Site(tmp_path)
    site.job("a")
    options = site.options("fifo")
    path = Path(str(options.schedule))
    found = read_schedule(path)
    policy = found.policy.model_copy(update={"parameters": {"speed": 2}})
    write_schedule(found.model_copy(update={"policy": policy}), path)
    with pytest.raises(BadInputError, match=r"schedule\.json: /policy: .*speed"):
        prepared(options)
    assert not site.state.exists()


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_torch_has_to_be_where_jobs_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str):
    def is_not_there(library: str, what: str) -> None:
        raise ServiceMissingError(f"{what}, but {library} is not installed")

    monkeypatch.setattr(inputs, "require", is_not_there)
    site = Site(tmp_path)
    site.job("a", elastic="none")
    prepared(site.options("fifo", backend=backend))
    site.job("b", high=2)
    options = site.options("fifo", backend=backend)
    prepared(options, dry=True)
    if backend == "slurm":
        prepared(options)
    else:
        with pytest.raises(ServiceMissingError, match='job "b" trains with torch, but torch is not'):
            prepared(options)


def test_a_job_of_the_schedule_may_be_submitted_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With another command it would be unknown which of the two runs."""
    site = Site(tmp_path)
    monkeypatch.chdir(site.folder)
    same = site.job("a").model_copy(update={"submit_time": 7.0, "priority": 2.0})
    options = site.options("fifo")
    submit(site.state, [same], "jobs", folder=site.folder, now_s=0.0)
    begin(options)
    assert site.log().jobs.keys() == {"a"}

    other = Site(tmp_path / "other")
    monkeypatch.chdir(other.folder)
    another = other.job("a").model_copy(update={"command": (other.script, "--samples", "1")})
    options = other.options("fifo")
    submit(other.state, [another], "jobs", folder=other.folder, now_s=0.0)
    with pytest.raises(BadInputError, match='job "a" is in the schedule, too, and another one there'):
        begin(options)
    assert not other.log().jobs
