from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine import failures
from pliant.tools.replay.engine.costs import Cost, MeasuredCosts, costs_from_events, parse_costs
from pliant.tools.replay.engine.failures import Mtbf, NodeEvent
from pliant.tools.replay.engine.simulated_cluster import Interference, SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.progress import GoodputProgress, SampleProgress, Segment
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.jobs import EpochEnd, JobState, NodeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import Pairs, Seats, ends, given, play

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
def test_jobs_slow_each_other_on_the_nodes_that_they_share(orders, jobs, simulated, found) -> None:
    policy = Seats(orders, again_s=[time_s for time_s in orders if time_s])
    assert ends(play(policy, jobs, cluster(2, 2, 3), simulated=simulated)) == pytest.approx(found)


def test_policies_see_changes_of_speed_and_only_those() -> None:
    policy = Seats(
        {0: {"a": A, "b": B}, 4: {}},
        look=lambda seen: {job.id: job.samples_per_second for job in seen.jobs.values()},
    )
    trace = [*spanning(30, 60), job("c", at=4, gpu_seconds=1)]
    play(policy, trace, cluster(2, 2, 3), simulated=HALF)
    assert policy.seen[1:] == [{"a": 1.5, "b": 1.5, "c": 0.0}, {"b": 3.0, "c": 0.0}, {"c": 0.0}]
    # In rounds the pace changes at once.
    policy = Seats({0: {"a": A, "b": B}})
    engine = play(policy, spanning(30, 60), cluster(2, 2, 3), simulated=HALF, interval_s=60)
    assert ends(engine) == {"a": 20, "b": 30}
    # Only changes of pace are told.
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
    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        number = int(samples_done // 10) + 1
        rate = job.samples_per_second * speed_factor
        return Segment(rate, 10.0 * number, epoch_end=EpochEnd(number, 10.0 * number))


def test_epochs_and_the_log_of_two_jobs_on_the_same_gpus() -> None:
    simulated = SimulatedCluster(progress=Epochs)
    found = ends(play(Pairs({0: {"a": 2, "b": "a"}}), two(), shared(2), simulated=simulated))
    assert found == {"a": 40, "b": 80}
    engine = play(Pairs({0: {"a": 2}, 10: {"b": "a"}}, again_s=[10]), two(), shared(2))
    starts = {event.job: event.detail for event in engine.log.events() if event.event == "start"}
    assert starts == {"a": None, "b": {"beside": "a"}}


HOUR_S = 3600.0


def test_a_file_of_failures_is_read_or_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    path.write_text(
        '{"time": 90, "node": "n0", "event": "up"}\n{"time": 60.5, "node": "n0", "event": "down"}\n'
    )
    assert failures.read_failures(str(path)) == (
        NodeEvent(60.5, "n0", up=False),
        NodeEvent(90, "n0", up=True),
    )
    path.write_text('{"time": -1, "node": "n0", "event": "up"}\n{"time": 1, "node": "n0", "event": "off"}\n')
    with pytest.raises(BadInputError) as caught:
        failures.read_failures(str(path))
    first, second = str(caught.value).splitlines()
    assert first == f"{path}:1: /time: -1 is below 0, expected 0 or more"
    assert second.startswith(f'{path}:2: /event: "off" is unknown')


def test_failures_are_drawn_or_read_for_each_node() -> None:
    days = 2000
    events = failures.drawn_failures(["n0", "n1"], Mtbf(24, 6), seed=1, from_s=0, until_s=days * 24 * HOUR_S)
    down = [event for event in events if not event.up]
    assert len(down) == pytest.approx(2 * days * 24 / 30, rel=0.05)
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    for node in ("n0", "n1"):
        turns = [event.up for event in events if event.node == node]
        assert turns == [False, True] * (len(turns) // 2)
    one = failures.drawn_failures(["n0"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    two = failures.drawn_failures(["n0", "n1"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    assert one == tuple(event for event in two if event.node == "n0")
    assert one != failures.drawn_failures(["n0"], Mtbf(5, 1), seed=4, from_s=0, until_s=1e6)
    with pytest.raises(UsageError, match=r"--mtbf 0\.001: this trace would meet about 4\.4e\+07 failures"):
        failures.drawn_failures(["n0"], Mtbf(0.001, 0.001), seed=0, from_s=0, until_s=10 * 365 * 24 * HOUR_S)
    trace = [job("a", gpus=2, gpu_seconds=100), job("b", at=50, low=1, gpu_seconds=30)]
    held = given(trace, cluster(2))
    speeds = Session(Fifo(), held.cluster, held.throughput).cluster.speeds
    assert failures.failures_end_s(held.jobs, speeds, SampleProgress()) == 50 + 2 * 130 / 2 + 2 * 50
    jobs = [*held.jobs, job("c", gpus=0, gpu_seconds=400)]  # on four nodes
    assert failures.failures_end_s(jobs, speeds, SampleProgress(), 4) == 50 + 130 + 2 * 400 / 4 + 2 * 400

    # A node is down while a file or the dice have it down.
    def turns(*times_s: float) -> list[NodeEvent]:
        return [NodeEvent(time_s, "n0", up=number % 2 == 1) for number, time_s in enumerate(times_s)]

    found = failures.together(turns(10, 100), turns(20, 30, 90, 120, 130, 130), [NodeEvent(5, "n1", up=True)])
    assert found == tuple(turns(10, 120, 130, 130))
    twice = [NodeEvent(1, "n0", up=False), NodeEvent(2, "n0", up=False), NodeEvent(3, "n0", up=True)]
    assert failures.together(twice) == (twice[0], twice[2])
    first, back, again, last = (NodeEvent(t, "n0", up=up) for t, up in ((0, 0), (9, 1), (9, 0), (20, 1)))
    assert (
        failures.together([first, back, again, last])
        == (first, last)
        == failures.together([first, again, back, last])
    )


def test_policies_meet_the_same_failures_and_costs_are_means() -> None:
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
    held = inputs([job("big", gpus=9, gpu_seconds=100)], cluster(4, 4))
    done = replay(held, Run("ares", simulated=SimulatedCluster(mtbf=Mtbf(1, 1))))
    assert (done.summary.rejected, done.summary.unfinished) == (1, ())
    # Costs are means by model or of what is most like.
    found = costs_from_events(LIVE)
    assert (found.start.of("net"), found.start.of("mlp"), found.start.of("other")) == (5.0, 2.0, 4.0)
    assert (found.rescale.of("net"), found.rescale.of("mlp"), found.resume.of("net")) == (0.5, 0.5, 7.0)
    found = costs_from_events(LIVE[:7])
    assert found.start == found.resume == found.rescale == Cost(4.0, {"mlp": 2.0, "net": 5.0})
    shrunk = costs_from_events([LIVE[0], measured("a", "shrink", 0.25)])
    assert shrunk.start == shrunk.resume == Cost(0.25, {"net": 0.25})
    # Of empty and of simulated runs.
    assert costs_from_events(LIVE[:2]) == MeasuredCosts(Cost(), Cost(), Cost())
    run = [submitted("a", "net"), Event(0.0, "start", "a", 1, overhead_seconds=7.0)]
    assert costs_from_events(run).start.of("net") == 7.0
    trained = [Event(5.0, "progress", "a", samples_done=1.0), Event(9.0, "finish", "a", 0)]
    assert costs_from_events([*run, *trained]).start.of("net") == 7.0, "it has no workers that end"


def submitted(job_id: str, model: str) -> Event:
    return Event(0.0, "submit", job_id, detail={"job": {"id": job_id, "model": model}})


def measured(job_id: str, after: str, seconds: float) -> Event:
    return Event(9.0, "progress", job_id, overhead_seconds=seconds, detail={"after": after, "attempt": 1})


LIVE = [
    *(submitted(name, model) for name, model in (("a", "net"), ("b", "net"), ("c", "mlp"))),
    Event(1.0, "start", "a", 1),
    *(measured(name, "start", seconds) for name, seconds in (("a", 4.0), ("b", 6.0), ("c", 2.0))),
    *(
        measured("a", after, seconds)
        for after, seconds in (("grow", 0.75), ("shrink", 0.25), ("resume", 7.0))
    ),
    Event(9.5, "progress", "a", samples_done=5.0),
    Event(9.6, "decision"),
]


def test_a_start_bears_the_end_of_its_job_but_no_waiting() -> None:
    ends = [
        Event(20.0, "checkpoint", "a", overhead_seconds=0.5, detail={"attempt": 1}),
        Event(21.5, "finish", "a", 0),
        Event(30.0, "progress", "b", samples_done=5.0, detail={"attempt": 2}),
        Event(32.5, "finish", "b", 0),
    ]
    found = costs_from_events([*LIVE, *ends])
    assert (found.start.of("net"), found.start.of("mlp")) == (5.0 + 2.0, 2.0)
    assert found.start.of("other") == 4.0 + 2.0, "the median of all ends, as the mean of all starts"
    assert (found.rescale.of("net"), found.resume.of("net")) == (0.5, 7.0)
    starts_only = costs_from_events([*LIVE[:7], *ends])
    assert (starts_only.start.of("net"), starts_only.resume.of("net")) == (7.0, 5.0), "ends are borne once"
    # Its last workers reported nothing before they ended.
    waited = [
        Event(20.0, "progress", "a", samples_done=5.0, detail={"attempt": 1}),
        Event(25.0, "preempt", "a", 0),
        Event(5000.0, "resume", "a", 1),
        Event(5003.0, "finish", "a", 0),
    ]
    assert costs_from_events([*LIVE, *waited]).start == costs_from_events(LIVE).start


def test_costs_are_named_as_seconds_by_model_or_as_a_file(tmp_path: Path) -> None:
    events = str(tmp_path / "events.jsonl")
    write_events(LIVE, events)
    measured = Cost(0.5, {"net": 0.5}), Cost(7.0, {"net": 7.0})
    for stated, found in (
        ((None, None, None), (None, None, None)),
        ((None, "30", None), (None, Cost(30.0), None)),
        ((None, "bert=73,1", None), (None, Cost(1.0, {"bert": 73.0}), None)),
        ((None, "bert=2m,30s", None), (None, Cost(30.0, {"bert": 120.0}), None)),
        (("1", "2", None), (Cost(1.0), Cost(2.0), None)),
        (("1", "2", "3"), (Cost(1.0), Cost(2.0), Cost(3.0))),
        ((None, events, None), (None, *measured)),
        ((None, events, "8"), (None, measured[0], Cost(8.0))),
    ):
        assert parse_costs(*stated, None) == found
    start, rescale, _ = parse_costs(events, events, None, None)
    assert (start.of("net"), rescale.of("net")) == (5.0, 0.5)
    assert Cost(30.0).for_models(["a", "b"]) == 30.0
    assert Cost(1.0, {"b": 2.0}).for_models(["b", "a", "b"]) == {"a": 1.0, "b": 2.0}


def test_files_without_costs_and_none_at_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        parse_costs("nowhere.jsonl", None, None, None)
    write_events(LIVE[:2], tmp_path / "events.jsonl")
    with pytest.raises(BadInputError, match="no measured start or rescale"):
        parse_costs(str(tmp_path / "events.jsonl"), None, None, None)
    path = str(tmp_path / "p.parquet")
    write_profile(Profile((step(1, 8, 0.1),)), path)
    with pytest.raises(BadInputError, match="has no measured costs: measure with pliant profile --costs"):
        parse_costs(None, "profile", None, path)
    for none in (None, "-"):
        with pytest.raises(UsageError, match="--rescale-cost profile: name the profile"):
            parse_costs(None, "profile", None, none)
    for text in ("", "x", "bert=", "=5", "-1", "nan", "inf", "1,,2"):
        with pytest.raises(UsageError, match="--start-cost"):
            parse_costs(text, None, None, None)


def test_a_profile_tells_what_starts_and_changes_took(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    rows = [
        replace(step(1, 8, 0.1), start_seconds=4.0, relaunch_seconds=6.0),
        replace(step(2, 8, 0.1), start_seconds=6.0, relaunch_seconds=9.0, rescale_seconds=0.25),
        replace(step(3, 8, 0.1), start_seconds=5.0, relaunch_seconds=7.5, rescale_seconds=0.75),
        replace(step(1, 8, 0.1, model="mlp"), start_seconds=2.0, relaunch_seconds=3.0),
    ]
    write_profile(Profile(tuple(rows)), path)
    start, rescale, resume = parse_costs("profile", "profile", None, path)
    assert start.by_model == {"mlp": 2.0, "net": 5.0}
    assert rescale == Cost(4.0 / 3, {"mlp": 3.0, "net": 0.5}), "the mlp was only measured alone: a relaunch"
    assert resume == Cost(6.375, {"mlp": 3.0, "net": 7.5})
    write_profile(Profile(tuple(rows[:1])), path)
    assert parse_costs(None, "profile", None, path)[1] == Cost(6.0, {"net": 6.0})
