"""What holds for every trace, cluster and progress model, whatever the policy does.

An independent bookkeeper (``ledger.py``) computes from the event table what each job must have done.
"""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import Unfinished, in_words
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.registry import policy_names
from tests.builders import FREE_CHANGES, cluster, job
from tests.effort import examples
from tests.tools.replay.any_world import (
    EVENT_DRIVEN,
    LEARNED,
    PARAMETERS,
    ROUNDS,
    SEARCHING,
    SLOTTED,
    Progress,
    Scattered,
    World,
    any_policy,
    world,
)
from tests.tools.replay.world import ends

SLOW = (*SEARCHING, *SLOTTED)
SEEDS = st.integers(0, 1 << 32)


def any_world(seed: int, most_jobs: int) -> World:
    return world(seed, (1, 1, 2), (1, most_jobs), (0.5, 40.0, 40.0, None), get_args(Progress))


FACTS = ("phase", "gpus", "gpu_type", "placement", "global_batch", "preemptions", "rescales", "first_start_s")


def facts(state: JobState, at_s: float) -> tuple[object, ...]:
    sums = state.samples_done(at_s), state.attained_service_s(at_s)
    return *(getattr(state, name) for name in FACTS), *map(pytest.approx, sums)


def check_books(world: World, engine: Engine) -> None:
    """The events break no rule of the ledger, and say of every job what the engine says."""
    accounts = world.ledger().audit(engine.log.events())
    end_s = max(engine.log.column("time"), default=0.0)
    states = {**engine.session.jobs, **engine.session.book.ended}
    assert set(accounts) == set(states) == {one.id for one in world.trace}
    for job_id, account in accounts.items():
        state = states[job_id]
        assert account.done == pytest.approx(state.samples_done(end_s), rel=1e-6, abs=1e-6)
        assert account.gpu_seconds == pytest.approx(state.attained_service_s(end_s))
        assert account.ended == (job_id in engine.session.book.ended)
    if world.all_nodes_return:
        assert not engine.session.jobs, "every job fits, so every job ends"


def check_fold(world: World, policy: str, engine: Engine) -> None:
    """The event file alone gives the engine's final state."""
    events = list(engine.log.events())
    end_s = max(engine.log.column("time"), default=0.0)
    folded = session_from_events(
        events, any_policy(policy, world.seed), world.nodes, Scattered(), now_s=end_s
    )
    for found, kept in ((folded.jobs, engine.session.jobs), (folded.book.ended, engine.session.book.ended)):
        assert {i: facts(state, end_s) for i, state in found.items()} == {
            i: facts(state, end_s) for i, state in kept.items()
        }
    assert [(node.name, node.up) for node in folded.cluster.nodes] == [
        (node.name, node.up) for node in engine.session.cluster.nodes
    ]
    assert folded.cluster.free.by_type == engine.session.cluster.free.by_type


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


@pytest.mark.parametrize("policy", [*policy_names(), "restless"])
def test_the_books_are_right_and_no_job_flaps(policy: str) -> None:
    @settings(max_examples=examples(5 if policy in SLOW else 30), derandomize=True)
    @given(seed=SEEDS, interval_s=st.just(None) if policy in SEARCHING else st.sampled_from([None, 0.0, 7.0]))
    def holds(seed: int, interval_s: float | None) -> None:
        drawn = any_world(seed, 5 if policy in SLOW else 8)
        engine = drawn.play(policy, interval_s=7.0 if policy == "restless" else interval_s)
        check_books(drawn, engine)
        check_fold(drawn, policy, engine)
        check_rules(engine, drawn.min_run_s, drawn.cooldown_s)

    holds()


# Traces at the edge: each replay ends and says what became of every job.


POLICIES = (*EVENT_DRIVEN, *ROUNDS, "pollux")
NODES = cluster(2, 2)
YEAR_S = 365 * 86400.0


def replayed(policy: str, *trace: Job, profile: Profile | None = None, **simulated: object) -> Replayed:
    run = Run(policy, PARAMETERS.get(policy, {}), simulated=replace(FREE_CHANGES, **simulated))  # type: ignore[arg-type]
    return replay(inputs(trace, NODES, profile), run)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_trace_ends_at_once_and_one_job_runs(policy: str) -> None:
    done = replayed(policy)
    assert [event.event for event in done.log.events()] == ["decision"]
    assert done.summary.lines() == [f"{policy}: 0 of 0 jobs finished, ends after 0 s, 0 decisions, 0 ms each"]
    assert ends(replayed(policy, job("a", at=720, gpus=2, gpu_seconds=20))) == {"a": 730}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_takes_no_time_keeps_no_job_waiting(policy: str) -> None:
    trace = [job(f"t{n}", at=1.7e9, gpus=4, gpu_seconds=1e-7) for n in range(3)]
    done = replayed(policy, *trace, job("v", at=1.7e9, gpus=4, gpu_seconds=60))
    assert set(ends(done)) == {"t0", "t1", "t2", "v"}


@pytest.mark.parametrize("policy", sorted({*EVENT_DRIVEN, "las", "tiresias"} - {*LEARNED}))
def test_ten_years_in_which_nothing_happens_are_quick(policy: str) -> None:
    decade = job("decade", gpus=2, gpu_seconds=20 * YEAR_S)
    done = replayed(policy, decade, job("late", at=9 * YEAR_S, gpu_seconds=5))
    assert ends(done) == {"decade": 10 * YEAR_S, "late": 9 * YEAR_S + 5}
    assert done.summary.decisions < 20


@pytest.mark.parametrize("policy", POLICIES)
def test_no_job_goes_on_when_all_nodes_are_down_for_good(policy: str) -> None:
    down = tuple(NodeEvent(5.0 + number, f"n{number}", up=False) for number in range(2))
    trace = [job(f"j{n}", gpus=1 + n % 2, gpu_seconds=100) for n in range(2)]
    done = replayed(policy, *trace, node_events=down)
    (line,) = done.summary.lines()[1:]
    assert line == f'{policy}: 2 jobs ("j0", "j1") are left: no GPU is left after node failures'


def test_jobs_that_did_not_end_are_one_line_a_reason() -> None:
    many = [Unfinished(f"j{n}", "too large") for n in range(7)]
    assert list(in_words([*many, Unfinished("k", "too wide")], "left")) == [
        '7 jobs ("j0", "j1", "j2", "j3", "j4", …) are left: too large',
        'job "k" is left: too wide',
    ]
    strange = [Unfinished(f"j{n}", f"reason {n}") for n in range(13)]
    lines = list(in_words(strange, "rejected"))
    assert (len(lines), lines[-1]) == (11, "… and 3 more rejected for other reasons")
