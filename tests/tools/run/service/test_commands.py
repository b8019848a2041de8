from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks.parts.chaos.hazard import Death, Hazard
from pliant.schemas.container import Container
from pliant.schemas.job import Job
from pliant.tools.profile.torchrun.start import ONE_WORKER, RUN_TORCHRUN, child_environment
from pliant.tools.run.backends.protocol import NodeInfo, Unit
from pliant.tools.run.backends.supervisor import SECRETS, container_of
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import (
    copies,
    last_generation,
    make_plan,
    ranked,
    read_plan,
    read_plan_of,
    units,
    write_plan,
)
from pliant.tools.run.statedir.contract.folders import AttemptDir, DamagedError, JobDir
from tests.builders import job

FOLDER = Path("/state/jobs/a")
ATTEMPT = AttemptDir(FOLDER / "attempts" / "1")
CPU = {name: NodeInfo(name, 4) for name in ("n0", "n1")}
GPU = {
    "n0": NodeInfo("n0", 4, devices=("0", "1", "2", "3")),
    "n1": NodeInfo("n1", 4, devices=("4", "5", "6", "7")),
}


def target(spec: Job, *slots: str) -> Assignment:
    found = tuple(map(Slot.parse, slots))
    return Assignment.of(spec, found, (32, 1, 1.0))


def elastic(**more: object) -> Job:
    return job("a", gpus=1, high=4, command=("train.py", "--lr", "1"), workdir="/work dir", **more)


def rigid(gpus: int, *command: str) -> Job:
    return job("a", gpus=gpus, command=command or ("train.py",), workdir="/w")


def made(spec: Job, *slots: str, nodes: dict[str, NodeInfo] = GPU, port: int = 1) -> list[Unit]:
    return units(target(spec, *slots), FOLDER, ATTEMPT, nodes, port)


def in_words(started: Iterable[Unit]) -> str:
    """What is started where; Python and its scripts by their names."""
    lines = []
    for unit in started:
        variables = [f"  {name}={value}" for name, value in sorted(unit.env.items())]
        lines += [f"{unit.node} {unit.cwd}: {' '.join(unit.argv)}", *variables]
    text = "\n".join(lines)
    for written in (sys.executable, json.dumps(sys.executable)[1:-1]):  # a folder may have an umlaut
        text = text.replace(written, "PYTHON")
    return text.replace(str(ONE_WORKER), "ONE_WORKER").replace(str(RUN_TORCHRUN), "RUN_TORCHRUN")


def task(each: str) -> Job:
    return job("a", gpus=3, command=("./solve", "x"), workdir="/w", launcher="program", tasks=each)


ADDRESSES = {f"n{i}": NodeInfo(f"n{i}", 4, address=f"10.0.0.{i + 1}") for i in range(2)}
RELAUNCHED = elastic(resize="relaunch", batch=32)
OWN_ENV = {"OMP_NUM_THREADS": "2", "PLIANT_SLOT": "n9/9", "DATA": "/data"}
REPLICAS = job("a", gpus=4, each=2, command=("train.py",), workdir="/w")


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(made(elastic(), "n0/1", "n0/0", nodes=CPU), id="elastic, a process for each slot"),
        pytest.param(made(elastic(), "n1/2"), id="elastic, a GPU by its number on the machine"),
        pytest.param(made(elastic(env=OWN_ENV), "n0/0", nodes=CPU), id="elastic, own variables but no slot"),
        pytest.param(made(elastic(elastic="size+batch"), "n0/0"), id="elastic, its batch changes"),
        pytest.param(made(rigid(2), "n0/0", "n0/3"), id="rigid, one torchrun"),
        pytest.param(made(rigid(1), "n0/3"), id="rigid, one slot without torchrun"),
        pytest.param(made(rigid(1, "torchrun", "train.py"), "n0/3"), id="rigid, one slot with torchrun"),
        pytest.param(
            made(rigid(3), "n0/0", "n1/0", "n1/1", nodes=ADDRESSES, port=4711), id="rigid, two nodes"
        ),
        pytest.param(made(RELAUNCHED, "n0/3"), id="relaunched, torchrun on one slot too"),
        pytest.param(made(RELAUNCHED, "n0/0", "n0/1", "n1/0"), id="relaunched, two nodes"),
        *(
            pytest.param(made(task(each), "n0/0", "n0/1", "n1/0"), id=f"a program for each {each}")
            for each in ("node", "slot")
        ),
        pytest.param(
            made(
                job("a", gpus=0, batch={}, command=("./prep",), workdir="/w", launcher="program"), "n0/1024"
            ),
            id="without a GPU",
        ),
        pytest.param(made(REPLICAS, "n0/1", "n1/0", "n0/0", "n1/2"), id="replicas"),
        pytest.param(made(elastic(array={"name": "s", "index": 3}), "n0/0"), id="one of an array"),
    ],
)
def test_what_is_started_for_a_job(started: Sequence[Unit], golden_text: Callable[..., None]) -> None:
    golden_text(in_words(started))


def test_output_is_kept_as_the_supervisor_likes() -> None:
    for spec in (rigid(1), elastic()):
        (limited,) = units(target(spec, "n0/0"), FOLDER, ATTEMPT, GPU, log_bytes=5)
        assert limited.env["PLIANT_LOG_BYTES"] == "5"


def test_a_container_gets_its_secret_whatever_the_node_has(tmp_path: Path) -> None:
    (tmp_path / SECRETS).write_text('{"DOCKER_CONFIG": "/c"}')
    spec = rigid(1).model_copy(update={"container": Container(image="img")})
    (unit,) = units(target(spec, "n0/0"), tmp_path, ATTEMPT, GPU)
    assert json.loads(container_of(unit.argv))["stated"] == ["DOCKER_CONFIG"]


def test_ranks_of_a_replica_follow_each_other_on_a_node() -> None:
    wanted = target(REPLICAS, "n0/1", "n1/0", "n0/0", "n1/2")
    assert list(map(str, ranked(wanted))) == ["n0/1", "n0/0", "n1/0", "n1/2"]
    for plain in (elastic(), rigid(3)):
        wanted = target(plain, "n0/1", "n1/0", "n0/0")
        plan = make_plan(wanted, 1, 1, CPU)
        assert [member.slot for member in plan.members] == list(map(str, ranked(wanted)))
        assert sorted(member.slot for member in plan.members) == ["n0/0", "n0/1", "n1/0"]


def test_a_plan_says_how_the_batch_is_cut() -> None:
    spec = elastic(seed=7, checkpoint_seconds=5.0)
    plan = make_plan(Assignment.of(spec, (Slot("n1", 3),), (64, 2, 1.5)), 4, 2, GPU)
    assert (plan.generation, plan.attempt, plan.abort) == (4, 2, False)
    assert (plan.global_batch, plan.accum, plan.lr_scale) == (64, 2, 1.5)
    assert (plan.seed, plan.checkpoint_s) == (7, 5.0)
    assert (plan.members[0].device, plan.members[0].slot) == ("cuda", "n1/3")


@pytest.mark.parametrize("text", ["{", None])
def test_a_damaged_or_lost_plan_is_made_again(tmp_path: Path, text: str | None):
    folder = JobDir(tmp_path)
    plans = [make_plan(target(elastic(), "n0/0"), number, 1, CPU) for number in range(1, 12)]
    folder.attempt(1).path.mkdir(parents=True)
    for plan in plans:
        write_plan(folder, plan)
    folder.plan.unlink()
    if text is not None:
        folder.plan.write_text(text)
    assert read_plan(folder) == plans[-1] == read_plan_of(folder.plan)
    assert last_generation(folder) == 11
    folder.attempt(1).kept_plan(7).write_text("{")
    assert copies(folder.attempt(1)) == [plan for plan in plans if plan.generation != 7]
    folder.attempt(1).kept_plan(11).write_text("{")
    folder.plan.write_text("{")
    with pytest.raises(DamagedError):  # an older one is not in force any more
        read_plan(folder)


def test_wherever_a_launcher_dies_the_plan_in_force_has_a_copy(tmp_path: Path) -> None:
    old, new = (make_plan(target(elastic(), "n0/0"), number, 1, CPU) for number in (1, 2))
    found = []
    for calls in range(1, 30):
        folder, hazard = JobDir(tmp_path / "jobs" / str(calls)), Hazard()
        folder.attempt(1).path.mkdir(parents=True)
        write_plan(folder, old)
        hazard.kill_after(calls)
        with contextlib.suppress(Death), hazard.endured():
            write_plan(folder, new)
        in_force = read_plan_of(folder.plan)
        assert in_force is not None
        assert read_plan_of(folder.attempt(1).kept_plan(in_force.generation)) == in_force
        found.append(in_force.generation)
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_what_other_launchers_left_in_the_environment_is_dropped() -> None:
    base = {"RANK": "3", "MASTER_PORT": "1", "SLURM_JOB_ID": "9", "PLIANT_PROFILE": "x", "HOME": "/h"}
    assert child_environment(base, {"A": "1"}) == {"HOME": "/h", "A": "1"}


def test_each_worker_gets_the_files_that_its_job_names() -> None:
    def orders(spec: Job, *slots: str, first: int = 0) -> list[tuple[list[str], list[str], bool]]:
        found = units(target(spec, *slots), FOLDER, ATTEMPT, ADDRESSES, 1, first=first)
        read = [json.loads(unit.env["PLIANT_OUTPUT"]) for unit in found]
        assert all(order["truncate"] for order in read)
        return [(order["output"], order["error"], order["owner"]) for order in read]

    spec = rigid(3).model_copy(update={"output": "%N-%r"})
    assert orders(spec, "n0/0", "n0/1", "n1/0") == [
        (["/w/n0-0", "/w/n0-1"],) * 2 + (True,),
        (["/w/n1-2"],) * 2 + (True,),
    ]
    # Of units that share a file the first one opens it; later ones never do.
    spec = elastic(output="%j.out", error="/e")
    shared = (["/work dir/a.out"], ["/e"])
    assert orders(spec, "n0/0", "n0/1") == [(*shared, True), (*shared, False)]
    assert orders(spec, "n0/2", first=2) == [(*shared, False)]
    assert orders(elastic(error="e%r"), "n0/2", first=2) == [([], ["/work dir/e2"], True)]
    # One unit of each node looks at the code.
    seen = [
        json.loads(unit.env.get("PLIANT_CODE", "null")) for unit in made(elastic(), "n0/0", "n0/1", "n1/0")
    ]
    looks = {"python": sys.executable, "command": ["train.py", "--lr", "1"]}
    assert seen == [looks, None, looks]
