"""Units run as steps or jobs of a real Slurm: they start once, are asked to end, and are found again."""

import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands
from pliant.tools.run.backends.slurm.commands import Controller, lease_prefix
from tests.tools.run.backends.slurm.conftest import JobLauncher, Launcher, ended, slurm_nodes
from tests.tools.run.site import until

RUNNING = UnitStatus("running")
SAVES = "trap 'echo saved > saved; exit 0' TERM; echo up > up; while :; do sleep 0.05; done"
WAITS = "echo run >> runs; echo up > up; until [ -e gate ]; do sleep 0.05; done; exit 5"
TRAPS = "trap 'exit 7' TERM; echo > began; while :; do sleep 0.05; done"


def test_units_run_on_their_nodes_and_leave_only_files(launcher: Launcher) -> None:
    """A service sees thousands of attempts: none may leave a process or a record in memory."""
    script = "echo $CUDA_VISIBLE_DEVICES on $(env | grep -c ^SLURM); exit {}"
    job = launcher.start("a", ("n0", script.format(0)), ("n1", script.format(7)))
    assert launcher.until(job, ended) == (UnitStatus("exited", 0), UnitStatus("exited", 7))
    for unit in (0, 1):
        assert job.files.launcher_log(unit).read_text() == "on 1\n"  # where Slurm is configured
        assert f'"node": "n{unit}"' in job.files.supervisor(unit).read_text()
    launcher.backend.stop(job, "kill")
    assert not launcher.backend._attempts

    def reaped() -> bool:
        launcher.backend.poll([])
        return not any(child.name() == "srun" for child in psutil.Process().children())

    until(reaped)
    assert not launcher.backend._ended


@pytest.mark.parametrize("exclusive", [True, False])
def test_where_slurm_chooses_no_two_workers_get_the_same_gpu(live: SlurmCluster, tmp_path, exclusive) -> None:
    """Each brings its share of the CPUs of its lease, which may have but a part of the node's."""
    launcher = Launcher(tmp_path, slurm_nodes("n0", slots="gpu", gpu_choice="slurm", exclusive=exclusive))
    script = "echo $CUDA_VISIBLE_DEVICES; until [ -e gate ]; do sleep 0.05; done"
    jobs = [launcher.start(name, ("n0", script), slots="0,1") for name in "ab"]
    logs = [job.files.launcher_log(0) for job in jobs]
    until(
        lambda: [launcher.poll(job) for job in jobs] and all(log.exists() and log.read_text() for log in logs)
    )
    assert sorted(log.read_text().strip() for log in logs) == ["0,1", "2,3"]
    (launcher.dirs.path / "gate").touch()
    for job in jobs:
        launcher.until(job, ended)


def test_what_ignores_an_order_is_killed_with_all_it_started(launcher: Launcher) -> None:
    script = "trap '' TERM; (exec sleep 600) & echo $! > pid; echo up > up; while :; do sleep 0.05; done"
    job = launcher.start("a", ("n0", script), ("n1", "echo $PPID > supervisor; sleep 600"))
    launcher.until_file("up", job)
    os.kill(int(launcher.until_file("supervisor", job)), signal.SIGSTOP)

    def gone() -> bool:
        launcher.backend.stop(job, "kill")
        return launcher.poll(job) == (UnitStatus("exited", -9), UnitStatus("lost"))

    until(gone)
    assert not psutil.pid_exists(int((launcher.dirs.path / "pid").read_text()))


def test_a_step_outlives_its_srun_and_is_not_started_twice(launcher: Launcher) -> None:
    job = launcher.start("a", ("n0", WAITS))
    launcher.until_file("up", job)
    sruns = [process for process in psutil.Process().children(recursive=True) if process.name() == "srun"]
    assert sruns
    for process in sruns:  # both of its processes at once, as when their host dies: one would end the step
        process.suspend()
    for process in sruns:
        process.kill()
    names = lease_names_of(launcher)
    second = launcher.again()
    assert second.backend.adopt() == [job]
    assert second.poll(job) == (RUNNING,)
    (launcher.dirs.path / "gate").touch()
    assert second.until(job, ended) == (UnitStatus("exited", 5),)
    assert (launcher.dirs.path / "runs").read_text() == "run\n"
    assert lease_names_of(second) == names
    assert launcher.until(job, ended) == (UnitStatus("exited", 5),)


def lease_names_of(launcher: Launcher) -> list[str]:
    return [launcher.backend.leases.id_of(name) or "" for name in ("n0", "n1")]


def test_what_was_to_be_started_is_started_by_the_next_process(
    launcher: Launcher, live: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # the first process dies before it gets its lease
        patch.setattr(leases, "Later", lambda _argv: SimpleNamespace(done=False, failure=""))
        job = launcher.start("a", ("n0", WAITS))
        assert launcher.poll(job) == (RUNNING,)
    second = launcher.again()
    second.backend.adopt()
    second.until_file("up", job)
    launcher.until(job, lambda statuses: statuses == (RUNNING,))
    (launcher.dirs.path / "gate").touch()
    assert second.until(job, ended) == (UnitStatus("exited", 5),)
    assert (launcher.dirs.path / "runs").read_text() == "run\n"


def test_while_slurm_does_not_answer_all_is_as_before(launcher: Launcher, live: SlurmCluster, caplog) -> None:
    caplog.set_level(logging.WARNING, "pliant")
    job = launcher.start("a", ("n0", SAVES))
    launcher.until_file("up", job)
    live.end_controller()
    until(lambda: (launcher.poll(job), "does not answer" in caplog.text)[1])
    other = launcher.start("b", ("n1", WAITS.replace("up", "up1")))
    assert all(node.up for node in launcher.backend.nodes())
    launcher.backend.stop(job, "term")
    assert launcher.until(job, ended) == (UnitStatus("exited", 0),)
    assert launcher.poll(other) == (RUNNING,)
    live.start_controller()
    launcher.until_file("up1", other)
    assert caplog.text.count("does not answer") == 1
    (launcher.dirs.path / "gate").touch()
    assert launcher.until(other, ended) == (UnitStatus("exited", 5),)


def test_a_node_that_loses_its_lease_gets_another_one(launcher: Launcher, live: SlurmCluster) -> None:
    job = launcher.start("a", ("n0", WAITS))
    launcher.until_file("up", job)
    name = f"{lease_prefix(launcher.dirs.path)}n0"
    live.command("scancel", f"--name={name}")
    (status,) = launcher.until(job, ended)
    assert status == UnitStatus("exited", -15), "Slurm asks all processes to end"
    assert status.displaced == "Slurm has ended what ran on node n0"
    second = launcher.start("a", ("n0", "exit 3"), attempt=2)
    assert launcher.until(second, ended) == (UnitStatus("exited", 3),)


def test_a_daemon_that_dies_harms_nothing(launcher: Launcher, live: SlurmCluster) -> None:
    job = launcher.start("a", ("n0", WAITS))
    launcher.until_file("up", job)
    live.end_node("n0")
    second = launcher.start("b", ("n0", "exit 3"))
    launcher.until(second, lambda _: second.files.logs.joinpath("srun-0.log").stat().st_size)
    live.start_node("n0")
    assert launcher.until(second, ended) == (UnitStatus("exited", 3),)
    (launcher.dirs.path / "gate").touch()
    assert launcher.until(job, ended) == (UnitStatus("exited", 5),)
    assert (launcher.dirs.path / "runs").read_text() == "run\n"


def test_units_run_with_own_gpus_and_leave_their_exit_codes(jobs: JobLauncher) -> None:
    on_gpus = JobLauncher(jobs.slurm, jobs.folder.parent, "gpu")
    facts = '"$CUDA_VISIBLE_DEVICES $PLIANT_ADDRESS ${SLURM_JOB_ID-none}"'
    says = f"echo {facts} > said-$PLIANT_WORKER; exit $PLIANT_WORKER"
    handle = on_gpus.start(says, says, says, gpus=1)
    codes = on_gpus.until(handle, ended)
    assert codes == (UnitStatus("exited", 0), UnitStatus("exited", 1), UnitStatus("exited", 2))
    said = [(jobs.folder / f"said-{unit}").read_text().split() for unit in range(3)]
    assert sorted(gpus for gpus, _, _ in said) == ["0", "1", "2"]
    assert {(address, job) for _, address, job in said} == {("127.0.0.1", "none")}
    with pytest.raises(OSError, match="one job of Slurm"):
        on_gpus.backend.start(handle, [])
    assert on_gpus.backend.in_place is False
    assert on_gpus.backend.release() == 0


def test_another_process_takes_over_what_waits_and_what_runs(jobs: JobLauncher) -> None:
    handle = jobs.start(TRAPS)
    second = jobs.again()
    assert second.backend.adopt() == [handle]
    second.until_file("began", handle)
    third = jobs.again()
    assert third.poll(handle) == (UnitStatus("running"),)
    third.backend.stop(handle, "term")
    assert third.until(handle, ended) == (UnitStatus("exited", 7),)


def test_no_name_of_a_job_lists_another_job(live: SlurmCluster) -> None:
    """Else any account could have jobs of others cancelled, as root cancels what is left over."""
    name = "x\n777|RUNNING|n0|None|4242|pliant-x.a.1"
    own = ("--wrap=sleep 100", "--output=/dev/null", "--chdir=/", f"--job-name={name}")
    number = live.command("sbatch", "--parsable", *own).strip()
    controller = Controller(())
    controller.of_all = True
    result = controller.first().jobs
    assert [(job.id, job.uid, job.name) for job in result] == [(number, os.geteuid(), "x")]


def test_leases_come_with_jobs_and_go_after_them(
    live: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LEFT_S", 1.0)
    launcher = Launcher(tmp_path, slurm_nodes("n0", "n1", leases={"idle_seconds": 1.0}))

    def queue() -> list[str]:
        launcher.backend.nodes()
        return live.command("squeue", "-h", "-t", "PD,R,CF", "-o", "%j").split()

    lease = f"{lease_prefix(launcher.dirs.path)}n0"
    for attempt in (1, 2):  # the second one begins while the first one's lease is idle, or ends
        job = launcher.start("a", ("n0", "echo up > up; sleep 2"), attempt=attempt)
        launcher.until_file("up", job)
        assert queue() == [lease]
        assert launcher.until(job, ended) == (UnitStatus("exited", 0),)
        (launcher.folder / "up").unlink()
    until(lambda: not queue())
    job = launcher.start("b", ("n0", "echo up > up; sleep 14"))
    launcher.until_file("up", job)  # the launcher is killed: the lease goes after the step, not before
    until(lambda: job.files.exit_code(0).exists())
    assert job.files.exit_code(0).read_text() == "0\n"
    until(lambda: not live.command("squeue", "-h", "-o", "%j").split())


def test_reservations_of_slurm_are_seen(
    live: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "RESERVATIONS_S", 0.1)
    backend = Launcher(tmp_path, slurm_nodes("n0", "n1")).backend
    assert backend.reservations() == []
    made = ("reservation=fans", "starttime=now+1hour", "duration=60", "nodes=n1", "users=root", "flags=maint")
    live.command("scontrol", "create", *made)
    until(lambda: (backend.nodes(), backend.reservations())[1])
    (found,) = backend.reservations() or ()
    live.command("scontrol", "delete", "reservation=fans")
    assert (found.name, found.nodes, found.end - found.begin) == ("fans", ("n1",), 3600.0)
    assert abs(found.begin - time.time() - 3600.0) < 120.0
    until(lambda: (backend.nodes(), backend.reservations() == [])[1])
