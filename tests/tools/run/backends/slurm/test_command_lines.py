"""Slurm's command lines are data: what is asked for stands in them, and no shell reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.schemas.cluster import Cluster, SlurmOptions
from pliant.tools.run.backends.slurm.commands import (
    JobRequest,
    Lease,
    StepRequest,
    lease_of,
    lease_prefix,
    sbatch,
    sbatch_lease,
    scancel_named,
    srun_step,
    step_gres,
)
from pliant.tools.run.statedir.contract.folders import AttemptDir

STATE = Path("/shared/state")


def one_node(slots: str = "gpu", slurm: dict[str, Any] | None = None, **node: Any) -> Cluster:
    nodes = ({"name": "n1", "gpus": 4, **node},)
    return Cluster.model_validate({"nodes": nodes, "slots": slots, "backend": "slurm", "slurm": slurm or {}})


def lease(cluster: Cluster) -> Lease:
    return lease_of(cluster, cluster.expanded()[0], STATE)


def test_a_lease_holds_a_whole_node_and_does_nothing() -> None:
    cluster = one_node()
    assert sbatch_lease(lease(cluster), cluster.slurm, STATE) == (
        *("sbatch", "--parsable", f"--job-name={lease_prefix(STATE)}n1"),
        *("--comment=pliant --state /shared/state", "--nodes=1", "--ntasks=1", "--nodelist=n1"),
        *("--no-requeue", "--exclusive", "--mem=0", "--gres=gpu:4"),
        *("--chdir=/", "--output=/dev/null", "--error=/dev/null", "--export=NONE"),
        "--wrap=exec sleep infinity",
    )


def test_a_lease_of_cpu_slots_asks_for_no_gpu() -> None:
    assert lease(one_node(slots="cpu")) == Lease(f"{lease_prefix(STATE)}n1", "n1", 0)


def test_a_part_of_a_node_is_what_the_file_says() -> None:
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


def test_slurm_announces_the_end_of_a_lease_to_its_steps_and_of_a_job_likewise(tmp_path: Path) -> None:
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


def test_leases_of_two_directories_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert lease_prefix(tmp_path) == lease_prefix(tmp_path / "link")
    assert lease_prefix(tmp_path) != lease_prefix(tmp_path / "other")


def test_steps_of_a_lease_share_what_it_has() -> None:
    step = StepRequest("7", "resnet.2.0", Path("/shared/100%/launcher-0.log"), gres="gpu:4")
    assert srun_step(step, ("python", "keep it.py")) == (
        *("srun", "--quiet", "--jobid=7", "--job-name=resnet.2.0", "--nodes=1", "--ntasks=1", "--mem=0"),
        *("--overlap", "--immediate=5", "--gres=gpu:4", "--mpi=none", "--cpu-bind=none", "--chdir=/"),
        *("--input=none", "--output=/shared/100%%/launcher-0.log", "--open-mode=append"),
        *("python", "keep it.py"),
    )


def test_where_slurm_chooses_the_gpus_a_step_has_them_for_itself() -> None:
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
