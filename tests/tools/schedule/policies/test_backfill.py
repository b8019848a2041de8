"""Who passes the head of a queue, and the line of those that wait."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.policies.backfill import WaitingLine
from pliant.tools.schedule.policies.fifo import Fifo
from tests.builders import cluster, job, session
from tests.tools.schedule.policies.started import joined, started


def with_cpus(nodes: Cluster, *cpus: int) -> Cluster:
    """Nodes with these CPUs in turn."""
    each = zip(nodes.nodes, itertools.cycle(cpus), strict=False)
    return nodes.model_copy(update={"nodes": tuple(n.model_copy(update={"cpus": c}) for n, c in each)})


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=400), st.integers(0, 400))
def test_a_line_keeps_the_order_of_turns(moves: list[tuple[int, int]], first: int):
    held = session(Fifo(), cluster(1))
    states = [held.submit(job(f"j{n:03}", at=0.0), 0.0) for n in range(401)]
    line, expected = WaitingLine(), {}
    for number, work in moves:
        if number in expected:
            line.remove(states[number].turn)
            del expected[number]
        else:
            line.add(states[number], states[number].turn, float(work))
            expected[number] = work
    assert [each.id for each in line.after()] == [f"j{n:03}" for n in sorted(expected)]
    able = [each.id for each in line.after(states[first].turn, lambda work: work <= 2)]
    assert able == [f"j{n:03}" for n in sorted(expected) if n > first and expected[n] <= 2]


def test_lost_jobs_and_larger_demands_may_pass() -> None:
    # a holds 3 of 4 GPUs until 100 s. b was lost with 1000 s to go; a late report leaves it 50 s.
    jobs = job("a", gpus=3, gpu_seconds=300), job("b", at=2, gpu_seconds=1000)
    held = started(Fifo("easy"), cluster(4), *jobs)
    held.submit(job("head", at=1, gpus=4, gpu_seconds=400), 3)
    held.lose("b", 4)
    assert held.decide(4) == []
    held.jobs["b"].report_progress(5, 950)
    assert [each.job.id for each in held.decide(5)] == ["b"]

    # The node with 12 CPUs is down. Two GPUs are free beside 2 CPUs: x wants 6 of these, y wants 2.
    held = session(Fifo("skip"), with_cpus(cluster(4, 4), 12, 2))
    held.node_down("n0", 0)
    joined(held, 0, job("a", gpus=2))
    demands = [
        job(name, at=1, gpus=2, resources={"worker": {"cpu": cpus}}) for name, cpus in (("x", 3), ("y", 1))
    ]
    assert joined(held, 1, job("head", at=1, gpus=4), *demands) == {"a": 2, "y": 2}
