import json
import pickle
import random
from collections import Counter
from collections.abc import Iterable, Iterator
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
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, Place, gpus_of, node_states
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.rates import Speeds, shape_of
from tests.builders import FREE_CHANGES, cluster, job
from tests.effort import examples
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import Seats, ends, play


def nodes(*gpus: int, switches: str = "", kind: str = "gpu") -> list[NodeState]:
    """Nodes n0, n1, …; ``switches`` names the switch of each by one letter."""
    names = switches or " " * len(gpus)
    return [NodeState(i, f"n{i}", g, kind, names[i].strip() or None) for i, g in enumerate(gpus)]


def free_with(free: list[int], switches: str = "", size: int = 8) -> FreeGpus:
    """Nodes of ``size`` GPUs of which so many are free."""
    held = FreeGpus(nodes(*[size] * len(free), switches=switches))
    held.take(tuple((f"n{i}", size - count) for i, count in enumerate(free) if count < size))
    return held


def places(place: dict[str, int] | None) -> NodeGpus | None:
    return None if place is None else tuple(place.items())


@pytest.mark.parametrize(
    ("free", "gpus", "place"),
    [
        pytest.param([8, 2, 4], 2, {"n1": 2}, id="one node: the fullest with room"),
        pytest.param([8, 2, 4], 3, {"n2": 3}, id="one node: a little left over"),
        pytest.param([4, 4, 4], 4, {"n0": 4}, id="ties: the first node"),
        pytest.param([3, 8, 8, 4], 12, {"n1": 8, "n3": 4}, id="a whole node, then where the rest fits best"),
        pytest.param([3, 8, 8, 4], 16, {"n1": 8, "n2": 8}, id="whole nodes only"),
        pytest.param([8, 8, 8], 12, {"n0": 8, "n1": 4}, id="rest on another whole node"),
        pytest.param([3, 5, 6, 2], 10, {"n1": 4, "n2": 6}, id="no whole node: the fewest nodes"),
        pytest.param([3, 3, 3, 2], 8, {"n0": 3, "n1": 3, "n3": 2}, id="rest on the fullest node with room"),
        pytest.param([1, 1, 1], 3, {"n0": 1, "n1": 1, "n2": 1}, id="all there is"),
    ],
)
def test_a_new_job_is_placed(free: list[int], gpus: int, place: dict[str, int]):
    assert free_with(free).choose(gpus, ["gpu"]) == places(place)


@pytest.mark.parametrize(
    ("free", "gpus", "place"),
    [
        pytest.param([3, 8], 2, {"n0": 2}, id="one replica, best fit"),
        pytest.param([3, 3, 8], 4, {"n2": 4}, id="two of them on one node"),
        pytest.param([3, 3, 2], 6, {"n0": 2, "n1": 2, "n2": 2}, id="none across two nodes"),
        pytest.param([3, 1, 1, 1], 4, None, id="six are free, and one replica fits"),
    ],
)
def test_a_replica_of_two_gpus_stays_on_one_node(free, gpus, place):
    assert free_with(free).choose(gpus, ["gpu"], per_replica=2) == places(place)


def test_a_replica_that_fits_no_node_is_on_as_few_as_can_be() -> None:
    assert free_with([1, 2, 2], size=2).choose(4, ["gpu"], per_replica=4) == (("n1", 2), ("n2", 2))


@pytest.mark.parametrize(
    ("free", "gpus", "held", "place"),
    [
        pytest.param([8, 4, 8], 4, {"n0": 2}, {"n0": 4}, id="grow on its own node, not on a fuller one"),
        pytest.param([3, 8], 4, {"n0": 2}, {"n1": 4}, id="grow: one node beats staying on two"),
        pytest.param([2, 8, 8], 10, {"n0": 2}, {"n0": 2, "n1": 8}, id="grow: add a whole node"),
        pytest.param([4, 4, 8], 2, {"n0": 4, "n1": 2}, {"n1": 2}, id="shrink: free the larger part"),
        pytest.param([4, 4, 8], 6, {"n0": 4, "n1": 4}, {"n2": 6}, id="shrink: one node beats two"),
        pytest.param([4, 4, 4], 6, {"n1": 4, "n2": 4}, {"n1": 4, "n2": 2}, id="shrink: stay on both"),
        pytest.param([4, 1, 0], 3, {"n0": 4, "n1": 1}, {"n0": 3}, id="shrink: stay on the main node"),
        pytest.param([8, 4], 4, {"n0": 4}, {"n0": 4}, id="same size: stay"),
        pytest.param([0, 4], 2, {"n0": 2}, {"n1": 2}, id="its place was given away meanwhile"),
        pytest.param([1, 0, 8, 1], 2, {"n0": 1, "n1": 1}, {"n2": 2}, id="half its place was given away"),
    ],
)
def test_a_resized_job_stays_where_that_is_no_less_consolidated(free, gpus, held, place):
    assert free_with(free).choose(gpus, ["gpu"], keep=places(held)) == places(place)


@pytest.mark.parametrize(
    ("free", "switches", "gpus", "held", "place"),
    [
        pytest.param([8] * 7, "aababbb", 16, {}, {"n0": 8, "n1": 8}, id="the switch with the fewest free"),
        pytest.param([8, 4, 4, 8], "abbb", 16, {}, {"n0": 8, "n3": 8}, id="fewer nodes before one switch"),
        pytest.param([2, 8, 8, 8], "abbb", 10, {"n0": 2}, {"n1": 8, "n2": 2}, id="grow: one switch less"),
        pytest.param([2, 8, 8, 8], "aabb", 10, {"n0": 2}, {"n0": 2, "n1": 8}, id="grow: stay near"),
    ],
)
def test_a_job_over_several_nodes_stays_under_one_switch(free, switches, gpus, held, place):
    assert free_with(free, switches=switches).choose(gpus, ["gpu"], keep=places(held)) == places(place)


def test_types_are_not_mixed_and_a_lost_node_offers_nothing() -> None:
    held = FreeGpus([*nodes(4, kind="slow"), NodeState(1, "n1", 4, "fast", None)])
    assert held.choose(4, ["fast", "slow"]) == (("n1", 4),)
    held.take((("n1", 1),))
    assert held.choose(4, ["fast", "slow"]) == (("n0", 4),)
    assert held.choose(5, ["fast", "slow"]) is None
    assert held.choose(2, ["unknown"]) is None
    # A node that is down offers nothing and takes nothing back.
    held = FreeGpus(nodes(4, 4))
    held.take((("n0", 2),))
    node = held.node("n0")
    held.lose(node)
    node.up = False
    held.give((("n0", 2),))
    assert (held.free_on("n0"), held.by_type["gpu"]) == (0, 4)
    assert held.choose(2, ["gpu"], keep=(("n0", 2),)) == (("n1", 2),)
    node.up = True
    held.regain(node)
    assert held.choose(8, ["gpu"]) == (("n0", 4), ("n1", 4))


def test_a_place_that_is_not_free_or_not_taken_is_refused() -> None:
    held = FreeGpus(nodes(4))
    with pytest.raises(ValueError, match="-1 of 4 GPUs free"):
        held.take((("n0", 5),))
    with pytest.raises(ValueError, match="6 of 4 GPUs free"):
        held.give((("n0", 2),))
    many = FreeGpus(nodes(*[4] * 10))
    place = many.choose(40, ["gpu"]) or ()
    with pytest.raises(ValueError, match="node n0 would have 8 of 4 GPUs free"):
        many.give(place)
    many.take(place)
    with pytest.raises(ValueError, match="node n0 would have -4 of 4 GPUs free"):
        many.take(place)
    many.resize(many.node("n3"), -1)  # a GPU that has gone out of service
    with pytest.raises(ValueError, match="node n3 would have 4 of 3 GPUs free"):
        many.give(place)
    assert many.by_type == {"gpu": 0}
    many.resize(many.node("n3"), 1)
    many.give(place)
    assert many.choose(40, ["gpu"]) == place


def placed(
    held: FreeGpus, wishes: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[int, list[int], NodeGpus]]:
    """GPUs that are wished for, how many of each node are free for them, and their place.

    :param wishes: replicas, whose (a place before is given back), and GPUs of a replica.
    """
    places: dict[int, NodeGpus] = {}
    for wanted, slot, each in wishes:
        gpus = wanted * each
        before = places.pop(slot, ())
        held.give(before)
        free = {node.name: held.free_on(node.name) for node in held.nodes}
        usable = [count - count % each for count in free.values()]
        place = held.choose(gpus, ["gpu"], keep=before, per_replica=each)
        assert (place is None) == (sum(usable) < gpus)
        if place is None:
            continue
        assert sum(count for _, count in place) == gpus
        assert all(0 < count <= free[name] and count % each == 0 for name, count in place)
        yield gpus, usable, place
        held.take(place)
        places[slot] = place
        assert held.by_type["gpu"] == sum(free.values()) - gpus
    for place in places.values():
        held.give(place)
    whole = tuple((node.name, node.gpus) for node in held.nodes)
    assert tuple(held.free_on(node.name) for node in held.nodes) == tuple(gpus for _, gpus in whole)
    assert held.choose(sum(gpus for _, gpus in whole), ["gpu"]) == whole


@pytest.mark.parametrize("seed", range(4))
def test_a_place_on_many_nodes_is_booked_as_are_its_nodes(seed: int) -> None:
    draw, step = random.Random(seed), 4 if seed < 2 else 1
    sizes = [4 if seed < 2 else draw.choice([2, 2, 4]) for _ in range(24)]
    whole, by_node = (FreeGpus(nodes(*sizes, switches="ab" * 12 if seed % 2 else "")) for _ in range(2))
    places: list[NodeGpus] = []
    down: set[str] = set()

    def give(*left: NodeGpus) -> None:
        for place in left:
            places.remove(place)
            whole.give(place)
            for each in place:
                by_node.give((each,))

    for _ in range(60):
        wanted, most = step * draw.randint(1, 40 // step), draw.choice([1, 8])
        if places and draw.random() < 0.4:
            give(draw.choice(places))
        elif draw.random() < 0.2:
            down ^= {name := f"n{draw.randrange(24)}"}
            for held in (whole, by_node):
                node = held.node(name)
                if name in down:
                    held.lose(node)
                node.up = name not in down
                if node.up:
                    held.regain(node)
            give(*[place for place in places if name in down & set(dict(place))])  # its jobs are gone
        elif len(place := whole.choose(wanted, ["gpu"]) or ()) >= most:
            assert place == by_node.choose(wanted, ["gpu"])
            assert (gpus_of(place), shape_of(place)) == (gpus_of(tuple(place)), shape_of(tuple(place)))
            whole.take(place)
            for each in place:
                by_node.take((each,))
            places.append(place)
        assert [whole.free_on(f"n{n}") for n in range(24)] == [by_node.free_on(f"n{n}") for n in range(24)]
        assert whole.by_type == by_node.by_type
        assert whole.choose(13, ["gpu"]) == by_node.choose(13, ["gpu"])
    give(*places)
    place = whole.choose(whole.by_type["gpu"], ["gpu"])
    assert isinstance(place, Place)
    again = pickle.loads(pickle.dumps(place))  # noqa: S301 its own bytes
    assert type(again) is tuple, "its hash holds in this process alone"


def test_other_orders_and_what_would_be_free_later() -> None:
    free = free_with([3, 8, 5, 8])
    assert free.emptiest(18, "gpu") == (("n1", 8), ("n3", 8), ("n2", 2))
    assert free.tightest(4, "gpu") == (("n2", 4),)
    assert free.tightest(18, "gpu") == (("n1", 8), ("n3", 8), ("n0", 2))
    assert free.together(12, "gpu") == (("n1", 8), ("n3", 4)), "no more nodes than on an empty cluster"
    assert free_with([3, 3, 5, 3]).together(8, "gpu") is None
    # What would be free later changes nothing now.
    free = free_with([0, 8])
    later = free.after([(("n0", 5),)])
    later.take((("n1", 8),))
    assert (later.free_on("n0"), later.free_on("n1"), later.by_type) == (5, 0, {"gpu": 5})
    assert (free.free_on("n0"), free.free_on("n1"), free.by_type) == (0, 8, {"gpu": 8})


# Levels of the network: a job stays in a domain of the lowest one that holds it.


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


def with_levels(free: list[int], **levels: str) -> FreeGpus:
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
    assert with_levels(free, island=ISLANDS, rack=RACKS).choose(gpus, ["gpu"]) == places(place)


def test_domains_are_few_and_a_copy_has_its_own() -> None:
    # The four nodes with most free are in four racks, and two racks hold the job.
    free = with_levels([7, 6, 7, 0, 7, 0, 6, 7], rack="aabbccdd")
    assert free.choose(26, ["gpu"]) == (("n0", 7), ("n1", 6), ("n6", 6), ("n7", 7))
    free = with_levels([8, 4, 4, 8], rack="a.bb")
    assert free.choose(12, ["gpu"]) == (("n2", 4), ("n3", 8))
    assert free.choose(8, ["gpu"]) == (("n0", 8),)
    # A copy of what is free has levels of its own.
    free = with_levels([8, 0, 8, 8], rack="aabb")
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
    assert with_levels(free, rack="aabb").choose(gpus, ["gpu"], keep=places(held)) == places(place)


REPLICAS = st.lists(
    st.tuples(st.integers(1, 24), st.integers(0, 5), st.sampled_from([1, 1, 2])), min_size=1, max_size=25
)


@settings(max_examples=examples(150), deadline=None)
@given(REPLICAS, st.booleans())
def test_job_that_one_domain_could_hold_is_never_spread_over_two(wishes, has_islands):
    levels = {"island": ISLANDS, "rack": RACKS} if has_islands else {"rack": RACKS}
    for gpus, usable, place in placed(FreeGpus(node_states(levelled(gpus=4, **levels))), wishes):
        for domain_of in levels.values():
            holds = Counter[str]()
            for letter, count in zip(domain_of, usable, strict=True):
                holds[letter] += count
            if max(holds.values()) >= gpus:
                assert len({domain_of[int(name[1:])] for name, _ in place}) == 1


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        (["rak"], "/levels/0: no node has the label 'rak'"),
        (["rack", "rack"], "/levels/1: names level 'rack' twice"),
        (["island", "rack"], "/nodes/1/labels: nodes of island 'a' differ in rack"),
    ],
)
def test_levels_that_cannot_be_are_refused_in_a_line(levels: list[str], problem: str) -> None:
    labels = {"island": "a", "rack": "r"}, {"island": "a", "rack": "s"}
    nodes = [{"name": f"n{number}", "gpus": 8, "labels": each} for number, each in enumerate(labels)]
    text = json.dumps({"schema": "pliant.cluster/1", "nodes": nodes, "levels": levels})
    with pytest.raises(BadInputError) as refused:
        parse_document(text.encode(), "cluster.json", "cluster", Cluster)
    assert problem in str(refused.value)


def test_a_cluster_with_levels_is_of_their_version() -> None:
    racks = levelled(rack="aabb")
    assert (racks.minor, racks.model_copy(update={"levels": ()}).minor) == (3, 0)


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
