"""Jobs that change their batch by themselves: a replay follows them to the second."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_jobs, write_jobs
from pliant.schemas.job import Job, trace_hash
from pliant.tools.profile.throughput import Placement
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.from_log import apply_events
from pliant.tools.schedule.jobs import BatchChange
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, TimedSteps, cluster, job
from tests.tools.replay.world import Pairs, Told, ends, play


def one_second_a_step(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
    """A GPU trains up to 8 samples in a second, so a batch of 16 takes two of one GPU."""
    del model, gpu_type
    return max(1.0, batch / 8 / sum(placement))


SPEEDS = TimedSteps(one_second_a_step)


def growing(job_id: str = "a", **more: object) -> Job:
    """800 samples: 200 at 2 a second, 200 at 4 a second, 400 at 8 a second; 200 s on one GPU."""
    regimes = ({"after": 0.25, "size": 4}, {"after": 0.5, "size": 8})
    batch = {"size": 2, "regimes": regimes}
    return job(job_id, batch=batch, work={"samples": 800.0}, **more)  # type: ignore[arg-type]


def test_speed_changes_at_each_border_and_the_end_is_exact():
    engine = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 200.0}
    changes = [event for event in engine.log.events() if event.event == "progress"]
    assert [(event.time, event.global_batch, event.samples_done) for event in changes] == [
        (100.0, 4, 200.0),
        (150.0, 8, 400.0),
    ]


def test_the_cost_of_a_start_comes_before_the_first_regime():
    assert ends(play(Fifo(), [growing()], cluster(1), SPEEDS)) == {"a": 200.0}
    policy = Told({0.0: {"a": 1}, 120.0: {"a": 0}, 130.0: {"a": 1}}, again_s=[120.0, 130.0])
    engine = play(policy, [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 210.0}  # ten seconds without GPUs in the second regime


def test_a_policy_is_asked_at_a_border_and_sees_the_present_speed_alone():
    seen: list[tuple[float, float, tuple[BatchChange, ...]]] = []

    class Watching(Fifo):
        name = "watching"

        def decide(self, snapshot, rng):  # type: ignore[no-untyped-def]
            for state in snapshot.jobs.values():
                rate = snapshot.speeds.rate(state, 1)
                seen.append((snapshot.time_s, rate, tuple(state.batch_changes)))
            return super().decide(snapshot, rng)

    play(Watching(), [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    first, second = BatchChange(200.0, 4), BatchChange(400.0, 8)
    assert seen == [(0.0, 2.0, ()), (100.0, 4.0, (first,)), (150.0, 8.0, (first, second))]


def test_a_failure_takes_the_job_back_to_the_batch_of_its_checkpoint():
    """Checkpoints at 60 s and 120 s; the node fails at 110 s, in the second regime."""
    failures = (NodeEvent(110.0, "n0", False), NodeEvent(200.0, "n0", True))
    simulated = SimulatedCluster(FREE_CHANGES.start_cost, FREE_CHANGES.rescale_cost, node_events=failures)
    engine = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=simulated)
    assert ends(engine) == {"a": 340.0}  # 120 of 200 samples saved, 40 s to the border, then 50 s + 50 s
    batches = [event.global_batch for event in engine.log.events() if event.event == "progress"]
    assert batches == [4, 2, 4, 8]


def test_gpus_that_a_small_batch_leaves_without_a_sample_idle():
    regimes = ({"after": 0.5, "size": 2},)
    shrinking = job("a", gpus=4, low=1, high=4, batch={"size": 4, "regimes": regimes}, work={"samples": 80.0})
    engine = play(Told({0.0: {"a": 4}}), [shrinking], cluster(4), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 30.0}  # 10 steps of 4 samples, then 20 of 2


def test_two_jobs_that_share_a_gpu_are_slowed_in_every_regime():
    """At half its speed, a begins its second regime at 200 s, when b ends; at 100 s, it would be alone."""
    sharing = {"unmeasured": "together", "speed": 0.5}
    nodes = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 1},), "sharing": sharing})
    other = job("b", batch=8, work={"samples": 1000.0})
    engine = play(Pairs({0.0: {"a": 1, "b": "a"}}), [growing(), other], nodes, SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 325.0, "b": 250.0}  # 100 samples at 2 a second, 100 at 4, 400 at 8


def test_the_work_of_a_report_counts_all_regimes():
    engine = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    detail = next(event.detail for event in engine.log.events() if event.event == "submit") or {}
    assert detail["demand_gpu_s"] == pytest.approx(200.0)
    assert detail["curve"][0] == [1, pytest.approx(4.0)]


def test_a_log_leads_to_the_batch_of_the_moment():
    done = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    held = Session(Fifo(), cluster(1), SPEEDS)
    for event in done.log.events():
        if event.time < 150.0:
            apply_events(held, [event])
    state = held.jobs["a"]
    assert (state.reference_batch, state.global_batch, state.samples_per_second) == (4, 4, 4.0)
    assert state.batch_changes == (BatchChange(200.0, 4),)
    assert state.samples_done(125.0) == 300.0
    assert [change.kind for change in held.changes] == ["arrived", "batch"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch": {"regimes": ({"after": 0.5, "size": 2},)}}, "/batch/size: is missing"),
        (
            {"batch": {"size": 2, "max": 8, "regimes": ({"after": 0.5, "size": 2},)}},
            "/batch/max: contradicts",
        ),
        ({"elastic": "size+batch"}, "/elastic: 'size+batch' contradicts batch.regimes"),
        ({"convergence": "lm"}, "/convergence: contradicts batch.regimes"),
        ({"gpus": {"requested": 8}}, "/batch/regimes/0/size: 4 is below the 8 workers"),
        (
            {"batch": {"size": 2, "regimes": ({"after": 0.5, "size": 2}, {"after": 0.5, "size": 4})}},
            "/batch/regimes/1/after: 0.5 is not above that of the regime before it, 0.5",
        ),
    ],
)
def test_a_job_whose_fields_choose_its_batch_twice_is_refused(
    wrong: dict[str, Any], words: str, tmp_path: Path
):
    record = growing().model_dump(mode="json", exclude_defaults=True) | wrong
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadInputError, match=re.escape(words)):
        read_jobs(str(path))


def test_regimes_survive_a_file_and_count_for_the_hash_of_the_trace(tmp_path: Path):
    path = str(tmp_path / "jobs.jsonl")
    write_jobs([growing()], path)
    assert '"schema":"pliant.job/1.6"' in Path(path).read_text()
    assert list(read_jobs(path)) == [growing()]
    assert trace_hash([growing()]) != trace_hash([job("a", batch=2, work={"samples": 800.0})])


def test_a_batch_that_no_gpu_holds_is_refused_before_the_replay():
    def until_four(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
        return one_second_a_step(model, gpu_type, placement, batch) if batch < 8 else None

    with pytest.raises(BadInputError, match="it changes its batch to 8, which is infeasible on 1 GPUs"):
        play(Fifo(), [growing()], cluster(1), TimedSteps(until_four))
