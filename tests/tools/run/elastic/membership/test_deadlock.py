"""Workers that wait for each other at different places: who notices it, when, and what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import deadlock
from pliant.tools.run.elastic.membership.deadlock import (
    DEADLOCK_AFTER_S,
    PUBLISH_AFTER_S,
    WARN_AFTER_S,
    DeadlockWatch,
    Position,
    WaitPoint,
    author_place,
    described,
)
from tests.tools.run.elastic.gang import plan, put

IN_STEP_4, IN_STEP_5, NEXT_EXCHANGE = (1, 1), (1, 2), (1, 3)
"""Calls of exchanges."""


class Pair:
    """The watches of two workers, which are in these exchanges and steps."""

    def __init__(self, folder: Path) -> None:
        job = put(folder, plan())
        self.exchange: dict[int, Any] = {0: IN_STEP_4, 1: IN_STEP_5}
        self.position = {0: Position(0, 4, None), 1: Position(0, 5, 4)}
        self.watches = {worker: self._watch(WorkerContext(job, plan(), worker)) for worker in (0, 1)}

    def _watch(self, context: WorkerContext) -> DeadlockWatch:
        worker = context.worker
        watch = DeadlockWatch(context, lambda: self.exchange[worker], lambda: self.position[worker], print)
        watch.trains = True
        return watch

    def look(self, *times_s: float) -> list[str]:
        """What both have said at these times."""
        found = [watch.look(now_s) for now_s in times_s for watch in self.watches.values()]
        return [text for text in found if text]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_workers_that_wait_in_different_steps_are_at_an_end(pair: Pair) -> None:
    waited = PUBLISH_AFTER_S + 1
    assert pair.look(0.0, PUBLISH_AFTER_S - 1, waited, waited + 1, waited + DEADLOCK_AFTER_S - 1) == []
    reasons = pair.look(waited + DEADLOCK_AFTER_S + 1)
    assert len(reasons) == 2, "each of them ends"
    assert "n0/1 trained nothing in step 4" in reasons[0]
    assert waited + DEADLOCK_AFTER_S + 2 * deadlock.POLL_INTERVAL_S < 60, "and soon"


def test_no_deadlock_is_seen_while_a_worker_computes_or_all_meet(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.exchange[1] = None  # it evaluates
    assert pair.look(0.0, PUBLISH_AFTER_S, PUBLISH_AFTER_S + DEADLOCK_AFTER_S, 1000.0) == []
    assert "for n0/1, which lives and does something else" in caplog.text
    assert caplog.text.count("since") == 1, f"after {WARN_AFTER_S} s, once"
    pair.exchange[1] = IN_STEP_5
    for now_s in range(1010, 1200, 10):
        pair.exchange[0] = NEXT_EXCHANGE if pair.exchange[0] == IN_STEP_4 else IN_STEP_4
        assert pair.look(float(now_s)) == []
    for watch in pair.watches.values():
        watch.trains = False
    assert pair.look(2000.0, 2100.0, 2200.0) == []


def test_workers_at_one_place_have_a_slow_exchange(pair: Pair) -> None:
    pair.position[1] = pair.position[0]
    assert pair.look(0.0, PUBLISH_AFTER_S, PUBLISH_AFTER_S + DEADLOCK_AFTER_S, 1000.0) == []


def test_what_is_said_names_places_and_the_likely_cause(golden_text: Callable[..., None]) -> None:
    slots = ["n0/0", "n0/1", "n1/0"]
    at = {"generation": 1, "epoch": 2, "place": "train.py:17"}
    waits = WaitPoint(step=7, **at)
    golden_text(described([waits, waits, WaitPoint(step=7, left_out=7, **at)], slots), "left out")
    golden_text(described([waits, waits, waits.model_copy(update={"place": "a.py:3"})], slots), "elsewhere")
    assert described([waits] * 3, slots) == ""
    assert author_place().startswith(f"{Path(__file__).name}:")


def test_a_step_is_left_out_once_all_leave_it_out_or_one_is_gone(pair: Pair) -> None:
    first, second = pair.watches.values()
    waits = threading.Thread(target=first.await_skip, args=(3,))
    waits.start()
    second.await_skip(2)  # the first one is further
    waits.join(0.2)
    assert waits.is_alive(), "the second one may still train step 3"
    second.await_skip(3)
    waits.join(60)
    assert not waits.is_alive()
    second._context.attempt.presence(1).touch()  # it has ended
    first.await_skip(5)
