"""First come, first served, and who may pass the head."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.policies.fifo import Backfill, Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided, job, mixed_cluster, session


def opened(nodes, *jobs, backfill: Backfill = "none") -> Session:
    held = session(Fifo(backfill), nodes)
    for each in sorted(jobs, key=lambda each: each.submit_time):
        held.submit(each, each.submit_time)
    return held


def test_no_job_passes_the_head():
    held = opened(cluster(4), job("a", gpus=3), job("big", at=1, gpus=4), job("small", at=2, gpus=1))
    assert decided(held, 5) == {"a": 3}
    held.end("a", 10)
    assert decided(held, 10) == {"big": 4}
    held.end("big", 20)
    assert decided(held, 20) == {"small": 1}

    held = opened(cluster(1))
    for name in ("c", "a", "b"):
        held.submit(job(name), 0)
    assert decided(held, 0) == {"a": 1}

    held = opened(cluster(8), job("a", gpus=2, low=1, high=8))
    assert decided(held, 0) == {"a": 2}


def test_a_job_larger_than_every_type_is_turned_away():
    held = opened(mixed_cluster(t4=(4,), a100=(4,)), job("a", gpus=6), job("b", at=1, gpus=4))
    transitions = held.decide(1)
    assert [(each.job.id, each.step) for each in transitions] == [("a", "reject"), ("b", "start")]
    assert transitions[0].reason == "needs 6 GPUs of one type, the cluster has 4"

    held = opened(cluster(8), job("a", gpus=8, batch=4, work={"samples": 10}))
    assert "does not run on 8 GPUs" in held.decide(0)[0].reason

    held = opened(mixed_cluster(one=(4,), two=(4,)), job("a", gpus=6, low=2))
    reason = "needs 6 GPUs of one type, the cluster has 4; this policy gives the requested 6 GPUs"
    assert [(each.step, each.reason) for each in held.decide(0)] == [("reject", reason)]


def easy(*behind) -> dict[str, int]:
    """On 4 GPUs a holds 3 from 0 to 100; the head needs 4, so it starts at 100. Who passes it at 10?"""
    held = opened(cluster(4), job("a", gpus=3, gpu_seconds=300), backfill="easy")
    decided(held, 0)
    for each in (job("head", at=1, gpus=4, gpu_seconds=400), *behind):
        held.submit(each, each.submit_time)
    return decided(held, 10)


@pytest.mark.parametrize(("gpu_seconds", "passes"), [(90, True), (91, False), (None, False)])
def test_easy_lets_a_job_pass_that_ends_before_the_head_starts(gpu_seconds, passes):
    assert ("b" in easy(job("b", at=2, gpu_seconds=gpu_seconds))) is passes


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param(
            cluster(8),
            [
                job("a", gpus=6, gpu_seconds=600),
                job("head", at=1, gpus=7, gpu_seconds=700),
                job("long", at=2, gpu_seconds=10_000),
                job("too", at=3, gpu_seconds=10_000),
            ],
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
            mixed_cluster(big=(4,), small=(1,)),
            [
                job("a", gpus=3, gpu_seconds=300),
                job("head", at=1, gpus=4, gpu_seconds=400),
                job("long", at=2, gpus=1, gpu_seconds=10_000),
                job("too", at=3, gpus=1, gpu_seconds=10_000),
            ],
            {"a": 3, "long": 1},
            id="the type on which the head does not start is left to all",
        ),
    ],
)
def test_easy_lets_pass_what_does_not_delay_the_head(nodes, jobs, expected):
    assert decided(opened(nodes, *jobs, backfill="easy"), 10) == expected


def test_skip_starts_all_that_fit():
    jobs = (job("a", gpus=3), job("head", at=1, gpus=4), job("b", at=2), job("c", at=3))
    held = opened(cluster(4), *jobs, backfill="skip")
    assert decided(held, 10) == {"a": 3, "b": 1}
    held.end("a", 20)
    assert decided(held, 20) == {"b": 1, "c": 1}


def test_a_decision_reads_only_the_head_while_it_waits():
    held = opened(cluster(4), job("a", gpus=3), *(job(f"j{i}", at=1 + i, gpus=4) for i in range(1000)))
    decided(held, 2000)
    read = []

    class Watched(dict):
        def values(self):
            read.append("values")
            return super().values()

        def __iter__(self):
            read.append("iter")
            return super().__iter__()

    held.jobs = Watched(held.jobs)
    held.submit(job("late", at=2001), 2001)
    assert held.decide(2001) == []
    assert read == []


@pytest.mark.parametrize("backfill", ["none", "easy", "skip"])
def test_every_reason_says_what_a_job_waits_for(backfill: Backfill):
    held = opened(cluster(4), job("a", gpus=3), job("b", gpus=4), job("c", gpus=2), backfill=backfill)
    held.decide(0)
    why = held.explain(0)
    assert why["b"].reason == "first in line: waits until 4 GPUs of one type are free"
    assert (why["c"].reason, why["c"].needs_gpus) == ("waits in line, 1 before it", 2)
