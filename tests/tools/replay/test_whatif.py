import math

import pytest

from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.whatif import (
    LEAST,
    ActualTimes,
    PredictionErrors,
    WhatIfComparison,
    predict_jobs,
    prediction_errors,
    world_of,
)
from pliant.tools.run.watch.status import PastMoment
from pliant.tools.schedule.learned_speeds import LearnedSpeeds
from pliant.tools.schedule.predict_start import copy_of
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import some_jobs
from tests.builders import FREE_CHANGES, cluster, job, opened
from tests.tools.replay.world import ends, play

DEAR = SimulatedCluster(start_cost=Cost(10.0), rescale_cost=Cost(10.0))
NODES = cluster(4, 4)
JOBS = [each for each in some_jobs(40) if each.work is not None]


@pytest.mark.parametrize("policy", ["fifo", "fair-share", "ares"])
@pytest.mark.parametrize("stop_s", [30.0, 155.0])
def test_a_look_ahead_says_what_the_replay_comes_to(policy: str, stop_s: float) -> None:
    whole = ends(play(make_policy(policy), JOBS, NODES, simulated=FREE_CHANGES))
    session = Session(make_policy(policy), NODES, CurveThroughput())
    engine = Engine(session, JOBS, FREE_CHANGES)
    engine.run(lambda time_s: time_s <= stop_s)
    later = [each for each in JOBS if each.submit_time > stop_s]
    now_s = max(event.time for event in engine.log.events())
    found = predict_jobs(copy_of(session), now_s, FREE_CHANGES, coming=later)
    assert len(found.jobs) > 10
    assert {name: each.end_s for name, each in found.jobs.items()} == pytest.approx(
        {name: whole[name] for name in found.jobs}
    )
    assert found.exact_until_s is None


def waiting() -> Session:
    jobs = (job(name, gpus=4, gpu_seconds=400.0, model=name) for name in "abc")
    held = opened(make_policy("fifo"), cluster(4), *jobs)
    held.decide(0.0)
    return held


def test_looks_ahead_use_measurements_and_say_what_is_unknown() -> None:
    found = predict_jobs(waiting(), 0.0, DEAR, {"a": 2.0}).jobs  # of 4 samples a second
    assert (found["a"].end_s, found["b"].start_s, found["b"].end_s) == (200.0, 200.0, 310.0)
    assert (found["a"].gpus, found["a"].start_s, found["b"].gpus) == (4, None, 4)
    # a lost its node at 50 after half of its work: it resumes for 4 s. b then starts for 10.
    held = waiting()
    for lost in held.maintenance.node_down("n0", 50.0):
        lost.report_progress(50.0, 200.0)
    held.maintenance.node_up("n0", 50.0)
    found = predict_jobs(held, 50.0, SimulatedCluster(Cost(10.0), Cost(1.0), Cost(4.0))).jobs
    assert (found["a"].end_s, found["b"].end_s) == (50 + 4 + 50, 104 + 10 + 100)
    # What a job without GPUs loses on a drained node is no GPU time.
    held = opened(make_policy("fifo"), cluster(4, 0), job("a", gpus=0, gpu_seconds=400.0))
    held.decide(0.0)
    held.maintenance.drain("n1", 50.0, now=True)
    found = predict_jobs(held, 50.0, FREE_CHANGES).jobs["a"]
    assert (found.runs, found.gpus, found.start_s, found.lost_gpu_s) == (True, 0, None, 0.0)
    # What cannot be known is said.
    jobs = [job("a", gpus=4, work={"samples": 100}), job("b", gpus=4, gpu_seconds=100)]
    jobs += [job("c", gpu_seconds=100, after={"b": "ok"}), job("d", gpu_seconds=100, hold=True)]
    held = opened(
        make_policy("fifo"), cluster(4), *jobs, throughput=LearnedSpeeds(CurveThroughput(), {}, guesses=True)
    )
    held.decide(0.0)
    assert {name: each.why for name, each in predict_jobs(held, 0.0, DEAR).jobs.items()} == {
        "a": "its speed is not known",
        "b": "it waits for jobs of unknown end",
        "c": "waits for job b to finish",
        "d": "it is held",
    }


def test_with_little_time_the_policy_is_asked_more_rarely() -> None:
    jobs = [each.model_copy(update={"submit_time": 0.0}) for each in some_jobs(400) if each.work is not None]
    exact, none = (
        predict_jobs(opened(make_policy("fair-share"), NODES, *jobs), 0.0, FREE_CHANGES, within_s=within_s)
        for within_s in (None, 0.0)
    )
    assert exact.exact_until_s is None
    assert all(each.end_s is not None for each in exact.jobs.values())
    assert none.reached_s < math.inf
    assert {each.why for each in none.jobs.values()} == {"it lies further ahead than was looked"}


def test_looks_are_compared_with_each_other_and_with_what_came() -> None:
    less = waiting()
    less.end("b", 0.0, "cancelled")
    found = WhatIfComparison(
        predict_jobs(waiting(), 0.0, FREE_CHANGES), predict_jobs(less, 0.0, FREE_CHANGES)
    )
    assert {each.job: each.delay_s for each in found.changes} == {"a": 0.0, "b": None, "c": -100.0}
    assert found.mean_jct_s == (200.0, 150.0)
    assert (found.now.gpu_use, found.then.gpu_use) == (1.0, 1.0)
    # Past predictions are compared with what came.
    errors = PredictionErrors.of([0.5, *[1.0] * 8, 4.0])
    assert errors.between_s(110.0, 10.0) == (110.0, 110.0)
    assert PredictionErrors.of([2.0] * LEAST).between_s(110.0, 10.0) == (210.0, 210.0)
    few = PredictionErrors.of([1.0])
    assert few.between_s(110.0, 10.0) is None
    assert few.words("starts") == f"no ranges of starts: 1 of {LEAST} past predictions to compare with"
    moments = [PastMoment(0.0, waiting(), {})]
    came = {"a": ActualTimes(0.0, 150.0), "b": ActualTimes(200.0, None), "c": ActualTimes(None, None)}
    starts, ends_ = prediction_errors(moments, came, 300.0, FREE_CHANGES, each_s=60.0)
    assert (starts.comparisons, ends_.comparisons) == (2, 2)
    assert world_of([], None).start_cost == SimulatedCluster(Cost(30.0)).start_cost
