"""What no policy does, whatever jobs demand of nodes and however their speed falls with more GPUs."""

from __future__ import annotations

import pytest

from benchmarks.parts.mends_speeds import Scattered, falling_speeds, left_behind, mixed_demands, slower_sizes
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.registry import policy_names
from tests.builders import FREE_CHANGES, cluster, curves, job, mixed_cluster
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import ends
from tests.tools.replay.world import given as inputs_of

FALLS = curves(m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_with_demands_starts_after_one_like_it_without(policy: str) -> None:
    """The fast nodes have CPUs for one worker of b each; a, which is like it, could have had four on each."""
    fast = [Node(name=f"v{n}", gpus=4, gpu_type="v100", cpus=8) for n in range(2)]
    nodes = Cluster(nodes=(*fast, Node(name="a", gpus=4, gpu_type="a100", cpus=128)))
    shape = {"model": "m", "gpus": 4, "low": 1, "high": 4, "batch": 64, "work": {"samples": 5000.0}}
    jobs = [job("a", **shape), job("b", at=600.0, resources={"worker": {"cpu": 8.0}}, **shape)]
    speeds = CurveThroughput({"m": {1: 1.0, 2: 1.9, 4: 3.5}}, {"a100": 0.5})
    assert replay(inputs_of(jobs, nodes, speeds), Run(policy)).summary.unfinished == ()


def test_no_job_of_random_demands_is_left_behind_or_slowed() -> None:
    """More such worlds are part of the benchmarks, and conformance/test_falling_speeds.py draws others."""
    assert list(left_behind(mixed_demands(13))) == []
    assert list(slower_sizes(falling_speeds(1))) == []


def test_jobs_take_only_gpus_that_make_them_faster() -> None:
    # Equal parts of twelve GPUs are six each: a is fastest on four, so b gets eight.
    jobs = [
        job("a", gpus=4, low=1, high=8, model="m", work={"samples": 2600.0}),
        job("b", gpus=4, low=1, high=8, work={"samples": 800.0}),
    ]
    done = replay(inputs_of(jobs, cluster(12), FALLS), Run("fair-share"))
    assert {name: event.gpus for name, event in told(done, "start").items()} == {"a": 4, "b": 8}
    # On eight GPUs they are slower than on two: the elastic job takes four, the rigid one keeps eight.
    jobs = [
        job("elastic", gpus=8, low=1, model="m", work={"samples": 2600.0}),
        job("rigid", at=500.0, gpus=8, model="m", work={"samples": 2000.0}),
    ]
    done = replay(inputs_of(jobs, cluster(8), FALLS), Run("ares", simulated=FREE_CHANGES))
    assert {name: event.gpus for name, event in told(done, "start").items()} == {"elastic": 4, "rigid": 8}
    assert ends(done) == pytest.approx({"elastic": 100.0, "rigid": 600.0})


def test_a_job_whose_gpus_lie_apart_takes_those_of_one_node() -> None:
    """Two nodes have one GPU free each. Across nodes the job takes twice as long as on one GPU."""
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
FASTEST_FIRST = ("fifo", "sjf", "srtf", "ares", "tiresias", "optimus")
ALL = (*FASTEST_FIRST, "las", "fair-share", "pollux")


def measured(model: str, gpu_type: str, **seconds: float) -> list[ProfileRow]:
    """Step times of a batch of eight by placement: ``g2=1.0``, ``g2_2=0.75``."""
    shares = {name: [*map(int, name[1:].split("_"))] for name in seconds}
    return [
        step(",".join(map(str, own)), BATCH // sum(own), seconds[name], model=model, gpu_type=gpu_type)
        for name, own in shares.items()
    ]


PROFILE = Profile(
    (
        *measured("both", "slow", g1=4.0, g2=2.0, g2_2=1.0),
        *measured("both", "fast", g1=2.0, g2=1.0),
        *measured("choosy", "fast", g1=1.0, g2=0.5),
        *measured("patient", "slow", g1=4.0),
        *(step(gpus, 1, None, model="choosy", gpu_type="slow") for gpus in (1, 2)),  # too large
        *(step(gpus, 1, None, model="patient", gpu_type="fast") for gpus in (1, 2)),
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


@pytest.mark.parametrize("policy", FASTEST_FIRST)
def test_the_first_job_takes_the_fast_type_the_second_the_slow(policy: str) -> None:
    done = replayed(policy, of("a", 2, 10), of("b", 2, 10, at=1))
    starts = told(done, "start")
    assert (types(starts["a"]), types(starts["b"])) == ({"fast"}, {"slow"})
    assert ends(done) == {"a": 10, "b": 1 + 20}


@pytest.mark.parametrize("policy", ALL)
def test_a_model_profiled_on_one_type_waits_for_it(policy: str) -> None:
    trace = [of("a", 2, 10, model="choosy"), of("b", 2, 20, model="choosy", at=1)]
    done = replayed(policy, *trace)
    assert done.summary.finished == 2
    assert max(ends(done).values()) == 5 + 10
    assert all(types(event) <= {"fast"} for event in done.log.events())


@pytest.mark.parametrize("policy", [*FASTEST_FIRST, "las"])
def test_each_trains_at_the_speed_of_its_type(policy: str) -> None:
    done = replayed(policy, of("a", 1, 10), of("b", 1, 5), of("c", 4, 10, at=1))
    starts = [(types(event), event.time) for event in told(done, "start").values()]
    assert starts == [({"fast"}, 0), ({"fast"}, 0), ({"slow"}, 1)]
    assert ends(done) == {"a": 20, "b": 10, "c": 11}


@pytest.mark.parametrize("policy", ALL)
def test_a_job_waits_for_enough_gpus_of_one_type(policy: str) -> None:
    """Five of six GPUs are free, three of them of the slow type, and it asks for four."""
    done = replayed(policy, of("a", 1, 10, model="patient"), of("c", 4, 10, at=1))
    assert all(len(types(event)) <= 1 for event in done.log.events())
    assert ends(done) in ({"a": 40, "c": 50}, {"a": 50, "c": 11}), "c waits, or a gives way"


def test_sizes_are_those_that_some_type_has() -> None:
    done = replayed("fifo", of("a", 5, 10), of("b", 1, 1))
    assert done.summary.finished == 1
    reasons = [left.reason for left in (*done.summary.unfinished, *done.summary.rejections)]
    assert reasons == ["needs 5 GPUs of one type, the cluster has 4"]
    # Four GPUs are on the slow type only, where a step takes a second.
    trace = [job("a", gpus=4, model="both", batch=BATCH, gpu_seconds=400)]
    done = replay(inputs(trace, NODES, PROFILE), Run("fifo", simulated=FREE_CHANGES))
    assert ends(done) == {"a": pytest.approx(100)}
