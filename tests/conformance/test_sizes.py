"""Whole replicas, listed sizes and speeds that fall past some size, under every registered policy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.predict_start import happen, in_order_of_arrival
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing.harness import CheckedSession, cluster, node
from tests.effort import examples

CLUSTERS = (
    cluster(node(8, 2)),
    cluster(node(4, 2), node(3)),
    cluster(node(8), node(2, 2)),
    cluster(node(8, 1, "a"), node(6, 2, "b")),
)
CURVES = {
    "dips": {1: 1.0, 2: 1.8, 3: 1.5, 4: 2.8, 8: 3.6},
    "falls": {1: 1.0, 2: 1.9, 4: 2.6, 8: 1.3, 16: 0.4},
    "alone": {1: 1.0, 2: 0.8, 4: 0.5, 16: 0.1},
    "scales": {1: 1.0, 16: 16.0},
}


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs with replicas of several GPUs, jobs with listed sizes, and jobs with any size."""
    return [draw(_job(f"j{number}")) for number in range(draw(st.integers(1, 7)))]


@st.composite
def _job(draw: st.DrawFn, name: str) -> Job:
    each = draw(st.integers(1, 4))
    listed = draw(st.sampled_from(["any", "powers-of-two", "some"]))
    sizes = {
        "any": [1, 2, 3, 4],
        "powers-of-two": [1, 2, 4],
        "some": sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=4))),
    }[listed]
    low, requested, high = sorted(draw(st.tuples(*[st.sampled_from(sizes)] * 3)))
    elastic = draw(st.sampled_from(["none", "size", "size", "size+batch"]))
    gpus: dict[str, Any] = {"requested": requested * each, "per_replica": each}
    if listed != "any":
        gpus["sizes"] = listed if listed == "powers-of-two" else tuple(each * size for size in sizes)
    if elastic != "none":
        gpus |= {"min": low * each, "max": high * each}
    record = {
        "id": name,
        "submit_time": float(draw(st.integers(0, 60))),
        "model": draw(st.sampled_from(sorted(CURVES))),
        "gpus": gpus,
        "batch": {"size": 64} | ({"min": 16, "max": 256} if elastic == "size+batch" else {}),
        "work": {"gpu_seconds": float(draw(st.integers(10, 500)))},
        "elastic": elastic,
    }
    return Job.model_validate(record)


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(35), deadline=None)
@given(jobs=jobs(), nodes=st.sampled_from(CLUSTERS))
def test_policies_name_sizes_that_jobs_may_have(name: str, jobs: list[Job], nodes: Any):
    """The session has nothing to cut, no size is slower than a smaller one, and every job that fits ends."""
    policy = make_policy(name)
    held = CheckedSession(policy, nodes)
    held.session = Session(policy, nodes, CurveThroughput(CURVES, {"b": 2.0}))
    decide = policy.decide

    def checked(snapshot: Snapshot, rng: Any) -> Decision:
        decision = decide(snapshot, rng)
        for job_id, target in decision.targets.items():
            own, each = snapshot.jobs[job_id].spec.gpus, snapshot.jobs[job_id].per_replica
            assert not target.gpus or own.allows(target.gpus), f"{job_id} is to get {target.gpus}: {own}"
            assert not snapshot.free.splits(target.placement or (), each), (job_id, target, each)
        return decision

    policy.decide = checked  # type: ignore[method-assign]
    room = held.session.cluster.capacities
    fit = {each.id for each in jobs if max(room.room(each).values()) >= smallest(policy, each)}
    for _ in moments(held, jobs):
        for state in held.jobs.values():
            check_speed(state)
    served = {each.id for each in held.session.book.ended.values() if each.attained_service_s(held.time_s)}
    assert fit <= served, f"these never run to their end: {sorted(fit - served)}"


def smallest(policy: Any, job: Job) -> int:
    return job.gpus.requested if policy.traits.elasticity == "none" else job.min_gpus


def check_speed(state: JobState) -> None:
    own = state.spec.gpus
    if not state.gpus or state.spec.elastic == "none" or state.gpus == own.requested:
        return
    curve = CURVES[state.spec.model]
    sizes = [size for size in range(state.spec.min_gpus, state.gpus + 1) if own.allows(size)]
    speeds = np.interp(sizes, list(curve), list(curve.values()))
    assert speeds[-1] >= speeds.max() * (1 - 1e-9), f"{state.id} gets {state.gpus} GPUs: {speeds}"


def moments(held: CheckedSession, jobs: list[Job]) -> Iterator[float]:
    coming = in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    for _ in range(5000):
        held.decide()
        yield held.time_s
        if not held.advance(coming):
            return
