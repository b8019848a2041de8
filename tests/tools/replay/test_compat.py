"""The quirks of published simulators, one by one, and what they come to on the simulators' own data."""

import csv
import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Elasticity
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import ThroughputByPlacement
from pliant.tools.replay import compat
from pliant.tools.replay.compat import NONE, POLLUX, SHOCKWAVE, SIA
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.running import RoundTimes
from pliant.tools.replay.engine.simulated_cluster import Quirks, SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.inputs import inputs as checked
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.progress import ProgressModel, Segment
from pliant.tools.replay.run import Run, prepared, replay
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.pollux.policy import Pollux
from pliant.tools.schedule.policies.tiresias import Tiresias
from pliant.tools.schedule.policy import Target
from tests.builders import FREE_CHANGES, cluster, job, mixed_cluster
from tests.tools.profile.rows_builder import step
from tests.tools.replay.importers.importing import WORKLOAD, pollux_inputs
from tests.tools.replay.world import Seats, Told, ends, given, play, story


def test_presets_are_off_by_default_and_need_their_inputs():
    assert compat.preset(None) == NONE == compat.Compat()
    found = (compat.preset("pollux"), compat.preset("sia"), compat.preset("shockwave"))
    assert found == (POLLUX, SIA, SHOCKWAVE)
    with pytest.raises(UsageError, match='--compat "plutus": expected pollux, sia, shockwave'):
        compat.preset("plutus")
    world = given([job("a", work={"samples": 5})], cluster(1))
    for stated, problem in (
        ({"compat": "pollux"}, "--compat pollux needs a --profile"),
        ({"compat": "pollux", "progress": "samples"}, "simulates epochs, not --progress samples"),
        ({"speeds": "placement"}, "--speeds placement needs a --profile"),
    ):
        with pytest.raises(UsageError, match=problem):
            replay(world, Run("tiresias", conditions=Conditions(**stated)))


@pytest.mark.parametrize(
    ("batch", "gpus", "most_local", "accumulate", "found"),
    [
        (4096, 16, 1024, False, (256, 1)),
        (4096, 12, 1024, False, (341, 1)),  # 342 each would be 4104 together
        (2048, 6, 1024, False, (342, 1)),  # 2052 together: below the largest, so it stays
        (384, 8, 12, False, (12, 4)),
        (2048, 1, 1024, True, (1024, 2)),
        (1024, 1, 1024, True, (512, 2)),  # it would fit at once
        (4096, 1, None, False, (4096, 1)),
    ],
)
def test_a_fixed_batch_is_cut_in_steps(batch, gpus, most_local, accumulate, found):
    assert compat.split(batch, gpus, most_local, 4096, accumulate=accumulate) == found


def test_jobs_are_in_the_order_of_the_file():
    rows = [job("b", at=5, labels={"row": "2"}), job("a", at=5, labels={"row": "10"}), job("c", at=1)]
    assert [each.id for each in sorted(rows, key=compat.file_order)] == ["b", "a", "c"]
    jobs = [job("a", labels={"row": "2"}, gpu_seconds=30), job("b", labels={"row": "1"}, gpu_seconds=30)]
    simulated = SimulatedCluster(quirks=Quirks(order=compat.file_order))
    told = story(play(Tiresias(), jobs, cluster(1), simulated=simulated, interval_s=10))
    assert [name for _, name, event, _ in told if event == "start"] == ["b", "a"]


WHOLE_SECONDS = Quirks(segment_end=compat.whole_second_end)


class Rounded(ProgressModel):
    """One piece of 59.6 or 60.4 seconds, as a simulator of whole seconds sees it."""

    def __init__(self, seconds: float, *, stepwise: bool = False) -> None:
        self._pieces = compat.WholeSecondPieces([0.0, seconds], [1.0], 60.0)
        self._stepwise = stepwise

    def segment(self, job, samples_done: float, speed_factor: float = 1.0) -> Segment:
        trajectory = self._pieces.trajectory(samples_done)
        return Segment(1.0) if self._stepwise else Segment(1.0, trajectory=trajectory)


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize(("seconds", "starts_s"), [(59.6, 60), (60.4, 120)])
def test_an_end_rounded_down_to_a_round_is_seen_in_the_next(seconds, starts_s, stepwise):
    jobs = [job("a", work={"samples": seconds}), job("b", at=1, work={"samples": seconds})]
    world = SimulatedCluster(progress=lambda: Rounded(seconds, stepwise=stepwise), quirks=WHOLE_SECONDS)
    told = story(play(Tiresias(), jobs, cluster(1), simulated=world, interval_s=60))
    assert told[:3] == [(0, "a", "start", 1), (60, "a", "finish", 0), (starts_s, "b", "start", 1)]


def test_rounds_are_left_out_where_nothing_can_change():
    jobs = [job("a", work={"samples": 180.4}), job("b", at=1, work={"samples": 180.4})]
    world = SimulatedCluster(progress=lambda: Rounded(180.4), quirks=WHOLE_SECONDS)
    engine = play(Tiresias(), jobs, cluster(1), simulated=world, interval_s=60)
    assert story(engine)[1:3] == [(180, "a", "finish", 0), (240, "b", "start", 1)]
    assert engine.counters.decisions == 3, "at 0, at 60 for b, and at 240"
    jobs = [job("a", gpus=2, work={"samples": 1e6})]
    engine = play(Tiresias("1"), jobs, cluster(2), interval_s=60)
    assert engine.counters.decisions == 2, "at the start, and when the job reaches its threshold"
    # Time passes before the first round.
    assert RoundTimes(60.0).next_s(0.0) == 0
    rounds = RoundTimes(60.0, first=1)
    assert rounds.next_s(0.0) == 60
    rounds.hold(60.0)
    assert (rounds.next_s(60.0), rounds.next_s(121.0)) == (120, 180)


@pytest.fixture(scope="module")
def imported(reference_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Inputs]:
    """A workload of the Pollux simulator by its number."""
    data, new = reference_data / "pollux", partial(tmp_path_factory.mktemp, "workload")
    return cache(lambda number: pollux_inputs(data, f"workload-{number}.csv", 16, new()))


def average_s(inputs: Inputs, policy: str, **more) -> float:
    found = ends(replay(inputs, Run(policy, conditions=Conditions(compat="pollux"), **more)))
    return statistics.fmean(found[each.id] - each.submit_time for each in inputs.jobs)


@pytest.mark.parametrize(
    ("workload", "tiresias_s", "optimus_s"), [(6, 3469.69375, 5301.875), (1, 2473.65, 4087.0625)]
)
def test_averages_are_those_of_the_simulator(imported, workload, tiresias_s, optimus_s):
    inputs = imported(workload)
    assert average_s(inputs, "tiresias") == tiresias_s
    assert average_s(inputs, "optimus") == optimus_s


def test_the_output_says_what_was_assumed(imported):
    inputs = replace(imported(6), jobs=imported(6).jobs[:3])
    runs = (Run(name, conditions=Conditions(compat="pollux")) for name in ("tiresias", "optimus"))
    other, told = (next(replay(inputs, run).log.events()).detail for run in runs)
    assert (told["compat"], told["progress"], told["oracle"]) == ("pollux", "epochs", True)
    assert (told["interval_s"], told["start_cost_s"], told["rescale_cost_s"]) == (60.0, 30.0, 30.0)
    assert told["parameters"] == {"placement": "emptiest"}
    assert "oracle" not in other, "it asks for none"
    # What a replay states wins over the preset.
    inputs = imported(6)
    assert average_s(inputs, "tiresias", simulated=FREE_CHANGES) < 3469.69375
    assert average_s(inputs, "tiresias", parameters={"placement": "compact"}) != 3469.69375


def test_every_quirk_is_documented_and_rounds_what_it_says() -> None:
    text = (Path(__file__).parents[3] / "docs" / "replay-compat.md").read_text()
    names = {each.name for each in fields(compat.Compat)} - {"name", "quirks"}
    names |= {f"quirks.{each.name}" for each in fields(Quirks)}
    assert [name for name in sorted(names) if f"| `{name}`" not in text] == []
    parameters = [each for found in (POLLUX, SIA, SHOCKWAVE) for each in found.parameters.values()]
    stated = {f"{key}={value}".lower() for each in parameters for key, value in each.items()}
    assert [pair for pair in sorted(stated) if f"`{pair}`" not in text] == []
    # An end is rounded and a batch costs a rescale.
    pieces = compat.WholeSecondPieces([0.0, 60.3, 120.0, 179.6], [1.0, 1.0, 1.0], 60.0)
    assert pieces.ends_s == [0, 60, 120, 180]
    trajectory = pieces.trajectory(0.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "60.3 s cut to 60: the round at 60 comes first"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.3)
    assert trajectory.samples_done(0.0, 120.0) == 120.0, "59.7 s drawn out to 60: over when the round comes"
    assert not trajectory.is_late(180.0)
    short = compat.WholeSecondPieces([0.0, 60.3], [1.0], 60.0).trajectory(0.0)
    assert short.is_late(60.0)
    assert not short.is_late(67.0), "between rounds nobody looks"
    pieces = compat.WholeSecondPieces([0.0, 60.0, 60.2, 60.4, 100.0], [1.0] * 4, 60.0)
    trajectory = pieces.trajectory(0.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "the first is over, the next was cut to nothing"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.4)
    # Another batch costs a rescale unless it is free.
    assert ends(doubles_batch(50)) == {"a": 5 + 100}
    assert ends(doubles_batch(50, free=False)) == {"a": 5 + 100 + 5}
    early = doubles_batch(2)  # the start still has to be paid
    assert ends(early) == {"a": 5 + 100}
    assert [event.overhead_seconds for event in early.log.events() if event.overhead_seconds] == [2, 3]


BATCH = {"size": 32, "min": 32, "max": 64}


class Rebatches(Told):
    """``orders[time]`` are the batches of jobs on one GPU."""

    elasticity: ClassVar[Elasticity] = "size+batch"

    def target(self, order: int, job: JobState) -> Target:
        return Target(1, None, order)


def doubles_batch(at_s: float, *, free: bool = True) -> Engine:
    """A job of 100 GPU-seconds, with twice the batch from this time on; starts and rescales cost 5 s."""
    policy = Rebatches({0: {"a": 32}, at_s: {"a": 64}}, again_s=[at_s])
    simulated = SimulatedCluster(Cost(5), Cost(5), quirks=Quirks(free_rebatch=free))
    trace = [job("a", elastic="size+batch", batch=BATCH, gpu_seconds=100)]
    return play(policy, trace, cluster(1), simulated=simulated)


@pytest.mark.parametrize(
    ("first", "then", "cost_s"),
    [
        ((("x-0", 2),), (("x-1", 2),), 0),
        ((("x-0", 2),), (("x-0", 1), ("x-1", 1)), 5),
        ((("x-0", 2),), (("y-0", 2),), 5),
        ((("x-0", 2),), (("x-1", 1),), 5),
    ],
    ids=["as many on as many nodes", "on other numbers of nodes", "another type", "fewer"],
)
def test_a_move_costs_a_rescale_unless_it_is_free(first: NodeGpus, then: NodeGpus, cost_s: float) -> None:
    """It starts at 0 and trains from 5 s on, 45 of 100 s before the move."""
    nodes = mixed_cluster(x=(2, 2), y=(2,))
    trace = [job("a", gpus=1, low=1, high=2, gpu_seconds=200)]
    rescaled = SimulatedCluster(Cost(5), Cost(5), quirks=Quirks(free_moves=True))
    policy = Seats({0: {"a": first}, 50: {"a": then}}, again_s=[50])
    engine = play(policy, trace, nodes, simulated=rescaled)
    slower = 2 if sum(count for _, count in then) == 1 else 1
    assert ends(engine) == {"a": 50 + cost_s + 55 * slower}


def test_settled_models_are_rigid_for_policies_that_choose_both() -> None:
    trace = [
        job("ncf-0", gpus=2, elastic="size+batch", batch=BATCH, model="ncf"),
        job("bert-1", gpus=2, elastic="size+batch", batch=BATCH, model="bert"),
    ]
    first, second = compat.settle(POLLUX, trace, Pollux())
    assert (first.gpus.requested, first.batch.size, first.elastic) == (1, 32768, "none")
    assert second == trace[1]
    assert compat.settle(POLLUX, trace, Fifo()) == trace
    assert compat.settle(NONE, trace, Pollux()) == trace


def spread(nodes: int, rate: float) -> ProfileRow:
    """Two GPUs of a model at batch 16, all on one node or one on each."""
    placement = "2" if nodes == 1 else "1,1"
    return step(placement, 8, 16 / rate)


@pytest.mark.parametrize(("preset_name", "jct_s"), [(None, 60 + 1600 / 2), ("shockwave", 20 + 1600 / 4)])
def test_jobs_are_as_fast_on_two_nodes_as_on_one(preset_name: str | None, jct_s: float) -> None:
    """Two nodes of one GPU, where the profile has half the speed; a start costs 20 s there, 60 s stated."""
    profile = Profile((spread(1, 4.0), spread(2, 2.0)))
    assert compat.one_node(profile).rows == profile.rows[:1]
    pair = job("a", gpus=2, model="net", batch=16, work={"samples": 1600.0})
    world = checked([pair], cluster(1, 1), profile)
    stated = SimulatedCluster(start_cost=None if preset_name else Cost(60.0))
    done = replay(world, Run("gavel", conditions=Conditions(compat=preset_name), simulated=stated))
    assert ends(done) == {"a": pytest.approx(jct_s)}


def test_moves_are_free_and_pauses_cost_under_shockwave() -> None:
    alone = job("a", model="net", batch=16, work={"samples": 16.0})
    world = checked([alone], cluster(1), Profile((spread(1, 4.0),)))
    found = [
        prepared(Run("fifo", simulated=stated), SHOCKWAVE, Fifo(), world).simulated
        for stated in (SimulatedCluster(), SimulatedCluster(rescale_cost=Cost(7.0)))
    ]
    costs = [(each.start_cost, each.rescale_cost, each.resume_cost) for each in found]
    assert costs == [(Cost(20.0), Cost(), Cost(20.0)), (Cost(20.0), Cost(7.0), Cost(7.0))]
    # What policies believe may differ.
    row = step(1, 8, 0.5, model="cifar10", gpu_type="t4")
    times = ThroughputByPlacement(Profile((row,)), rescales_s=SIA.believed_cost_s)
    assert [times.rescale_seconds(model) for model in ("cifar10", "other")] == [30.0, None]
    assert SIA.cost.of("cifar10") == 50.0


ENDS = Path(__file__).parent / "golden" / "pollux_ends.json"
"""When a second implementation of the simulator, round by round, ended every job; to the second."""


def sheet(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def made_up(
    rng: random.Random, folder: Path, batches: Sequence[int], locals_: Sequence[int], epochs: int
) -> None:
    """Measurements of an application, in files as the simulator has them."""
    places = [(gpus,) for gpus in (1, 2, 3, 4)] + [(4, low) for low in (1, 3, 4)] + [(1, 2, 4), (1, 4, 2)]
    sizes = [(nodes, width * nodes) for nodes in (2, 3, 5, 8, 16) for width in (1, 2, 4)]

    def times(nodes: int, gpus: int, local: int) -> dict[str, float]:
        sync_s = rng.uniform(0.01, 0.02) * (gpus - 1) + 0.05 * (nodes - 1)
        step_s = rng.uniform(0.9, 1.1) * local / 16 + sync_s
        return {"local_bsz": local, "step_time": step_s, "sync_time": sync_s}

    measured = [
        {"placement": "".join(map(str, place))} | times(len(place), sum(place), local)
        for place in places
        for local in locals_
    ]
    sheet(folder / "placements.csv", measured)
    measured = [
        {"num_nodes": nodes, "num_replicas": gpus} | times(nodes, gpus, local)
        for nodes, gpus in sizes
        for local in locals_
    ]
    sheet(folder / "scalability.csv", measured)
    for batch in batches:
        steps = [epoch * 400 * batches[0] / batch + rng.uniform(0, 9) for epoch in range(1, epochs + 1)]
        epochs_ = [
            {"progress": 400 * epoch + rng.uniform(0, 9), "iteration": int(done), "metric": 1.0}
            | {"grad_sqr": rng.uniform(1, 2), "grad_var": rng.uniform(1, 20) * batches[0]}
            for epoch, done in enumerate(steps, 1)
        ]
        sheet(folder / f"validation-{batch}.csv", epochs_)


@pytest.mark.parametrize(("seed", "nodes"), [(0, 2), (2, 18)])
def test_every_job_of_a_made_up_world_ends_at_the_same_second(tmp_path: Path, seed: int, nodes: int) -> None:
    """Jobs of any validated or other batch, in a file that is not in order of time, many at one moment."""
    rng, traces, apps = random.Random(seed), tmp_path / "data" / "traces", {}
    for name, batches, locals_, epochs in (
        ("tiny", (16, 64, 200), (4, 8, 32), 4),
        ("ncf", (32, 128), (8, 16, 64), 10),
        ("yolov3", (8, 32, 64), (4, 8, 16), 50),
    ):
        made_up(rng, traces / name, batches, locals_, epochs)
        apps[name] = batches, locals_
    rows = []
    for number in range(25):
        name = rng.choice(sorted(apps))
        batches, locals_ = apps[name]
        batch = rng.choice([rng.choice(batches), rng.randint(batches[0], batches[-1])])
        most = min(16, 4 * nodes, int(batch / locals_[0]))
        at_s = rng.choice([rng.randint(0, 3000), 60 * rng.randint(0, 10)])
        row = f"{name}-{number}", at_s, name, rng.randint(1, most), batch
        rows.append(dict(zip(WORKLOAD.split(","), row, strict=True)))
    world = pollux_inputs(tmp_path / "data", sheet(tmp_path / "workload.csv", rows), nodes, tmp_path / "in")
    for policy in ("tiresias", "optimus"):
        log = replay(world, Run(policy, conditions=Conditions(compat="pollux"))).log
        ends_s = {event.job: event.time for event in log.events() if event.event == "finish"}
        assert ends_s == json.loads(ENDS.read_text())[f"{policy} {seed}"], policy
