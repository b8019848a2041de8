"""Units of a user's job: their ids, limits and environment, and that nothing of them stays."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.backends import local
from pliant.tools.run.backends.protocol import NO_GROUP, Credentials, ProcessLimits, UnitStatus
from tests.tools.run.shared.users import ANN, BOB, Attempt, of_user
from tests.tools.run.site import until


def test_a_unit_has_ids_limits_and_environment_of_its_user(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    attempt = Attempt(shared_folder, limits=ProcessLimits(processes=100, open_files=200))
    attempt.start("id -u; id -g; id -G; umask; ulimit -n; ulimit -c; pwd; env", env={"MINE": "1"}, cwd="/usr")
    assert attempt.end() == (UnitStatus("exited", 0),)
    uid, gid, groups, umask, files, core, where, *env = attempt.said().splitlines()
    assert (uid, gid, groups) == (str(ANN), str(NO_GROUP), str(NO_GROUP))
    assert (int(umask, 8), files, core, where) == (0o077, "200", "0", "/usr")
    names = {line.partition("=")[0] for line in env} - {"PWD", "OLDPWD", "SHLVL", "_"}
    login = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"}
    assert names == {*login, "MINE", "PLIANT_JOB_DIR", "PLIANT_WORKER"}
    log = attempt.handle.files.launcher_log(0).stat()
    assert (log.st_uid, log.st_mode & 0o777) == (ANN, 0o600)


def test_an_account_brings_all_its_groups_and_its_home() -> None:
    for found in pwd.getpwall():
        account = Credentials.of(found.pw_uid)
        if account.name == found.pw_name:
            assert set(account.groups) == set(os.getgrouplist(found.pw_name, found.pw_gid))
            assert account.environment()["HOME"] == found.pw_dir


def test_the_environment_of_a_job_does_not_reach_its_keeper(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    attempt.start("sleep 600", env={"LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil", "PATH": "/bin"})
    keeper = attempt.keeper()
    assert keeper.environ().keys() <= {"PATH", *local.OF_KEEPER}
    assert keeper.environ()["PATH"] != "/bin"
    attempt.kill()


def test_a_folder_that_the_user_cannot_enter_is_refused(shared_folder: Path) -> None:
    closed = shared_folder / "closed"
    closed.mkdir(mode=0o700)
    attempt = Attempt(shared_folder)
    attempt.start("true", cwd=str(closed))
    assert attempt.end() == (UnitStatus("exited", 127),)
    assert "Permission denied" in attempt.said()


def test_a_job_cannot_end_its_keeper_nor_outlive_it(shared_folder: Path) -> None:
    """A daemon without a trace in its environment is found all the same."""
    attempt = Attempt(shared_folder)
    attempt.start("kill -9 $PPID && echo KILLED; env -i setsid -f sleep 600; echo up; sleep 600")
    until(lambda: "up\n" in attempt.said())
    assert "KILLED" not in attempt.said()
    until(lambda: sum(" ".join(process.cmdline()) == "sleep 600" for process in of_user(ANN)) == 2)
    attempt.kill()
    until(lambda: of_user(ANN) == [])


def test_a_job_ends_with_its_command_and_its_daemons(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    attempt.start("env -i setsid -f sleep 600; exit 3")
    assert attempt.end() == (UnitStatus("exited", 3),)
    assert of_user(ANN) == []


def test_a_term_reaches_the_command_of_another_user(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    attempt.start("trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
    until(lambda: "up" in attempt.said())
    attempt.backend.stop(attempt.handle, "term")
    assert attempt.end() == (UnitStatus("exited", 7),)


def test_a_fork_bomb_ends_at_its_limit_while_other_jobs_run_on(shared_folder: Path) -> None:
    other = Attempt(shared_folder, BOB, "b")
    other.start("while sleep 0.1; do /bin/true || exit 1; done")
    bomb = Attempt(shared_folder, limits=ProcessLimits(processes=40))
    # a shell that cannot fork ends: the first one becomes what needs no fork, else the job could end of that
    bomb.start("f() { f & f & sleep 600; }; f & exec sleep 600")
    until(lambda: "fork" in bomb.said().lower())
    assert 0 < len(of_user(ANN)) <= 40
    assert bomb.poll() == (UnitStatus("running"),)
    bomb.kill()
    until(lambda: of_user(ANN) == [])
    assert other.poll() == (UnitStatus("running"),)
    other.kill()


def test_the_next_launcher_ends_what_a_dead_one_has_started(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    attempt.start("exec sleep 600")
    keeper = attempt.keeper()
    successor = local.LocalBackend(attempt.backend._cluster, attempt.dirs.jobs)
    assert successor.adopt() == [attempt.handle]
    assert successor.poll([attempt.handle])[attempt.handle] == (UnitStatus("running"),)
    until(lambda: [process.name() for process in of_user(ANN)] == ["sleep"])
    successor.stop(attempt.handle, "kill")
    until(lambda: keeper.status() == psutil.STATUS_ZOMBIE)
    assert attempt.end() == (UnitStatus("exited", -signal.SIGKILL),)
