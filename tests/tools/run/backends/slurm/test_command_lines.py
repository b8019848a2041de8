"""Slurm's command lines are data: what is asked for stands in them, and no shell reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.schemas.cluster import Cluster, SlurmOptions
from pliant.tools.run.backends.protocol import Handle, NodeInfo, Unit
from pliant.tools.run.backends.slurm.commands import (
    TASK,
    JobRequest,
    Lease,
    StepRequest,
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
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import units
from pliant.tools.run.statedir.contract.folders import AttemptDir
from tests.builders import job

STATE = Path("/shared/state")


def one_node(slots: str = "gpu", slurm: dict[str, Any] | None = None, **node: Any) -> Cluster:
    nodes = ({"name": "n1", "gpus": 4, **node},)
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": "slurm", "slurm": slurm or {}})


def lease(cluster: Cluster) -> Lease:
    return lease_of(cluster, cluster.expanded()[0], STATE)


def test_a_lease_holds_a_node_or_the_part_that_the_file_says() -> None:
    """It does nothing."""
    cluster = one_node()
    assert sbatch_lease(lease(cluster), cluster.slurm, STATE) == (
        *("sbatch", "--parsable", f"--job-name={lease_prefix(STATE)}n1"),
        *("--comment=pliant --state /shared/state", "--nodes=1", "--ntasks=1", "--nodelist=n1"),
        *("--no-requeue", "--exclusive", "--mem=0", "--gres=gpu:4"),
        *("--chdir=/", "--output=/dev/null", "--error=/dev/null", "--export=NONE"),
        "--wrap=exec sleep infinity",
    )
    assert lease(one_node(slots="cpu")) == Lease(f"{lease_prefix(STATE)}n1", "n1", 0)
    shared = one_node(slurm={"exclusive": False}, gpus=2, cpus=6.5, memory=8 << 30)
    words = sbatch_lease(lease(shared), shared.slurm, STATE)
    assert {"--cpus-per-task=7", "--mem=8192M", "--gres=gpu:2"} < set(words)
    assert "--exclusive" not in words
    bare = one_node(slots="cpu", slurm={"exclusive": False}, gpus=3)
    assert "--cpus-per-task=3" in sbatch_lease(lease(bare), bare.slurm, STATE)


def test_what_a_site_wants_to_know_is_asked_for() -> None:
    wanted = {"partition": "gpu", "account": "ml", "qos": "high", "reservation": "r1", "gres": "gpu:a100"}
    cluster = one_node(slurm={**wanted, "lease_seconds": 3601.0, "options": ("--constraint=ib",)})
    words = sbatch_lease(lease(cluster), cluster.slurm, STATE)
    asked = {"--partition=gpu", "--account=ml", "--qos=high", "--reservation=r1", "--gres=gpu:a100:4"}
    assert {*asked, "--time=61", "--constraint=ib"} < set(words)


def test_slurm_announces_the_end_of_a_lease_and_of_a_job(tmp_path: Path) -> None:
    """Not to the script of the job (``B:``), which would end by it."""
    cluster = one_node(slots="cpu", slurm={"lease_seconds": 7200.0, "notice_seconds": 89.5})
    assert "--signal=USR1@90" in sbatch_lease(lease(cluster), cluster.slurm, STATE)
    words = sbatch(JobRequest("a", 1, 1), cluster.slurm, AttemptDir(tmp_path))
    assert "--signal=USR1@90" in words
    assert cluster.minor == 3


@pytest.mark.parametrize("word", ["", "a b", "--wrap=x", "a\nb", "$(x)"])
def test_a_word_of_slurm_is_one_word(word: str) -> None:
    with pytest.raises(ValidationError):
        SlurmOptions(partition=word)


def test_each_directory_and_each_attempt_has_names_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    other = tmp_path / "other"
    assert lease_prefix(tmp_path) == lease_prefix(tmp_path / "link")
    assert lease_prefix(tmp_path) != lease_prefix(other)
    attempts = [Handle("a", number, tmp_path / str(number)) for number in (1, 2)]
    names = {job_name(each, state) for each in attempts for state in (tmp_path, other)}
    assert len(names) == 4
    assert all(name.startswith("pliant-") and name[-4:] in (".a.1", ".a.2") for name in names)


def test_steps_share_a_lease_unless_slurm_chooses_their_gpus() -> None:
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


def test_jobs_of_other_users_are_never_ended_by_name() -> None:
    """An operator may end all, and two directories of one path on two hosts have one name."""
    assert scancel_named("pliant-1.a.1", 7)[2:] == ("--user=7", "--name=pliant-1.a.1")


ATTEMPT = AttemptDir(Path("/state/jobs/a/attempts/2"))


def two_nodes(slots: str = "gpu", **node: object) -> Cluster:
    nodes = tuple({"name": name, "gpus": 4, **node} for name in ("n0", "n1"))
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": "slurm-jobs"})


def planned(*slots: str, elastic: bool = True, on_gpus: bool = True) -> list[Unit]:
    places = tuple(Slot.parse(slot) for slot in slots)
    spec = job("a", gpus=1 if elastic else len(slots), high=8 if elastic else None, command=("t.py",))
    devices = tuple("0123") if on_gpus else None
    nodes = {name: NodeInfo(name, 4, devices=devices) for name in ("n0", "n1")}
    return units(Assignment.of(spec, places, (None, 1, 1.0)), Path("/state/jobs/a"), ATTEMPT, nodes)


@pytest.mark.parametrize(
    ("slots", "elastic", "expected"),
    [
        (("n0/0", "n0/1"), True, JobRequest("x", 2, 1, gpus=1)),
        (("n0/0", "n1/0", "n1/1"), True, JobRequest("x", 3, None, gpus=1)),
        (("n0/0", "n0/1", "n0/2"), False, JobRequest("x", 1, 1, gpus=3)),
        (("n0/0", "n0/1", "n1/0"), False, JobRequest("x", 2, 2, gpus=2)),
    ],
)
def test_a_placement_is_asked_for_by_its_counts(
    slots: tuple[str, ...], elastic: bool, expected: JobRequest
) -> None:
    assert request_of(two_nodes(), planned(*slots, elastic=elastic), "x") == expected


def test_a_gpu_brings_its_share_of_the_node() -> None:
    known = two_nodes(cpus=34.0, memory=68 << 30)
    own = request_of(known, planned("n0/0", "n0/1", "n0/2", elastic=False), "x")
    assert own == JobRequest("x", 1, 1, gpus=3, cpus=24, memory_bytes=2 << 30)
    on_cpus = planned("n0/0", "n0/1", "n0/2", elastic=False, on_gpus=False)
    assert request_of(two_nodes("cpu"), on_cpus, "x") == JobRequest("x", 1, 1, cpus=3)


def test_the_submission_is_one_argument_list() -> None:
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


def test_the_script_starts_each_task_and_quotes_its_words() -> None:
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


def test_no_task_gets_a_token_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\necho "${SLURM_JWT-none},$KEPT"\n')
    (tmp_path / "srun").chmod(0o755)
    text = script(JobRequest("x", 1, 1), SlurmOptions(), ATTEMPT)
    env = {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JWT": "token", "KEPT": "yes"}
    done = subprocess.run(["sh"], input=text, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "none,yes\n"
