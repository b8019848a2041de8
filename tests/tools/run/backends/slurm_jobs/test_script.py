"""What Slurm is asked for an attempt, as text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster, SlurmOptions
from pliant.tools.run.backends.protocol import Handle, NodeInfo, Unit
from pliant.tools.run.backends.slurm.commands import TASK, JobRequest, job_name, request_of, sbatch, script
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import units
from pliant.tools.run.statedir.contract.folders import AttemptDir
from tests.builders import job

ATTEMPT = AttemptDir(Path("/state/jobs/a/attempts/2"))


def cluster(slots: str = "gpu", **node: object) -> Cluster:
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
    assert request_of(cluster(), planned(*slots, elastic=elastic), "x") == expected


def test_a_gpu_brings_its_share_of_the_node_and_a_cpu_slot_a_processor() -> None:
    known = cluster(cpus=34.0, memory=68 << 30)
    own = request_of(known, planned("n0/0", "n0/1", "n0/2", elastic=False), "x")
    assert own == JobRequest("x", 1, 1, gpus=3, cpus=24, memory_bytes=2 << 30)
    on_cpus = planned("n0/0", "n0/1", "n0/2", elastic=False, on_gpus=False)
    assert request_of(cluster("cpu"), on_cpus, "x") == JobRequest("x", 1, 1, cpus=3)


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


def test_the_script_starts_a_task_for_each_unit_and_quotes_what_a_shell_would_read() -> None:
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


def test_a_name_is_that_of_one_attempt_in_one_state_directory(tmp_path: Path) -> None:
    first, second = (Handle("a", number, tmp_path / str(number)) for number in (1, 2))
    names = {job_name(each, state) for each in (first, second) for state in (tmp_path, tmp_path / "other")}
    assert len(names) == 4
    assert all(name.startswith("pliant-") and name[-4:] in (".a.1", ".a.2") for name in names)
