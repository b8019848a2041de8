"""A job that waits for nodes, and not for other jobs, keeps no other job waiting."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Node
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import make_policy
from tests.builders import cluster, decided, job, session, sizes
from tests.tools.schedule.policies.started import started


class Waiting:
    """A job that has waited behind another one, and the only node that it fits on goes down."""

    def __init__(self, policy: Policy, nodes: Cluster, **big: Any) -> None:
        self.held, self.time_s = session(policy, nodes), 0.0
        self.submit("first", gpus=8)
        self.go_on(2)
        self.submit("big", **big)
        self.go_on(1)
        self.held.node_down("n0", self.time_s)
        self.held.end("first", self.time_s)
        self.go_on(1)

    def submit(self, name: str, **more: Any) -> None:
        self.time_s += 1.0
        self.held.submit(job(name, gpu_seconds=1e6, at=self.time_s, **more), self.time_s)

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.held.decide(self.time_s)
            self.time_s += 600.0

    def ends_with(self, **expected: int) -> bool:
        """Within ten rounds jobs hold these GPUs."""
        for _ in range(10):
            if sizes(self.held) == expected:
                return True
            self.go_on(1)
        return False


@pytest.mark.parametrize(
    "name",
    [
        *("allox", "fair-share", "fifo", "las", "lucid", "optimus", "shadow-price", "sjf", "srtf", "themis"),
        "tiresias",
    ],
)
def test_it_is_passed_over_until_its_nodes_are_up(name: str) -> None:
    """The job needs more GPUs, or more CPUs, than are up."""
    gpus = Waiting(make_policy(name), cluster(4, 4), gpus=8)
    demand = {"worker": {"cpu": 32.0}}
    nodes = Cluster(nodes=tuple(Node(name=f"n{n}", gpus=4, cpus=cpus) for n, cpus in enumerate((64.0, 4.0))))
    cpus = Waiting(make_policy(name), nodes, gpus=2, resources=demand)
    for story in (gpus, cpus):
        assert "big" in story.held.jobs, "it may come back, so it is not rejected"
        story.submit("small", gpus=4)
        assert story.ends_with(small=4)
        story.held.node_up("n0", story.time_s)
    assert cpus.ends_with(small=4, big=2)
    gpus.held.end("small", gpus.time_s)
    assert gpus.ends_with(big=8)


@pytest.mark.parametrize("backfill", ["none", "easy", "skip"])
def test_fifo_keeps_its_order_otherwise(backfill: str) -> None:
    """Those out of reach stay where they are in line, and the first that is in reach is the head."""
    story = Waiting(make_policy("fifo", {"backfill": backfill}), cluster(4, 4), gpus=8)
    for name, gpus in (("runs", 2), ("head", 4), ("late", 4)):
        story.submit(name, gpus=gpus)
    story.go_on(1)
    assert sizes(story.held) == {"runs": 2}
    reasons = {job_id: why.reason for job_id, why in story.held.explain(story.time_s).items()}
    assert reasons == {
        "big": "passed over: waits for nodes, as those that are up cannot give it 8 GPUs of one type",
        "head": "first in line: waits until 4 GPUs of one type are free",
        "late": "waits in line, 2 before it",
    }
    story.held.node_up("n0", story.time_s)
    story.held.end("runs", story.time_s)
    story.go_on(1)
    assert sizes(story.held) == {"big": 8}
    story.held.end("big", story.time_s)
    story.go_on(1)
    assert sizes(story.held) == {"head": 4, "late": 4}


def test_fifo_lets_none_pass_a_job_that_other_jobs_keep_waiting() -> None:
    jobs = [
        job(name, at=at, gpus=gpus) for at, (name, gpus) in enumerate((("long", 4), ("big", 8), ("s", 1)))
    ]
    held = started(make_policy("fifo"), cluster(4, 4), *jobs)
    held.node_down("n1", 3.0)
    held.node_up("n1", 3.0)
    assert decided(held, 4.0) == {"long": 4}


def test_fair_share_admits_jobs_behind_one_too_large() -> None:
    story = Waiting(make_policy("fair-share"), cluster(4, 4), gpus=8, low=8, high=8)
    for name in "ab":
        story.submit(name, gpus=2, low=1, high=4)
    story.go_on(1)
    assert sizes(story.held) == {"a": 2, "b": 2}
