"""Units, attempts and their files without a Slurm: who may start one, who ends it, and why it waits."""

import logging
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from pliant.tools.run.backends.protocol import Handle, StartedUnit, StopLevel, Unit, UnitStatus
from pliant.tools.run.backends.slurm import jobs, units
from pliant.tools.run.backends.slurm.commands import job_name
from pliant.tools.run.backends.slurm.parsing import SlurmJob, job_state
from pliant.tools.run.backends.slurm.units import SlurmUnit, StepPlace, UnitReport
from pliant.tools.run.statedir.contract.folders import FolderCache
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.backends.slurm.conftest import kept_attempt, slurm_nodes

WANTED = StartedUnit(node="n0", argv=("true",), cwd="/", env={})


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    """An attempt with one unit that a supervisor has taken over."""
    return kept_attempt(StateDir(tmp_path), "a", "n0")


def unit_of(handle: Handle) -> SlurmUnit:
    return SlurmUnit(handle, 0, WANTED, handle.files)


PLACE, UNSEEN = StepPlace("8", "", "none"), UnitReport(0.0, None)


def test_a_kill_of_another_process_ends_the_step(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    handle.files.orders(0).write_text("kill\n")
    unit = unit_of(handle)
    assert not unit.give_order("kill")
    monkeypatch.setattr(units, "RETRY_INTERVAL_S", 0.0)
    assert unit.give_order("kill")


@pytest.mark.parametrize("tried", [False, True])
def test_files_that_this_host_does_not_know_are_asked_for_first(handle: Handle, monkeypatch, tried) -> None:
    """A host may remember for a minute that a file was not there. The unit runs all the same."""
    asked: list[Path] = []
    monkeypatch.setattr(units, "refresh_folder", asked.append)
    monkeypatch.setattr(units, "look_again", lambda path: Path(path).stat() if asked else None)
    monkeypatch.setattr(SlurmUnit, "_start", lambda *_: pytest.fail("it is started a second time"))
    unit = unit_of(handle)
    unit._tries = int(tried)
    result = unit.starting(PLACE, UNSEEN, {}, 100.0)
    assert result == UnitStatus("running")
    assert unit.order == ""


@pytest.mark.parametrize(
    ("before", "after", "displaced"),
    [("", "", True), ("term", "", False), ("", "term", True), ("", "kill", True)],
)
def test_what_slurm_has_ended_is_displaced_unless_it_was_ordered(
    handle: Handle, before: str, after: StopLevel | Literal[""], displaced: bool
) -> None:
    """An order that follows changes nothing: a peer fails, and all units are asked to end."""
    handle.files.orders(0).write_text(before)
    handle.files.displaced(0).touch()
    unit = unit_of(handle)
    if after:
        unit.give_order(after)
    handle.files.exit_code(0).write_text("-15\n")
    ended = unit.ended()
    assert ended == UnitStatus("exited", -15)
    assert ended.displaced == ("Slurm has ended what ran on node n0" if displaced else "")


REFUSED = "srun: error: Task launch for StepId=2.1 failed on node n0: Communication connection failure\n"


@pytest.mark.parametrize(
    ("said", "hangs", "displaced"),
    [
        (REFUSED, False, True),
        ("", True, True),
        ("srun: error: Invalid generic resource (gres) specification\n", False, False),
    ],
)
def test_a_node_on_which_nothing_starts_is_no_fault_of_the_unit(
    handle: Handle, said: str, hangs: bool, displaced: bool
) -> None:
    handle.files.supervisor(0).unlink()
    (handle.files.logs / "srun-0.log").write_text(said)
    unit = unit_of(handle)
    unit._tries, unit._code, unit._since_s, unit._ended_s = units.TRIES, 1, 0.0, 1.0
    unit.srun = 1 if hangs else None
    result = unit.starting(PLACE, UNSEEN, {}, 2 * units.START_S)
    assert (result.state, bool(result.displaced)) == (("lost", True) if displaced else ("exited", False))
    assert result.began is not displaced
    assert unit.order == "kill", "should it start after all, its supervisor finds that others went on"


def test_a_node_that_does_not_see_the_directory_is_the_reason(handle: Handle) -> None:
    handle.files.supervisor(0).unlink()
    unit = unit_of(handle)
    unit._tries, unit._since_s, unit._ended_s = 1, 0.0, 1.0
    assert unit.starting(PLACE, UNSEEN, {}, units.SHOWS_S) == UnitStatus("running")
    assert unit.starting(PLACE, UNSEEN, {}, 2 * units.SHOWS_S) == UnitStatus("exited", 1)
    said = f"node n0 does not see {handle.folder}: it must be shared"
    assert handle.files.launcher_log(0).read_text() == f"pliant: no step on node n0: {said}\n"


def test_srun_gets_no_token_of_slurm(handle: Handle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shlex.quote(str(tmp_path / "seen"))
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$SLURM_CONF,${{SLURM_JWT-none}}" > {seen}\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    unit = unit_of(handle)
    unit._start(PLACE, {"SLURM_CONF": "/etc/other.conf", "SLURM_JWT": "token"}, 0.0)
    assert unit.srun is not None
    os.waitpid(unit.srun, 0)
    assert (tmp_path / "seen").read_text() == "/etc/other.conf,none\n"


SILENT: Any = SimpleNamespace(silence_s=lambda _path, limit_s: limit_s)


def test_a_unit_lost_after_slurm_asked_it_to_end_is_displaced(handle: Handle) -> None:
    handle.files.displaced(0).touch()
    result = unit_of(handle).kept(SILENT, UNSEEN, 100.0)
    assert (result.state, bool(result.displaced)) == ("lost", True)


def test_a_good_end_that_is_seen_late_is_no_loss(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    handle.files.exit_code(0).write_text("0\n")
    asked: list[Path] = []
    monkeypatch.setattr(units, "refresh_folder", asked.append)
    monkeypatch.setattr(units, "read_file", lambda path: path.read_bytes() if asked else None)
    unit = unit_of(handle)
    assert unit.kept(SILENT, UNSEEN, 100.0) == UnitStatus("exited", 0)
    assert unit.order == ""


RUNNING = UnitStatus("running")
NO_ANSWER = jobs.JobListing(float("-inf"), None)


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

    def __init__(self, folder: Path, submission: Any) -> None:
        self.handle = Handle("a", 1, folder / "a/attempts/1")
        self.handle.files.logs.mkdir(parents=True)
        self.handle.files.orders(0).touch()
        units = [unit_of(self.handle)]
        cache = FolderCache(self.handle.folder)
        self.attempt = jobs.Attempt(self.handle, "pliant-x.a.1", units, cache, 0.0, submission)

    def at(self, now_s: float, state: str | None = None, reason: str = "None") -> UnitStatus:
        """The unit, where Slurm lists its job in a state, or (None) does not list it."""
        return self.shown(jobs.JobListing(now_s, None if state is None else listed(state, reason)), now_s)

    def shown(self, listing: jobs.JobListing, now_s: float) -> UnitStatus:
        (status,) = self.attempt.statuses(listing, now_s)
        return status

    @property
    def last_words(self) -> str:
        return self.handle.files.launcher_log(0).read_text()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """What Slurm says of a job that is not listed any more."""
    result = Answer()
    monkeypatch.setattr(jobs, "Later", lambda _argv: result)
    return result


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, Answer())


def test_it_waits_from_its_submission_until_slurm_starts_it(tmp_path: Path) -> None:
    submission = Answer(done=False, ended_s=float("inf"))
    scene = Scene(tmp_path, submission)
    assert scene.at(5.0).queued
    submission.done, submission.ended_s = True, 6.0
    assert scene.shown(jobs.JobListing(5.9, None), 6.0).queued, (
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
    assert scene.at(2.0 + jobs.SHOWS_S) == UnitStatus("exited", 1)
    assert f"Slurm's job ended before its workers began: {why}" in scene.last_words


def test_a_job_that_may_come_is_waited_for(tmp_path: Path, scene: Scene) -> None:
    """One that another process submitted longer; while Slurm does not answer, nothing is concluded."""
    other = Scene(tmp_path / "other", None)
    assert other.at(1.0).queued
    assert other.at(jobs.UNKNOWN_S).queued
    assert other.at(jobs.UNKNOWN_S + 2.0) == UnitStatus("exited", 1)
    assert scene.shown(NO_ANSWER, 1.0).queued
    assert scene.shown(NO_ANSWER, 10 * jobs.UNKNOWN_S).queued


def test_a_job_that_is_listed_again_was_never_gone(scene: Scene, ends: Answer) -> None:
    scene.at(1.0, "RUNNING")
    scene.at(2.0)
    assert scene.at(3.0, "PENDING", "BeginTime").queued
    assert scene.at(3.0 + jobs.SHOWS_S).queued


def test_an_early_order_and_an_exit_code_count_in_any_state(scene: Scene) -> None:
    scene.attempt.units[0].give_order("term")
    assert scene.at(1.0, "PENDING") == UnitStatus("exited", -15)
    scene.handle.files.exit_code(0).write_text("3\n")
    assert scene.at(1.0, "RUNNING") == UnitStatus("exited", 3)


def test_a_silent_supervisor_is_lost_once_slurm_ended_its_job(scene: Scene, ends: Answer) -> None:
    ends.state = "PREEMPTED"
    supervisor = scene.handle.files.supervisor(0)
    supervisor.touch()
    for now_s in range(5):
        os.utime(supervisor, (now_s, time.time() + now_s))
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


def test_states_and_their_reasons_are_said_in_words() -> None:
    for stage, states in {
        "queued": "PENDING CONFIGURING REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD",
        "running": "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING RESIZING STAGE_OUT",
        "gone": "CANCELLED COMPLETED FAILED TIMEOUT PREEMPTED NODE_FAIL BOOT_FAIL DEADLINE "
        "OUT_OF_MEMORY REVOKED",
    }.items():
        assert {jobs.stage_of(listed(state)) for state in states.split()} == {stage}
    assert jobs.stage_of(None) == "gone"

    # Reasons that pass by themselves are not worth one.
    assert {jobs.unusual(listed("PENDING", reason)) for reason in ("Priority", "Resources", "None")} == {""}
    assert jobs.unusual(listed("PENDING", "AssocGrpGRES")) == "AssocGrpGRES"
    assert jobs.unusual(listed("RUNNING", "AssocGrpGRES")) == ""
    shown = "JobId=7 JobName=a b JobState=TIMEOUT Reason=TimeLimit Dependency=(null)"
    assert job_state(shown) == "TIMEOUT"
    assert jobs.why_ended("CANCELLED by 1000") == "somebody cancelled it"
    assert jobs.why_ended("LAUNCH_FAILED") == "it is launch failed"
    assert jobs.why_ended("") == jobs.why_ended("\x1b[2J") == "", "an account may have named its job so"


def test_a_dry_run_shows_the_submission_its_script_and_each_task(tmp_path: Path) -> None:
    backend = jobs.SlurmJobsBackend(slurm_nodes("n0", backend="slurm-jobs"), StateDir(tmp_path))
    handle = Handle("a", 1, tmp_path / "jobs/a/attempts/1")
    unit = Unit("n0", ("python", "t.py", "a b"), "/my jobs", {ENV_WORKER: "0", "CUDA_VISIBLE_DEVICES": ""})
    submits, *script, task = backend.shown(handle, [unit])
    assert submits.startswith(f"sbatch --parsable --job-name={job_name(handle, tmp_path)} --no-requeue")
    assert submits.endswith(shlex.quote(f"{handle.folder}/slurm.sh"))
    assert script[0] == "  #!/bin/sh"
    assert script[-1].startswith("  exec srun --quiet --ntasks=1 ")
    assert task == "task 0: cd '/my jobs' && env PLIANT_WORKER=0 CUDA_VISIBLE_DEVICES= python t.py 'a b'"
    assert not handle.folder.exists()
