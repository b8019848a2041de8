"""Jobs that change their batch by themselves, under every registered policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Placement
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, job
from tests.effort import examples


def step_seconds(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
    """Half of a step is the same for all batches, so large ones are faster by the sample."""
    del model, gpu_type
    return (32 + batch) / 64 / sum(placement) ** 0.8


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    result = []
    for number in range(draw(st.integers(1, 6))):
        parts = sorted(draw(st.sets(st.sampled_from([0.1, 0.25, 0.5, 0.8]), max_size=3)))
        sizes = st.sampled_from([4, 16, 256])
        regimes = tuple({"after": part, "size": draw(sizes)} for part in parts)
        elastic = draw(st.booleans())
        limits: dict[str, Any] = {"low": 1, "high": draw(st.integers(2, 8))} if elastic else {}
        result.append(
            job(
                f"j{number}",
                at=float(draw(st.integers(0, 300))),
                gpus=draw(st.integers(1, 2)),
                batch={"size": 64, "regimes": regimes},
                work={"samples": float(draw(st.integers(500, 20_000)))},
                **limits,
            )
        )
    return result


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(8), deadline=None)
@given(jobs=jobs(), fails=st.booleans())
def test_every_job_ends_with_the_batch_of_its_last_regime(name: str, jobs: list[Job], fails: bool):
    policy = make_policy(name)
    session = Session(policy, cluster(4, 4), TimedSteps(step_seconds), trace=jobs)
    failures = (NodeEvent(200.0, "n0", False), NodeEvent(260.0, "n0", True)) if fails else ()
    engine = Engine(
        session, jobs, SimulatedCluster(node_events=failures), interval_s=policy.default_interval_s
    )
    engine.run()
    assert not session.jobs
    for state in session.ended.values():
        if state.id in session.fell or not state.batch_changes:
            continue
        own = state.spec.batch.regimes
        work = state.work_samples or 0.0
        assert state.global_batch == own[-1].size
        borders = {work * regime.after for regime in own}
        assert {change.samples_done for change in state.batch_changes} <= borders
