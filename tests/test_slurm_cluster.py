"""The Slurm of the tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import psutil
import pytest

from tests.slurm_cluster import SlurmCluster, lives, slurm_cluster
from tests.tools.run.site import until

pytestmark = pytest.mark.services


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


def _sleepers(cluster: SlurmCluster) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _sleeps_in(process, cluster)]


def _sleeps_in(process: psutil.Process, cluster: SlurmCluster) -> bool:
    try:
        return process.name() == "sleep" and process.environ().get("SLURM_CONF") == cluster.env["SLURM_CONF"]
    except psutil.Error:
        return False
