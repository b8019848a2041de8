"""Orders of jobs that run at the sizes that they request: by work to go, by service, by deadline."""

from itertools import chain
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.tools.schedule.policies.edf import Edf, EdfElastic
from pliant.tools.schedule.policies.las import Las
from pliant.tools.schedule.policies.srtf import Sjf, Srtf
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import make_policy
from tests.builders import cluster, curves, decided, job, mixed_cluster, opened, session, sizes
from tests.tools.schedule.policies.started import joined, started

GANGS = ("a", 3), ("b", 2), ("c", 1)
SPEEDS = curves(slow={4: 2.0}, m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})
"""m falls beyond four GPUs."""


def due(job_id: str, in_s: float, **more: Any) -> Job:
    return job(job_id, gpu_seconds=1000.0, utility={"shape": "step", "target": in_s}, **more)


def falling(*names: str) -> list[Job]:
    return [due(name, 100.0 + at, low=1, high=8, model="m") for at, name in enumerate(names)]


@pytest.mark.parametrize(
    ("policy", "gpus", "jobs", "expected"),
    [
        pytest.param(
            *(Srtf(), 4, [job("wide", gpus=4, gpu_seconds=120), job("thin", gpu_seconds=100)], {"thin": 1}),
            id="4 GPUs for 30 s are more than one for 100 s",
        ),
        pytest.param(
            *(Srtf(), 4, [job(name, gpus=gpus, gpu_seconds=10 * gpus) for name, gpus in GANGS]),
            {"b": 2, "c": 1},
            id="a gang that does not fit is passed over",
        ),
        pytest.param(
            Srtf(),
            4,
            [job("a", gpus=4, model="slow", work={"samples": 60}), job("b", gpus=4, work={"samples": 100})],
            {"b": 4},
            id="speed comes from the profile",
        ),
        pytest.param(
            *(Edf(), 8, [due("a", 200.0, gpus=6), due("b", 100.0, gpus=4), due("c", 300.0, gpus=4)]),
            {"b": 4, "c": 4},
            id="b is due first, then a, which does not fit beside it; c fits",
        ),
        pytest.param(
            *(Edf(), 2, [due("a", 10.0, gpus=2), due("b", 900.0, gpus=2, priority=1.0)], {"b": 2}),
            id="a higher priority comes before any deadline",
        ),
        pytest.param(
            *(EdfElastic(), 12, falling("a", "b", "c"), {"a": 4, "b": 4, "c": 4}),
            id="each job gets the size on which it is fastest",
        ),
        pytest.param(
            *(EdfElastic(), 10, falling("a", "b", "c"), {"a": 4, "b": 4, "c": 2}),
            id="the last one gets the fastest size that is free",
        ),
    ],
)
def test_the_first_in_order_run(policy: Policy, gpus: int, jobs: list[Job], expected: dict[str, int]):
    assert decided(opened(policy, cluster(gpus), *jobs, throughput=SPEEDS), 0) == expected


@pytest.mark.parametrize(
    ("policy", "first", "second", "later"),
    [
        pytest.param(
            *(Srtf(), job("a", gpus=2, gpu_seconds=1000), job("b", at=10, gpus=2, gpu_seconds=100)),
            {"b": 2},
            id="less to go",
        ),
        pytest.param(
            *(Srtf(), job("a", gpus=2, gpu_seconds=100), job("b", at=10, gpus=2, gpu_seconds=90)),
            {"a": 2},
            id="what is done counts: 80 to go",
        ),
        pytest.param(
            *(Sjf(), job("a", gpus=2, gpu_seconds=1000), job("b", at=10, gpus=2, gpu_seconds=100)),
            {"a": 2},
            id="sjf never preempts",
        ),
        pytest.param(
            *(Edf(), due("a", 200.0, gpus=2), due("b", 20.0, gpus=1, at=10)), {"b": 1}, id="due sooner"
        ),
        pytest.param(
            *(EdfElastic(), due("a", 900.0, low=1, high=2), due("b", 20.0, gpus=1, at=10)),
            {"a": 1, "b": 1},
            id="a job that grew gives way",
        ),
    ],
)
def test_a_job_that_runs_may_give_way(policy: Policy, first: Job, second: Job, later: dict[str, int]):
    held = started(policy, cluster(2), first)
    assert sizes(held) == {"a": 2}
    assert joined(held, 10, second) == later
    for name in later.keys() - {"a"}:
        held.end(name, 60)
        assert decided(held, 60) == {"a": 2}


def test_unknown_work_comes_last_and_few_jobs_move() -> None:
    jobs = job("u"), job("v", at=1), job("k", at=2, gpu_seconds=1e6)
    held = started(Srtf(), cluster(1), *jobs)
    assert sizes(held) == {"k": 1}
    held.end("k", 3)
    assert decided(held, 3) == {"u": 1}
    # A running job moves only when it is pushed out.
    jobs = job("a", gpus=2, gpu_seconds=500), job("b", gpus=4, gpu_seconds=600)
    held = started(Srtf(), cluster(4, 4), *jobs)
    place = held.jobs["a"].placement
    assert joined(held, 1, job("c", at=1, gpus=2, gpu_seconds=10)) == {"a": 2, "b": 4, "c": 2}
    assert held.jobs["a"].placement == place

    held = started(Srtf(), mixed_cluster(x=(2,), y=(2,)), job("a", gpus=2, gpu_seconds=500))
    assert held.jobs["a"].gpu_type == "x"
    joined(held, 1, job("b", at=1, gpus=2, gpu_seconds=5))
    assert {state.id: state.gpu_type for state in held.jobs.values()} == {"b": "x", "a": "y"}
    # Sjf counts the whole job.
    held = started(Sjf(), cluster(1), job("a", gpu_seconds=100), job("b", gpu_seconds=50))
    held.maintenance.lose("b", 30)
    held.maintenance.node_down("n0", 30)
    held.submit(job("c", at=31, gpu_seconds=45), 31)
    held.maintenance.node_up("n0", 40)
    assert decided(held, 40) == {"c": 1}  # b has 20 to go, but 50 in all


def test_deadlines_count_from_submission_and_equals_take_turns() -> None:
    # b is due at 170, a at 200, and c, which only gains by ending early, has no deadline.
    jobs = [
        due("a", 200.0, gpus=2),
        job("c", gpus=2, gpu_seconds=100.0, utility={"shape": "sigmoid", "decay": 0.1, "target": 10.0}),
        due("b", 120.0, gpus=2, at=50.0),
    ]
    held = opened(Edf(), cluster(4), *jobs)
    assert held.jobs["b"].deadline_s == 170.0
    assert decided(held, 50.0) == {"a": 2, "b": 2}
    assert "no deadline" in held.explain(50.0)["c"].reason

    held = opened(Edf(), cluster(2), due("a", 10.0, gpus=2), due("b", 900.0, gpus=2))
    assert decided(held, 500.0) == {"a": 2}
    assert held.explain(500.0)["a"].reason == "its deadline was 490 s ago"
    # Jobs that are level take turns.
    held = opened(Las(), cluster(1), job("a"), job("b"))
    assert [*chain(*(decided(held, 60.0 * turn) for turn in range(4)))] == ["a", "b", "a", "b"]
    assert held.jobs["a"].attained_service_s(240) == held.jobs["b"].attained_service_s(240) == 120

    held = started(Las(), cluster(4), job("wide", gpus=3), job("thin", gpus=1))
    # new 0, thin 60, wide 180 GPU-seconds: 3 GPUs are not left for wide
    assert joined(held, 60, job("new", at=60, gpus=1)) == {"new": 1, "thin": 1}

    held = started(Las(), cluster(2), job("wide", gpus=2))
    joined(held, 10, job("thin", at=10, gpus=2))
    assert decided(held, 40) == {"wide": 2}, "wide has had 20, thin 60"


class Waiting:
    """A job that has waited behind another one, and the only node that it fits on goes down."""

    def __init__(self, policy: Policy, nodes: Cluster, **big: Any) -> None:
        self.held, self.time_s = session(policy, nodes), 0.0
        self.submit("first", gpus=8)
        self.go_on(2)
        self.submit("big", **big)
        self.go_on(1)
        self.held.maintenance.node_down("n0", self.time_s)
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
        story.held.maintenance.node_up("n0", story.time_s)
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
    story.held.maintenance.node_up("n0", story.time_s)
    story.held.end("runs", story.time_s)
    story.go_on(1)
    assert sizes(story.held) == {"big": 8}
    story.held.end("big", story.time_s)
    story.go_on(1)
    assert sizes(story.held) == {"head": 4, "late": 4}


def test_what_waits_for_other_jobs_and_what_is_out_of_reach() -> None:
    jobs = [
        job(name, at=at, gpus=gpus) for at, (name, gpus) in enumerate((("long", 4), ("big", 8), ("s", 1)))
    ]
    held = started(make_policy("fifo"), cluster(4, 4), *jobs)
    held.maintenance.node_down("n1", 3.0)
    held.maintenance.node_up("n1", 3.0)
    assert decided(held, 4.0) == {"long": 4}
    # Fair share admits jobs behind one too large.
    story = Waiting(make_policy("fair-share"), cluster(4, 4), gpus=8, low=8, high=8)
    for name in "ab":
        story.submit(name, gpus=2, low=1, high=4)
    story.go_on(1)
    assert sizes(story.held) == {"a": 2, "b": 2}
