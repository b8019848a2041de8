"""Jobs that span nodes and share one: by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.job import Job
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.failures import (
    Mtbf,
    NodeEvent,
    drawn_failures,
    failures_end_s,
    read_failures,
    together,
)
from pliant.tools.replay.engine.simulated_cluster import Interference, SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.progress import GoodputProgress, SampleProgress, Segment
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.jobs import EpochEnd, JobState, NodeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job
from tests.tools.replay.world import Pairs, Seats, ends, given, play

if TYPE_CHECKING:
    import numpy as np

HALF = SimulatedCluster(interference=0.5)
A: NodeGpus = (("n0", 2), ("n1", 1))
B: NodeGpus = (("n1", 1), ("n2", 2))
C: NodeGpus = (("n2", 1),)


FREED = SimulatedCluster(rescale_cost=Cost(2), interference=0.5)
STARTING = SimulatedCluster(Cost(5), interference=0.5)
LATE_START = SimulatedCluster(Cost(0, {"slow": 5}), interference=0.5)
QUARTER = SimulatedCluster(progress=lambda: GoodputProgress({}, {"": 100.0}), interference=0.25)


def spanning(a: float, b: float, b_model: str = "linear") -> list[Job]:
    """Two jobs of three GPUs with this work in GPU-seconds."""
    return [job("a", gpus=3, gpu_seconds=a), job("b", gpus=3, gpu_seconds=b, model=b_model)]


@pytest.mark.parametrize(
    ("orders", "jobs", "simulated", "found"),
    [
        # Together until a is done at 20; b has done 10 of its 20 s by then and ends alone.
        ({0: {"a": A, "b": B}}, spanning(30, 60), HALF, {"a": 20, "b": 30}),
        # A neighbour comes later. a: 4 s alone, its last 6 s take 12. b: 6 of its 20 s by 16, 14 s alone.
        ({0: {"a": A}, 4: {"b": B}}, spanning(30, 60), HALF, {"a": 16, "b": 16 + 14}),
        # A neighbour is moved away.
        ({0: {"a": A, "b": B}, 8: {"b": (("n2", 3),)}}, spanning(30, 60), FREED, {"a": 14, "b": 10 + 16}),
        # A job on one node neither slows nor is slowed.
        ({0: {"b": B, "c": C}}, [spanning(30, 30)[1], job("c", gpu_seconds=10)], HALF, {"b": 10, "c": 10}),
        # a starts until 5 and needs 20 s for its 10; b starts until 7 and by 25 has done 9 of 10 s.
        ({0: {"a": A}, 2: {"b": B}}, spanning(30, 30), STARTING, {"a": 25, "b": 26}),
        # A neighbour that ends while b still starts leaves it its start to pay.
        ({0: {"a": A}, 9: {"b": B}}, spanning(30, 30, "slow"), LATE_START, {"a": 11, "b": 9 + 5 + 10}),
        # Goodput is slowed as throughput is: a takes 9 s / 0.75; b has done 9 of its 15 s by then.
        ({0: {"a": A, "b": B}}, spanning(27, 45), QUARTER, {"a": 12, "b": 18}),
    ],
)  # fmt: skip
def test_jobs_that_span_nodes_slow_each_other_while_they_share_one(orders, jobs, simulated, found) -> None:
    policy = Seats(orders, again_s=[time_s for time_s in orders if time_s])
    assert ends(play(policy, jobs, cluster(2, 2, 3), simulated=simulated)) == pytest.approx(found)


def test_in_rounds_the_pace_changes_at_once() -> None:
    policy = Seats({0: {"a": A, "b": B}})
    engine = play(policy, spanning(30, 60), cluster(2, 2, 3), simulated=HALF, interval_s=60)
    assert ends(engine) == {"a": 20, "b": 30}


class Looks(Seats):
    """Notes the speed of every job that it sees."""

    def __init__(self, orders: dict[float, dict[str, NodeGpus]]) -> None:
        super().__init__(orders)
        self.seen: list[dict[str, float]] = []

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self.seen.append({job.id: job.samples_per_second for job in snapshot.jobs.values()})
        return super().decide(snapshot, rng)


def test_a_policy_sees_the_speed_that_a_job_has_from_this_moment_on() -> None:
    policy = Looks({0: {"a": A, "b": B}, 4: {}})
    trace = [
        job("a", gpus=3, gpu_seconds=30),
        job("b", gpus=3, gpu_seconds=60),
        job("c", at=4, gpu_seconds=1),
    ]
    play(policy, trace, cluster(2, 2, 3), simulated=HALF)
    assert policy.seen[1:] == [{"a": 1.5, "b": 1.5, "c": 0.0}, {"b": 3.0, "c": 0.0}, {"c": 0.0}]


def test_only_changes_of_pace_are_told() -> None:
    held = Interference(0.25)
    held.place("a", A)
    assert (held.speed_factor("a"), held.changed()) == (1.0, [])
    held.place("b", B)
    assert (held.speed_factor("b"), held.changed(), held.speed_factor("a")) == (0.75, ["a"], 0.75)
    held.place("c", (("n1", 1), ("n3", 1)))
    assert (held.speed_factor("c"), held.changed()) == (0.75, [])
    held.place("b", ())
    assert held.changed() == []
    held.place("c", ())
    assert (held.changed(), held.speed_factor("a")) == (["a"], 1.0)


def shared(*node_gpus: int, speed: float = 0.5) -> Cluster:
    sharing = Sharing(unmeasured="together", speed=speed)
    return cluster(*node_gpus).model_copy(update={"sharing": sharing})


def two(a_seconds: float = 20, b_seconds: float = 60, **more: float) -> list[Job]:
    """Jobs of two GPUs, with this many seconds of work on them alone."""
    a = job("a", gpus=2, gpu_seconds=2 * a_seconds, **more)
    return [a, job("b", gpus=2, gpu_seconds=2 * b_seconds)]


DOWN_AT_35 = (NodeEvent(35, "n0", up=False), NodeEvent(40, "n0", up=True))
DOWN_AT_15 = (NodeEvent(15, "n0", up=False), NodeEvent(16, "n0", up=True))


@pytest.mark.parametrize(
    ("orders", "simulated", "found"),
    [
        # a has 20 s of work, done at 40; b has done 20 of its 60 s by then.
        ({0: {"a": 2, "b": "a"}}, {}, {"a": 40, "b": 80}),
        # Company comes later. a: 10 s alone, its last 10 s take 20. b: 10 of its 60 s by 30, 50 s alone.
        ({0: {"a": 2}, 10: {"b": "a"}}, {}, {"a": 30, "b": 80}),
        # Company is taken away.
        ({0: {"a": 2, "b": "a"}, 10: {"b": 0}, 50: {"b": 2}}, {}, {"a": 10 + 15, "b": 50 + 55}),
        # a: trains from 4, has done 6 s at 10, and 14 s are left. b: trains from 14, alone from 38.
        ({0: {"a": 2}, 10: {"b": "a"}}, {"start_cost": Cost(4)}, {"a": 38, "b": 38 + 60 - 12}),
        # a was saved at 30, b not yet: a has 5 s left, which take 10; b has done 5 of 60 s by 50.
        ({0: {"a": 2, "b": "a"}, 40: {"a": 2, "b": "a"}}, {"node_events": DOWN_AT_35}, {"a": 50, "b": 105}),
        # The checkpoint at 10 is from before company came: 10 s of work, 10 s to go from 16 on.
        ({0: {"a": 2}, 12: {"b": "a"}, 16: {"a": 2}}, {"node_events": DOWN_AT_15}, {"a": 26}),
    ],
)  # fmt: skip
def test_two_jobs_on_the_same_gpus_train_at_half_speed(orders, simulated, found) -> None:
    policy = Pairs(orders, again_s=[time_s for time_s in orders if time_s])
    world = SimulatedCluster(**simulated)
    assert ends(play(policy, two(checkpoint_seconds=10.0), shared(2), simulated=world)) == found


class Epochs(SampleProgress):
    """Epochs of 10 samples."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        number = int(samples_done // 10) + 1
        rate = job.samples_per_second * speed_factor
        return Segment(rate, 10.0 * number, epoch_end=EpochEnd(number, 10.0 * number))


def test_epochs_go_on_at_the_speed_beside_the_other() -> None:
    simulated = SimulatedCluster(progress=Epochs)
    found = ends(play(Pairs({0: {"a": 2, "b": "a"}}), two(), shared(2), simulated=simulated))
    assert found == {"a": 40, "b": 80}


def test_the_log_says_who_is_beside_whom() -> None:
    engine = play(Pairs({0: {"a": 2}, 10: {"b": "a"}}, again_s=[10]), two(), shared(2))
    starts = {event.job: event.detail for event in engine.log.events() if event.event == "start"}
    assert starts == {"a": None, "b": {"beside": "a"}}


HOUR_S = 3600.0


def test_a_file_names_nodes_that_go_down_and_up(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    path.write_text(
        '{"time": 90, "node": "n0", "event": "up"}\n{"time": 60.5, "node": "n0", "event": "down"}\n'
    )
    assert read_failures(str(path)) == (NodeEvent(60.5, "n0", up=False), NodeEvent(90, "n0", up=True))


def test_a_wrong_file_is_told_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    path.write_text('{"time": -1, "node": "n0", "event": "up"}\n{"time": 1, "node": "n0", "event": "off"}\n')
    with pytest.raises(BadInputError) as caught:
        read_failures(str(path))
    first, second = str(caught.value).splitlines()
    assert first == f"{path}:1: /time: -1 is below 0, expected 0 or more"
    assert second.startswith(f'{path}:2: /event: "off" is unknown')


def test_nodes_fail_and_are_repaired_after_the_mean_times() -> None:
    days = 2000
    events = drawn_failures(["n0", "n1"], Mtbf(24, 6), seed=1, from_s=0, until_s=days * 24 * HOUR_S)
    down = [event for event in events if not event.up]
    assert len(down) == pytest.approx(2 * days * 24 / 30, rel=0.05)
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    for node in ("n0", "n1"):
        turns = [event.up for event in events if event.node == node]
        assert turns == [False, True] * (len(turns) // 2)


def test_a_seed_gives_the_same_failures_and_another_node_changes_none() -> None:
    one = drawn_failures(["n0"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    two = drawn_failures(["n0", "n1"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    assert one == tuple(event for event in two if event.node == "n0")
    assert one != drawn_failures(["n0"], Mtbf(5, 1), seed=4, from_s=0, until_s=1e6)


def test_a_node_is_down_while_a_file_or_the_dice_have_it_down() -> None:
    def turns(*times_s: float) -> list[NodeEvent]:
        return [NodeEvent(time_s, "n0", up=number % 2 == 1) for number, time_s in enumerate(times_s)]

    found = together(turns(10, 100), turns(20, 30, 90, 120, 130, 130), [NodeEvent(5, "n1", up=True)])
    assert found == tuple(turns(10, 120, 130, 130))
    twice = [NodeEvent(1, "n0", up=False), NodeEvent(2, "n0", up=False), NodeEvent(3, "n0", up=True)]
    assert together(twice) == (twice[0], twice[2])


def test_an_outage_that_begins_as_another_ends_goes_on() -> None:
    first, back, again, last = (NodeEvent(t, "n0", up=up) for t, up in ((0, 0), (9, 1), (9, 0), (20, 1)))
    assert together([first, back, again, last]) == (first, last) == together([first, again, back, last])


def test_failures_by_the_million_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--mtbf 0\.001: this trace would meet about 4\.4e\+07 failures"):
        drawn_failures(["n0"], Mtbf(0.001, 0.001), seed=0, from_s=0, until_s=10 * 365 * 24 * HOUR_S)


def test_failures_are_drawn_for_twice_the_work_of_a_trace() -> None:
    trace = [job("a", gpus=2, gpu_seconds=100), job("b", at=50, low=1, gpu_seconds=30)]
    held = given(trace, cluster(2))
    speeds = Session(Fifo(), held.cluster, held.throughput).speeds
    assert failures_end_s(held.jobs, speeds, SampleProgress()) == 50 + 2 * 130 / 2 + 2 * 50


def test_every_policy_meets_the_same_failures_and_jobs_get_done_nevertheless() -> None:
    trace = [job(f"j{n}", at=600.0 * n, gpus=2, gpu_seconds=7200) for n in range(10)]
    simulated = SimulatedCluster(mtbf=Mtbf(2, 0.5))
    held = inputs(trace, cluster(4, 4))
    logs = [replay(held, Run(policy, seed=1, simulated=simulated)) for policy in ("fifo", "las")]
    down = [
        [(event.time, event.event) for event in done.log.events() if event.event.startswith("node_")]
        for done in logs
    ]
    shared = min(map(len, down))
    assert shared > 2
    assert down[0][:shared] == down[1][:shared]
    assert all(done.summary.finished == len(trace) for done in logs)


def test_a_job_that_can_never_run_ends_a_replay_with_failures_all_the_same() -> None:
    held = inputs([job("big", gpus=9, gpu_seconds=100)], cluster(4, 4))
    done = replay(held, Run("ares", simulated=SimulatedCluster(mtbf=Mtbf(1, 1))))
    assert (done.summary.rejected, done.summary.unfinished) == (1, ())
