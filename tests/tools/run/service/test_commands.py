from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from pliant.schemas.job import Job
from pliant.tools.profile.torchrun.start import ONE_WORKER, RUN_TORCHRUN, child_environment
from pliant.tools.run.backends.protocol import NodeInfo, Unit
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
from tests.tools.run.simulated.hazard import Death, Hazard

FOLDER = Path("/state/jobs/a")
ATTEMPT = AttemptDir(FOLDER / "attempts" / "1")
CPU = {name: NodeInfo(name, 4) for name in ("n0", "n1")}
GPU = {
    "n0": NodeInfo("n0", 4, devices=("0", "1", "2", "3")),
    "n1": NodeInfo("n1", 4, devices=("4", "5", "6", "7")),
}
TORCHRUN = (sys.executable, "-P", RUN_TORCHRUN)


def target(spec: Job, *slots: str) -> Assignment:
    found = tuple(map(Slot.parse, slots))
    return Assignment.of(spec, found, (32, 1, 1.0))


def elastic(**more: object) -> Job:
    return job("a", gpus=1, high=4, command=("train.py", "--lr", "1"), workdir="/work dir", **more)


def rigid(gpus: int, *command: str) -> Job:
    return job("a", gpus=gpus, command=command or ("train.py",), workdir="/w")


def made(spec: Job, *slots: str, nodes: dict[str, NodeInfo] = GPU, port: int = 1) -> list[Unit]:
    return units(target(spec, *slots), FOLDER, ATTEMPT, nodes, port)


def test_an_elastic_job_gets_one_process_per_slot() -> None:
    first, second = made(elastic(), "n0/1", "n0/0", nodes=CPU)
    logs = "/state/jobs/a/attempts/1/logs/0/worker/attempt_0/0"
    assert first.argv == (sys.executable, "-I", "-S", ONE_WORKER, logs, "train.py", "--lr", "1")
    assert (first.env["RANK"], first.env["WORLD_SIZE"], first.env["LOCAL_RANK"]) == ("0", "1", "0")
    assert (first.node, first.cwd) == ("n0", "/work dir")
    assert first.env["PLIANT_JOB_DIR"] == "/state/jobs/a"
    assert [unit.env["PLIANT_SLOT"] for unit in (first, second)] == ["n0/1", "n0/0"]
    assert "/state/jobs/a/attempts/1/logs/1/worker/attempt_0/0" in second.argv
    assert (first.env["OMP_NUM_THREADS"], first.env["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    (gpu,) = made(elastic(), "n1/2")
    assert (gpu.env.get("OMP_NUM_THREADS"), gpu.env["CUDA_VISIBLE_DEVICES"]) == (None, "6"), "its own number"
    own = elastic(env={"OMP_NUM_THREADS": "2", "PLIANT_SLOT": "n9/9", "DATA": "/data"})
    (unit,) = made(own, "n0/0", nodes=CPU)
    assert (unit.env["OMP_NUM_THREADS"], unit.env["DATA"], unit.env["PLIANT_SLOT"]) == ("2", "/data", "n0/0")


def test_a_rigid_job_gets_one_torchrun_with_a_worker_per_slot() -> None:
    (unit,) = made(rigid(2), "n0/0", "n0/3")
    assert unit.argv == (
        *TORCHRUN,
        *("--nnodes=1", "--rdzv-backend=one-node", "--rdzv-endpoint=none", "--rdzv-id=pliant"),
        *("--local-addr=127.0.0.1", "--nproc-per-node=2", "--max-restarts", "0"),
        *("--log-dir", "/state/jobs/a/attempts/1/logs/0", "--redirects", "3", "--", "train.py"),
    )
    assert unit.env["PLIANT_SLOT"] == "rank"
    assert unit.env["CUDA_VISIBLE_DEVICES"] == "0,3"


def test_a_rigid_job_on_one_slot_has_torchrun_if_it_says_so() -> None:
    (unit,) = made(rigid(1), "n0/3")
    logs = "/state/jobs/a/attempts/1/logs/0/worker/attempt_0/0"
    assert unit.argv == (sys.executable, "-I", "-S", ONE_WORKER, logs, "train.py")
    assert not [name for name in unit.env if "RANK" in name or "WORLD_SIZE" in name]
    assert (unit.env["PLIANT_SLOT"], unit.env["CUDA_VISIBLE_DEVICES"]) == ("rank", "3")
    (unit,) = made(rigid(1, "torchrun", "train.py"), "n0/3")
    assert (unit.argv[:3], unit.argv[-2:]) == (TORCHRUN, ("--", "train.py"))


def test_a_job_resized_by_relaunches_always_has_torchrun() -> None:
    spec = elastic(resize="relaunch", batch=32)
    (unit,) = made(spec, "n0/3")
    assert (unit.argv[:3], unit.argv[-3:]) == (TORCHRUN, ("train.py", "--lr", "1"))
    assert unit.env["PLIANT_PROGRESS"] == "/state/jobs/a/progress.json"
    assert unit.env["PLIANT_STOP"] == "/state/jobs/a/attempts/1/stop"
    assert (unit.env["PLIANT_BATCH"], unit.env["PLIANT_SLOT"]) == ("32", "rank")
    assert [each.node for each in made(spec, "n0/0", "n0/1", "n1/0")] == ["n0", "n1"]


def test_a_rigid_job_on_two_nodes_meets_at_the_first() -> None:
    nodes = {"n0": NodeInfo("n0", 4, address="10.0.0.1"), "n1": NodeInfo("n1", 4, address="10.0.0.2")}
    first, second = made(rigid(3), "n0/0", "n1/0", "n1/1", nodes=nodes, port=4711)
    meeting = ("--rdzv-backend=static", "--master-addr=10.0.0.1", "--master-port=4711")
    assert first.argv[3:9] == ("--nnodes=2", "--node-rank=0", *meeting, "--local-addr=10.0.0.1")
    assert second.argv[3:9] == ("--nnodes=2", "--node-rank=1", *meeting, "--local-addr=10.0.0.2")
    assert [first.argv[9], second.argv[9]] == ["--nproc-per-node=1", "--nproc-per-node=2"]


def test_ranks_of_a_replica_follow_each_other_on_a_node() -> None:
    spec = job("a", gpus=4, each=2, command=("train.py",), workdir="/w")
    wanted = target(spec, "n0/1", "n1/0", "n0/0", "n1/2")
    started = units(wanted, FOLDER, ATTEMPT, GPU, 1)
    assert [unit.env["PLIANT_GPUS_PER_REPLICA"] for unit in started] == ["2", "2"]
    assert list(map(str, ranked(wanted))) == ["n0/1", "n0/0", "n1/0", "n1/2"]
    (alone,) = made(rigid(1), "n0/3")
    assert "PLIANT_GPUS_PER_REPLICA" not in alone.env
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


def test_only_a_job_whose_batch_changes_measures_its_noise() -> None:
    for elasticity in ("none", "size", "size+batch"):
        spec = rigid(1) if elasticity == "none" else elastic(elastic=elasticity)
        (unit,) = made(spec, "n0/0")
        assert ("PLIANT_NOISE" in unit.env, elasticity) == (elasticity == "size+batch", elasticity)
        assert "PLIANT_LOG_BYTES" not in unit.env
        (limited,) = units(target(spec, "n0/0"), FOLDER, ATTEMPT, GPU, log_bytes=5)
        assert limited.env["PLIANT_LOG_BYTES"] == "5"


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
