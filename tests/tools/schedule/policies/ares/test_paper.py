"""The paper's two examples, and its guarantee against equal sharing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.ares.policy import Ares
from tests.builders import cluster, curves, job
from tests.effort import examples
from tests.tools.schedule.loop import play

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


def test_figure_1_the_mean_falls_by_two_hours() -> None:
    hours = {"a": 2, "b": 2, "c": 4}
    jobs = [job(i, gpus=1, low=1, high=4, gpu_seconds=4 * h * HOUR) for i, h in hours.items()]
    shared = equal_sharing(jobs, 4)

    played = play(Ares(), cluster(4), jobs)

    assert sum(shared.values()) / 3 == pytest.approx(20 / 3 * HOUR)
    assert played.end_s == {"a": 2 * HOUR, "b": 4 * HOUR, "c": 8 * HOUR}
    assert sum(played.end_s.values()) / 3 == pytest.approx(14 / 3 * HOUR)
    assert all(played.end_s[i] <= shared[i] + 1e-6 for i in hours)


def test_figure_4_the_last_job_spreads_over_all_six_gpus() -> None:
    # Jobs 1 and 3 do not pay off beyond 4 GPUs: eff(6) = 4.4 / 6 = 0.73.
    scaling = {1: 1.0, 4: 4.0, 6: 4.4}
    jobs = [
        job("1", at=0, gpus=1, low=1, high=6, gpu_seconds=12, model="flat"),
        job("2", at=0, gpus=1, low=1, high=6, gpu_seconds=30),
        job("3", at=2, gpus=1, low=1, high=6, gpu_seconds=12, model="flat"),
    ]

    played = play(Ares(alpha=0.75), cluster(6), jobs, curves(flat=scaling))

    assert list(played.sizes_at) == [0, 2, 3, 5.5, pytest.approx(5.5 + 21 / 6)]
    assert list(played.sizes_at.values()) == [
        {"1": 4, "2": 2},
        {"1": 4, "3": 2},
        {"2": 2, "3": 4},
        {"2": 6},
        {},
    ]


SOME_JOBS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from([1, 2, 4, 8])),
    min_size=1,
    max_size=12,
)
"""(submit time, GPU-seconds at the requested size, requested GPUs)."""


class Watched(Ares):
    """Ares that keeps the virtual finish time of every job."""

    finish: dict[str, float]

    def decide(self, snapshot, rng):  # type: ignore[no-untyped-def]
        decision = super().decide(snapshot, rng)
        self.finish = {**getattr(self, "finish", {}), **self.dump_state()["jobs"]}
        return decision


@settings(max_examples=examples(40))
@given(SOME_JOBS, st.sampled_from([8, 12]))
def test_with_linear_scaling_no_job_ends_after_equal_sharing(drawn, gpus):
    """Which completes jobs in the order of their virtual finish times."""
    jobs = [
        job(f"j{i:02}", at=at, gpus=requested, low=1, high=gpus, gpu_seconds=work)
        for i, (at, work, requested) in enumerate(drawn)
    ]
    shared = equal_sharing(jobs, gpus)
    policy = Watched()

    ended = play(policy, cluster(gpus), jobs).end_s

    assert all(ended[i] <= shared[i] + 1e-6 for i in shared)
    in_order = sorted(policy.finish, key=lambda i: (policy.finish[i], i))
    assert sorted(in_order) == sorted(shared)
    assert all(shared[a] <= shared[b] + 1e-9 for a, b in pairwise(in_order))


@settings(max_examples=examples(30))
@given(SOME_JOBS, st.floats(0.5, 0.95), st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_with_concave_scaling_no_delay_exceeds_the_bound(drawn, alpha, bends):
    # T(k) = k / (1 + s (k - 1)): concave; s such that eff(8) relative to one GPU lies between alpha and 1.
    slopes = [bend * (1 / alpha - 1) / 7 * (1 - 1e-9) for bend in bends]
    speeds = {f"m{i}": {k: k / (1 + slope * (k - 1)) for k in range(1, 9)} for i, slope in enumerate(slopes)}
    jobs = [
        job(f"j{i:02}", at=at, gpus=requested, low=1, high=8, gpu_seconds=work, model=f"m{i}")
        for i, (at, work, requested) in enumerate(drawn)
    ]
    shared = equal_sharing(jobs, 8)

    played = play(Ares(alpha=alpha), cluster(8), jobs, CurveThroughput(speeds))

    bound = (1 / alpha - 1) * played.longest_busy_s
    assert all(played.end_s[i] - shared[i] <= bound + 1e-6 for i in shared)
