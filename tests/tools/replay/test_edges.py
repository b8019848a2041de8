"""Traces at the edge: each replay ends and says what became of every job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import Unfinished, in_words
from pliant.tools.replay.run import Replayed, Run, replay
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.profile.rows_builder import step
from tests.tools.replay.any_world import EVENT_DRIVEN, LEARNED, PARAMETERS, ROUNDS

POLICIES = (*EVENT_DRIVEN, *ROUNDS, "pollux")
NODES = cluster(2, 2)
YEAR_S = 365 * 86400.0


def replayed(policy: str, *trace: Job, profile: Profile | None = None, **simulated: object) -> Replayed:
    run = Run(policy, PARAMETERS.get(policy, {}), simulated=replace(FREE_CHANGES, **simulated))  # type: ignore[arg-type]
    return replay(inputs(trace, NODES, profile), run)


def ends(done: Replayed) -> dict[str, float]:
    return {event.job or "": event.time for event in done.log.events() if event.event == "finish"}


def open_jobs(done: Replayed) -> dict[str, str]:
    """Why each job that did not finish did not."""
    return {one.job: one.reason for one in (*done.summary.unfinished, *done.summary.rejections)}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_trace_ends_at_once_and_one_job_runs(policy: str) -> None:
    done = replayed(policy)
    assert [event.event for event in done.log.events()] == ["decision"]
    assert done.summary.lines() == [f"{policy}: 0 of 0 jobs finished, ends at 0 s, 0 decisions, 0 ms each"]
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


PROFILE = Profile(
    tuple(
        step(gpus, 8 // gpus, seconds and seconds / gpus, model=model)
        for model, seconds in (("linear", 8.0), ("huge", None))
        for gpus in (1, 2)
    )
)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_that_can_never_run_are_named_with_the_reason(policy: str) -> None:
    work = {"samples": 80}
    done = replayed(
        policy,
        job("fits", batch=8, work=work),
        job("large", gpus=9, batch=64, work=work),
        job("wide", gpus=6, low=5, high=8, batch=64, work=work),
        job("huge", model="huge", batch=8, work=work),
        profile=PROFILE,
    )
    assert set(ends(done)) == {"fits"}
    told = open_jobs(done)
    assert set(told) == {"large", "wide", "huge"}
    assert "9 GPUs of one type, the cluster has 4" in told["large"]
    assert "GPUs of one type, the cluster has 4" in told["wide"]
    assert "batch 8" in told["huge"]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_job_goes_on_when_all_nodes_are_down_for_good(policy: str) -> None:
    down = tuple(NodeEvent(5.0 + number, f"n{number}", up=False) for number in range(2))
    trace = [job(f"j{n}", gpus=1 + n % 2, gpu_seconds=100) for n in range(2)]
    done = replayed(policy, *trace, node_events=down)
    assert set(open_jobs(done).values()) == {"no GPU is left after node failures"}
    (line,) = done.summary.lines()[1:]
    assert line == f'{policy}: 2 jobs ("j0", "j1") are left: no GPU is left after node failures'
    assert ends(done) == {}


def test_jobs_that_did_not_end_are_one_line_a_reason() -> None:
    many = [Unfinished(f"j{n}", "too large") for n in range(7)]
    assert list(in_words([*many, Unfinished("k", "too wide")], "left")) == [
        '7 jobs ("j0", "j1", "j2", "j3", "j4", …) are left: too large',
        'job "k" is left: too wide',
    ]
    strange = [Unfinished(f"j{n}", f"reason {n}") for n in range(13)]
    lines = list(in_words(strange, "rejected"))
    assert (len(lines), lines[-1]) == (11, "… and 3 more rejected for other reasons")
