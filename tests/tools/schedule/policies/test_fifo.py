"""Who passes the head of a queue, and the line of those that wait."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.policies.backfill import FreeAhead, WaitingLine
from pliant.tools.schedule.policies.fifo import Fifo
from tests.builders import cluster, decided, job, mixed_cluster, opened, session
from tests.tools.schedule.policies.started import joined, started


def test_who_passes_the_head_and_who_is_turned_away() -> None:
    jobs = job("a", gpus=3), job("big", at=1, gpus=4), job("small", at=2, gpus=1)
    held = opened(Fifo("none"), cluster(4), *jobs)
    assert decided(held, 5) == {"a": 3}
    held.end("a", 10)
    assert decided(held, 10) == {"big": 4}
    held.end("big", 20)
    assert decided(held, 20) == {"small": 1}

    assert decided(opened(Fifo("none"), cluster(1), *(job(name) for name in "cab")), 0) == {"a": 1}
    assert decided(opened(Fifo("none"), cluster(8), job("a", gpus=2, low=1, high=8)), 0) == {"a": 2}
    # Skip starts all that fit.
    jobs = (job("a", gpus=3), job("head", at=1, gpus=4), job("b", at=2), job("c", at=3))
    held = opened(Fifo("skip"), cluster(4), *jobs)
    assert decided(held, 10) == {"a": 3, "b": 1}
    held.end("a", 20)
    assert decided(held, 20) == {"b": 1, "c": 1}
    # A job larger than every type is turned away.
    jobs = job("a", gpus=6), job("b", at=1, gpus=4)
    transitions = opened(Fifo(), mixed_cluster(t4=(4,), a100=(4,)), *jobs).decide(1)
    assert [(each.job.id, each.step) for each in transitions] == [("a", "reject"), ("b", "start")]
    assert transitions[0].reason == "needs 6 GPUs of one type, the cluster has 4"

    held = opened(Fifo(), mixed_cluster(one=(4,), two=(4,)), job("a", gpus=6, low=2))
    reason = "needs 6 GPUs of one type, the cluster has 4; this policy gives the requested 6 GPUs"
    assert [(each.step, each.reason) for each in held.decide(0)] == [("reject", reason)]


FILL = job("a", gpus=3, gpu_seconds=300), job("head", at=1, gpus=4, gpu_seconds=400)
"""On four GPUs the first leaves one until 100 s, when the second starts."""
LONG = [job(name, at=at, gpu_seconds=10_000) for at, name in ((2, "long"), (3, "too"))]


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param(
            *(cluster(4), [*FILL, job("b", at=2, gpu_seconds=90)], {"a": 3, "b": 1}),
            id="it ends when the head starts",
        ),
        pytest.param(*(cluster(4), [*FILL, job("b", at=2, gpu_seconds=91)], {"a": 3}), id="it ends later"),
        pytest.param(*(cluster(4), [*FILL, job("b", at=2)], {"a": 3}), id="its end is unknown"),
        pytest.param(
            cluster(8),
            [job("a", gpus=6, gpu_seconds=600), job("head", at=1, gpus=7, gpu_seconds=700), *LONG],
            {"a": 6, "long": 1},
            id="beside the head one GPU is spare, for one long job",
        ),
        pytest.param(
            cluster(4),
            [job("a", gpus=3), job("head", at=1, gpus=4), job("short", at=2, gpu_seconds=1)],
            {"a": 3},
            id="the start of the head is unknown",
        ),
        pytest.param(
            *(mixed_cluster(big=(4,), small=(1,)), [*FILL, *LONG], {"a": 3, "long": 1}),
            id="the type on which the head does not start is left to all",
        ),
    ],
)
def test_easy_lets_pass_what_does_not_delay_the_head(nodes, jobs, expected):
    """All have come by 10 s; the first has run since 0."""
    held = opened(Fifo("easy"), nodes, jobs[0])
    held.decide(0)
    assert joined(held, 10, *jobs[1:]) == expected


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
    held.maintenance.lose("b", 4)
    assert held.decide(4) == []
    held.jobs["b"].report_progress(5, 950)
    assert [each.job.id for each in held.decide(5)] == ["b"]

    # The node with 12 CPUs is down. Two GPUs are free beside 2 CPUs: x wants 6 of these, y wants 2.
    held = session(Fifo("skip"), with_cpus(cluster(4, 4), 12, 2))
    held.maintenance.node_down("n0", 0)
    joined(held, 0, job("a", gpus=2))
    demands = [
        job(name, at=1, gpus=2, resources={"worker": {"cpu": cpus}}) for name, cpus in (("x", 3), ("y", 1))
    ]
    assert joined(held, 1, job("head", at=1, gpus=4), *demands) == {"a": 2, "y": 2}


def test_the_earliest_gap_is_wide_and_long_enough() -> None:
    """Two GPUs now, and six from slot 10 on; two are booked for twelve slots."""
    ahead = FreeAhead(2, [(10, 4)])
    assert [ahead.earliest(gpus, 5, 100) for gpus in (2, 4, 7)] == [0, 10, None]
    assert ahead.earliest(4, 5, 9) is None
    ahead.book(2, 0, 12)
    assert (ahead.now, ahead.earliest(2, 1, 100), ahead.earliest(6, 1, 100)) == (0, 10, 12)
