"""Whether two jobs can train on the same GPUs: measured, by memory, or as the cluster says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import GpuSharing, Speeds
from tests.builders import cluster, job
from tests.tools.profile.rows_builder import step

PLACE = (("n0", 2),)
ALONE = [replace(step(2, 8, 0.1, model=model), peak_memory=60) for model in ("x", "y")]


def parts(nodes: Cluster, *rows: Any, **more: Any) -> tuple[float, float] | None:
    """What a job of model x and one of model y keep, both with eight samples on each of two GPUs."""
    throughput = ThroughputBySize(Profile((*ALONE, *rows)))
    speeds = Speeds(throughput, node_states(nodes), GpuSharing(nodes, throughput))
    a, b = (job_state(job(name, gpus=2, batch=16, model=name, **more), speeds) for name in ("x", "y"))
    return speeds.parts(a, b, "gpu", PLACE)


def sized(memory: int | None, **sharing: Any) -> Cluster:
    nodes = cluster(4, 4)
    sizes = (node.model_copy(update={"gpu_memory": memory}) for node in nodes.nodes)
    return nodes.model_copy(update={"nodes": tuple(sizes), "sharing": Sharing(**sharing)})


def test_jobs_share_where_the_memory_of_both_is_known_to_fit() -> None:
    assert parts(sized(120)) == (0.65, 0.65)
    assert parts(sized(119)) is None
    assert parts(sized(119, unmeasured="together")) is None


def test_jobs_of_unknown_memory_share_only_where_the_cluster_says_so() -> None:
    assert parts(sized(None)) is None
    assert parts(sized(None, unmeasured="together", speed=0.9)) == (0.9, 0.9)


def test_a_measured_pair_needs_neither() -> None:
    one = replace(step(2, 8, 0.2, model="x"), kind="pair", beside_model="y", beside_batch=8)
    other = replace(step(2, 8, 0.4, model="y"), kind="pair", beside_model="x", beside_batch=8)
    assert parts(sized(None), one, other) == (0.5, 0.25)


def test_a_job_may_refuse() -> None:
    assert parts(sized(120), shares_gpus=False) is None


@pytest.mark.parametrize("stated", [120, None])
def test_a_type_is_as_large_as_its_smallest_node_and_unknown_where_one_node_is(
    stated: int | None,
) -> None:
    nodes = sized(120)
    last = nodes.nodes[1].model_copy(update={"gpu_memory": 100 if stated else None})
    assert parts(nodes.model_copy(update={"nodes": (nodes.nodes[0], last)})) is None
