"""All of a workload under a policy: no rescale cost, a decision at every arrival and completion."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Throughput
from pliant.tools.schedule.demand import demand_gpu_s, job_state
from pliant.tools.schedule.jobs import NodeState
from pliant.tools.schedule.policies.ares.allocation import AllowedSizes, SizesByJob, allowed_sizes
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.predict_start import advance, in_order_of_arrival
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.session.session import Session
from tests import builders
from tests.builders import TimedSteps, cluster, curves, job, session

CURVE = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.0, 16: 6.4}
"""Efficiency against one GPU: 0.95, 0.85, 0.625, 0.4."""


def speeds(gpus: int = 16, throughput: CurveThroughput | None = None) -> Speeds:
    return Speeds(
        throughput or CurveThroughput({"m": CURVE}),
        [NodeState(i, f"n{i}", 1, "gpu", None) for i in range(gpus)],
    )


def sizes(spec: Job, alpha: float = 0.75, gpus: int = 16) -> AllowedSizes:
    known = speeds(gpus)
    return allowed_sizes(job_state(spec, known), "gpu", known, alpha)


@pytest.mark.parametrize(
    ("spec", "expected", "reason"),
    [
        pytest.param(job(model="m", gpus=1, low=1), (1, 2, 4), "alpha 0.75 (eff(8) = 0.62)", id="from 1"),
        pytest.param(job(model="m", gpus=4, low=1), (1, 2, 4), "alpha 0.75 (eff(8) = 0.74)", id="from 4"),
        pytest.param(job(model="m", gpus=8, low=1), (1, 2, 4, 8), "alpha 0.75 (eff(16) = 0.64)", id="from 8"),
        pytest.param(job(gpus=6, low=1), (1, 2, 4, 6, 12, 16), "the cluster", id="powers of two below 6"),
        pytest.param(job(gpus=6, low=3), (3, 4, 6, 12, 16), "the cluster", id="the minimum is a size"),
        pytest.param(job(gpus=8, low=8), (8, 16), "the cluster", id="no room below"),
        pytest.param(job(gpus=2, high=6), (1, 2, 4, 6), "its maximum", id="the maximum is a size"),
        pytest.param(job(gpus=2, high=99), (1, 2, 4, 8, 16), "the cluster", id="a maximum beyond it"),
        pytest.param(job(gpus=2, low=1, batch=5), (1, 2, 4, 5), "its batch", id="a sample for every worker"),
        pytest.param(job(gpus=4), (4,), "its fixed size", id="not elastic"),
        pytest.param(job(gpus=40), (), "needs 40 GPUs, gpu has 16", id="not elastic, too large"),
        pytest.param(job(gpus=40, low=4), (4, 8, 16), "the cluster", id="elastic, larger than the cluster"),
        pytest.param(job(gpus=8, low=2, batch=5), (2, 4, 5), "its batch", id="requests more than its batch"),
        pytest.param(job(gpus=8, low=8, batch=5), (), "no size of it is feasible on gpu", id="cannot run"),
    ],
)
def test_the_sizes_of_a_job(spec: Job, expected: tuple[int, ...], reason: str) -> None:
    result = sizes(spec)
    assert result.sizes == expected
    assert result.reason == reason
    assert len(result.rates) == len(expected)


def test_alpha_moves_the_ceiling() -> None:
    spec = job(model="m", gpus=1, low=1)
    assert [sizes(spec, alpha).ceiling for alpha in (0.96, 0.95, 0.7, 0.6, 0.4)] == [1, 2, 4, 8, 16]

    # 6 GPUs of 6: T = 3.4 + 0.8, eff = 4.2 / 6 = 0.7.
    assert sizes(spec, gpus=6).reason == "alpha 0.75 (eff(6) = 0.70)"
    assert sizes(spec, alpha=0.7, gpus=6).sizes == (1, 2, 4, 6)

    # Superlinear: one GPU is a tenth as fast as two (it thrashes), yet an allowed size.
    known = speeds(throughput=CurveThroughput({"m": {1: 0.2, 2: 2.0}}))
    assert allowed_sizes(job_state(job(model="m", gpus=2, low=1), known), "gpu", known, 0.75).sizes == (1, 2)

    unstated = job("a", gpus=2, low=1, batch={"size": None}, gpu_seconds=80)
    assert sizes(unstated, gpus=8).sizes == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("unprobed", "expected", "demand"),
    [
        pytest.param((2,), (1, 4, 8, 16), 100, id="a smaller one is left out"),
        pytest.param((8,), (1, 2, 4), 100, id="a larger one ends them"),
        pytest.param((4,), (1, 2), 100, id="the requested one: the next below is the base"),
        pytest.param((1, 2, 4), (), 0, id="all below: nothing runs, nothing is demanded"),
    ],
)
def test_infeasible_sizes(unprobed: tuple[int, ...], expected: tuple[int, ...], demand: float) -> None:
    steps = TimedSteps(lambda model, kind, place, n: None if sum(place) in unprobed else n / sum(place))
    known = speeds(throughput=steps)
    state = job_state(job(gpus=4, low=1, work={"samples": 100}), known)
    assert allowed_sizes(state, "gpu", known, 0.75).sizes == expected
    assert demand_gpu_s(state, known) == pytest.approx(demand)


def test_demand_is_at_the_requested_size_and_alike_jobs_share() -> None:
    # 340 samples at 3.4 a second on 4 GPUs: 100 s, 400 GPU-seconds; on one GPU only 340.
    known = speeds()
    for requested, demand in ((4, 400), (1, 340)):
        state = job_state(job(model="m", gpus=requested, work={"samples": 340}), known)
        assert demand_gpu_s(state, known) == pytest.approx(demand)
    # Alike jobs share their sizes.
    known = speeds()
    by_job = SizesByJob(known, 0.75)
    first, second = (by_job.of(job_state(job(i, model="m", gpus=2, low=1), known)) for i in "ab")
    assert first is second
    assert by_job.of(job_state(job("c", model="m", gpus=2, low=2), known)) is not first


HOUR = 3600.0


def equal_sharing(jobs: list[Job], gpus: int) -> dict[str, float]:
    """End of every job when each active one holds an equal part of the GPUs at every instant."""
    now, left, ends = 0.0, {}, {}
    coming = sorted(jobs, key=lambda one: (one.submit_time, one.id))
    while coming or left:
        share = gpus / len(left) if left else 0.0
        done = now + min(left.values()) / share if left else float("inf")
        until = min(done, coming[0].submit_time if coming else float("inf"))
        left = {i: need - (until - now) * share for i, need in left.items()}
        if until == done:
            first = min(left, key=lambda i: (left[i], i))
            ends[first] = until
            del left[first]
        else:
            arrived = coming.pop(0)
            left[arrived.id] = arrived.work.gpu_seconds
        now = until
    return ends


def test_figures_1_and_4_of_the_paper() -> None:
    hours = {"a": 2, "b": 2, "c": 4}
    jobs = [job(i, gpus=1, low=1, high=4, gpu_seconds=4 * h * HOUR) for i, h in hours.items()]
    shared = equal_sharing(jobs, 4)

    played = play(Ares(), cluster(4), jobs)

    assert sum(shared.values()) / 3 == pytest.approx(20 / 3 * HOUR)
    assert played.end_s == {"a": 2 * HOUR, "b": 4 * HOUR, "c": 8 * HOUR}
    assert sum(played.end_s.values()) / 3 == pytest.approx(14 / 3 * HOUR)
    assert all(played.end_s[i] <= shared[i] + 1e-6 for i in hours)
    # Figure 4 the last job spreads over all six GPUs.
    # Jobs 1 and 3 do not pay off beyond 4 GPUs: eff(6) = 4.4 / 6 = 0.73.
    scaling = {1: 1.0, 4: 4.0, 6: 4.4}
    jobs = [
        job("1", at=0, gpus=1, low=1, high=6, gpu_seconds=12, model="flat"),
        job("2", at=0, gpus=1, low=1, high=6, gpu_seconds=30),
        job("3", at=2, gpus=1, low=1, high=6, gpu_seconds=12, model="flat"),
    ]

    played = play(Ares(alpha=0.75), cluster(6), jobs, curves(flat=scaling))

    assert list(played.sizes_at) == [0, 2, 3, 5.5, pytest.approx(5.5 + 21 / 6)]
    found = list(played.sizes_at.values())
    assert found == [{"1": 4, "2": 2}, {"1": 4, "3": 2}, {"2": 2, "3": 4}, {"2": 6}, {}]


@dataclass
class Played:
    session: Session
    end_s: dict[str, float] = field(default_factory=dict)
    sizes_at: dict[float, dict[str, int]] = field(default_factory=dict)
    """GPUs of every running job after the decision at each event."""


def play(policy: Policy, nodes: Cluster, jobs: Iterable[Job], throughput: Throughput | None = None) -> Played:
    held = session(policy, nodes, throughput)
    played, coming, now_s = Played(held), in_order_of_arrival(jobs), 0.0
    while (next_s := advance(held, now_s, coming)) is not None:
        now_s = next_s
        for job_id in held.book.ended:
            played.end_s.setdefault(job_id, now_s)
        held.decide(now_s)
        played.sizes_at[now_s] = builders.sizes(held)
    return played
