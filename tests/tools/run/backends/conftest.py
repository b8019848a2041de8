"""A real Slurm, which every test leaves as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import controller
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.site import until


@pytest.fixture
def live(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The Slurm of the tests is what commands find, and afterwards it is as it was."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setattr(controller, "LOOK_S", 0.1)
    monkeypatch.setattr(controller, "NODES_S", 0.2)
    monkeypatch.setattr(leases, "LEASE_AGAIN_S", 0.5)
    yield slurm
    until(lambda: (slurm.end_jobs(), set(slurm.states().values()) == {"idle"})[1])
