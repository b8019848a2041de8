"""Covers under the physics of the Pollux simulator: what no replay may undercut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.parts import pollux_workloads
from experiments.bounds.flow import flow_bound
from experiments.bounds.pollux import PolluxCovers
from pliant.schemas.cluster import Cluster
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster

POLICIES = ("shadow-price", "pollux", "srtf", "ares-goodput")


@pytest.fixture
def few(reference_data: Path, monkeypatch: pytest.MonkeyPatch):
    """Some small jobs on two nodes: covers of larger ones take seconds to make."""
    monkeypatch.setattr(pollux_workloads, "DATA", reference_data)
    trace = pollux_workloads.inputs("w6", 8)
    nodes = ({"name": "n{}", "gpus": 4, "count": 2, "gpu_type": "t4"},)
    jobs = tuple(job for job in trace.jobs if job.model in {"ncf", "bert"})
    return replace(trace, jobs=jobs, cluster=Cluster.model_validate({"nodes": nodes}))


@pytest.mark.services
def test_no_policy_is_better_than_the_bound(few) -> None:
    """With a rescale cost and without."""
    free = SimulatedCluster(start_cost=Cost(0.0), rescale_cost=Cost(0.0))
    for simulated, start_s in ((None, 30.0), (free, 0.0)):
        bound_s = flow_bound(PolluxCovers(few, start_s).jobs(), 8, cells=40, rounds=20)
        for policy in POLICIES:
            result = pollux_workloads.outcome(few, policy, None, simulated)
            assert bound_s <= result.metrics["mean_jct_s"]


@pytest.mark.services
def test_a_free_batch_is_no_slower_and_a_start_takes_time(few) -> None:
    job = next(job for job in few.jobs if job.model == "bert")
    free, fixed = (PolluxCovers(few, 30.0, free_batch=free).rates(job) for free in (True, False))
    assert (free >= fixed - 1e-12).all()
    assert (free > fixed + 1e-12).any()
    started, not_started = (PolluxCovers(few, start_s).jobs()[0].covers for start_s in (30.0, 0.0))
    alone = [max(cover.work / cover.rates.max() for cover in covers) for covers in (started, not_started)]
    assert np.diff(alone) == pytest.approx(-30.0)
