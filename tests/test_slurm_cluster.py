"""The Slurm of the tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import psutil
import pytest

from tests.slurm_cluster import NoSlurmError, SlurmCluster, lives, slurm_cluster
from tests.tools.run.site import until


def test_it_runs_steps_on_each_of_its_nodes(slurm: SlurmCluster) -> None:
    for name, gpus in slurm.gpus.items():
        said = slurm.command("srun", "-N1", "-n1", "-w", name, f"--gres=gpu:{gpus}", "env")
        assert f"SLURMD_NODENAME={name}" in said.splitlines()
        assert f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(gpus)))}" in said.splitlines()


def test_two_of_them_live_side_by_side_and_leave_nothing(slurm: SlurmCluster) -> None:
    with slurm_cluster((2, 1)) as other:
        daemons = [other.pid(name) for name in ("slurmctld", "slurmd.n0", "slurmd.n1")]
        other.command("sbatch", "--output=/dev/null", "--wrap", "exec sleep 600")
        until(lambda: "alloc" in other.states().values() or "mix" in other.states().values())
        assert set(slurm.states()) == set(slurm.gpus)
        until(lambda: _sleepers(other))
        (sleeper,) = _sleepers(other)
    assert not other.folder.exists()
    assert not sleeper.is_running()
    assert not any(pid is None or lives(pid) for pid in daemons)


def test_the_controller_knows_its_jobs_after_a_restart(slurm: SlurmCluster) -> None:
    job = slurm.command("sbatch", "--parsable", "--output=/dev/null", "--wrap", "exec sleep 600").strip()
    until(lambda: slurm.command("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
    slurm.end_controller()
    slurm.start_controller()
    until(lambda: slurm.command("squeue", "-h", "-j", job, "-o", "%T", check=False).strip() == "RUNNING")
    slurm.command("scancel", job)
    until(lambda: set(slurm.states().values()) == {"idle"})


def test_where_the_packages_miss_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.slurm_cluster._where", lambda _name: None)
    with pytest.raises(
        NoSlurmError, match=r"not installed: munged, slurmctld, .* \(Debian: slurm-wlm, munge\)"
    ):
        SlurmCluster()


def _sleepers(cluster: SlurmCluster) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _sleeps_in(process, cluster)]


def _sleeps_in(process: psutil.Process, cluster: SlurmCluster) -> bool:
    try:
        return process.name() == "sleep" and process.environ().get("SLURM_CONF") == cluster.env["SLURM_CONF"]
    except psutil.Error:
        return False
