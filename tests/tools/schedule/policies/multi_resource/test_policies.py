"""drf, dorm, rrh and fifo-demands as policies: nodes with CPUs, and utilities, decide."""

from __future__ import annotations

from typing import Any

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.multi_resource.policies import Drf, FifoDemands, Rrh
from tests.builders import decided, job, session, sizes
from tests.tools.schedule.policies.started import joined, started

NODES = Cluster(nodes=(Node(name="n", gpus=8, gpu_type="t4", cpus=12),))
LATE = {"shape": "sigmoid", "value": 100, "decay": 1, "target": 100}
"""Worth nothing a few seconds after the hundredth."""


def demanding(name: str, cpus: float, gpus: int = 4, **limits: int) -> Job:
    """Workers with that many CPUs each."""
    return job(name, gpus=gpus, resources={"worker": {"cpu": cpus}}, **limits)


def elastic(name: str, cpus: float) -> Job:
    return demanding(name, cpus, low=1, high=8)


def rigid(name: str, seconds: float, at: float = 0.0, **utility: Any) -> Job:
    """All eight GPUs for so long."""
    return job(name, at=at, gpus=8, gpu_seconds=8 * seconds, utility=utility)


def test_drf_levels_the_largest_shares() -> None:
    # Workers of 4 and of 1 CPU, 12 in all and 8 slots: parts of a third and an eighth.
    assert sizes(started(Drf(), NODES, elastic("a", 4), elastic("b", 1))) == {"a": 2, "b": 4}

    # A worker takes a third of the CPUs or a seventh of the slots.
    held = session(Drf(), NODES)
    held.withdraw("n/0", 0.0, 60.0)
    assert joined(held, 0.0, elastic("a", 4), elastic("b", 0)) == {"a": 2, "b": 5}


def test_rrh_rejects_what_would_make_another_late() -> None:
    held = started(Rrh(), NODES, rigid("a", 90, **LATE), rigid("b", 500, value=50))
    assert sizes(held) == {"a": 8}
    assert set(held.jobs) == {"a"}
    admitted = {name: statement["admitted"] for name, statement in held.admissions.items()}
    assert admitted == {"a": True, "b": False}
    assert held.admissions["b"]["payoff"] < 0 < held.admissions["a"]["payoff"]


def test_rrh_pauses_for_a_job_that_earns_more_per_second() -> None:
    held = started(Rrh(), NODES, rigid("a", 500, value=50))
    assert joined(held, 10, rigid("b", 90, at=10, value=60)) == {"b": 8}
    assert set(held.jobs) == {"a", "b"}
    held.end("b", 100)
    assert decided(held, 100) == {"a": 8}


def test_fifo_over_demands_lets_no_job_pass_one_that_lacks_cpus() -> None:
    """GPUs are free for b and c; CPUs are not for b, and c comes after it."""
    jobs = demanding("a", 4, gpus=2), demanding("b", 3, gpus=2), demanding("c", 1, gpus=1)
    assert sizes(started(Fifo(), NODES, *jobs)) == {"a": 2, "c": 1}
    held = started(FifoDemands(), NODES, *jobs)
    assert sizes(held) == {"a": 2}
    held.end("a", 50.0, "finished")
    assert decided(held, 50.0) == {"b": 2, "c": 1}
