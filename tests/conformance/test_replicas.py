"""Jobs whose replicas have several GPUs, under every registered policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.schedule.predict_start import happen, in_order_of_arrival
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing.harness import CheckedSession, cluster, node
from tests.effort import examples

CLUSTERS = (
    cluster(node(4, 2), node(3)),
    cluster(node(8), node(2, 2)),
    cluster(node(4, 2, "a"), node(6, 1, "b")),
)


@st.composite
def jobs(draw: st.DrawFn, most: int = 7) -> list[Job]:
    found = []
    for number in range(draw(st.integers(1, most))):
        each = draw(st.integers(1, 4))
        low, extra = draw(st.integers(1, 2)), draw(st.integers(0, 2))
        requested = low + draw(st.integers(0, extra))
        elastic = draw(st.sampled_from(["none", "size", "size", "size+batch"]))
        limits = {} if elastic == "none" else {"min": low * each, "max": (low + extra) * each}
        moves = {"min": 16, "max": 256} if elastic == "size+batch" else {}
        record: dict[str, Any] = {
            "id": f"j{number}",
            "submit_time": float(draw(st.integers(0, 40))),
            "model": draw(st.sampled_from(["linear", "saturating", "flat"])),
            "gpus": {"requested": requested * each, "per_replica": each, **limits},
            "batch": {"size": 64, **moves},
            "work": {"gpu_seconds": float(draw(st.integers(10, 400)))},
            "elastic": elastic,
        }
        found.append(Job.model_validate(record))
    return found


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(12), deadline=None)
@given(jobs=jobs(), nodes=st.sampled_from(CLUSTERS))
def test_sizes_are_whole_replicas_and_every_job_that_fits_the_empty_cluster_ends(
    name: str, jobs: list[Job], nodes: Any
):
    """The policy itself names whole replicas: the session has nothing to cut."""
    policy = make_policy(name)
    held = CheckedSession(policy, nodes)
    decide = policy.decide

    def checked(snapshot: Snapshot, rng: Any) -> Any:
        decision = decide(snapshot, rng)
        for job_id, target in decision.targets.items():
            each = snapshot.jobs[job_id].per_replica
            assert target.gpus % each == 0, f"{job_id} is to get {target.gpus}, its replicas have {each}"
            assert not snapshot.free.splits(target.placement or (), each), (job_id, target, each)
        return decision

    policy.decide = checked  # type: ignore[method-assign]
    room = held.session.capacities
    fit = {each.id for each in jobs if max(room.room(each).values()) >= smallest(policy, each)}
    coming = in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    for _ in range(5000):
        held.decide()
        if not held.advance(coming):
            break
    served = {each.id for each in held.session.ended.values() if each.attained_service_s(held.time_s)}
    assert fit <= served, f"these never run to their end: {sorted(fit - served)}"


def smallest(policy: Any, job: Job) -> int:
    return job.gpus.requested if policy.elasticity == "none" else job.min_gpus


def scaled(each: int, count: int = 14) -> list[Job]:
    """A fixed mix of jobs whose replicas have that many GPUs."""
    found = []
    for number in range(count):
        least, requested, most = 1 + number % 2, 2, 3 + number % 4
        limits = {"min": least * each, "max": most * each} if number % 5 else {}
        record = {
            "id": f"j{number:02}",
            "submit_time": 15.0 * number,
            "model": ("linear", "flat")[number % 4 == 3],
            "gpus": {"requested": requested * each, "per_replica": each, **limits},
            "batch": {"size": 64},
            "work": {"gpu_seconds": each * (40.0 + 37.0 * (number % 6))},
            "elastic": "size" if limits else "none",
            "utility": {"shape": "sigmoid", "value": 10.0 + number, "decay": 0.01, "target": 200.0},
        }
        found.append(Job.model_validate(record))
    return found


def sizes_over_time(name: str, each: int) -> list[Any]:
    held = CheckedSession(make_policy(name), cluster(node(4 * each, 2), node(2 * each)))
    coming, found = in_order_of_arrival(scaled(each)), []
    happen(held.session, held.time_s, coming)
    for _ in range(5000):
        held.decide()
        found.append((round(held.time_s, 3), {job.id: job.gpus // each for job in held.jobs.values()}))
        if not held.advance(coming):
            break
    return found


@pytest.mark.parametrize("name", sorted({*policy_names()} - {"drl", "sia"}))
def test_replicas_of_two_gpus_get_twice_what_single_gpus_get_of_half_the_cluster(name: str):
    """All but drl, whose network has learned from numbers of GPUs, and sia, whose goodputs count by them."""
    assert sizes_over_time(name, 2) == sizes_over_time(name, 1)
