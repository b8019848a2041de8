"""shadow-price: who gets GPUs, on which batch, and what it says about it. Cases worked out by hand."""

import json
import math
from typing import Any

import numpy as np
import pytest

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import NodeState, node_states
from pliant.tools.schedule.policies.shadow_price import job_estimates
from pliant.tools.schedule.policies.shadow_price.curves import GoodputCurve, sizes_of
from pliant.tools.schedule.policies.shadow_price.placement_choice import NodeSpace, SeatedJob, gathered, place
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, curves, decided, job, mixed_cluster, opened, sizes
from tests.tools.schedule.policies.started import joined, started

FREE = {"low": 1, "high": 1, "elastic": "size+batch", "batch": {"size": 64, "min": 64, "max": 1024}}
OVERHEAD = TimedSteps(lambda model, kind, place, batch: 0.1 + 0.001 * batch)
"""Whatever the GPUs."""
MIXED = CurveThroughput({}, {"fast": 3.0})
SATURATING = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.8}


def test_the_shortest_gets_most_within_its_class() -> None:
    # SRPT: no other way of sharing ends them sooner on average.
    held = on_four(elastic("long", 4000), elastic("short", 1000), elastic("middle", 2000))
    assert sizes(held) == {"short": 4}

    jobs = elastic("long", 4000, model="net"), elastic("short", 1000, model="net")
    assert sizes(on_four(*jobs, net=SATURATING)) == {"long": 1, "short": 3}

    # A job that ends in 20 s keeps its size: to change it costs 30 s.
    held = on_four(elastic("a", 40))
    held.submit(elastic("b", 39), 0.0)
    before = held.jobs["a"].placement
    held.decide(5.0)
    assert held.jobs["a"].placement == before
    # A class comes before all classes below it.
    held = on_four(elastic("short", 100), elastic("middle", 1e4, priority=0.1))
    assert sizes(held) == {"middle": 4}
    assert joined(held, 60.0, elastic("long", 1e6, priority=7.0)) == {"long": 4}

    held = on_four(elastic("short", 100), job("first", gpus=3, work={"samples": 1e6}, priority=1.0))
    assert sizes(held) == {"first": 3, "short": 1}

    plain, first = (
        [elastic("long", 4000, **own), elastic("short", 1000, **own)] for own in ({}, {"priority": 5.0})
    )
    assert sizes(on_four(*plain)) == sizes(on_four(*first))


def test_while_a_job_waits_it_is_asked_again_at_the_next_end():
    # A start takes 30 s, 400 samples on 4 GPUs 100 s; GPUs that are left to a round would be idle.
    first = job("first", gpus=4, work={"samples": 400})
    assert on_four(first).decided.due_s is None
    held = on_four(first, job("second", gpus=4, work={"samples": 4000}))
    assert sizes(held) == {"first": 4}
    assert held.decided.due_s == pytest.approx(130.0, abs=0.01)
    held.jobs["first"].report_progress(125.0, 390.0)
    held.decide(125.0)
    assert held.decided.due_s == pytest.approx(135.0, abs=0.01), "it may end later than expected"

    held.jobs["first"].report_progress(200.0, 500.0)
    assert decided(held, 200.0) == {"first": 4}
    assert held.decided.due_s is None

    assert on_four(job("first", gpus=4), job("second", gpus=4)).decided.due_s is None


@pytest.mark.parametrize(("weight", "first"), [(1.4, "short"), (1.6, "heavy")])
def test_the_least_weighted_sum_of_completion_times_decides(weight: float, first: str):
    """Smith's rule: of 1000 and 1500 s the longer comes first where it weighs more than 1.5 times as much."""
    assert sizes(on_four(elastic("short", 1000), elastic("heavy", 1500, weight=weight))) == {first: 4}


def test_unstated_work_is_that_of_the_queue_or_the_model() -> None:
    # A new job of unknown work is taken to be shorter than one that states an hour.
    unknown = job("unknown", low=1, high=4)
    assert sizes(on_four(elastic("stated", 14_400), unknown)) == {"unknown": 4}
    assert joined(on_four(unknown), 3600.0, elastic("stated", 1000)) == {"stated": 4}

    # What jobs alike have shown says more: nothing changes, whatever is predicted.
    held = on_four(elastic("stated", 1000))
    silent = held.submit(unknown, 0.0)
    silent.hide_work()
    before = decided(held, 60.0)
    silent.total_samples = 5e6
    assert before == decided(held, 120.0) == {"unknown": 4}
    # Unstated work counts as that of jobs of its model.
    held = on_four(*(job(name, gpus=1, model="known") for name in "abc"))
    for name in "abc":
        held.end(name, 1000.0)
    silent = job("silent", low=1, high=4, model="known")
    assert joined(held, 1000.0, silent, elastic("stated", 1300)) == {"silent": 4}
    assert decided(held, 1060.0) == {"silent": 4}


@pytest.mark.parametrize(("cost_s", "samples", "gpus"), [(1.0, 1e6, 4), (595.0, 1e6, 4), (595.0, 700.0, 1)])
def test_a_change_costs_what_the_profile_has_measured(cost_s: float, samples: float, gpus: int):
    """Three GPUs more are worth ten minutes to a job of days, not to one of eleven minutes."""
    costly = curves()
    costly.rescale_seconds = lambda model: cost_s
    jobs = (job("rigid", gpus=3, work={"samples": 100.0}), elastic("grows", samples))
    held = started(ShadowPrice(), cluster(4), *jobs, throughput=costly)
    assert sizes(held) == {"grows": 1, "rigid": 3}
    held.end("rigid", 60.0)
    assert decided(held, 60.0) == {"grows": gpus}


def reloaded(policy: ShadowPrice, **parameters: Any) -> ShadowPrice:
    again = ShadowPrice(**parameters)
    again.load_state(json.loads(json.dumps(policy.dump_state())), {})
    return again


def test_the_batch_grows_with_the_noise_scale():
    """Where larger batches train almost as much a sample, and faster, the largest is best."""
    policy = ShadowPrice(retune="free")
    held = on_batches(policy, job("a", **FREE))
    assert held.jobs["a"].global_batch == 64
    for at, (noise, batch) in enumerate(((1e6, 1024), (1.0, 64), (1e6, 1024)), start=1):
        held.jobs["a"].noise_scale = noise
        held.decide(60.0 * at)
        assert held.jobs["a"].global_batch == batch

    seen = ShadowPrice(retune="free")
    held = on_batches(seen, job("a", work={"samples": 1e6}, **FREE))
    held.jobs["a"].noise_scale = 1e6
    held.decide(60.0)
    later = on_batches(reloaded(seen, retune="free"), job("b", work={"samples": 1e6}, **FREE))
    assert later.jobs["b"].global_batch == 1024, "a job starts on what others of its model have shown"


@pytest.mark.parametrize(("unknown_noise", "later"), [("stated", 1024), ("author", 64)])
def test_jobs_of_a_model_may_end_without_stating_their_noise(unknown_noise, later):
    """Then all its batches are taken to be alike, if the policy is asked to."""
    policy = ShadowPrice(retune="free", unknown_noise=unknown_noise)
    jobs = [job(name, work={"samples": samples}, **FREE) for name, samples in (("a", 1e3), ("b", 1e6))]
    held = on_batches(policy, *jobs)
    assert held.jobs["b"].global_batch == 64, "it may tell as it trains"
    held.end("a", 60.0)
    held.decide(60.0)
    assert held.jobs["b"].global_batch == later
    assert held.explain(60.0)["b"].reason
    held.jobs["b"].noise_scale = 1.0
    held.decide(120.0)
    assert held.jobs["b"].global_batch == 64, "what a job tells is what counts"
    again = reloaded(policy, retune="free", unknown_noise=unknown_noise)
    resumed = on_batches(again, job("c", work={"samples": 1e6}, model="net", **FREE))
    assert resumed.jobs["c"].global_batch == 64, "of another model nothing is known"

    fixed = job("a", low=1, high=1, batch={"size": 64}, work={"samples": 1e3})
    held = on_batches(ShadowPrice(retune="free", unknown_noise=unknown_noise), fixed, job("b", **FREE))
    held.end("a", 60.0)
    held.decide(60.0)
    assert held.jobs["b"].global_batch == 64, "a job whose batch is fixed shows nothing of others"


@pytest.mark.parametrize("short", [1000, 2000])
def test_each_job_takes_the_type_where_it_ends_first(short: float):
    """A type that would stand idle takes the job that waits for the other, and keeps it."""
    nodes, jobs = mixed_cluster(slow=(4,), fast=(4,)), (elastic("long", 9000), elastic("short", short))
    held = opened(ShadowPrice(), nodes, *jobs, throughput=MIXED)
    for time_s in (0.0, 60.0, 120.0):
        assert decided(held, time_s) == {"long": 4, "short": 4}
        assert {each.id: each.gpu_type for each in held.jobs.values()} == {"long": "slow", "short": "fast"}


def test_a_job_that_waits_says_how_many_come_before_it():
    jobs = [job(name, gpus=4, work={"epochs": 5, "dataset_size": 4096}) for name in "abc"]
    result = decide(jobs, cluster(4), None, Question("shadow-price", explain=True))
    reasons = " ".join(each.reason for each in result.waiting)
    assert "1 job comes before it" in reasons
    assert "2 jobs come before it" in reasons


def elastic(name: str, samples: float, **more: object) -> Job:
    return job(name, low=1, high=4, work={"samples": samples}, **more)


def on_four(*jobs: Job, **by_model: dict[int, float]) -> Session:
    return started(ShadowPrice(), cluster(4), *jobs, throughput=curves(**by_model))


def on_batches(policy: ShadowPrice, *jobs: Job) -> Session:
    """One GPU for each; larger batches train faster."""
    return started(policy, cluster(len(jobs)), *jobs, throughput=OVERHEAD)


@pytest.mark.parametrize("first", ["long", "short"])
def test_of_rigid_jobs_of_equal_prices_the_shorter_one_runs(first: str):
    """On 4 GPUs the urgent job ends first; both others would fit once it has ended, so they are worth 1."""
    seconds = {"urgent": 100, "short": 1000, "long": 10_000, "longer": 100_000}
    names = [first, *(name for name in seconds if name != first)]
    jobs = [job(name, at=at, gpus=2, gpu_seconds=2 * seconds[name]) for at, name in enumerate(names)]
    assert sizes(on_four(*jobs)) == {"urgent": 2, "short": 2}


def test_equals_idle_gpus_and_stalled_jobs_by_hand() -> None:
    assert sizes(on_four(*(job(name, at=at, gpus=4, gpu_seconds=1e4) for at, name in enumerate("za")))) == {
        "z": 4
    }

    # Eight slow GPUs are four times as fast as the fast one; a change costs 250 s, which hours pay for.
    costly = CurveThroughput({}, {"fast": 2.0})
    costly.rescale_seconds = lambda model: 250.0
    jobs = (job("blocks", gpus=8, work={"samples": 1e4}), job("a", low=1, high=8, work={"samples": 4e4}))
    held = started(ShadowPrice(), mixed_cluster(fast=(1,), slow=(8,)), *jobs, throughput=costly)
    assert sizes(held) == {"a": 1, "blocks": 8}
    assert held.jobs["a"].gpu_type == "fast"
    held.end("blocks", 60.0)
    assert decided(held, 60.0) == {"a": 8}
    assert held.jobs["a"].gpu_type == "slow"
    # A stalled job and one past its work come later.
    # At a hundredth of its speed, 8 s of work take longer than the 500 s of another.
    policy = ShadowPrice(grace=None)
    held = started(policy, cluster(4), elastic("stalls", 40), elastic("other", 2000))
    assert sizes(held) == {"stalls": 4}
    held.jobs["stalls"].settle(60.0)
    held.jobs["stalls"].samples_per_second = 0.04
    held.jobs["stalls"].report_progress(60.0, 10.0)
    assert decided(held, 60.0) == {"other": 4}
    assert reloaded(policy, grace=None).dump_state() == policy.dump_state()
    # A job past its stated work counts by its service.
    held = on_four(elastic("past", 400), job("waits", gpus=4, work={"samples": 2000}))
    assert sizes(held) == {"past": 4}
    for time_s in range(60, 3600, 60):
        if held.jobs["past"].gpus:
            held.jobs["past"].report_progress(time_s, 400.0)
        held.decide(time_s)
    started_s = held.jobs["waits"].first_start_s
    assert started_s is not None
    assert 900.0 <= started_s <= 1100.0, "once it has had 3,840 GPU-seconds it counts as so many more"


WORSE_ACROSS = TimedSteps(
    lambda model, kind, place, batch: batch / (1.0 if len(place) > 1 else float(sum(place)))
)
"""One sample a GPU-second on one node, one a second on several."""
NODES = [NodeState(index, f"n{index}", 4, "gpu", None) for index in range(3)]


def test_who_gets_whole_nodes_and_who_makes_way() -> None:
    stay = SeatedJob("s", 3, 1.0, (("n1", 3),))
    result = place(NodeSpace.of(NODES, [stay]), [SeatedJob("one", 1, 1.0), SeatedJob("six", 6, 1.0)])
    assert result == {"six": (("n0", 4), ("n2", 2)), "one": (("n1", 1),)}

    result = place(NodeSpace.of(NODES, []), [SeatedJob("a", 2, 1.0, (("n2", 4),))])
    assert result == {"a": (("n2", 2),)}

    stay = [SeatedJob(f"s{index}", 3, 1.0, ((f"n{index}", 3),)) for index in range(3)]
    assert place(NodeSpace.of(NODES, stay), [SeatedJob("a", 2, 1.0)]) == {"a": (("n0", 1), ("n1", 1))}
    # The jobs that lose least make way.
    worth = (("a", 1, 5.0), ("b", 1, 1.0), ("c", 2, 9.0))
    stay = [SeatedJob(name, gpus, loss, ((f"n{n}", gpus),)) for n, (name, gpus, loss) in enumerate(worth)]
    result = place(NodeSpace.of(NODES, stay), [SeatedJob("whole", 4, 3.0)])
    assert result["whole"] == (("n1", 4),)
    assert result["b"] == (("n2", 1),)


@pytest.mark.parametrize(("cost", "spread"), [(0.3, False), (0.7, True)])
def test_no_job_makes_way_where_moves_cost_more_than_a_place(cost: float, spread: bool):
    """Spread over two nodes, the job loses a tenth of the 5 it makes; a move costs b 0.3, or 0.7."""
    stay = [SeatedJob(f"s{index}", 2, 9.0, ((f"n{index}", 2),), move_cost=9.0) for index in range(2)]
    b = SeatedJob("b", 1, 1.0, (("n2", 1),), move_cost=cost)
    nodes = NodeSpace.of(NODES, [*stay, b], lambda job, where: 0.1 * job.worth)
    result = place(nodes, [SeatedJob("whole", 4, 5.0)])
    assert (len(result["whole"]) > 1, "b" in result) == (spread, not spread)


def test_rigid_jobs_stay_and_scattered_ones_are_gathered() -> None:
    # Three jobs of one GPU sit on three nodes; one of four fits no node, and starts across two.
    jobs = [job(f"j{index:02}", gpus=1, work={"samples": 1e5}) for index in range(12)]
    held = started(ShadowPrice(), cluster(4, 4, 4), *jobs)
    for node in ("n0", "n1", "n2"):
        there = sorted(each.id for each in held.jobs.values() if each.placement[0][0] == node)
        for name in there[1:3]:
            held.end(name, 30.0)
    held.submit(job("wide", at=30.0, gpus=4, work={"samples": 1e4}), 30.0)
    assert [(each.job.id, each.step) for each in held.decide(60.0)] == [("wide", "start")]
    assert len(held.jobs["wide"].placement) == 2
    # Jobs are gathered where that pays and not scattered.
    scattered = SeatedJob("a", 4, 8.0, (("n0", 3), ("n1", 1)), move_cost=0.4)
    small = SeatedJob("b", 1, 1.0, (("n2", 1),), move_cost=0.05)
    nodes = NodeSpace.of(NODES, [scattered, small])
    assert gathered(nodes, scattered, gain=4.0) == {"a": (("n0", 4),)}
    assert nodes.free == {"n0": 0, "n1": 4, "n2": 3}
    assert gathered(nodes, SeatedJob("c", 3, 1.0, (("n1", 2), ("n2", 1)), move_cost=0.05), gain=0.01) == {}

    # Three GPUs of one node make 3, four of two nodes 1: it takes the three, and leaves one idle.
    jobs = [job(name, gpus=gpus, work={"samples": 1e3}) for name, gpus in (("a", 1), ("b", 3))]
    held = started(ShadowPrice(), cluster(4, 4), *jobs, throughput=WORSE_ACROSS)
    joined(held, 60.0, job("wide", gpus=3, low=3, high=4, work={"samples": 1e9}, model="net"))
    assert len(held.jobs["wide"].placement) == 1


ONES = np.ones(job_estimates.CELLS)
CURVE = GoodputCurve(np.array([10, 30]), np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 3.0]]), 10, 0)


def test_rates_ahead_and_noise_scales_by_hand() -> None:
    # φ = 10 makes batch 30 half as useful: 1 a second on one GPU; where φ is large, 2 a second.
    ahead = job_estimates.Ahead(CURVE)
    ahead.update(np.where(np.arange(job_estimates.CELLS) < job_estimates.CELLS // 2, 10.0, 1e15), ONES)
    assert ahead.whole(0.0) == pytest.approx([0.0, 1 / (0.5 / 1 + 0.5 / 2), 1 / (0.5 / 2 + 0.5 / 3)])
    assert ahead.whole(0.5) == pytest.approx([0.0, 2.0, 3.0])

    # 100 samples, the first half at 1 a second on one GPU: 25 s are a quarter of the work.
    assert ahead.at(0.0, 100.0, 25.0, 1).soon == pytest.approx([0.0, 1.0, 2.0])
    over_the_end = ahead.at(0.9, 100.0, 1e6, 1)
    assert over_the_end.soon == pytest.approx(over_the_end.whole)

    ahead.update(10.0 * ONES, 0.5 * ONES)
    assert ahead.whole(0.0) == pytest.approx([0.0, 0.5, 1.0])
    # Noise is interpolated and large pools try whole nodes.
    seen = job_estimates.noise_scales()
    assert seen.line("net") is None
    seen.observe("net", 0.0, 1.0)
    seen.observe("net", 0.5, 100.0)
    assert seen.at("net", 0.25) == pytest.approx(10.0)
    assert seen.at("net", 0.9) == pytest.approx(100.0)
    again = job_estimates.noise_scales()
    again.load(seen.dump())
    assert again.line("net") == pytest.approx(seen.line("net"))
    # Large pools try whole nodes beyond the exact sizes.
    sizes = sizes_of(2048, 8)
    assert sizes[:129].tolist() == [*range(129)]
    assert all(size % 8 == 0 for size in sizes[129:].tolist())
    assert sizes[-1] == 2048
    assert sizes_of(64, 4).tolist() == [*range(65)]


def test_unstated_work_and_what_changes_cost_by_hand() -> None:
    jobs = [job(name, work={"samples": samples}) for name, samples in (("short", 10.0), ("long", 1000.0))]
    held = opened(ShadowPrice(), cluster(1), *jobs, job("silent", low=1, high=1))
    known, silent = job_estimates.Knowledge(900.0, 30.0, "stated", 1.0), held.jobs["silent"]
    assert known.left(silent, 0.0) is None
    for name in ("short", "long"):
        held.jobs[name].report_progress(0.0, held.jobs[name].total_samples or math.nan)
        known.learn(held.jobs[name])
    for samples, expected in ((0.0, 505.0), (100.0, 900.0), (2000.0, None)):
        silent.report_progress(0.0, samples)
        assert known.left(silent, 0.0) == (expected and pytest.approx(expected))
    # A job that stands still for 200 s after each change of its size is seen to do so for 180.
    costs = job_estimates.ChangeCosts()
    speeds = Speeds(curves(), node_states(cluster(4)))
    state = job_state(job("a", low=1, high=4, model="net", work={"samples": 1e6}), speeds)
    state.gpus = 1
    for change_s in (0.0, 600.0, 1200.0, 1800.0):
        state.changed_s = change_s
        state.train_from(change_s + 200.0, 2.0)
        for after_s in range(60, 601, 60):
            costs.follow([state], change_s + after_s)
        if change_s == 1200.0:
            assert costs.cost_s("net", 30.0) == 30.0, "the first start is none, and two are too few"
    assert costs.cost_s("net", 30.0) == 180.0
    assert costs.cost_s("net", 150.0) == 150.0, "what is stated holds where it is about right"
    assert costs.cost_s("other", 30.0) == 30.0
    again = job_estimates.ChangeCosts()
    again.load(json.loads(json.dumps(costs.dump())))
    assert again.cost_s("net", 30.0) == 180.0
