"""Levels of the network: a job stays in a domain of the lowest one that holds it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import parse_document
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from pliant.tools.schedule.assumptions import levels_ignored
from pliant.tools.schedule.jobs import JobState, NodeGpus, node_states
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.rates import Speeds
from tests.builders import FREE_CHANGES, cluster, job
from tests.effort import examples
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import Seats, ends, play
from tests.tools.schedule.test_placement import placed, places

ISLANDS = "aabbccdd"
RACKS = "rrrrssss"


def levelled(*, gpus: int = 8, **levels: str) -> Cluster:
    """Nodes n0, n1, …; each level names the domain of each node by one letter, "." for none."""
    count = len(next(iter(levels.values())))
    nodes = [
        {
            "name": f"n{i}",
            "gpus": gpus,
            "labels": {level: names[i] for level, names in levels.items() if names[i] != "."},
        }
        for i in range(count)
    ]
    return Cluster.model_validate({"nodes": tuple(nodes), "levels": tuple(levels)})


def free_with(free: list[int], **levels: str) -> FreeGpus:
    """Nodes of eight GPUs with these numbers free."""
    held = FreeGpus(node_states(levelled(**levels)))
    held.take(tuple((f"n{i}", 8 - count) for i, count in enumerate(free) if count < 8))
    return held


@pytest.mark.parametrize(
    ("free", "gpus", "place"),
    [
        pytest.param([8, 8, 4, 8, 4, 4, 8, 8], 4, {"n4": 4}, id="one node: the fullest"),
        pytest.param([8, 0, 4, 4, 8, 0, 8, 8], 16, {"n6": 8, "n7": 8}, id="an island that holds it"),
        pytest.param([8, 2, 6, 6, 8, 0, 4, 4], 10, {"n0": 8, "n1": 2}, id="equal: least free"),
        pytest.param([8, 0, 4, 4, 8, 0, 8, 0], 12, {"n0": 8, "n2": 4}, id="both racks hold it"),
        pytest.param([4, 4, 4, 4, 8, 0, 0, 0], 10, {"n0": 4, "n1": 4, "n2": 2}, id="a rack first"),
        pytest.param([8, 0, 8, 0, 8, 0, 4, 0], 20, {"n0": 8, "n2": 8, "n6": 4}, id="the fewest nodes"),
    ],
)
def test_a_job_goes_to_the_lowest_level_that_holds_it(free: list[int], gpus: int, place: NodeGpus) -> None:
    assert free_with(free, island=ISLANDS, rack=RACKS).choose(gpus, ["gpu"]) == places(place)


def test_domains_are_few_and_a_copy_has_its_own() -> None:
    # The four nodes with most free are in four racks, and two racks hold the job.
    free = free_with([7, 6, 7, 0, 7, 0, 6, 7], rack="aabbccdd")
    assert free.choose(26, ["gpu"]) == (("n0", 7), ("n1", 6), ("n6", 6), ("n7", 7))
    free = free_with([8, 4, 4, 8], rack="a.bb")
    assert free.choose(12, ["gpu"]) == (("n2", 4), ("n3", 8))
    assert free.choose(8, ["gpu"]) == (("n0", 8),)
    # A copy of what is free has levels of its own.
    free = free_with([8, 0, 8, 8], rack="aabb")
    later = free.after([(("n1", 8),)])
    later.take((("n2", 8),))
    assert later.choose(16, ["gpu"]) == (("n0", 8), ("n1", 8))
    assert free.choose(16, ["gpu"]) == (("n2", 8), ("n3", 8))


@pytest.mark.parametrize(
    ("free", "gpus", "held", "place"),
    [
        pytest.param([8, 8, 8, 8], 12, {"n1": 8}, {"n0": 4, "n1": 8}, id="grow: in its own rack"),
        pytest.param([0, 4, 8, 8], 12, {"n1": 4}, {"n2": 8, "n3": 4}, id="grow: a rack beats its place"),
        pytest.param([8, 0, 8, 8], 10, {"n0": 8, "n2": 4}, {"n2": 8, "n3": 2}, id="shrink: one rack"),
        pytest.param([8, 8, 8, 8], 16, {"n0": 8, "n2": 8}, {"n0": 8, "n1": 8}, id="same size: one rack"),
        pytest.param([8, 8, 8, 8], 20, {"n0": 8, "n3": 8}, {"n0": 8, "n1": 4, "n3": 8}, id="grow: on both"),
    ],
)
def test_a_resized_job_keeps_what_it_holds_in_the_best_domain(free, gpus, held, place):
    assert free_with(free, rack="aabb").choose(gpus, ["gpu"], keep=places(held)) == places(place)


WISHES = st.lists(
    st.tuples(st.integers(1, 24), st.integers(0, 5), st.sampled_from([1, 1, 2])), min_size=1, max_size=25
)


@settings(max_examples=examples(150), deadline=None)
@given(WISHES, st.booleans())
def test_job_that_one_domain_could_hold_is_never_spread_over_two(wishes, has_islands):
    levels = {"island": ISLANDS, "rack": RACKS} if has_islands else {"rack": RACKS}
    for gpus, usable, place in placed(FreeGpus(node_states(levelled(gpus=4, **levels))), wishes):
        for domain_of in levels.values():
            holds = Counter[str]()
            for letter, count in zip(domain_of, usable, strict=True):
                holds[letter] += count
            if max(holds.values()) >= gpus:
                assert len({domain_of[int(name[1:])] for name, _ in place}) == 1


# What a file may say.


def document(**more: Any) -> dict[str, Any]:
    nodes = [
        {"name": "n0", "gpus": 8, "labels": {"island": "a", "rack": "r"}},
        {"name": "n1", "gpus": 8, "labels": {"island": "a", "rack": "s"}},
    ]
    return {"schema": "pliant.cluster/1", "nodes": nodes, **more}


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        (["rak"], "/levels/0: no node has the label 'rak'"),
        (["rack", "rack"], "/levels/1: names level 'rack' twice"),
        (["island", "rack"], "/nodes/1/labels: nodes of island 'a' differ in rack"),
    ],
)
def test_levels_that_cannot_be_are_refused_in_a_line(levels: list[str], problem: str) -> None:
    with pytest.raises(BadInputError) as refused:
        parse_document(json.dumps(document(levels=levels)).encode(), "cluster.json", "cluster", Cluster)
    assert problem in str(refused.value)


def test_a_cluster_with_levels_is_of_their_version() -> None:
    racks = levelled(rack="aabb")
    assert (racks.minor, racks.model_copy(update={"levels": ()}).minor) == (3, 0)


# How fast a job is across a level.

ACROSS = (
    step(1, 8, 1.0),
    step(8, 8, 1.0),
    step("8,8", 8, 1.25),
    replace(step("8,8", 8, 2.0), across="rack"),
    step("8,8,8,8", 8, 1.6),
)


def of_net() -> JobState:
    return JobState(job(model="net", batch=128), 128, None)


def speeds(*rows: Any, **levels: str) -> Speeds:
    return Speeds(ThroughputBySize(Profile(rows)), node_states(levelled(**levels)))


def test_how_fast_a_job_is_across_a_level() -> None:
    asked, spec = speeds(*ACROSS, rack="aabb"), of_net()
    assert asked.rate_at(spec, (("n0", 8), ("n1", 8)), 128) == pytest.approx(128 / 1.25)
    assert asked.rate_at(spec, (("n1", 8), ("n2", 8)), 128) == pytest.approx(128 / 2.0)
    assert asked.rate(spec, 16) == pytest.approx(128 / 1.25), "a rack holds it"
    assert asked.rate(spec, 32, global_batch=256) == pytest.approx(256 / 1.6), "more than was measured across"
    asked = speeds(*ACROSS, rack="ab")
    assert asked.rate(spec, 16) == pytest.approx(128 / 2.0)
    assert asked.rate(spec, 8, global_batch=64) == pytest.approx(64 / 1.0)
    # Where a level was not measured the next lower one answers.
    islands = replace(step("8,8", 8, 1.5), across="island")
    rows = [row for row in ACROSS if row.across is None]
    asked = speeds(*rows, islands, island="aabb", rack="aaaa")
    spec = of_net()
    assert asked.rate_at(spec, (("n0", 8), ("n2", 8)), 128) == pytest.approx(128 / 1.5)
    asked = speeds(*rows, islands, island="abcd", rack="aabb")
    assert asked.rate_at(spec, (("n0", 8), ("n2", 8)), 128) == pytest.approx(128 / 1.5)
    asked = speeds(*rows, rack="aabb")
    assert asked.rate_at(spec, (("n0", 8), ("n2", 8)), 128) == pytest.approx(128 / 1.25), "as within a rack"
    # Measured on several nodes across racks alone.
    rows = [row for row in ACROSS if row.nodes == 1 or row.across]
    asked = speeds(*rows, rack="aabb")
    assert asked.rate_at(spec, (("n0", 8), ("n1", 8)), 128) == pytest.approx(128 / 2.0)
    # The model by placement knows levels too.
    within = ThroughputByPlacement(Profile(ACROSS))
    assert within.step_seconds("net", "gpu", (8, 8), 128, None) == pytest.approx(1.25)
    assert within.across(("rack",)).step_seconds("net", "gpu", (8, 8), 128, None) == pytest.approx(2.0)
    assert within.across(("pod",)) is within


# A replay of two racks of two nodes.


def test_a_place_across_racks_is_slower_and_avoided() -> None:
    throughput = ThroughputBySize(Profile(ACROSS))
    racks = levelled(rack="abab")
    work = {"epochs": 100, "dataset_size": 128}
    big = job("big", gpus=16, model="net", batch=128, work=work)
    seated = {0: {"big": (("n0", 8), ("n1", 8))}}
    engine = play(Seats(seated), [big], racks, throughput=throughput, simulated=FREE_CHANGES)
    assert ends(engine)["big"] == pytest.approx(200.0), "two seconds a step"
    engine = play(Fifo(), [big], racks, throughput=throughput, simulated=FREE_CHANGES)
    assert ends(engine)["big"] == pytest.approx(125.0), "on n0 and n2"


@pytest.mark.parametrize(
    ("policy", "parameters", "ignores"),
    [
        ("fifo", {}, False),
        ("tiresias", {}, False),
        ("tiresias", {"placement": "emptiest"}, True),
        ("optimus", {"placement": "emptiest"}, True),
        ("shadow-price", {}, True),
        ("sia", {}, True),
    ],
)
def test_for_policies_that_choose_nodes_levels_do_not_count(policy, parameters, ignores):
    found = levels_ignored(levelled(rack=RACKS), policy, parameters)
    assert [each.text.partition(" and ")[0] for each in found] == (
        [f'policy "{policy}" chooses nodes itself'] if ignores else []
    )
    assert levels_ignored(cluster(8), policy, parameters) == []
