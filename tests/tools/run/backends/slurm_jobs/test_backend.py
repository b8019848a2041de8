"""Attempts as jobs of a real Slurm: waiting, running, cancelled, taken over, ended by somebody else."""

from __future__ import annotations

import shlex

import pytest

from pliant.tools.run.backends.protocol import Unit, UnitStatus
from pliant.tools.run.backends.slurm.commands import job_name
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from tests.tools.run.backends.conftest import ended
from tests.tools.run.backends.slurm_jobs.conftest import Launcher
from tests.tools.run.site import until

WAITS = "trap 'exit 7' TERM; echo > began; while :; do sleep 0.05; done"


def test_units_run_with_gpus_of_their_own_and_leave_their_exit_codes(launcher: Launcher) -> None:
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


def test_what_waits_in_the_queue_counts_as_running_and_is_cancelled_at_once(launcher: Launcher) -> None:
    launcher.slurm.command(
        "sbatch", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "exec sleep 600"
    )
    until(lambda: "RUNNING" in launcher.queue().values())
    handle = launcher.start("echo > began")
    name = job_name(handle, launcher.dirs.path)
    launcher.until(handle, lambda found: launcher.queue().get(name) == "PENDING")
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


def test_one_unit_may_be_killed_while_the_others_go_on_or_all_of_them(launcher: Launcher) -> None:
    handle = launcher.start("trap '' TERM; echo > began; while :; do sleep 0.05; done", "sleep 600")
    launcher.until_file("began", handle)
    launcher.backend.stop(handle, "kill", [1])
    found = launcher.until(handle, lambda found: found[1].state != "running")
    assert (found[0].state, found[1]) == ("running", UnitStatus("exited", -9))
    launcher.backend.stop(handle, "term")
    launcher.backend.stop(handle, "kill")
    assert {status.state for status in launcher.until(handle, ended)} <= {"exited", "lost"}
    until(lambda: (launcher.poll(handle), launcher.queue() == {})[1])


def test_a_job_that_slurm_refuses_says_why_where_its_last_words_would_be(launcher: Launcher) -> None:
    elsewhere = Launcher(launcher.slurm, launcher.folder, partition="nowhere")
    handle = elsewhere.start("true", "true")
    assert elsewhere.until(handle, ended) == (UnitStatus("exited", 1),) * 2
    said = handle.files.launcher_log(0).read_text()
    assert said.startswith("pliant: Slurm does not take the job: sbatch: ")
    assert "invalid partition" in said


def test_a_job_that_slurm_cannot_place_is_named(launcher: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    handle = launcher.start(*["true"] * 100)
    launcher.until(handle, lambda _found: caplog.messages)
    assert caplog.messages == ["job a waits in Slurm's queue: PartitionConfig"]
    assert launcher.poll(handle)[0].queued
    launcher.backend.stop(handle, "kill")


def test_a_dry_run_shows_the_submission_its_script_and_what_each_task_starts(launcher: Launcher) -> None:
    handle = launcher.handle()
    unit = Unit("n0", ("python", "t.py", "a b"), "/my jobs", {ENV_WORKER: "0", "CUDA_VISIBLE_DEVICES": ""})
    submits, *script, task = launcher.backend.shown(handle, [unit])
    assert submits.startswith(
        f"sbatch --parsable --job-name={job_name(handle, launcher.dirs.path)} --no-requeue"
    )
    assert submits.endswith(shlex.quote(f"{handle.folder}/slurm.sh"))
    assert script[0] == "  #!/bin/sh"
    assert script[-1].startswith("  exec srun --quiet --ntasks=1 ")
    assert task == "task 0: cd '/my jobs' && env PLIANT_WORKER=0 CUDA_VISIBLE_DEVICES= python t.py 'a b'"
    assert not handle.folder.exists()
    assert launcher.queue() == {}
