"""What holds for every trace, cluster and progress model, whatever the policy does.

An independent bookkeeper (``ledger.py``) computes from the event table what each job must have done.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import parquet_bytes
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.registry import policy_names
from tests.effort import examples
from tests.tools.replay.any_world import (
    PARAMETERS,
    SEARCHING,
    SLOTTED,
    Scattered,
    World,
    any_policy,
    worlds,
)

SLOW = (*SEARCHING, *SLOTTED)


FACTS = ("phase", "gpus", "gpu_type", "placement", "global_batch", "preemptions", "rescales", "first_start_s")


def facts(state: JobState, at_s: float) -> tuple[object, ...]:
    sums = state.samples_done(at_s), state.attained_service_s(at_s)
    return *(getattr(state, name) for name in FACTS), *map(pytest.approx, sums)


def check_books(world: World, engine: Engine) -> None:
    """The events break no rule of the ledger, and say of every job what the engine says."""
    accounts = world.ledger().audit(engine.log.events())
    end_s = max(engine.log.column("time"), default=0.0)
    states = {**engine.session.jobs, **engine.session.ended}
    assert set(accounts) == set(states) == {one.id for one in world.trace}
    for job_id, account in accounts.items():
        state = states[job_id]
        assert account.done == pytest.approx(state.samples_done(end_s), rel=1e-6, abs=1e-6)
        assert account.gpu_seconds == pytest.approx(state.attained_service_s(end_s))
        assert account.ended == (job_id in engine.session.ended)
    if world.all_nodes_return:
        assert not engine.session.jobs, "every job fits, so every job ends"


def check_fold(world: World, policy: str, engine: Engine) -> None:
    """The event file alone gives the engine's final state."""
    events = list(engine.log.events())
    end_s = max(engine.log.column("time"), default=0.0)
    folded = session_from_events(
        events, any_policy(policy, world.seed), world.nodes, Scattered(), now_s=end_s
    )
    for found, kept in ((folded.jobs, engine.session.jobs), (folded.ended, engine.session.ended)):
        assert {i: facts(state, end_s) for i, state in found.items()} == {
            i: facts(state, end_s) for i, state in kept.items()
        }
    assert [(node.name, node.up) for node in folded.nodes] == [
        (node.name, node.up) for node in engine.session.nodes
    ]
    assert folded.free.by_type == engine.session.free.by_type


@pytest.mark.parametrize("policy", [*policy_names(), "restless"])
def test_the_books_are_right_and_no_job_flaps(policy: str) -> None:
    @settings(max_examples=examples(5 if policy in SLOW else 30), derandomize=True)
    @given(
        world=worlds(most_jobs=5 if policy in SLOW else 8, replicas=st.sampled_from([1, 1, 2])),
        interval_s=st.just(None) if policy in SEARCHING else st.sampled_from([None, 0.0, 7.0]),
        min_run_s=st.sampled_from([0.0, 0.0, 25.0]),
        cooldown_s=st.sampled_from([0.0, 0.0, 15.0, 60.0]),
    )
    def holds(world: World, interval_s: float | None, min_run_s: float, cooldown_s: float) -> None:
        ruled = replace(world, min_run_s=min_run_s, cooldown_s=cooldown_s)
        engine = ruled.play(policy, interval_s=7.0 if policy == "restless" else interval_s)
        check_books(ruled, engine)
        check_fold(ruled, policy, engine)
        check_rules(engine, min_run_s, cooldown_s)

    holds()


def check_rules(engine: Engine, min_run_s: float, cooldown_s: float) -> None:
    granted_s, changed_s = dict[str, float](), dict[str, float]()
    for event in engine.log.events():
        if event.event in ("grow", "shrink", "move"):
            assert event.time >= changed_s[event.job] + cooldown_s
        if event.event == "preempt":
            assert event.time >= granted_s[event.job] + min_run_s
        if event.event in ("start", "resume"):
            granted_s[event.job] = event.time
        if event.event in ("start", "resume", "grow", "shrink", "move"):
            changed_s[event.job] = event.time


@pytest.mark.parametrize("policy", ["ares", "las", "gavel", "pollux", "oasis"])
def test_the_order_of_rows_does_not_change_a_byte(policy: str) -> None:
    @settings(max_examples=examples(2 if policy in SLOW else 5), derandomize=True)
    @given(world=worlds(most_jobs=3 if policy in SLOW else 5), rng=st.randoms(use_true_random=False))
    def holds(world: World, rng: random.Random) -> None:
        simulated = world.simulated()
        jobs, failures = list(world.trace), list(simulated.node_events)
        rng.shuffle(jobs)
        rng.shuffle(failures)
        mixed_up = replace(simulated, node_events=tuple(failures))
        first, again = (
            replay(
                inputs(trace, world.nodes),
                Run(policy, PARAMETERS.get(policy, {}), world.seed, simulated=each),
            )
            for trace, each in ((world.trace, simulated), (jobs, mixed_up))
        )
        assert first.log.json_lines() == again.log.json_lines()
        assert parquet_bytes(first.log) == parquet_bytes(again.log)
        assert first.summary.without_timing() == again.summary.without_timing()

    holds()
