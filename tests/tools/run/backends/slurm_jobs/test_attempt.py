"""An attempt and its Slurm job, on a clock that the test turns and with a Slurm that it speaks for."""

from __future__ import annotations

import logging
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, StartedUnit, Unit, UnitStatus
from pliant.tools.run.backends.slurm import jobs as module
from pliant.tools.run.backends.slurm.commands import job_name
from pliant.tools.run.backends.slurm.jobs import (
    SHOWS_S,
    UNKNOWN_S,
    Attempt,
    JobListing,
    SlurmJobsBackend,
    stage_of,
    unusual,
    why_ended,
)
from pliant.tools.run.backends.slurm.parsing import SlurmJob, job_state
from pliant.tools.run.backends.slurm.units import SlurmUnit
from pliant.tools.run.statedir.contract.folders import FolderCache
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir

RUNNING = UnitStatus("running")
SILENT = JobListing(float("-inf"), None)


@dataclass
class Answer:
    done: bool = True
    failure: str = ""
    ended_s: float = 0.0
    state: str = ""
    """Of the job that is asked for."""

    @property
    def text(self) -> str:
        return f"JobId=7 JobName=a JobState={self.state} Reason=None" if self.state else ""


def listed(state: str, reason: str = "None") -> SlurmJob:
    return SlurmJob("7", state, "", reason, 0, "pliant-x.a.1")


class Scene:
    """One unit, submitted at time 0 unless another process has done that."""

    def __init__(self, folder: Path, submission: Answer | None) -> None:
        self.handle = Handle("a", 1, folder / "a/attempts/1")
        self.handle.files.logs.mkdir(parents=True)
        files = self.handle.files
        files.orders(0).touch()
        units = [SlurmUnit(self.handle, 0, StartedUnit(node="n0", argv=("true",), cwd="/", env={}), files)]
        cache = FolderCache(self.handle.folder)
        own: Any = submission
        self.attempt = Attempt(self.handle, "pliant-x.a.1", units, cache, 0.0, own)

    def at(self, now_s: float, state: str | None = None, reason: str = "None") -> UnitStatus:
        """The unit, where Slurm lists its job in a state, or (None) does not list it."""
        return self.shown(JobListing(now_s, None if state is None else listed(state, reason)), now_s)

    def shown(self, listing: JobListing, now_s: float) -> UnitStatus:
        (status,) = self.attempt.statuses(listing, now_s)
        return status

    @property
    def last_words(self) -> str:
        return self.handle.files.launcher_log(0).read_text()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """What Slurm says of a job that is not listed any more."""
    result = Answer()
    monkeypatch.setattr(module, "Later", lambda _argv: result)
    return result


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, Answer())


def test_it_waits_from_its_submission_until_slurm_starts_it(tmp_path: Path) -> None:
    submission = Answer(done=False, ended_s=float("inf"))
    scene = Scene(tmp_path, submission)
    assert scene.at(5.0).queued
    submission.done, submission.ended_s = True, 6.0
    assert scene.shown(JobListing(5.9, None), 6.0).queued, (
        "what Slurm said before it knew the job counts for nothing"
    )
    assert scene.at(7.0, "PENDING", "Priority").queued
    assert scene.at(8.0, "CONFIGURING").queued
    assert (scene.at(9.0, "RUNNING"), scene.at(9.0, "RUNNING").queued) == (RUNNING, False)


def test_a_submission_that_slurm_refuses_ends_with_the_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Answer(failure="sbatch: error: invalid account"))
    assert scene.at(1.0) == UnitStatus("exited", 1)
    assert scene.last_words == "pliant: Slurm does not take the job: sbatch: error: invalid account\n"
    assert scene.handle.files.orders(0).read_text() == "kill\n", (
        "what starts after all finds that it shall not"
    )


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("CANCELLED", "somebody cancelled it"),
        ("NODE_FAIL", "one of its nodes failed"),
        ("TIMEOUT", "its time was up"),
        ("", "its nodes have to see "),
    ],
)
def test_a_job_gone_before_its_workers_fails_later(scene: Scene, ends: Answer, state: str, why: str) -> None:
    ends.state = state
    assert scene.at(1.0, "RUNNING") == RUNNING
    assert scene.at(2.0) == RUNNING, "its files may only not be seen yet"
    assert scene.at(2.0 + SHOWS_S) == UnitStatus("exited", 1)
    assert f"Slurm's job ended before its workers began: {why}" in scene.last_words


def test_a_job_that_may_come_is_waited_for(tmp_path: Path, scene: Scene) -> None:
    """One that another process submitted longer; while Slurm does not answer, nothing is concluded."""
    other = Scene(tmp_path / "other", None)
    assert other.at(1.0).queued
    assert other.at(UNKNOWN_S).queued
    assert other.at(UNKNOWN_S + 2.0) == UnitStatus("exited", 1)
    assert scene.shown(SILENT, 1.0).queued
    assert scene.shown(SILENT, 10 * UNKNOWN_S).queued


def test_a_job_that_is_listed_again_was_never_gone(scene: Scene, ends: Answer) -> None:
    scene.at(1.0, "RUNNING")
    scene.at(2.0)
    assert scene.at(3.0, "PENDING", "BeginTime").queued
    assert scene.at(3.0 + SHOWS_S).queued


def test_an_early_order_and_an_exit_code_count_in_any_state(scene: Scene) -> None:
    scene.attempt.units[0].give_order("term")
    assert scene.at(1.0, "PENDING") == UnitStatus("exited", -15)
    scene.handle.files.exit_code(0).write_text("3\n")
    assert scene.at(1.0, "RUNNING") == UnitStatus("exited", 3)


def test_a_silent_keeper_is_lost_once_slurm_ended_its_job(scene: Scene, ends: Answer) -> None:
    ends.state = "PREEMPTED"
    keeper = scene.handle.files.keeper(0)
    keeper.touch()
    for now_s in range(5):
        os.utime(keeper, (now_s, time.time() + now_s))
        assert scene.at(float(now_s), "RUNNING") == RUNNING
    result = [scene.at(5.0 + step) for step in range(12)]
    assert result[0] == RUNNING
    assert result[-1] == UnitStatus("lost")
    assert scene.attempt.end_in_words() == "another job took its place"


def test_a_reason_to_wait_is_said_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pliant"):
        for _ in range(2):
            scene.at(1.0, "PENDING", "Priority")
            scene.at(2.0, "PENDING", "AssocGrpGRES")
    assert caplog.messages == ["job a waits in Slurm's queue: AssocGrpGRES"]


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


def test_states_and_reasons_are_said_in_words() -> None:
    """Reasons that pass by themselves are not worth one."""
    assert {unusual(listed("PENDING", reason)) for reason in ("Priority", "Resources", "None")} == {""}
    assert unusual(listed("PENDING", "AssocGrpGRES")) == "AssocGrpGRES"
    assert unusual(listed("RUNNING", "AssocGrpGRES")) == ""
    shown = "JobId=7 JobName=a b JobState=TIMEOUT Reason=TimeLimit Dependency=(null)"
    assert job_state(shown) == "TIMEOUT"
    assert why_ended(job_state(shown)) == "its time was up"
    assert why_ended("CANCELLED by 1000") == "somebody cancelled it"
    assert why_ended("PREEMPTED") == "another job took its place"
    assert why_ended("LAUNCH_FAILED") == "it is launch failed"
    assert why_ended("") == why_ended("\x1b[2J") == "", "an account may have named its job so"


def test_a_dry_run_shows_the_submission_its_script_and_each_task(tmp_path: Path) -> None:
    cluster = {"nodes": ({"name": "n0", "gpus": 4},), "slots": "cpu", "backend": "slurm-jobs"}
    backend = SlurmJobsBackend(Cluster.model_validate(cluster), StateDir(tmp_path))
    handle = Handle("a", 1, tmp_path / "jobs/a/attempts/1")
    unit = Unit("n0", ("python", "t.py", "a b"), "/my jobs", {ENV_WORKER: "0", "CUDA_VISIBLE_DEVICES": ""})
    submits, *script, task = backend.shown(handle, [unit])
    assert submits.startswith(f"sbatch --parsable --job-name={job_name(handle, tmp_path)} --no-requeue")
    assert submits.endswith(shlex.quote(f"{handle.folder}/slurm.sh"))
    assert script[0] == "  #!/bin/sh"
    assert script[-1].startswith("  exec srun --quiet --ntasks=1 ")
    assert task == "task 0: cd '/my jobs' && env PLIANT_WORKER=0 CUDA_VISIBLE_DEVICES= python t.py 'a b'"
    assert not handle.folder.exists()
