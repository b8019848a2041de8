"""Jobs that may have certain sizes only, under every registered policy."""

from __future__ import annotations

import json
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
    cluster(node(8, 2)),
    cluster(node(4, 2), node(3)),
    cluster(node(8, 1, "a"), node(6, 2, "b")),
)


@st.composite
def jobs(draw: st.DrawFn, most: int = 7) -> list[Job]:
    found = []
    for number in range(draw(st.integers(1, most))):
        each = draw(st.sampled_from([1, 1, 2]))
        listed = sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=4)))
        powers = draw(st.booleans())
        sizes = [1, 2, 4] if powers else listed
        own: Any = "powers-of-two" if powers else [each * size for size in listed]
        low, high = sorted((draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))))
        requested = draw(st.sampled_from([size for size in sizes if low <= size <= high]))
        elastic = draw(st.sampled_from(["none", "size", "size", "size+batch"]))
        limits = {} if elastic == "none" else {"min": low * each, "max": high * each}
        moves = {"min": 16, "max": 256} if elastic == "size+batch" else {}
        record: dict[str, Any] = {
            "id": f"j{number}",
            "submit_time": float(draw(st.integers(0, 40))),
            "model": draw(st.sampled_from(["linear", "saturating", "flat"])),
            "gpus": {"requested": requested * each, "per_replica": each, "sizes": own, **limits},
            "batch": {"size": 64, **moves},
            "work": {"gpu_seconds": float(draw(st.integers(10, 400)))},
            "elastic": elastic,
        }
        found.append(Job.model_validate_json(json.dumps(record)))
    return found


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(12), deadline=None)
@given(jobs=jobs(), nodes=st.sampled_from(CLUSTERS))
def test_jobs_get_sizes_that_they_may_have_and_every_job_that_fits_the_empty_cluster_ends(
    name: str, jobs: list[Job], nodes: Any
):
    """The policy itself names such sizes: the session has nothing to cut."""
    policy = make_policy(name)
    held = CheckedSession(policy, nodes)
    decide = policy.decide

    def checked(snapshot: Snapshot, rng: Any) -> Any:
        decision = decide(snapshot, rng)
        for job_id, target in decision.targets.items():
            own = snapshot.jobs[job_id].spec.gpus
            assert not target.gpus or own.allows(target.gpus), f"{job_id} is to get {target.gpus}: {own}"
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
