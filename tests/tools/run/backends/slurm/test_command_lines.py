"""Command lines of Slurm are data, which no shell reads; and stand-ins for its commands, which may fail."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.schemas.cluster import Cluster, Shares, SlurmOptions, Team
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.io import write_cluster
from pliant.tools.run.backends.protocol import Handle, NodeInfo, Unit
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.commands import (
    TASK,
    JobRequest,
    Lease,
    StepRequest,
    ask,
    job_name,
    lease_of,
    lease_prefix,
    request_of,
    sbatch,
    sbatch_lease,
    scancel_named,
    script,
    srun_step,
    step_gres,
)
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import units
from pliant.tools.run.service.submit import _accounts_of, submit, user_name
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir, make_own
from pliant.tools.run.statedir.requests import Spool
from tests.builders import cluster, job
from tests.tools.run.backends.slurm.conftest import slurm_nodes
from tests.tools.run.site import until

STATE = Path("/shared/state")


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def one_node(
    slots: str = "gpu", gpus: int = 4, node: Mapping[str, Any] | None = None, **slurm: Any
) -> Cluster:
    return slurm_nodes("n1", slots=slots, gpus=gpus, node=node, **slurm)


def lease(cluster: Cluster) -> Lease:
    return lease_of(cluster, cluster.expanded()[0], STATE)


def test_a_lease_holds_a_node_or_the_part_that_the_file_says() -> None:
    cluster = one_node()
    assert sbatch_lease(lease(cluster), cluster.slurm, STATE) == (
        *("sbatch", "--parsable", f"--job-name={lease_prefix(STATE)}n1"),
        *("--comment=pliant --state /shared/state", "--nodes=1", "--ntasks=1", "--nodelist=n1"),
        *("--no-requeue", "--exclusive", "--mem=0", "--gres=gpu:4"),
        *("--chdir=/", "--output=/dev/null", "--error=/dev/null", "--export=NONE"),
        "--wrap=exec sleep infinity",
    )
    assert lease(one_node("cpu")) == Lease(f"{lease_prefix(STATE)}n1", "n1", 0)
    shared = one_node(gpus=2, node={"cpus": 6.5, "memory": 8 << 30}, exclusive=False)
    words = sbatch_lease(lease(shared), shared.slurm, STATE)
    assert {"--cpus-per-task=7", "--mem=8192M", "--gres=gpu:2"} < set(words)
    assert "--exclusive" not in words
    bare = one_node("cpu", gpus=3, exclusive=False)
    assert "--cpus-per-task=3" in sbatch_lease(lease(bare), bare.slurm, STATE)


def test_what_a_site_wants_and_a_notice_are_asked_for(tmp_path: Path) -> None:
    """Not by the script of a job (``B:``), which would end by the notice."""
    wanted = {"partition": "gpu", "account": "ml", "qos": "high", "reservation": "r1", "gres": "gpu:a100"}
    cluster = one_node(**wanted, lease_seconds=3601.0, options=("--constraint=ib",))
    words = sbatch_lease(lease(cluster), cluster.slurm, STATE)
    asked = {"--partition=gpu", "--account=ml", "--qos=high", "--reservation=r1", "--gres=gpu:a100:4"}
    assert {*asked, "--time=61", "--constraint=ib"} < set(words)
    cluster = one_node("cpu", lease_seconds=7200.0, notice_seconds=89.5)
    assert "--signal=USR1@90" in sbatch_lease(lease(cluster), cluster.slurm, STATE)
    words = sbatch(JobRequest("a", 1, 1), cluster.slurm, AttemptDir(tmp_path))
    assert "--signal=USR1@90" in words
    assert cluster.minor == 3


@pytest.mark.parametrize("word", ["", "a b", "--wrap=x", "a\nb", "$(x)"])
def test_a_word_of_slurm_is_one_word(word: str) -> None:
    with pytest.raises(ValidationError):
        SlurmOptions(partition=word)


def test_each_directory_and_each_attempt_has_names_of_its_own(tmp_path: Path) -> None:
    """No name ends jobs of other users: directories of one path on two hosts have one."""
    (tmp_path / "link").symlink_to(tmp_path)
    other = tmp_path / "other"
    assert lease_prefix(tmp_path) == lease_prefix(tmp_path / "link")
    assert lease_prefix(tmp_path) != lease_prefix(other)
    attempts = [Handle("a", number, tmp_path / str(number)) for number in (1, 2)]
    names = {job_name(each, state) for each in attempts for state in (tmp_path, other)}
    assert len(names) == 4
    assert all(name.startswith("pliant-") and name[-4:] in (".a.1", ".a.2") for name in names)
    assert scancel_named("pliant-1.a.1", 7)[2:] == ("--user=7", "--name=pliant-1.a.1")


def test_steps_share_a_lease_and_placements_ask_for_counts() -> None:
    step = StepRequest("7", "resnet.2.0", Path("/shared/100%/launcher-0.log"), gres="gpu:4")
    assert srun_step(step, ("python", "keep it.py")) == (
        *("srun", "--quiet", "--jobid=7", "--job-name=resnet.2.0", "--nodes=1", "--ntasks=1", "--mem=0"),
        *("--overlap", "--immediate=5", "--gres=gpu:4", "--mpi=none", "--cpu-bind=none", "--chdir=/"),
        *("--input=none", "--output=/shared/100%%/launcher-0.log", "--open-mode=append"),
        *("python", "keep it.py"),
    )
    assert step_gres(SlurmOptions(), 4, 1) == "gpu:4"
    assert step_gres(SlurmOptions(gpu_choice="slurm", gres="gpu:a100"), 4, 2) == "gpu:a100:2"
    assert step_gres(SlurmOptions(), 0, 1) == ""
    words = srun_step(StepRequest("7", "a.1.0", Path("/log"), gres="gpu:2", cpus=4), ("true",))
    assert {"--exact", "--cpus-per-task=4", "--gres=gpu:2"} < set(words)
    assert "--overlap" not in words
    assert "--gres=none" in srun_step(StepRequest("7", "a.1.0", Path("/log")), ("true",))
    # A placement asks for counts and a GPUs share of a node.
    nodes = slurm_nodes("n0", "n1", slots="gpu", backend="slurm-jobs")
    for slots, elastic, expected in (
        (("n0/0", "n0/1"), True, JobRequest("x", 2, 1, gpus=1)),
        (("n0/0", "n1/0", "n1/1"), True, JobRequest("x", 3, None, gpus=1)),
        (("n0/0", "n0/1", "n0/2"), False, JobRequest("x", 1, 1, gpus=3)),
        (("n0/0", "n0/1", "n1/0"), False, JobRequest("x", 2, 2, gpus=2)),
    ):
        assert request_of(nodes, planned(*slots, elastic=elastic), "x") == expected
    program = Unit("n0", ("torchrun", "--nproc-per-node=gpu", "t.py"), "/", slots=3)
    assert request_of(nodes, [program], "x") == JobRequest("x", 1, 1, gpus=3)
    # A GPU brings its share of the node.
    part = {"cpus": 34.0, "memory": 68 << 30}
    known = slurm_nodes("n0", "n1", slots="gpu", backend="slurm-jobs", node=part)
    own = request_of(known, planned("n0/0", "n0/1", "n0/2", elastic=False), "x")
    assert own == JobRequest("x", 1, 1, gpus=3, cpus=24, memory_bytes=2 << 30)
    on_cpus = planned("n0/0", "n0/1", "n0/2", elastic=False, on_gpus=False)
    nodes = slurm_nodes("n0", "n1", backend="slurm-jobs")
    assert request_of(nodes, on_cpus, "x") == JobRequest("x", 1, 1, cpus=3)


ATTEMPT = AttemptDir(Path("/state/jobs/a/attempts/2"))


def planned(*slots: str, elastic: bool = True, on_gpus: bool = True) -> list[Unit]:
    places = tuple(Slot.parse(slot) for slot in slots)
    spec = job("a", gpus=1 if elastic else len(slots), high=8 if elastic else None, command=("t.py",))
    devices = tuple("0123") if on_gpus else None
    nodes = {name: NodeInfo(name, 4, devices=devices) for name in ("n0", "n1")}
    return units(Assignment.of(spec, places, (None, 1, 1.0)), Path("/state/jobs/a"), ATTEMPT, nodes)


def test_the_submission_and_its_script_start_each_task() -> None:
    options = SlurmOptions(
        partition="gpu", account="lab", gres="gpu:a100", lease_seconds=5400.0, options=("--constraint=ib",)
    )
    request = JobRequest("pliant-x.a.2", 2, 1, gpus=1, cpus=8, memory_bytes=2 << 30)
    assert sbatch(request, options, ATTEMPT) == (
        *("sbatch", "--parsable", "--job-name=pliant-x.a.2", "--no-requeue", "--export=ALL", "--nodes=1"),
        *("--ntasks=2", "--gpus-per-task=a100:1", "--cpus-per-task=8", "--mem-per-cpu=2048M"),
        *("--partition=gpu", "--account=lab", "--time=90", "--chdir=/"),
        *("--output=/state/jobs/a/attempts/2/logs/slurm.log", "--open-mode=append", "--constraint=ib"),
        "/state/jobs/a/attempts/2/slurm.sh",
    )
    # The script starts each task and quotes its words.
    odd = AttemptDir(Path("/state of $me/100%/attempts/1"))
    text = script(JobRequest("x", 2, 2, gpus=1), SlurmOptions(), odd, "de_DE.UTF-8")
    head, said, _, command = text.splitlines()
    assert (head, said) == ("#!/bin/sh", "export LC_ALL=de_DE.UTF-8")
    shown = subprocess.run(
        ["sh", "-c", command.replace("exec srun", "printf '%s\\n'")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == [
        *("--quiet", "--ntasks=2", "--ntasks-per-node=1", "--gpus-per-task=1", "--kill-on-bad-exit=0"),
        *("--wait=0", "--mpi=none", "--input=none"),
        *("--output=/state of $me/100%%/attempts/1/logs/launcher-%t.log", "--open-mode=append"),
        *(sys.executable, "-I", "-S", TASK, "/state of $me/100%/attempts/1"),
    ]
    assert script(JobRequest("x", 1, 1), SlurmOptions(), odd).splitlines()[1] == "unset LC_ALL"


def test_slurm_gets_no_token_and_no_option_of_an_outer_job(tmp_path, command: Path, monkeypatch) -> None:
    write(tmp_path / "srun", 'echo "${SLURM_JWT-none},$KEPT"')
    text = script(JobRequest("x", 1, 1), SlurmOptions(), ATTEMPT)
    env = {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JWT": "token", "KEPT": "yes"}
    done = subprocess.run(["sh"], input=text, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "none,yes\n"

    # Where Slurm is configured does, and a token that stands for the user.
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("SLURM_JWT", "token")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SINFO_FORMAT", "%N")
    write(command, 'cat; echo "$SLURM_CONF,$SLURM_JWT,$SLURM_JOB_ID,$SINFO_FORMAT,$LC_ALL"')
    assert ask(["sinfo"], text="script\n") == "script\n/etc/other.conf,token,,,C\n"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called sinfo, the only one there is."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "sinfo"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'sinfo: error: Unable to contact' >&2; exit 1", "sinfo: error: Unable to contact"),
        ("exit 3", "sinfo: exit code 3"),
        ("", "Slurm's sinfo is not here: run on a host of the cluster"),
        ("exec sleep 60", "Slurm does not answer: sinfo took more than 0 s"),
    ],
)
def test_a_command_that_fails_is_a_missing_service(command: Path, monkeypatch, script, said) -> None:
    if script:
        write(command, script)
    else:
        monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceMissingError) as raised:
        ask(["sinfo"], timeout_s=0.4 if "sleep" in script else 30.0)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("backend", [SlurmBackend, SlurmJobsBackend])
def test_without_a_controller_a_dry_run_says_what_to_do(command: Path, tmp_path: Path, backend) -> None:
    write(command.with_name("squeue"), "echo 'squeue: error: no controller' >&2; exit 1")
    with pytest.raises(ServiceMissingError) as raised:
        backend(slurm_nodes("n", backend=backend.name), StateDir(tmp_path)).nodes()
    assert str(raised.value) == (
        "Slurm cannot be asked which jobs and nodes it has: squeue: error: no controller; "
        "go to a host where squeue answers (pliant doctor --cluster FILE says more)"
    )


def test_a_job_gets_no_variables_of_a_launcher(command: Path, tmp_path, monkeypatch) -> None:
    for name, value in {
        "RANK": "3",
        "TORCHELASTIC_RUN_ID": "7",
        "NCCL_DEBUG": "INFO",
        "KEY": "of the loop",
    }.items():
        monkeypatch.setenv(name, value)
    write(command.with_name("sbatch"), f"env > {shlex.quote(str(tmp_path))}/seen")
    unit = Unit("n0", ("true",), "/", {ENV_WORKER: "0", "CUDA_VISIBLE_DEVICES": ""})
    dirs, seen = StateDir(tmp_path), tmp_path / "seen"
    handle = Handle("a", 1, dirs.job("a").attempt(1).path)
    SlurmJobsBackend(slurm_nodes("n0", backend="slurm-jobs"), dirs).start(handle, [unit])
    until(lambda: seen.exists() and "NCCL_DEBUG=INFO" in seen.read_text())
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert not names & {"RANK", "TORCHELASTIC_RUN_ID", "KEY"}


def test_a_job_joins_the_team_of_its_users_slurm_accounts(command: Path, tmp_path: Path) -> None:
    """The words and the output are those of sacctmgr's manual page: no database is asked."""
    _accounts_of.cache_clear()
    words, dirs = tmp_path / "words", StateDir(tmp_path / "state")
    said = "physics\nphysics\nroot"
    write(tmp_path / "sacctmgr", f"echo \"$@\" >> {shlex.quote(str(words))}; echo '{said}'")
    make_own(dirs)
    shares = Shares(teams={"lab": Team(accounts=("physics",)), "bio": Team(accounts=("bio",))})
    write_cluster(cluster(2).model_copy(update={"shares": shares}), dirs.cluster, mode=0o600)

    def submit_as(job_id: str, **more: str) -> None:
        new = job(job_id, command=("train.py",), workdir=str(tmp_path), work={"samples": 1.0}, **more)
        submit(dirs.path, [new], "jobs", folder=tmp_path, now_s=0.0, check_scripts=False)

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
    _accounts_of.cache_clear()
    asked = tmp_path / "asked"
    write(tmp_path / "sacctmgr", f"echo x >> {shlex.quote(str(asked))}; exit 1")
    minutes = (1, 1, 1, 2)
    assert {_accounts_of(user_name(), minute) for minute in minutes} == {"sacctmgr: exit code 1"}
    assert asked.read_text() == "x\n" * 2
    _accounts_of.cache_clear()
