"""Attempts as jobs of a real Slurm: waiting, running, cancelled, taken over, ended by somebody else."""

from __future__ import annotations

import os

import pytest

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.backends.slurm.commands import Controller, job_name
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.backends.conftest import ended
from tests.tools.run.backends.slurm_jobs.conftest import Launcher
from tests.tools.run.site import until

WAITS = "trap 'exit 7' TERM; echo > began; while :; do sleep 0.05; done"


def test_units_run_with_own_gpus_and_leave_their_exit_codes(launcher: Launcher) -> None:
    on_gpus = Launcher(launcher.slurm, launcher.folder, "gpu")
    facts = '"$CUDA_VISIBLE_DEVICES $PLIANT_ADDRESS ${SLURM_JOB_ID-none}"'
    says = f"echo {facts} > said-$PLIANT_WORKER; exit $PLIANT_WORKER"
    handle = on_gpus.start(says, says, says, gpus=1)
    codes = on_gpus.until(handle, ended)
    assert codes == (UnitStatus("exited", 0), UnitStatus("exited", 1), UnitStatus("exited", 2))
    said = [(launcher.folder / f"said-{unit}").read_text().split() for unit in range(3)]
    assert sorted(gpus for gpus, _, _ in said) == ["0", "1", "2"]
    assert {(address, job) for _, address, job in said} == {("127.0.0.1", "none")}
    with pytest.raises(OSError, match="one job of Slurm"):
        on_gpus.backend.start(handle, [])
    assert on_gpus.backend.in_place is False
    assert on_gpus.backend.release() == 0


def test_what_waits_in_the_queue_is_cancelled_at_once(launcher: Launcher) -> None:
    launcher.slurm.command(
        "sbatch", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "exec sleep 600"
    )
    until(lambda: "RUNNING" in launcher.queue().values())
    handle = launcher.start("echo > began")
    name = job_name(handle, launcher.dirs.path)
    launcher.until(handle, lambda result: launcher.queue().get(name) == "PENDING")
    (status,) = launcher.poll(handle)
    assert (status.state, status.queued) == ("running", True)
    launcher.backend.stop(handle, "term")
    assert launcher.poll(handle) == (UnitStatus("exited", -15),)
    until(lambda: (launcher.poll(handle), name not in launcher.queue())[1])
    assert not (launcher.folder / "began").exists()


def test_another_process_takes_over_what_waits_and_what_runs(launcher: Launcher) -> None:
    handle = launcher.start(WAITS)
    second = launcher.again()
    assert second.backend.adopt() == [handle]
    second.until_file("began", handle)
    third = launcher.again()
    assert third.poll(handle) == (UnitStatus("running"),)
    third.backend.stop(handle, "term")
    assert third.until(handle, ended) == (UnitStatus("exited", 7),)


def test_one_unit_or_all_of_them_may_be_killed(launcher: Launcher) -> None:
    handle = launcher.start("trap '' TERM; echo > began; while :; do sleep 0.05; done", "sleep 600")
    launcher.until_file("began", handle)
    launcher.backend.stop(handle, "kill", [1])
    result = launcher.until(handle, lambda result: result[1].state != "running")
    assert (result[0].state, result[1]) == ("running", UnitStatus("exited", -9))
    launcher.backend.stop(handle, "term")
    launcher.backend.stop(handle, "kill")
    assert {status.state for status in launcher.until(handle, ended)} <= {"exited", "lost"}
    until(lambda: (launcher.poll(handle), launcher.queue() == {})[1])


def test_no_name_of_a_job_lists_another_job(live: SlurmCluster) -> None:
    """Else any account could have jobs of others cancelled, as root cancels what is left over."""
    name = "x\n777|RUNNING|n0|None|4242|pliant-x.a.1"
    own = ("--wrap=sleep 100", "--output=/dev/null", "--chdir=/", f"--job-name={name}")
    number = live.command("sbatch", "--parsable", *own).strip()
    controller = Controller(())
    controller.of_all = True
    result = controller.first().jobs
    assert [(job.id, job.uid, job.name) for job in result] == [(number, os.geteuid(), "x")]
