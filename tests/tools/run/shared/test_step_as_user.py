"""What root runs on a node of Slurm for a unit of another account, without a Slurm around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.tools.run.backends.protocol import Unit
from pliant.tools.run.backends.slurm import step
from pliant.tools.run.backends.slurm.units import own_folder, prepare
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import make_log_folder
from tests.tools.run.shared.users import ANN, BOB, Attempt, as_user

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
        """What the unit printed; its keeper adds a line where the account cannot read this installation."""
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
    assert found.keys() - login == given
    assert "passwd" not in open_files
    assert {path.lstat().st_uid for path in own.files.path.rglob("*")} == {ANN}
    assert {path.lstat().st_uid for path in own.talk.path.iterdir()} == {0}
    assert own.run().returncode == 0
    assert len(own.said.splitlines()) == len(lines) + 1, "a second step finds that it has run"


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def pipe(path: Path, _secret: Path) -> None:
    os.mkfifo(path)
    os.chown(path, ANN, ANN)


def others(path: Path, _secret: Path) -> None:
    path.touch()
    path.chmod(0o666)
    os.chown(path, BOB, BOB)


@pytest.mark.parametrize("put", [link, pipe, others])
def test_what_an_account_puts_in_place_of_its_log_gets_nothing(
    shared_folder: Path, put: Callable[[Path, Path], None]
) -> None:
    own, secret = Step(shared_folder, "echo said; exit 3"), shared_folder / "secret"
    secret.write_text("of root alone")
    put(own.files.launcher_log(0), secret)
    for name in ("exit-0", "unit-0.alive", "unit-0.use"):
        put(own.files.path / name, secret)
    assert own.run().stderr == ""
    assert own.code == "3\n"
    assert secret.read_text() == "of root alone"
    assert not own.files.launcher_log(0).stat().st_size or put is link


def test_where_slurm_knows_of_no_gpus_a_slot_is_a_number(shared_folder: Path) -> None:
    own = Step(shared_folder, "echo $CUDA_VISIBLE_DEVICES")
    own.run("0")
    assert own.said == "0\n"


def test_an_account_can_not_order_what_root_starts(shared_folder: Path) -> None:
    own = Step(shared_folder, "id -u")
    told = own.talk.told(0)
    assert as_user(ANN, "/bin/cat", str(told)) == 1
    text = json.dumps({**json.loads(told.read_text()), "argv": ["/bin/false"]})
    (own.files.path / told.name).write_text(text)
    assert (own.run().returncode, own.said) == (0, f"{ANN}\n")
    (shared_folder / "other").mkdir()
    other = Step(shared_folder / "other", "id -u")
    os.chown(other.talk.told(0), ANN, ANN)
    done = other.run()
    assert done.returncode == 1
    assert "error: root of n1 cannot use" in done.stderr
    assert "root_squash" in done.stderr
