from collections.abc import Sequence
from typing import Any

import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.elastic_dp.policy import ElasticDp, MaxBs, MinBs, RandomBs, ScalingTimes
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Change, ChangeKind
from tests.builders import cluster, curves, decided, job, mixed_cluster, sizes
from tests.tools.profile.rows_builder import step
from tests.tools.schedule.policies.started import joined, started

SPEEDS = curves(
    fast={1: 1, 2: 2, 4: 4, 8: 8},
    slow={1: 1, 2: 1.5, 3: 1.75, 4: 1.875, 8: 1.875},
    jump={1: 1, 2: 1.1, 3: 1.2, 4: 4},
)


def begun(*jobs: Job, gpus: int = 8, **parameters: Any) -> Session:
    return started(ElasticDp(**parameters), cluster(gpus), *jobs, throughput=SPEEDS)


def elastic(name: str, model: str = "fast", *, low: int = 1, high: int = 8, **more: Any) -> Job:
    return job(name, model=model, low=low, high=high, gpus=low, **more)


def test_gpus_go_where_they_add_most_and_jobs_join_in_order() -> None:
    assert sizes(begun(elastic("a", "slow"), elastic("b", "fast"))) == {"a": 1, "b": 7}
    jobs = [elastic("a", "slow"), elastic("b", "slow")]
    assert sizes(begun(*jobs, gpus=5)) == {"a": 3, "b": 2}, "of equally good sizes the first gets more"

    jobs = [elastic("a", "slow", high=4), elastic("b", "jump", high=4)]
    assert sizes(begun(*jobs, gpus=6)) == {"a": 2, "b": 4}

    jobs = [elastic("a", "slow"), elastic("b", "slow", priority=3)]
    assert sizes(begun(*jobs, gpus=6)) == {"a": 2, "b": 4}
    assert sizes(begun(*jobs, gpus=6, priority_base=1)) == {"a": 3, "b": 3}
    jobs = [elastic("a", "slow", priority=-1e9), elastic("b", "slow")]
    assert sizes(begun(*jobs, gpus=6)) == {"a": 2, "b": 4}
    # Jobs join in order of arrival while they fit.
    jobs = [*(elastic(name, at=at, low=3) for at, name in enumerate("abc")), elastic("d", at=3, low=2)]
    held = begun(*jobs)
    assert sizes(held) == {"a": 3, "b": 3, "d": 2}
    held.end("a", 600)
    assert decided(held, 600) == {"b": 3, "c": 3, "d": 2}

    held = begun(*jobs, strict=True)
    assert sizes(held) == {"a": 5, "b": 3}
    assert held.explain(3)["d"].reason == 'waits behind "c", which does not fit'

    held = begun(job("c", gpus=4), elastic("a", at=1, low=2), elastic("b", at=2), gpus=5)
    assert sizes(held) == {"b": 1, "c": 4}
    held.end("c", 600)
    assert decided(held, 600) == {"a": 2, "b": 3}, "b joined first"
    assert joined(held, 1200, elastic("d", at=700, low=3)) == {"a": 2, "b": 3}


def test_sizes_change_at_intervals_that_ends_cut_short() -> None:
    held = begun(elastic("a"))
    assert sizes(held) == {"a": 8}
    assert joined(held, 100, elastic("b", at=100)) == {"a": 8}
    assert held.decided.due_s == 600
    assert held.explain(100)["b"].reason == "waits for the next scaling, in 500 s"
    assert decided(held, 600) == {"a": 7, "b": 1}
    assert held.decided.due_s is None, "nothing is left to look at"
    same_moment = joined(held, 600, elastic("c", at=600))
    assert same_moment == {"a": 6, "b": 1, "c": 1}, "whatever happens at the moment takes part"
    assert joined(held, 601, elastic("d", at=601)) == same_moment

    held = begun(elastic("a"), interval_s=0)
    assert joined(held, 1.5, elastic("b", at=1.5)) == {"a": 7, "b": 1}
    held.maintenance.lose("b", 2)
    assert held.explain(2)["b"].reason == "waits for the next scaling, in 0 s"
    assert decided(held, 2) == decided(held, 2) == {"a": 7, "b": 1}, "asked twice at one time"
    # When enough jobs have ended the interval is cut short.
    held = begun(*(elastic(f"j{i:02}", low=1, high=2) for i in range(40)), gpus=40)
    held.end("j00", 10)
    assert set(decided(held, 10).values()) == {1}
    held.end("j01", 20)
    assert decided(held, 20)["j02"] == 2, "two of forty are five in a hundred"

    held = begun(elastic("a", high=4), elastic("b"), ended_part=None)
    held.end("a", 10)
    assert decided(held, 10) == {"b": 4}
    held.end("b", 20)
    held.decide(20)
    assert joined(held, 21, elastic("c", at=21)) == {"c": 8}, "no job runs"


def test_jobs_that_do_not_fit_are_dropped_and_quotas_are_kept() -> None:
    jobs = [elastic("a", low=5), elastic("b", low=4), elastic("c", low=3)]
    for strict, result, dropped in ((False, {"a": 5, "c": 3}, {"b"}), (True, {"a": 8}, {"b", "c"})):
        held = begun(*jobs, mode="drop", strict=strict)
        assert (sizes(held), set(held.book.ended)) == (result, dropped)

    held = begun(elastic("a", low=6), mode="drop")
    joined(held, 100, elastic("b", at=100, low=4))
    assert "b" in held.jobs
    held.decide(600)
    assert "b" in held.book.ended

    jobs = [elastic(name, low=3, high=4) for name in "ab"]
    held = started(ElasticDp(mode="drop"), cluster(4, 4), *jobs, throughput=SPEEDS)
    held.maintenance.node_down("n0", 10)
    assert sum(decided(held, 600).values()) == 4
    assert len(held.jobs) == 2
    held.maintenance.node_up("n0", 610)
    assert decided(held, 1200) == {"a": 4, "b": 4}
    # A quota limits each named user.
    jobs = [elastic("a", user="ann"), elastic("b", user="ann"), elastic("c", "slow", user="bob")]
    assert sizes(begun(*jobs)) == {"a": 6, "b": 1, "c": 1}
    held = begun(*jobs, elastic("d", user="ann", low=3), elastic("e", user="ann", low=5), quota=4)
    assert sizes(held) == {"a": 3, "b": 1, "c": 4}
    assert held.explain(0)["d"].reason == "needs 3 GPUs, its user's quota has 2 left"
    assert "e" in held.book.ended, "it would never fit"
    assert sizes(begun(elastic("a"), quota=4)) == {"a": 8}, "jobs without a user have no quota"


@pytest.mark.parametrize("measured", [False, True])
def test_a_change_of_size_is_made_only_where_it_pays_for_itself(measured: bool, monkeypatch):
    for seconds, size in ((0, 4), (30, 4), (60, 3)):  # the fourth GPU adds 7 % to a
        monkeypatch.setattr(SPEEDS, "rescale_seconds", {"slow": seconds}.get)
        charged = "measured" if measured else seconds
        held = begun(elastic("a", "slow"), job("b", model="fast"), gpus=4, rescale_s=charged)
        assert sizes(held) == {"a": 3, "b": 1}
        held.end("b", 600)
        assert decided(held, 600) == {"a": size}


def test_a_change_that_was_not_measured_is_not_charged(caplog: pytest.LogCaptureFixture):
    held = begun(elastic("a", "slow"), job("b", model="fast"), gpus=4, rescale_s="measured")
    assert sizes(held) == {"a": 3, "b": 1}
    held.end("b", 600)
    assert decided(held, 600) == {"a": 4}
    held.decide(1200)
    assert caplog.text.count("measure them with `pliant profile --costs`") == 1


def test_types_moments_and_ends_of_a_decision() -> None:
    jobs = [elastic(name, low=low) for name, low in (("a", 3), ("b", 3), ("c", 1), ("d", 2))]
    held = started(ElasticDp(), mixed_cluster(old=(4,), new=(4,)), *jobs, throughput=SPEEDS)
    assert sizes(held) == {"a": 3, "b": 4, "c": 1}
    assert held.jobs["a"].gpu_type == held.jobs["c"].gpu_type != held.jobs["b"].gpu_type
    # Jobs that cannot be resized get what they requested.
    held = begun(job("rigid", gpus=3, model="fast"), elastic("b"), job("late", at=1, gpus=5))
    assert sizes(held) == {"rigid": 3, "b": 5}
    assert held.explain(1)["late"].needs_gpus == 5
    # A moment is answered once and ends count against it.
    times = ScalingTimes(600, None)
    assert asked(times, [change(0), change(0)], 0)
    assert not asked(times, [change(0, "rejected"), change(3)], 3)
    assert asked(times, [change(600)], 600)
    assert not asked(times, [change(600, "rejected")], 600)
    assert not asked(times, [], 600)
    assert asked(times, [change(1199), change(1300)], 1300), "the one of 1200 s was missed"
    assert not asked(times, [change(1301)], 1301)
    # Ends are counted against the jobs of the moment.
    times = ScalingTimes(600, 0.25)
    assert asked(times, [change(0)] * 8, 0)
    assert not asked(times, [change(1, "finished")], 1)
    assert asked(times, [change(2, "failed")], 2)
    assert not asked(times, [change(3, "cancelled")], 3)
    assert asked(times, [change(4, "finished")], 4), "two of six"

    times = ScalingTimes(600, 0.25)
    assert asked(times, [change(0)] * 1000, 0)
    assert not asked(times, [change(1, "finished")] * 9, 1)
    assert asked(times, [change(2, "finished")], 2)


GPUS = 40


def change(time_s: float, kind: ChangeKind = "arrived") -> Change:
    return Change(time_s, kind, JobState(job("a"), 1, None))


def asked(times: ScalingTimes, changes: Sequence[Change], now_s: float) -> bool:
    """Whether sizes may change now; if so, they are looked at."""
    due = times.due(changes, now_s, GPUS)
    if due:
        times.hold(now_s)
    return due


@pytest.mark.parametrize("interval_s", [0.1, 0.3, 1 / 3, 7.7, 600])
def test_the_next_moment_is_always_one(interval_s: float):
    now_s = 0.0
    for _ in range(2000):
        times = ScalingTimes(interval_s, None)
        asked(times, [change(now_s)], now_s)
        next_s = times.next_s(now_s)
        assert now_s < next_s <= now_s + interval_s * 1.001
        assert asked(times, [], next_s)
        now_s = next_s


def conv() -> ThroughputBySize:
    """32 samples fit a GPU; a step takes 0.1 s and 0.01 s a sample, and 0.1 s more on several GPUs."""
    rows = (
        step(k, local, 0.1 + local / 100 + 0.1 * (k > 1), model="conv")
        for k in (1, 2, 4, 8)
        for local in (8, 16, 32)
    )
    return ThroughputBySize(Profile(tuple(rows)))


def any_batch(name: str, at: float = 0.0, least: int = 16, most: int = 128) -> Job:
    batch = {"size": min(64, most), "min": least, "max": most}
    return job(name, at=at, model="conv", low=1, high=8, elastic="size+batch", batch=batch)


def on_batches(policy: ElasticDp, *jobs: Job, seed: int = 0) -> Session:
    held = Session(policy, cluster(8), conv(), seed=seed)
    joined(held, jobs[-1].submit_time, *jobs)
    return held


def batches(held: Session) -> dict[str, int]:
    return {name: state.global_batch for name, state in sorted(held.jobs.items()) if state.gpus}


def test_large_batches_need_many_gpus_and_random_ones_a_seed() -> None:
    jobs = [any_batch(name, at) for at, name in enumerate("abc")]
    held = on_batches(MaxBs(), *jobs)
    assert sizes(held) == {"a": 4, "b": 4}, "the third waits for four GPUs"
    assert batches(held) == {"a": 128, "b": 128}
    assert batches(on_batches(MinBs(), *jobs)) == {"a": 16, "b": 16, "c": 16}
    assert sizes(on_batches(ElasticDp(), *jobs)) == {"a": 4, "b": 3, "c": 1}

    slower = curves(slower={1: 1, 2: 0.9, 4: 0.8})
    large = elastic("a", "slower", batch={"size": 64, "per_gpu_max": 32})
    assert sizes(started(MaxBs(), cluster(8), large, throughput=slower)) == {"a": 2}
    # A random batch depends on seed and job alone.
    jobs = [any_batch(f"j{i}", at=i, most=32) for i in range(6)]
    result = batches(on_batches(RandomBs(), *jobs))
    assert len(set(result.values())) > 1
    assert batches(on_batches(RandomBs(), *jobs[3:])) == {name: result[name] for name in ("j3", "j4", "j5")}
    assert batches(on_batches(RandomBs(), *jobs, seed=1)) != result

    held = on_batches(RandomBs(interval_s=0), any_batch("a"))
    before = batches(held)
    assert joined(held, 10, any_batch("b", at=10))["a"] < 8
    assert batches(held)["a"] == before["a"]

    held = on_batches(RandomBs(), any_batch("a"))
    states = [held.submit(any_batch(f"j{index}", most=19), 0) for index in range(2000)]
    drawn = [held.policy.batches(each)[0] for each in states]
    assert sorted(set(drawn)) == [16, 17, 18, 19]
    assert all(400 < drawn.count(batch) < 600 for batch in set(drawn))
