from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.policies.elasticflow import ElasticFlow, FreeLater, Plans
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, cluster, curves, decided, job, opened, sizes
from tests.effort import examples
from tests.tools.replay.world import given as inputs_of
from tests.tools.schedule.policies.started import joined, started

SATURATES = curves(s={1: 1.0, 2: 1.5, 4: 2.0, 8: 2.0})
FALLS = curves(s={1: 1.0, 2: 1.5, 4: 2.0, 8: 2.0}, m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})


def due(job_id: str, in_s: float, gpu_seconds: float, **more: Any) -> Job:
    """An elastic job with a deadline; linear, so that k GPUs take a k-th of its GPU-seconds."""
    shape = {"low": 1, "high": 8, **more}
    return job(job_id, gpu_seconds=gpu_seconds, utility={"shape": "step", "target": in_s}, **shape)


THREE = [due("a", 100.0, 150.0), due("b", 100.0, 150.0), due("c", 100.0, 50.0)]


def free_changes(**parameters: Any) -> ElasticFlow:
    return ElasticFlow(rescale_s=0.0, **parameters)


def refused(held: Session, time_s: float = 0.0) -> dict[str, str]:
    return {each.job.id: each.reason for each in held.decide(time_s) if each.step == "reject"}


def test_jobs_get_the_smallest_shares_that_meet_their_deadlines():
    # Each has 150 GPU-seconds to do in 100 s: one GPU is too few, two are enough.
    held = opened(free_changes(), cluster(4), *THREE[:2])
    assert decided(held, 0.0) == {"a": 2, "b": 2}
    assert held.explain(0.0)["a"].reason == "ends by its deadline in 100 s with 2 GPUs or fewer"

    # a and b leave all four GPUs at 75 s: c does 50 GPU-seconds on two of them until 100 s.
    held = opened(free_changes(), cluster(4), *THREE)
    assert refused(held) == {}
    assert sizes(held) == {"a": 2, "b": 2}

    # 360 of the 400 GPU-seconds until 100 s are promised: 100 more by 90 s are too many, 10 by 60 s not.
    held = opened(free_changes(), cluster(4), *THREE, due("d", 60.0, 10.0), due("e", 90.0, 100.0))
    assert refused(held) == {"e": "no share that is left ends it in the 90 s to its deadline"}
    assert sizes(held)["d"] == 1

    # b would be done first and leave a one GPU too few: 50 s for 150 GPU-seconds on two GPUs.
    held = started(free_changes(), cluster(2), due("a", 100.0, 150.0))
    held.submit(due("b", 90.0, 60.0), 0.0)
    assert refused(held).keys() == {"b"}


@pytest.mark.parametrize(("blocks", "refused_jobs"), [(False, set()), (True, {"b"})])
def test_a_job_that_is_late_may_keep_others_out(blocks: bool, refused_jobs: set[str]):
    """a loses its GPUs until 60 s: of 8 s on eight of them it cannot do 400 GPU-seconds."""
    held = opened(free_changes(late_blocks=blocks), cluster(8), due("a", 68.0, 400.0))
    assert decided(held, 0.0) == {"a": 8}
    held.maintenance.node_down("n0", 0.0)
    held.maintenance.node_up("n0", 60.0)
    held.submit(due("b", 900.0, 10.0), 60.0)
    assert refused(held, 60.0).keys() == refused_jobs


@pytest.mark.parametrize(("rescale_s", "share"), [(0.0, 1), (30.0, 2)])
def test_the_cost_of_a_change_counts_in_the_share(rescale_s: float, share: int):
    """100 GPU-seconds in 120 s: one GPU does it, but not if the start takes 30 s of them."""
    held = started(ElasticFlow(rescale_s=rescale_s), cluster(8), due("a", 120.0, 100.0))
    assert f"with {share} GPUs" in held.explain(0.0)["a"].reason


@pytest.mark.parametrize(("gpus", "expected"), [(8, {"l": 4, "s": 4}), (6, {"l": 4, "s": 2})])
def test_left_gpus_go_where_they_save_most(gpus: int, expected: dict[str, int]):
    """Of eight GPUs each gets one. Doubling l costs nothing, doubling s pays half: l first, 1 to 2 to 4. Then
    three are left, too few for l: s goes to 2 and to 4.
    """
    jobs = [job(name, low=1, high=8, gpu_seconds=1000.0, model=name) for name in "ls"]
    assert decided(opened(free_changes(), cluster(gpus), *jobs, throughput=SATURATES), 0.0) == expected


def test_best_effort_jobs_take_what_is_free_and_move_together() -> None:
    # a needs six of eight, a power of two so all eight, until it has done 600 GPU-seconds in 100 s.
    held = opened(free_changes(), cluster(8), due("a", 100.0, 600.0), job("b", gpu_seconds=50.0))
    assert decided(held, 0.0) == {"a": 8}

    held = started(free_changes(unadmitted="best-effort"), cluster(4), due("a", 100.0, 380.0))
    assert joined(held, 0.0, due("b", 100.0, 90.0)) == {"a": 4}
    held.end("a", 95.0)
    assert decided(held, 95.0) == {"b": 4}

    held = opened(free_changes(), cluster(2), job("a", utility={"shape": "step", "target": 5.0}))
    assert decided(held, 0.0) == {"a": 1}
    # Sizes are powers of two as far as they are faster.
    for nodes, limits, gpus in (
        (cluster(6), {"low": 1, "high": 6}, 4),
        (cluster(6), {"low": 3, "high": 3, "gpus": 3}, 3),
        (cluster(8), {"low": 1, "high": 8, "model": "m"}, 4),
    ):
        held = opened(free_changes(), nodes, job("a", gpu_seconds=1e3, **limits), throughput=FALLS)
        assert decided(held, 0.0) == {"a": gpus}
    # Two nodes of four, each half taken by a job of two: one of them moves, so that z has a node.
    held = started(free_changes(), cluster(4, 4), *(job(name, gpus=2, gpu_seconds=1e4) for name in "abcd"))
    for node in ("n0", "n1"):
        name = next(name for name, state in held.jobs.items() if state.placement[0][0] == node)
        held.end(name, 10.0)
    result = joined(held, 10.0, job("z", gpus=4, gpu_seconds=100.0, at=10.0))
    assert [count for _, count in held.jobs["z"].placement] == [4]
    assert sorted(result.values()) == [2, 2, 4]


@st.composite
def stories(draw: st.DrawFn) -> list[Job]:
    return [
        due(
            f"j{number}",
            float(draw(st.integers(20, 400))),
            float(draw(st.integers(10, 900))),
            at=float(draw(st.integers(0, 200))),
            model=draw(st.sampled_from(["linear", "s", "m"])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@settings(max_examples=examples(60), deadline=None)
@given(jobs=stories())
def test_every_admitted_job_meets_its_deadline(jobs: list[Job]):
    run = Run("elasticflow", {"rescale_s": 0.0}, simulated=FREE_CHANGES)
    done = replay(inputs_of(jobs, cluster(8), FALLS), run)
    spec = {each.id: each for each in jobs}
    for event in done.log.events():
        if event.event == "finish":
            own = spec[event.job or ""]
            assert event.time <= own.submit_time + (own.utility.target or 0.0) + 1e-6
    assert done.summary.finished + done.summary.rejected == len(jobs)


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs=st.lists(stories(), min_size=1, max_size=4).map(lambda result: [*chain(*result)]),
    gpus=st.integers(4, 24),
)
def test_plans_that_are_kept_are_those_of_one_by_one(jobs: list[Job], gpus: int):
    """Admitted in any order, with the plans of earlier deadlines kept: the same as all planned anew."""
    jobs = [each.model_copy(update={"id": f"{number}"}) for number, each in enumerate(jobs)]
    held = opened(free_changes(), cluster(gpus), *jobs, throughput=SATURATES)
    policy = free_changes()
    now = held.snapshot(200.0)
    plans = Plans("gpu", gpus, policy, now)
    for each in now.jobs.values():
        plans.admit(each)
    free = FreeLater([200.0], np.array([gpus]))
    for planned, kept in zip(plans.jobs, plans.plans(), strict=True):
        alone = planned.plan(free, 0)
        assert (alone.share, list(alone.stretches)) == (kept.share, list(kept.stretches))
        assert kept.share
        free = free.without(kept.stretches)
        assert min(free.counts) >= 0
