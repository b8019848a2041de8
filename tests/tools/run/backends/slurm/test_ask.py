"""Slurm's commands, and stand-ins for them that fail."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster, Shares, Team
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.io import write_cluster
from pliant.tools.run.backends.protocol import Handle, Unit
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend
from pliant.tools.run.service.submit import _accounts_of, submit, user_name
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir, make_own
from pliant.tools.run.statedir.requests import Spool
from tests.builders import cluster, job
from tests.tools.run.site import until


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called sinfo, the only one there is."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "sinfo"


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_options_of_a_surrounding_job_reach_no_command(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm is configured does, and a token that stands for the user."""
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("SLURM_JWT", "token")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SINFO_FORMAT", "%N")
    write(command, 'cat; echo "$SLURM_CONF,$SLURM_JWT,$SLURM_JOB_ID,$SINFO_FORMAT,$LC_ALL"')
    assert ask(["sinfo"], text="script\n") == "script\n/etc/other.conf,token,,,C\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1",
            "sinfo: error: Unable to contact",
        ),
        ("exit 3", "sinfo: exit code 3"),
        ("exec sleep 60", "Slurm does not answer: sinfo took more than 0 s"),
    ],
)
def test_a_command_that_fails_is_a_missing_service(command: Path, script: str, said: str) -> None:
    write(command, script)
    with pytest.raises(ServiceMissingError) as raised:
        ask(["sinfo"], timeout_s=0.4 if "sleep" in script else 30.0)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("backend", [SlurmBackend, SlurmJobsBackend])
def test_without_a_controller_a_dry_run_says_what_to_do(
    command: Path, tmp_path: Path, backend: type[SlurmBackend | SlurmJobsBackend]
) -> None:
    write(command.with_name("squeue"), "echo 'squeue: error: no controller' >&2; exit 1")
    nodes = Cluster.model_validate({"backend": backend.name, "nodes": ({"name": "n", "gpus": 1},)})
    with pytest.raises(ServiceMissingError) as raised:
        backend(nodes, StateDir(tmp_path)).nodes()
    assert str(raised.value) == (
        "Slurm cannot be asked which jobs and nodes it has: squeue: error: no controller; "
        "go to a host where squeue answers (pliant doctor --cluster FILE says more)"
    )


def test_without_slurm_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ServiceMissingError, match=r"^Slurm's sinfo is not here: run on a host of the cluster$"
    ):
        ask(["sinfo"])


def test_a_job_of_its_own_gets_no_variables_of_a_launcher(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sbatch sees is what the workers see."""
    for name, value in {"RANK": "3", "TORCHELASTIC_RUN_ID": "7", "KEPT": "yes"}.items():
        monkeypatch.setenv(name, value)
    write(command.with_name("sbatch"), f"env > {shlex.quote(str(tmp_path))}/seen")
    unit = Unit("n0", ("true",), "/", {ENV_WORKER: "0", "CUDA_VISIBLE_DEVICES": ""})
    cluster = Cluster.model_validate(
        {"nodes": ({"name": "n0", "gpus": 1},), "slots": "cpu", "backend": "slurm-jobs"}
    )
    dirs = StateDir(tmp_path)
    handle = Handle("a", 1, dirs.job("a").attempt(1).path)
    SlurmJobsBackend(cluster, dirs).start(handle, [unit])
    until((tmp_path / "seen").exists)
    until(lambda: "KEPT=yes" in (tmp_path / "seen").read_text())
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert not seen & {"RANK", "TORCHELASTIC_RUN_ID"}


def test_a_job_joins_the_team_of_its_users_slurm_accounts(command: Path, tmp_path: Path) -> None:
    """The words and the output are those of sacctmgr's manual page: no database is asked."""
    _accounts_of.cache_clear()
    words, state = tmp_path / "words", tmp_path / "state"
    said = "physics\nphysics\nroot"
    write(tmp_path / "sacctmgr", f"echo \"$@\" >> {shlex.quote(str(words))}; echo '{said}'")
    dirs = StateDir(state)
    make_own(dirs)
    shares = Shares(teams={"lab": Team(accounts=("physics",)), "bio": Team(accounts=("bio",))})
    write_cluster(cluster(2).model_copy(update={"shares": shares}), dirs.cluster, mode=0o600)
    own = {"command": ("train.py",), "workdir": str(tmp_path), "work": {"samples": 1.0}}

    def submit_as(job_id: str, **more: str) -> None:
        jobs = [job(job_id, **own, **more)]
        submit(state, jobs, "jobs", folder=tmp_path, now_s=0.0, check_scripts=False)

    submit_as("a")
    with pytest.raises(BadInputError, match='names team "bio", which user'):
        submit_as("b", team="bio")
    asked = {each.id: each.team for request in Spool(dirs).requests() for each in request.jobs}
    assert asked == {"a": "lab"}
    assert set(words.read_text().splitlines()) == {f"-nP show assoc user={user_name()} format=account"}
    _accounts_of.cache_clear()
    write(tmp_path / "sacctmgr", "echo 'sacctmgr: error: Connection refused' >&2; exit 1")
    with pytest.raises(ServiceMissingError, match="hangs on Slurm's accounts: sacctmgr: error: Connection"):
        submit_as("c")


def test_a_database_that_does_not_answer_is_asked_once_a_minute(command: Path, tmp_path: Path) -> None:
    """A shared run serves no one meanwhile."""
    _accounts_of.cache_clear()
    asked = tmp_path / "asked"
    write(tmp_path / "sacctmgr", f"echo x >> {shlex.quote(str(asked))}; exit 1")
    minutes = (1, 1, 1, 2)
    assert {_accounts_of(user_name(), minute) for minute in minutes} == {"sacctmgr: exit code 1"}
    assert asked.read_text() == "x\n" * 2
    _accounts_of.cache_clear()
