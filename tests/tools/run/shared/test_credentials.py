import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends import local
from pliant.tools.run.backends.protocol import NO_GROUP, Credentials, ProcessLimits, Unit, UnitStatus
from pliant.tools.run.backends.slurm import step
from pliant.tools.run.backends.slurm.units import own_folder, prepare
from pliant.tools.run.backends.supervisor import ENV_GROUP
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import make_log_folder
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from tests.tools.run.shared.users import ANN, BOB, Attempt, as_user, of_user
from tests.tools.run.site import until


def test_a_unit_has_ids_and_environment_of_its_user(shared_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    attempt = Attempt(shared_folder, limits=ProcessLimits(processes=100, open_files=200))
    attempt.start("id -u; id -g; id -G; umask; ulimit -n; ulimit -c; pwd; env", env={"MINE": "1"}, cwd="/usr")
    assert attempt.end() == (UnitStatus("exited", 0),)
    uid, gid, groups, umask, files, core, where, *env = attempt.said().splitlines()
    assert (uid, gid, groups) == (str(ANN), str(NO_GROUP), str(NO_GROUP))
    assert (int(umask, 8), files, core, where) == (0o077, "200", "0", "/usr")
    names = {line.partition("=")[0] for line in env} - {"PWD", "OLDPWD", "SHLVL", "_"}
    login = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"}
    given = {"PLIANT_JOB_DIR", "PLIANT_WORKER", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert names == {*login, *given, "MINE"}
    log = attempt.handle.files.launcher_log(0).stat()
    assert (log.st_uid, log.st_mode & 0o777) == (ANN, 0o600)


def test_an_account_has_its_groups_and_an_environment_of_its_own(shared_folder: Path) -> None:
    for found in pwd.getpwall():
        account = Credentials.of(found.pw_uid)
        if account.name == found.pw_name:
            assert set(account.groups) == set(os.getgrouplist(found.pw_name, found.pw_gid))
            assert account.environment()["HOME"] == found.pw_dir
    # The environment of a job does not reach its supervisor.
    attempt = Attempt(shared_folder)
    attempt.start("sleep 600", env={"LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil", "PATH": "/bin"})
    supervisor = attempt.supervisor()
    assert supervisor.environ().keys() <= {"PATH", ENV_GROUP, *local.SUPERVISOR_ENV}
    assert supervisor.environ()["PATH"] != "/bin"
    attempt.kill()


def test_a_folder_that_the_user_cannot_enter_is_refused(shared_folder: Path) -> None:
    closed = shared_folder / "closed"
    closed.mkdir(mode=0o700)
    attempt = Attempt(shared_folder)
    attempt.start("true", cwd=str(closed))
    assert attempt.end() == (UnitStatus("exited", 127),)
    assert "Permission denied" in attempt.said()


def test_a_job_cannot_end_its_supervisor_nor_outlive_it(shared_folder: Path) -> None:
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


def test_a_unit_of_an_account_has_its_part_until_its_end(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    node = {"name": "n0", "gpus": 2, "memory": 200 << 20}
    attempt.backend = local.LocalBackend(
        Cluster.model_validate({"nodes": (node,), "slots": "cpu"}), attempt.dirs.jobs
    )
    hides = "setsid sh -c 'sleep 600 & sleep 600' < /dev/null > /dev/null 2>&1 &"
    takes = f"{hides} head -c 200000000 /dev/zero | tail > /dev/null; exit 3"
    env = {ENV_JOB_DIR: str(attempt.handle.job_files.path)}
    unit = Unit("n0", ("/bin/sh", "-c", takes), "/", env, attempt.account, slots=1)
    attempt.backend.start(attempt.handle, [unit])
    (status,) = attempt.end()
    assert (status.code, str(status.memory)) == (3, "killed for memory: limit 95 MiB, peak 95 MiB")
    assert of_user(ANN) == []


def test_the_next_launcher_ends_what_a_dead_one_has_started(shared_folder: Path) -> None:
    attempt = Attempt(shared_folder)
    attempt.start("exec sleep 600")
    supervisor = attempt.supervisor()
    successor = local.LocalBackend(attempt.backend._cluster, attempt.dirs.jobs)
    assert successor.adopt() == [attempt.handle]
    assert successor.poll([attempt.handle])[attempt.handle] == (UnitStatus("running"),)
    until(lambda: [process.name() for process in of_user(ANN)] == ["sleep"])
    successor.stop(attempt.handle, "kill")
    until(lambda: supervisor.status() == psutil.STATUS_ZOMBIE)
    assert attempt.end() == (UnitStatus("exited", -signal.SIGKILL),)


# What root runs on a node of Slurm for a unit of another account, without a Slurm around it.


SHOWS = "env; echo $(readlink /proc/$$/fd/*)"
NODE = {"SLURMD_NODENAME": "n1", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7", "OF_ROOT": "x"}


class Step:
    def __init__(self, folder: Path, script: str = SHOWS) -> None:
        self.attempt = Attempt(folder)
        self.files, self.talk = self.attempt.handle.files, own_folder(self.attempt.handle)
        with files_of(self.files):
            make_log_folder(self.files.logs)
        env = {"CUDA_VISIBLE_DEVICES": "1", "SLURM_MINE": "x", "LD_PRELOAD": "", "MINE": "1"}
        prepare(
            self.talk, self.files, [Unit("n1", ("/bin/sh", "-c", script), "/", env, self.attempt.account)]
        )

    def run(self, gpus: str = "none", **env: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-I", "-S", step.__file__, str(self.talk.path), "0", gpus]
        with open("/etc/passwd") as left_open:
            given = {"env": {**NODE, **env}, "pass_fds": (left_open.fileno(),)}
            return subprocess.run(words, capture_output=True, text=True, check=False, **given)

    @property
    def said(self) -> str:
        """Output of the unit without the line of a supervisor that cannot read this installation."""
        lines = self.files.launcher_log(0).read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("pliant: what is used is not measured"))

    @property
    def code(self) -> str:
        return self.talk.exit_code(0).read_text()


def test_a_unit_gets_its_gpus_and_of_root_and_slurm_nothing_else(shared_folder: Path) -> None:
    own = Step(shared_folder)
    done = own.run("1", CUDA_VISIBLE_DEVICES="4,5")
    assert (done.returncode, done.stdout, done.stderr, own.code) == (0, "", "", "0\n")
    *lines, open_files = own.said.splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    assert (found["CUDA_VISIBLE_DEVICES"], found["MINE"], found["PLIANT_NOTICES"]) == ("5", "1", "1")
    login = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER", "PWD", "OLDPWD", "SHLVL", "_"}
    given = {"CUDA_VISIBLE_DEVICES", "MINE", "LD_PRELOAD", "PLIANT_NOTICES", "SLURM_CONF"}
    assert found.keys() - login == given | {"TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert "passwd" not in open_files
    assert {path.lstat().st_uid for path in own.files.path.rglob("*")} == {ANN}
    assert {path.lstat().st_uid for path in own.talk.path.iterdir()} == {0}
    assert own.run().returncode == 0
    assert len(own.said.splitlines()) == len(lines) + 1, "a second step finds that it has run"


IN_ITS_PLACE: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda path, secret: path.symlink_to(secret),
    "a pipe": lambda path, _: (os.mkfifo(path), os.chown(path, ANN, ANN)),
    "a file of others": lambda path, _: (path.touch(), path.chmod(0o666), os.chown(path, BOB, BOB)),
}


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_what_stands_in_place_of_a_log_gets_nothing(shared_folder: Path, what: str) -> None:
    put = IN_ITS_PLACE[what]
    own, secret = Step(shared_folder, "echo said; exit 3"), shared_folder / "secret"
    secret.write_text("of root alone")
    put(own.files.launcher_log(0), secret)
    for name in ("exit-0", "unit-0.alive", "unit-0.use"):
        put(own.files.path / name, secret)
    assert own.run().stderr == ""
    assert own.code == "3\n"
    assert secret.read_text() == "of root alone"
    assert not own.files.launcher_log(0).stat().st_size or what == "a link"


def test_an_account_can_not_order_what_root_starts(shared_folder: Path) -> None:
    own = Step(shared_folder, "id -u")
    orders = own.talk.start_order(0)
    assert as_user(ANN, "/bin/cat", str(orders)) == 1
    text = json.dumps({**json.loads(orders.read_text()), "argv": ["/bin/false"]})
    (own.files.path / orders.name).write_text(text)
    assert (own.run().returncode, own.said) == (0, f"{ANN}\n")
    (shared_folder / "other").mkdir()
    other = Step(shared_folder / "other", "id -u")
    os.chown(other.talk.start_order(0), ANN, ANN)
    done = other.run()
    assert done.returncode == 1
    assert "error: root of n1 cannot use" in done.stderr
    assert "root_squash" in done.stderr
