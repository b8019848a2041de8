"""The baselines of elastic-dp: one batch for each job, the same whatever else there is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies.elastic_dp.policy import ElasticDp, MaxBs, MinBs, RandomBs
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, sizes


def conv() -> ThroughputBySize:
    """32 samples fit a GPU; a step takes 0.1 s and 0.01 s a sample, and 0.1 s more on several GPUs."""
    rows = [
        ProfileRow("train", "conv", "gpu", 1, k, str(k), local, 1, 0.1 + local / 100 + 0.1 * (k > 1))
        for k in (1, 2, 4, 8)
        for local in (8, 16, 32)
    ]
    return ThroughputBySize(Profile(tuple(rows)))


def elastic(name: str, at: float = 0.0, least: int = 16, most: int = 128) -> Job:
    batch = {"size": min(64, most), "min": least, "max": most}
    return job(name, at=at, model="conv", low=1, high=8, elastic="size+batch", batch=batch)


def opened(policy: ElasticDp, jobs: Sequence[Job], *, seed: int = 0, gpus: int = 8) -> Session:
    held = Session(policy, cluster(gpus), conv(), seed=seed)
    for each in jobs:
        held.submit(each, each.submit_time)
    held.decide(jobs[-1].submit_time)
    return held


def batches(held: Session) -> dict[str, int]:
    return {name: state.global_batch for name, state in sorted(held.jobs.items()) if state.gpus}


def test_a_large_batch_needs_many_gpus_and_a_small_one_gives_many_too_little_to_do():
    jobs = [elastic(name, at) for at, name in enumerate("abc")]
    assert sizes(opened(MaxBs(), jobs)) == {"a": 4, "b": 4}, "the third waits for four GPUs"
    assert batches(opened(MaxBs(), jobs)) == {"a": 128, "b": 128}
    assert batches(opened(MinBs(), jobs)) == {"a": 16, "b": 16, "c": 16}
    assert sizes(opened(ElasticDp(), jobs)) == {"a": 4, "b": 3, "c": 1}


def test_choosing_the_batch_is_never_worse_than_any_one_batch():
    def throughput(policy: ElasticDp) -> float:
        held = opened(policy, [elastic("a"), elastic("b", 1)])
        return sum(state.samples_per_second for state in held.jobs.values())

    free = throughput(ElasticDp())
    assert all(throughput(policy) <= free for policy in (MaxBs(), MinBs(), RandomBs()))
    assert throughput(MinBs()) < free


def test_a_random_batch_depends_on_seed_and_job_alone():
    jobs = [elastic(f"j{i}", at=i, most=32) for i in range(6)]
    found = batches(opened(RandomBs(), jobs))
    assert len(set(found.values())) > 1
    assert batches(opened(RandomBs(), jobs[3:])) == {name: found[name] for name in ("j3", "j4", "j5")}
    assert batches(opened(RandomBs(), jobs, seed=1)) != found


def test_a_random_batch_stays_while_the_job_is_resized():
    held = opened(RandomBs(interval_s=0), [elastic("a")])
    before = batches(held)
    held.submit(elastic("b", at=10), 10)
    held.decide(10)
    assert held.jobs["a"].gpus < 8
    assert batches(held)["a"] == before["a"]


def test_the_seed_is_carried():
    held = opened(RandomBs(), [elastic("a")], seed=5)
    again = Session(RandomBs(), cluster(8), conv(), seed=6)
    again.submit(elastic("a"), 0)
    state = PolicyState.model_validate_json(held.policy_state().model_dump_json())
    assert again.carry(state)
    again.decide(600)
    assert batches(again) == batches(held)


def test_random_batches_are_uniform_over_all_that_the_job_allows():
    policy = RandomBs()
    held = opened(policy, [elastic("a")])
    drawn = []
    for index in range(2000):
        each = held.submit(elastic(f"j{index}", most=19), 0)
        drawn.append(policy.batches(each)[0])
    assert sorted(set(drawn)) == [16, 17, 18, 19]
    assert all(400 < drawn.count(batch) < 600 for batch in set(drawn))


@pytest.mark.parametrize("policy", [MaxBs, MinBs, RandomBs])
def test_a_job_that_keeps_its_batch_keeps_it(policy: type[ElasticDp]):
    fixed = job("a", model="conv", low=1, high=8, batch={"size": 64, "min": 16, "max": 128})
    assert batches(opened(policy(), [fixed])) == {"a": 64}
