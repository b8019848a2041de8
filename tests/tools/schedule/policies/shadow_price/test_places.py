"""Which nodes jobs get: whole ones first, best fit, and who makes way."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.jobs import NodeState
from pliant.tools.schedule.policies.shadow_price.places import NodeSpace, SeatedJob, gathered, place
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from tests.builders import TimedSteps, cluster, job
from tests.tools.schedule.policies.started import joined, started

WORSE_ACROSS = TimedSteps(
    lambda model, kind, place, batch: batch / (1.0 if len(place) > 1 else float(sum(place)))
)
"""One sample a GPU-second on one node, one a second on several."""
NODES = [NodeState(index, f"n{index}", 4, "gpu", None) for index in range(3)]


def test_large_jobs_get_whole_nodes_and_small_ones_the_fullest():
    stay = SeatedJob("s", 3, 1.0, (("n1", 3),))
    result = place(NodeSpace.of(NODES, [stay]), [SeatedJob("one", 1, 1.0), SeatedJob("six", 6, 1.0)])
    assert result == {"six": (("n0", 4), ("n2", 2)), "one": (("n1", 1),)}

    result = place(NodeSpace.of(NODES, []), [SeatedJob("a", 2, 1.0, (("n2", 4),))])
    assert result == {"a": (("n2", 2),)}

    stay = [SeatedJob(f"s{index}", 3, 1.0, ((f"n{index}", 3),)) for index in range(3)]
    assert place(NodeSpace.of(NODES, stay), [SeatedJob("a", 2, 1.0)]) == {"a": (("n0", 1), ("n1", 1))}


def test_the_jobs_that_lose_least_make_way():
    worth = (("a", 1, 5.0), ("b", 1, 1.0), ("c", 2, 9.0))
    stay = [SeatedJob(name, gpus, loss, ((f"n{n}", gpus),)) for n, (name, gpus, loss) in enumerate(worth)]
    result = place(NodeSpace.of(NODES, stay), [SeatedJob("whole", 4, 3.0)])
    assert result["whole"] == (("n1", 4),)
    assert result["b"] == (("n2", 1),)


@pytest.mark.parametrize(("cost", "spread"), [(0.3, False), (0.7, True)])
def test_no_job_makes_way_where_moves_cost_more_than_a_place(cost: float, spread: bool):
    """Spread over two nodes, the job loses a tenth of the 5 it makes; a move costs b 0.3, or 0.7."""
    stay = [SeatedJob(f"s{index}", 2, 9.0, ((f"n{index}", 2),), move_cost=9.0) for index in range(2)]
    b = SeatedJob("b", 1, 1.0, (("n2", 1),), move_cost=cost)
    nodes = NodeSpace.of(NODES, [*stay, b], lambda job, where: 0.1 * job.worth)
    result = place(nodes, [SeatedJob("whole", 4, 5.0)])
    assert (len(result["whole"]) > 1, "b" in result) == (spread, not spread)


def test_rigid_jobs_as_fast_on_all_nodes_are_never_moved():
    """Three jobs of one GPU sit on three nodes; one of four fits no node, and starts across two."""
    jobs = [job(f"j{index:02}", gpus=1, work={"samples": 1e5}) for index in range(12)]
    held = started(ShadowPrice(), cluster(4, 4, 4), *jobs)
    for node in ("n0", "n1", "n2"):
        there = sorted(each.id for each in held.jobs.values() if each.placement[0][0] == node)
        for name in there[1:3]:
            held.end(name, 30.0)
    held.submit(job("wide", at=30.0, gpus=4, work={"samples": 1e4}), 30.0)
    assert [(each.job.id, each.step) for each in held.decide(60.0)] == [("wide", "start")]
    assert len(held.jobs["wide"].placement) == 2


def test_a_scattered_job_is_gathered_where_that_pays():
    scattered = SeatedJob("a", 4, 8.0, (("n0", 3), ("n1", 1)), move_cost=0.4)
    small = SeatedJob("b", 1, 1.0, (("n2", 1),), move_cost=0.05)
    nodes = NodeSpace.of(NODES, [scattered, small])
    assert gathered(nodes, scattered, gain=4.0) == {"a": (("n0", 4),)}
    assert nodes.free == {"n0": 0, "n1": 4, "n2": 3}
    assert gathered(nodes, SeatedJob("c", 3, 1.0, (("n1", 2), ("n2", 1)), move_cost=0.05), gain=0.01) == {}


def test_a_job_is_not_scattered_where_that_is_slower():
    """Three GPUs of one node make 3, four of two nodes 1: it takes the three, and leaves one idle."""
    jobs = [job(name, gpus=gpus, work={"samples": 1e3}) for name, gpus in (("a", 1), ("b", 3))]
    held = started(ShadowPrice(), cluster(4, 4), *jobs, throughput=WORSE_ACROSS)
    joined(held, 60.0, job("wide", gpus=3, low=3, high=4, work={"samples": 1e9}, model="net"))
    assert len(held.jobs["wide"].placement) == 1
