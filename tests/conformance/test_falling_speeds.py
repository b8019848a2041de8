"""Jobs whose speed falls past some size, as those of real models do, under every registered policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.predict_start import happen, in_order_of_arrival
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import CheckedSession, cluster, node
from tests.builders import job
from tests.effort import examples

CURVES = {
    "dips": {1: 1.0, 2: 1.8, 3: 1.5, 4: 2.8, 8: 3.6},
    "falls": {1: 1.0, 2: 1.9, 4: 2.6, 8: 1.3, 16: 0.4},
    "alone": {1: 1.0, 2: 0.8, 4: 0.5, 16: 0.1},
    "scales": {1: 1.0, 16: 16.0},
}


@st.composite
def jobs(draw: st.DrawFn, most: int = 8) -> list[Job]:
    found = []
    for number in range(draw(st.integers(1, most))):
        low, requested, high = sorted(draw(st.integers(1, 16)) for _ in range(3))
        found.append(
            job(
                f"j{number}",
                at=float(draw(st.integers(0, 60))),
                gpus=requested,
                model=draw(st.sampled_from(sorted(CURVES))),
                low=draw(st.sampled_from([1, low])),
                high=high,
                work={"gpu_seconds": float(draw(st.integers(10, 600)))},
            )
        )
    return found


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(8), deadline=None)
@given(jobs=jobs())
def test_no_elastic_job_gets_a_size_that_is_slower_than_a_smaller_one_it_may_have(name: str, jobs: list[Job]):
    policy, nodes = make_policy(name), cluster(node(8, 3))
    held = CheckedSession(policy, nodes)
    held.session = Session(policy, nodes, CurveThroughput(CURVES))
    coming = in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    for _ in range(2000):
        held.decide()
        for state in held.jobs.values():
            check(held, state)
        if not held.advance(coming):
            break
    assert not held.jobs


def check(held: CheckedSession, state: Any) -> None:
    own = state.spec.gpus
    if not state.gpus or state.spec.elastic == "none" or state.gpus == own.requested:
        return
    curve = CURVES[state.spec.model]
    speeds = np.interp(range(state.spec.min_gpus, state.gpus + 1), list(curve), list(curve.values()))
    assert speeds[-1] >= speeds.max() * (1 - 1e-9), f"{state.id} gets {state.gpus} GPUs: {speeds}"
