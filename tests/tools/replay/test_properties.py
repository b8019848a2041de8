"""What holds for every trace, whatever the policy does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.costs import Cost
from pliant.tools.replay.engine import Engine
from pliant.tools.replay.failures import NodeEvent
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.parquet import parquet_bytes
from pliant.tools.replay.physics import Physics
from pliant.tools.replay.replay import Run, replay
from pliant.tools.schedule.snapshot import JobState
from pliant.tools.schedule.state import session_from_events
from tests.builders import cluster, job
from tests.tools.replay.world import Restless, ends, held_seconds, play
from tests.tools.replay.world import given as inputs_of

NODES = cluster(4, 2, 2)
CURVE = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.0}
POLICIES = st.sampled_from(["ares", "fair-share", "fifo", "las", "sjf", "srtf"])
WORK = st.floats(0.5, 500.0)


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    listed = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 4]), WORK, st.booleans()),
            min_size=1,
            max_size=8,
        )
    )
    return [
        job(
            f"j{n}",
            at=at * 10,
            gpus=gpus,
            work={"samples": work},
            model="m",
            low=1 if el else None,
            high=8 if el else None,
        )
        for n, (at, gpus, work, el) in enumerate(listed)
    ]


COSTS = st.sampled_from([0.0, 0.5, 3.0])
FAILURES = st.lists(st.tuples(st.floats(0, 400), st.sampled_from(["n0", "n1"])), max_size=3)


def restless(trace: list[Job], cost: float, failures: list[tuple[float, str]], seed: int) -> Engine:
    events = [
        NodeEvent(at + later, node, up) for at, node in failures for later, up in ((0.0, False), (40.0, True))
    ]
    physics = Physics(Cost(cost), Cost(cost / 2), node_events=tuple(events))
    speeds = CurveThroughput({"m": CURVE})
    return play(Restless(), trace, NODES, speeds, physics=physics, interval_s=7.0, seed=seed)


def facts(state: JobState, at_s: float) -> tuple[object, ...]:
    return (
        state.phase,
        state.gpus,
        state.placement,
        state.preemptions,
        state.rescales,
        state.first_start_s,
        pytest.approx(state.samples_done(at_s)),
        pytest.approx(state.attained_service_s(at_s)),
    )


@settings(max_examples=40)
@given(traces(), COSTS, FAILURES, st.integers(0, 99))
def test_a_restless_policy_breaks_nothing(
    trace: list[Job], cost: float, failures: list[tuple[float, str]], seed: int
) -> None:
    engine = restless(trace, cost, failures, seed)
    events = list(engine.log.events())
    end_s = events[-1].time

    assert set(ends(engine)) == {one.id for one in trace}, "every job finishes, and ends() says once"
    assert all(before.time <= after.time for before, after in pairwise(events)), "time never runs backwards"

    held: dict[str, int] = {}
    down: set[str] = set()
    for index, event in enumerate(events):
        if event.event in ("node_down", "node_up"):
            (down.add if event.event == "node_down" else down.discard)((event.detail or {})["node"])
        if event.job is not None and event.gpus is not None:
            held[event.job] = event.gpus
            assert not {node for node, _ in event.placement or ()} & down, "nobody starts on a lost node"
        moment_ends = index + 1 == len(events) or events[index + 1].time > event.time
        assert not moment_ends or sum(held.values()) <= 8, "never more GPUs than there are"

    folded = session_from_events(events, Restless(), NODES, CurveThroughput({"m": CURVE}))
    assert not folded.jobs
    assert {i: facts(state, end_s) for i, state in folded.ended.items()} == {
        i: facts(state, end_s) for i, state in engine.session.ended.items()
    }


@settings(max_examples=40)
@given(traces(), COSTS, st.integers(0, 99))
def test_work_is_conserved(trace: list[Job], cost: float, seed: int) -> None:
    """What the rates say for the GPU-seconds in the events, overheads left out, is each job's work."""
    engine = restless(trace, cost, [], seed)
    speeds, end_s = engine.session.speeds, engine.log.time[-1]
    for job_id, stretches in held_seconds(engine.log.events(), end_s).items():
        state = engine.session.ended[job_id]
        trained = sum(
            (end - start - (began.overhead_seconds or 0.0))
            * speeds.rate(
                state,
                began.gpus or 0,
                "gpu",
                placement=tuple(sorted((n for _, n in began.placement or ()), reverse=True)),
            )
            for start, end, began in stretches
        )
        assert trained == pytest.approx(state.total_samples, rel=1e-6)
        gpu_seconds = sum((end - start) * (began.gpus or 0) for start, end, began in stretches)
        assert gpu_seconds == pytest.approx(state.attained_service_s(end_s))


@settings(max_examples=30)
@given(traces(), POLICIES)
def test_doubling_all_speeds_halves_all_times(trace: list[Job], policy: str) -> None:
    sooner = [one.model_copy(update={"submit_time": one.submit_time / 2}) for one in trace]
    faster = CurveThroughput({"m": {size: 2 * rate for size, rate in CURVE.items()}})
    interval_s = 20.0 if policy == "las" else 0.0
    slow = replay(inputs_of(trace, NODES, CurveThroughput({"m": CURVE})), Run(policy, interval_s=interval_s))
    fast = replay(inputs_of(sooner, NODES, faster), Run(policy, interval_s=interval_s / 2))
    assert list(slow.log.time) == [2 * time_s for time_s in fast.log.time]
    assert slow.summary.finished == len(trace)


@settings(max_examples=30)
@given(traces(), POLICIES, COSTS, st.randoms(use_true_random=False))
def test_equal_traces_give_equal_bytes_in_whatever_order_they_are(
    trace: list[Job], policy: str, cost: float, random: st.DataObject
) -> None:
    run = Run(policy, physics=Physics(Cost(cost), Cost(cost)))
    shuffled = list(trace)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (replay(inputs(jobs, NODES), run) for jobs in (trace, shuffled))
    assert first.log.json_lines() == second.log.json_lines()
    assert parquet_bytes(first.log) == parquet_bytes(second.log)
    assert first.summary.without_timing() == second.summary.without_timing()
