"""drf, dorm, rrh and fifo-demands as policies: nodes with CPUs, and utilities, decide."""

from __future__ import annotations

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Gpus, GpuTimeWork, Job, ResourceDemand, Utility
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.multi_resource.policies import Drf, FifoDemands, Rrh
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import decided, session, sizes

NODES = Cluster(nodes=(Node(name="n", gpus=8, gpu_type="t4", cpus=12),))
LATE = Utility(shape="sigmoid", value=100, decay=1, target=100)
"""Worth nothing a few seconds after the hundredth."""


def opened(policy: Policy, *jobs: Job) -> Session:
    held = session(policy, NODES)
    for each in jobs:
        held.submit(each, each.submit_time)
    held.decide(0)
    return held


def elastic(name: str, cpus: float) -> Job:
    """Up to 8 workers, each with that many CPUs."""
    demand = ResourceDemand(worker={"cpu": cpus})
    gpus = Gpus(requested=4, min=1, max=8)
    return Job(id=name, submit_time=0, model="m", gpus=gpus, elastic="size", resources=demand)


def rigid(name: str, seconds: float, utility: Utility, at: float = 0.0) -> Job:
    """All eight GPUs for so long."""
    work = GpuTimeWork(gpu_seconds=8 * seconds)
    return Job(id=name, submit_time=at, model="m", gpus=Gpus(requested=8), work=work, utility=utility)


def test_drf_levels_the_largest_shares() -> None:
    # Workers of 4 and of 1 CPU, 12 in all and 8 slots: parts of a third and an eighth.
    assert sizes(opened(Drf(), elastic("a", 4), elastic("b", 1))) == {"a": 2, "b": 4}

    # A worker takes a third of the CPUs or a seventh of the slots.
    held = session(Drf(), NODES)
    held.withdraw("n/0", 0.0, 60.0)
    for each in (elastic("a", 4), elastic("b", 0)):
        held.submit(each, 0.0)
    assert decided(held, 0.0) == {"a": 2, "b": 5}


def test_rrh_rejects_what_would_make_another_late() -> None:
    held = opened(Rrh(), rigid("a", 90, LATE), rigid("b", 500, Utility(value=50)))
    assert sizes(held) == {"a": 8}
    assert set(held.jobs) == {"a"}
    assert {name: statement["admitted"] for name, statement in held.admissions.items()} == {
        "a": True,
        "b": False,
    }
    assert held.admissions["b"]["payoff"] < 0 < held.admissions["a"]["payoff"]


def test_rrh_pauses_for_a_job_that_earns_more_per_second() -> None:
    held = opened(Rrh(), rigid("a", 500, Utility(value=50)))
    held.submit(rigid("b", 90, Utility(value=60), at=10), 10)
    assert decided(held, 10) == {"b": 8}
    assert set(held.jobs) == {"a", "b"}
    held.end("b", 100)
    assert decided(held, 100) == {"a": 8}


def fixed(name: str, workers: int, cpus: float) -> Job:
    """That many workers or none."""
    demand = ResourceDemand(worker={"cpu": cpus})
    return Job(id=name, submit_time=0, model="m", gpus=Gpus(requested=workers), resources=demand)


def test_fifo_over_demands_lets_no_job_pass_one_that_lacks_cpus() -> None:
    """GPUs are free for b and c; CPUs are not for b, and c comes after it."""
    jobs = fixed("a", 2, 4), fixed("b", 2, 3), fixed("c", 1, 1)
    assert sizes(opened(Fifo(), *jobs)) == {"a": 2, "c": 1}
    held = opened(FifoDemands(), *jobs)
    assert sizes(held) == {"a": 2}
    held.end("a", 50.0, "finished")
    assert decided(held, 50.0) == {"b": 2, "c": 1}
