"""What no policy does, whatever jobs demand of nodes and however their speed falls with more GPUs."""

import json

import pytest

from benchmarks.parts.regressions_speeds import (
    Scattered,
    falling_speeds,
    left_behind,
    mixed_demands,
    slower_sizes,
)
from pliant.schemas.checks import oversized
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, cluster, job, mixed_cluster
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import ends
from tests.tools.replay.world import given as inputs_of


def test_jobs_of_random_demands_and_one_whose_gpus_lie_apart() -> None:
    # More such worlds are part of the benchmarks, and conformance/test_falling_speeds.py draws others.
    assert list(left_behind(mixed_demands(13))) == []
    assert list(slower_sizes(falling_speeds(1))) == []
    # Two nodes have one GPU free each. Across nodes the job takes twice as long as on one GPU.
    jobs = [
        job("a", gpus=3, model="linear", work={"samples": 300.0}),
        job("b", gpus=3, model="linear", work={"samples": 300.0}),
        job("c", at=1.0, gpus=2, low=1, high=2, model="m", batch=64, work={"samples": 1000.0}),
    ]
    speeds = Scattered({"m": {1: 10.0, 2: 12.0}}, per_node=2.0)
    done = replay(inputs_of(jobs, cluster(4, 4), speeds), Run("ares"))
    held = [(event.job, event.event, event.gpus) for event in done.log.events() if event.job == "c"]
    assert held[1][1:] == ("start", 1)
    assert ("c", "grow", 2) in held  # once two GPUs of one node are free


BATCH = 8
NODES = mixed_cluster(slow=(2, 2), fast=(2,))
FASTEST_FIRST = ("fifo", "sjf", "srtf", "ares", "tiresias", "optimus", "las")


TIMES = {
    ("both", "slow"): {"1": 4.0, "2": 2.0, "2,2": 1.0},
    ("both", "fast"): {"1": 2.0, "2": 1.0},
    ("choosy", "fast"): {"1": 1.0, "2": 0.5},
    ("choosy", "slow"): {"1": None, "2": None},  # too large
}
"""Seconds of a step of a batch of eight by placement."""
PROFILE = Profile(
    tuple(
        step(place, BATCH // sum(map(int, place.split(","))), seconds, model=model, gpu_type=gpu_type)
        for (model, gpu_type), times in TIMES.items()
        for place, seconds in times.items()
    )
)


def of(job_id: str, gpus: int, steps: int, *, model: str = "both", at: float = 0.0) -> Job:
    return job(job_id, at=at, gpus=gpus, model=model, batch=BATCH, work={"iterations": steps})


def replayed(policy: str, *trace: Job) -> Replayed:
    run = Run(policy, conditions=Conditions(interval=0.0), simulated=FREE_CHANGES)
    return replay(inputs(trace, NODES, PROFILE), run)


def told(done: Replayed, name: str) -> dict[str, Event]:
    return {event.job or "": event for event in done.log.events() if event.event == name}


def types(event: Event) -> set[str]:
    return {node.split("-")[0] for node, _ in event.placement or ()}


@pytest.mark.parametrize("policy", [*FASTEST_FIRST, "fair-share", "pollux"])
def test_a_model_profiled_on_one_type_waits_for_it(policy: str) -> None:
    trace = [of("a", 2, 10, model="choosy"), of("b", 2, 20, model="choosy", at=1)]
    done = replayed(policy, *trace)
    assert done.summary.finished == 2
    assert max(ends(done).values()) == 5 + 10
    assert all(types(event) <= {"fast"} for event in done.log.events())


@pytest.mark.parametrize("policy", FASTEST_FIRST)
def test_each_trains_at_the_speed_of_its_type(policy: str) -> None:
    done = replayed(policy, of("a", 1, 10), of("b", 1, 5), of("c", 4, 10, at=1))
    starts = [(types(event), event.time) for event in told(done, "start").values()]
    assert starts == [({"fast"}, 0), ({"fast"}, 0), ({"slow"}, 1)]
    assert ends(done) == {"a": 20, "b": 10, "c": 11}


TWICE = NODES.model_copy(update={"speeds": {"fast": 2.0}})


@pytest.mark.parametrize(
    ("types", "kind", "end_s"),
    [(None, "slow", 100), (["fast"], "fast", 50), (["slow", "fast"], "fast", 50), (["slow"], "slow", 100)],
)
def test_a_recorded_time_is_that_of_its_type(types: list[str] | None, kind: str, end_s: float) -> None:
    """100 s on two slow GPUs were recorded; a fast one is twice as fast."""
    recorded = job("a", gpus=2, gpu_seconds=200, labels={"trace": "slurm", "gpu_type": "slow"})
    told_otherwise = recorded.gpus.model_copy(update={"types": None if types is None else tuple(types)})
    given = inputs([recorded.model_copy(update={"gpus": told_otherwise})], TWICE)
    for policy in FASTEST_FIRST:
        done = replay(given, Run(policy, simulated=FREE_CHANGES))
        assert ends(done) == {"a": pytest.approx(end_s)}, policy
        assert types_of(done) == {kind}, policy
    assert len(given.types_assumed) == (types is None)


def types_of(done: Replayed) -> set[str]:
    return {kind for event in told(done, "start").values() for kind in types(event)}


def test_assumed_types_are_said_and_impossible_demands_refused(golden_text) -> None:
    labels = ({"gpu_type": "slow"}, {"gpu_type": "fast"}, {"gpu_type": "k80"}, {})
    trace = [job(f"j{at}", gpu_seconds=10, labels={"trace": "pai", **each}) for at, each in enumerate(labels)]
    lines = [each.text for nodes in (TWICE, cluster(4)) for each in inputs(trace, nodes).types_assumed]
    small = tuple(each.model_copy(update={"gpu_memory": 16 * 10**9}) for each in TWICE.nodes)
    nodes = TWICE.model_copy(update={"nodes": small})
    for where, more in (
        (TWICE, {"types": ["v100", "h100"]}),
        (TWICE, {"memory": 40 * 10**9}),
        (nodes, {"types": ["slow"], "memory": 40 * 10**9}),
    ):
        line = {"id": "a", "model": "m", "work": {"gpu_seconds": 1}, "gpus": more}
        spec = Job.model_validate_json(json.dumps(line))
        with pytest.raises(BadInputError) as refused:
            inputs([spec], where)
        lines.append(str(refused.value))
    three = job("a", gpus=3, gpu_seconds=1)
    three = three.model_copy(update={"gpus": three.gpus.model_copy(update={"types": ("fast",)})})
    spec_of_two = three.gpus.model_copy(update={"requested": 2})
    (left,) = replay(inputs([three], TWICE), Run("fifo")).summary.rejections
    lines += [*oversized([three], TWICE).values(), left.reason]
    session = Session(make_policy("fifo"), TWICE, CurveThroughput(speeds=TWICE.speeds))
    for name in "ab":
        session.submit(three.model_copy(update={"id": name, "gpus": spec_of_two}), 0.0)
    session.decide(0.0)
    lines.append(explanations(session, 0.0)["b"].reason)
    session.maintenance.node_down("fast-0", 1.0)
    session.decide(1.0)
    lines.append(explanations(session, 1.0)["a"].reason)
    golden_text("\n".join(lines))


@pytest.mark.parametrize("policy", ["srtf", "las", "tiresias", "ares", "shadow-price", "optimus"])
def test_a_job_that_cannot_save_keeps_its_gpus_on_request(policy: str) -> None:
    """A long job has both GPUs when a short one comes; it may say that it saves."""
    stated, free = (Conditions(interval=0.0, preemptible=who) for who in ("stated", "all"))
    short = job("b", at=1, gpus=2, gpu_seconds=20)
    for more, paused in (({}, False), ({"preemptible": True}, True), ({"checkpoint_seconds": 60.0}, True)):
        trace = [job("a", gpus=2, gpu_seconds=2000, **more), short]
        kept, usual = (
            ends(replay(inputs(trace, cluster(2)), Run(policy, conditions=each, simulated=FREE_CHANGES)))
            for each in (stated, free)
        )
        assert kept == (usual if paused else {"a": 1000, "b": 1010})


def test_sizes_are_those_that_some_type_has() -> None:
    done = replayed("fifo", of("a", 5, 10), of("b", 1, 1))
    assert done.summary.finished == 1
    reasons = [left.reason for left in (*done.summary.unfinished, *done.summary.rejections)]
    assert reasons == ["needs 5 GPUs of one type, the cluster has 4"]
    # Four GPUs are on the slow type only, where a step takes a second.
    trace = [job("a", gpus=4, model="both", batch=BATCH, gpu_seconds=400)]
    done = replay(inputs(trace, NODES, PROFILE), Run("fifo", simulated=FREE_CHANGES))
    assert ends(done) == {"a": pytest.approx(100)}
