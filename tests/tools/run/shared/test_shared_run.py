"""Runs that serve several users: whose jobs, files and processes are, and what a hostile job can do."""

import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError, UsageError
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Handle, Unit, UnitStatus
from pliant.tools.run.service import decisions
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.stacks import question, request_stacks
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from tests.tools.run.scripts import plain
from tests.tools.run.shared.users import ANN, BOB, Attempt, as_user, of_user, submit_event_of
from tests.tools.run.site import Site

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="no Python that other users can start")

HARMFUL = """
import contextlib, os, pathlib, sys, time
kind, secret = sys.argv[1], pathlib.Path(sys.argv[2])
job = pathlib.Path(os.environ["PLIANT_JOB_DIR"])
attempt = job / "attempts/1"
put = {
    "link": lambda path: path.symlink_to(secret),
    "hard link": lambda path: os.link(secret, path),
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "huge": lambda path: (path.write_bytes(b"{"), os.truncate(path, 1 << 40)),
    "deep": lambda path: path.write_text("[" * 60000),
    "closed": lambda path: (path.write_text("{}"), path.chmod(0)),
}
print("at work", flush=True)
if kind == "swapped":
    os.rename(attempt, job / "was")
    attempt.symlink_to(secret.parent)
elif kind == "no way in":
    attempt.chmod(0)
elif kind == "flood":
    line = '{"time": 1.0, "event": "progress", "job": "x", "detail": {"x": "%s"}}\\n' % ("y" * 1000000)
    (attempt / "progress.jsonl").write_text('{"schema": "pliant.event/1"}\\n' + line * 5)
else:
    names = "progress.jsonl reached stop plan-1.json worker-0.json worker-0.alive exit-0 exit-0.tmp"
    for path in (
        *(attempt / name for name in (*names.split(), "unit-0.alive", "logs/launcher-0.log")),
        job / "progress.json",
        job / "plan.json",
    ):
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            path.rename(f"{path}.was")
        with contextlib.suppress(PermissionError):
            put[kind](path)
time.sleep(0.5)
"""
KINDS = (
    *("link", "hard link", "pipe", "folder", "huge", "deep", "closed"),
    *("swapped", "no way in", "flood"),
)


class ForUsers(LocalBackend):
    """Starts a job's command by a Python that every user can start."""

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        super().start(handle, [replace(unit, argv=(str(PYTHON), *plain(unit.argv)[1:])) for unit in units])


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The users of jobs, by id; the log gets them as from a proven submission."""
    uids: dict[str, int] = {}

    def backend(name: str, nodes: Cluster, dirs: StateDir) -> LocalBackend:
        return ForUsers(nodes, dirs.jobs)

    monkeypatch.setattr(decisions, "submit_event", partial(submit_event_of, uids))
    monkeypatch.setattr(runner, "open_backend", backend)
    monkeypatch.setattr(runner, "POLL_S", 0.01)
    return uids


@pytest.fixture
def site(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(shared_folder)  # where jobs begin
    return Site(shared_folder)


def ignore(_log: RunLog, _time_s: float) -> None:
    pass


def test_each_job_is_its_users_and_sees_no_files_of_others(site: Site, users: dict[str, int]) -> None:
    users |= {"a": ANN, "b": BOB}
    site.job("a")
    site.job("b")
    log, _ = run_until_done(site.options(shared=True), ignore)
    assert {job.phase for job in log.jobs.values()} == {"finished"}, log.jobs["a"].reason
    assert {name: job.uid for name, job in log.jobs.items()} == users
    dirs = StateDir(site.state)
    for name, uid in users.items():
        folder = dirs.job(name).path
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (uid, 0o700)
        assert {path.lstat().st_uid for path in folder.rglob("*")} == {uid}
        assert as_user(uid, "/bin/cat", str(folder / "plan.json")) == 0
    other = dirs.job("b").path
    outputs = [*other.rglob("stdout.log"), *other.rglob("launcher-0.log")]
    assert outputs
    for path in (other / "plan.json", *outputs, dirs.events, dirs.schedule, dirs.cluster, dirs.lock):
        assert as_user(ANN, "/bin/cat", str(path)) == 1
    for folder in (dirs.path, dirs.jobs, dirs.spool, dirs.kept, dirs.kept / "a", other):
        assert as_user(ANN, "/bin/ls", str(folder)) == 2
        assert as_user(ANN, "/bin/mkdir", str(folder / "new")) == 1
    assert as_user(ANN, "/bin/mv", str(dirs.job("a").path), str(dirs.jobs / "c")) == 1
    with pytest.raises(UsageError, match="pliant serve"):
        run_until_done(site.options(None), ignore)


def test_a_hostile_job_harms_itself_alone(site: Site, users: dict[str, int], tmp_path: Path) -> None:
    """Whatever it puts in the place of its files: nothing is read or written there, and nothing waits."""
    secret = tmp_path / "secret"
    secret.write_text("of root alone")
    secret.chmod(0o600)
    users |= {kind.replace(" ", "-"): ANN for kind in KINDS} | {"good": BOB}
    for kind in KINDS:
        site.job(kind.replace(" ", "-"), kind, secret, text=HARMFUL)
    site.job("good")
    log, _ = run_until_done(site.options(shared=True, retries=0), ignore)
    assert log.jobs["good"].phase == "finished"
    assert all(job.ended for job in log.jobs.values())
    assert secret.read_text() == "of root alone"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert b"of root alone" not in (site.state / "events.jsonl").read_bytes()
    assert (site.state / "events.jsonl").stat().st_size < 1 << 19


def test_jobs_outlive_their_service_and_are_resized_by_the_next(site: Site, users: dict[str, int]) -> None:
    users |= {"a": ANN, "b": BOB}
    site.job("a", "--gate", site.gate, high=2)
    site.job("b", "--gate", site.folder / "b-gate", samples=20)
    log, failed = run_once(site.options(shared=True))
    assert (sorted(log.active), failed) == (["a", "b"], [])

    def open_the_gate(log: RunLog, _now_s: float) -> None:
        if log.jobs["a"].gpus == 2:
            site.gate.touch()

    (site.folder / "b-gate").touch()
    log, _ = run_until_done(site.options(None, shared=True), open_the_gate)
    assert {job.phase for job in log.jobs.values()} == {"finished"}, log.jobs["a"].reason
    assert site.of("a") == ["submit a", "start a 1", "grow a 2", "finish a 0"]
    assert {path.lstat().st_uid for path in StateDir(site.state).job("a").path.rglob("*")} == {ANN}
    assert of_user(ANN) == of_user(BOB) == []


def test_roots_jobs_are_refused_unless_they_are_allowed(site: Site, users: dict[str, int]) -> None:
    site.job("a")
    log, _ = run_until_done(site.options(shared=True, retries=0), ignore)
    assert (log.jobs["a"].phase, "--allow-root-jobs" in log.jobs["a"].reason) == ("failed", True)
    again = Site(site.folder / "again")
    again.job("a")
    log, _ = run_until_done(again.options(shared=True, allow_root_jobs=True), ignore)
    assert log.jobs["a"].phase == "finished"


def test_where_no_shared_run_begins(site: Site, users: dict[str, int], tmp_path, monkeypatch) -> None:
    site.job("a")
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JWT", "token")
        with pytest.raises(UsageError, match="SLURM_JWT would be in the jobs of all accounts"):
            run_until_done(site.options(shared=True, backend="slurm-jobs"), ignore)
    assert not site.state.exists()
    site.state.mkdir()
    os.chown(site.state, 65534, 65534)
    with pytest.raises(UsageError, match="root_squash"):
        run_until_done(site.options(shared=True), ignore)
    tmp_path.chmod(0o700)
    site.state = tmp_path / "state"
    with pytest.raises(UsageError, match="cannot enter"):
        run_until_done(site.options(shared=True), ignore)
    site.state = site.folder / "of one account"
    run_until_done(site.options(), ignore)
    with pytest.raises(UsageError, match="one account"):
        run_until_done(site.options(None, shared=True), ignore)


def test_root_asks_for_stacks_with_the_rights_of_the_account(shared_folder: Path) -> None:
    secret, home = shared_folder / "secret", shared_folder / "home"
    secret.mkdir()
    home.mkdir()
    attempt = AttemptDir(home / "attempt")
    attempt.path.symlink_to(secret)
    for path in (home, attempt.path):
        os.chown(path, ANN, ANN, follow_symlinks=False)
    with pytest.raises(PliantError):
        request_stacks(attempt)
    assert list(secret.iterdir()) == []
    attempt.path.unlink()
    attempt.path.mkdir()
    os.chown(attempt.path, ANN, ANN)
    mark = request_stacks(attempt)
    assert (question(attempt), attempt.stacks.lstat().st_uid) == (mark, ANN)


def test_files_that_a_job_names_are_written_as_its_user(shared_folder: Path) -> None:
    attempt, roots, folder = Attempt(shared_folder), shared_folder / "roots.txt", shared_folder / "all"
    folder.mkdir()
    folder.chmod(0o1777)
    roots.write_text("root's\n")
    own = folder / "own" / "out.txt"
    order = {"output": [str(own)], "error": [str(roots)], "owner": True, "truncate": True}
    logs = attempt.handle.folder / "logs" / "0" / "worker" / "attempt_0" / "0"
    looks = {"python": "", "command": ["train.py"]}
    env = {"PLIANT_OUTPUT": json.dumps(order), "PLIANT_CODE": json.dumps(looks)}
    attempt.start(f"mkdir -p '{logs}'; cd '{logs}'; echo out > stdout.log; echo err > stderr.log", env=env)
    assert attempt.end() == (UnitStatus("exited", 0),)
    assert own.read_text() == "out\n"
    assert {path.stat().st_uid for path in (own, own.parent, attempt.handle.files.code(0))} == {ANN}
    assert roots.read_text() == "root's\n"
    assert f"pliant: {roots} cannot be written: Permission denied" in attempt.said()
