"""Jobs that wait for other jobs, and arrays of which a few hold GPUs at a time."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.schemas.checks import check_after
from pliant.schemas.cluster import UserLimit
from pliant.schemas.errors import BadInputError
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.predict_start import copy_of, predictions
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.replay.world import play, story
from tests.tools.schedule.session.test_commands import changes, limited, owned
from tests.tools.schedule.session.test_session import opened


def member(number: int, *, limit: int | None = 2, **more: object):
    return job(f"s-{number}", array={"name": "s", "index": number, "limit": limit}, gpu_seconds=10, **more)


def test_a_policy_sees_a_job_once_those_before_it_have_ended_well():
    held = opened(cluster(8), job("a"), job("b"), job("c", after={"a": "ok", "b": "any"}))
    held.changes.clear()
    assert list(held.in_play) == ["a", "b"]
    words = "waits for job a to finish and for job b to end"
    assert explanations(held, 1.0)["c"].reason == words
    held.end("b", 2.0, "failed")
    held.end("a", 3.0, "finished")
    assert changes(held) == [("failed", "b"), ("finished", "a"), ("arrived", "c")]
    assert list(held.in_play) == ["c"]


def test_a_job_that_is_held_and_released_still_waits_for_others():
    """It takes nothing of its user's limit, and starts once the other has ended."""
    waits = owned("b", "ann", after={"a": "ok"}, gpus=8)
    running = job("a", gpus=8, user="bob", gpu_seconds=400)
    held = opened(
        limited(8, ann=UserLimit(jobs=1)), running, waits, owned("c", "ann", hold=True), policy=Fifo
    )
    assert explanations(held, 1.0)["c"].reason == "held by ann"
    held.hold_back("b", 1.0, "ann")
    held.let_go("b", 2.0)
    held.let_go("c", 2.0)
    assert list(held.in_play) == ["a", "c"]
    held.end("c", 3.0)
    held.decide(3.0)
    assert predictions(copy_of(held), 3.0)["b"].start_s == 53


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ("a", "job a"),
        ("ab", "jobs a and b"),
        ("abc", "jobs a, b and c"),
        ("abcd", "jobs a, b and 2 more"),
        ("abcdef", "jobs a, b and 4 more"),
    ],
)
def test_of_many_jobs_a_waiting_one_names_the_first(others: str, words: str):
    last = job("z", after=dict.fromkeys(others, "any"))
    held = opened(cluster(8), *map(job, others), last)
    assert explanations(held, 1.0)["z"].reason == f"waits for {words} to end"


def test_a_job_after_one_that_did_not_finish_never_starts():
    later = (job("b", after={"a": "ok"}), job("c", after={"b": "ok"}), job("d", after={"b": "any"}))
    held = opened(cluster(8), job("a"), *later)
    held.end("a", 1.0, "failed")
    assert list(held.in_play) == []
    assert held.end_hopeless(2.0) == {
        "b": "was to start after job a, which failed",
        "c": "was to start after job b, which was cancelled",
    }
    assert list(held.in_play) == ["d"]


def test_of_an_array_as_many_are_shown_as_its_limit_allows():
    held = opened(cluster(8), *(member(number) for number in range(4)))
    assert list(held.in_play) == ["s-0", "s-1"]
    assert explanations(held, 1.0)["s-3"].reason == "beyond the limit of array s: 2 jobs at a time"
    held.prioritize("s-3", 1.0, 5.0)
    held.end("s-0", 2.0)
    assert list(held.in_play) == ["s-1", "s-3"]
    held.hold_back("s-3", 3.0, "ann")
    assert list(held.in_play) == ["s-1", "s-2"]
    held.let_go("s-3", 4.0)
    assert list(held.in_play) == ["s-1", "s-2"]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([job("a", after={"b": "ok"})], 'there is no job "b" that it could wait for'),
        ([job("a", after={"b": "ok"}), job("b", after={"a": "any"})], "it waits for itself"),
    ],
)
def test_jobs_that_could_never_start_are_refused(jobs: list, message: str):
    with pytest.raises(BadInputError, match=message):
        check_after(jobs, (), "jobs")


def test_a_schedule_rejects_what_waits_for_a_job_that_is_too_large():
    jobs = [
        job("a", gpus=9, gpu_seconds=1),
        job("b", gpu_seconds=1, after={"a": "ok"}),
        job("c", gpu_seconds=1),
    ]
    schedule = decide(jobs, cluster(8), None, Question("fifo"))
    assert {verdict.job: verdict.reason for verdict in schedule.rejected}["b"] == (
        "was to start after job a, which was rejected"
    )


class Picky(Fifo):
    """Rejects "big"."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if "big" in snapshot.jobs:
            return Decision(rejected={"big": "it is too big"}, ask_again_s=snapshot.time_s)
        return super().decide(snapshot, rng)


def test_a_replay_keeps_order_and_limits_and_cancels_the_hopeless():
    jobs = [
        job("a", gpu_seconds=100),
        job("b", gpu_seconds=10, after={"a": "ok"}),
        job("big", gpus=8, at=5, gpu_seconds=1),
        job("c", gpu_seconds=1, after={"big": "ok"}),
        job("d", gpu_seconds=1, hold=True),
        *(member(number) for number in range(3)),
    ]
    engine = play(Picky(), jobs, cluster(8), simulated=FREE_CHANGES)
    starts = {name: at for at, name, _, _ in story(engine, "start")}
    assert starts == {"a": 0, "d": 0, "s-0": 0, "s-1": 0, "s-2": 10, "b": 100}
    (cancel,) = (event for event in engine.log.events() if event.event == "cancel")
    assert (cancel.job, cancel.detail) == ("c", {"reason": "was to start after job big, which was rejected"})
    assert engine.counters.cancelled == 1
