"""The promise of shadow-price on a few random instances, and the program written from its page by hand."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from benchmarks.parts import promise
from benchmarks.parts.equal_deals import came_in, latest_ends
from pliant.schemas.cluster import Cluster
from pliant.schemas.runinfo import EqualDeals
from pliant.tools.schedule.policies.shadow_price.bound import Bound, Guard
from tests.builders import cluster, job

TERMS = EqualDeals(grace=0.0, grace_s=0.0, deal_s=100.0, lost_s=20.0)
LINEAR = {"linear": {size: float(size) for size in range(1, 9)}}
TIGHT = 8
"""An instance in which jobs would be late."""


@pytest.mark.parametrize("number", [3, 6, TIGHT, 9])
def test_policy_report_and_page_agree_on_the_latest_ends(number: int) -> None:
    result = promise.verdict(promise.instance(number))
    assert (result.late, result.alarms, result.differing) == ((), (), ())
    assert 0 < result.used <= 1


def test_without_the_guard_late_jobs_are_counted() -> None:
    with patch.object(Bound, "guard", lambda self, members, known, time_s: Guard.none(members)):
        result = promise.verdict(promise.instance(TIGHT))
    assert result.late
    assert result.alarms == ()
    assert result.used > 1


def test_cpus_of_a_node_are_dealt_out_with_its_gpus() -> None:
    """Two workers of two CPUs fit a node, so of its four GPUs the plain job has the other two.

    Of 160 samples each, the bound job does two a second for 80 s, and so does the other.
    """
    nodes = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 4, "cpus": 4},)})
    bound = job("bound", low=1, high=4, work={"samples": 160}, resources={"worker": {"cpu": 2}})
    plain = job("plain", low=1, high=4, work={"samples": 320})
    result = latest_ends([bound, plain], nodes, LINEAR, TERMS, {"bound": 0.0, "plain": 0.0})
    assert result == {"bound": 100.0, "plain": 200.0}


def test_replicas_are_dealt_out_whole() -> None:
    """Nodes of three GPUs hold one replica of two each; the third GPUs are the plain job's."""
    pair = job("pair", gpus=2, low=2, high=6, each=2, work={"samples": 160})
    plain = job("plain", low=1, high=4, work={"samples": 160})
    result = latest_ends([pair, plain], cluster(3, 3), LINEAR, TERMS, {"pair": 0.0, "plain": 0.0})
    assert result == {"pair": 100.0, "plain": 100.0}


def test_jobs_begin_when_their_users_limit_has_room() -> None:
    limits = {"ann": {"jobs": 1}}
    nodes = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 4},), "user_limits": limits})
    jobs = [job("a", at=0.0, user="ann"), job("b", at=1.0, user="ann"), job("c", at=1.0, user="bob")]
    assert came_in(jobs, nodes, {"a": 50.0}) == {"a": 0.0, "b": 50.0, "c": 1.0}
