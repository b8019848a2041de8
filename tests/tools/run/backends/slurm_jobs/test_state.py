"""Where a Slurm job stands, by each state that Slurm knows."""

from __future__ import annotations

import os

import pytest

from pliant.tools.run.backends.slurm.commands import Controller
from pliant.tools.run.backends.slurm.jobs import stage_of, unusual, why_ended
from pliant.tools.run.backends.slurm.parsing import SlurmJob, job_state
from tests.slurm_cluster import SlurmCluster


def listed(state: str, reason: str = "None") -> SlurmJob:
    return SlurmJob("7", state, "", reason, 0, "pliant-x.a.1")


@pytest.mark.parametrize(
    ("states", "stage"),
    [
        ("PENDING CONFIGURING REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD", "queued"),
        ("RUNNING COMPLETING SUSPENDED STOPPED SIGNALING RESIZING STAGE_OUT", "running"),
        (
            "CANCELLED COMPLETED FAILED TIMEOUT PREEMPTED NODE_FAIL BOOT_FAIL DEADLINE OUT_OF_MEMORY REVOKED",
            "gone",
        ),
    ],
)
def test_each_state_means_waiting_running_or_gone(states: str, stage: str) -> None:
    assert {stage_of(listed(state)) for state in states.split()} == {stage}
    assert stage_of(None) == "gone"


def test_reasons_that_pass_by_themselves_are_not_worth_a_word() -> None:
    assert {unusual(listed("PENDING", reason)) for reason in ("Priority", "Resources", "None")} == {""}
    assert unusual(listed("PENDING", "AssocGrpGRES")) == "AssocGrpGRES"
    assert unusual(listed("RUNNING", "AssocGrpGRES")) == ""


def test_the_end_of_a_job_is_said_in_words() -> None:
    shown = "JobId=7 JobName=a b JobState=TIMEOUT Reason=TimeLimit Dependency=(null)"
    assert job_state(shown) == "TIMEOUT"
    assert why_ended(job_state(shown)) == "its time was up"
    assert why_ended("CANCELLED by 1000") == "somebody cancelled it"
    assert why_ended("PREEMPTED") == "another job took its place"
    assert why_ended("LAUNCH_FAILED") == "it is launch failed"
    assert why_ended("") == why_ended("\x1b[2J") == "", "an account may have named its job so"


def test_no_name_of_a_job_lists_another_job(live: SlurmCluster) -> None:
    """Else any account could have jobs of others cancelled, as root cancels what is left over."""
    name = "x\n777|RUNNING|n0|None|4242|pliant-x.a.1"
    own = ("--wrap=sleep 100", "--output=/dev/null", "--chdir=/", f"--job-name={name}")
    number = live.command("sbatch", "--parsable", *own).strip()
    controller = Controller(())
    controller.of_all = True
    found = controller.first().jobs
    assert [(job.id, job.uid, job.name) for job in found] == [(number, os.geteuid(), "x")]
