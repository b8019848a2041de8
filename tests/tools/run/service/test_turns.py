"""Turns of the loop on simulated nodes: what is in its log before it is done, and what a drain leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, read_schedule
from pliant.tools.run.service import loop as turns
from pliant.tools.run.service.reports import AttemptEnded
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.policies.fifo import Fifo
from tests.builders import job
from tests.tools.run.simulated.world import POLICIES, World, trains


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three nodes of two slots; each job gets what it asks for, in the order of submission."""
    made = World(tmp_path, POLICIES.index("fifo"))
    yield made
    made.close()


def test_a_start_that_cannot_be_recorded_is_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else workers would run that no later launcher knows of."""
    world.turn()
    loop, record = world.loop, State.record
    assert loop is not None

    def refuse_starts(state: State, events: Iterable[Event]) -> None:
        batch = list(events)
        if any(event.event == "start" for event in batch):
            raise ServiceMissingError("events.jsonl: cannot be written: no space left on device")
        record(state, batch)

    world.give(job("a", gpus=2, **trains(1e4)))
    with monkeypatch.context() as patch:
        patch.setattr(State, "record", refuse_starts)
        with pytest.raises(ServiceMissingError):
            loop.step()
    loop.executor.tick()
    assert (loop.executor.held, dict(world.nodes.attempts)) == ({}, {})


def test_a_start_is_in_the_log_before_the_first_process_runs(world: World) -> None:
    world.turn()
    known: list[list[str]] = []

    def note() -> None:
        known.append([job_id for job_id, found in read_log(world.dirs.path).active.items() if found.gpus])

    world.nodes.before_each = note
    world.give(job("a", gpus=2, **trains(1e4)))
    world.turn_until(lambda: bool(world.nodes.attempts))
    assert known[0] == ["a"]


def test_after_a_drain_nothing_gives_a_job_gpus(world: World) -> None:
    for name, low in (("a", 1), ("b", None)):
        world.give(
            job(name, gpus=2, low=low, high=low and 2, elastic="size" if low else "none", **trains(1e4))
        )
    world.turn_until(lambda: len(world.nodes.training()) == 2)
    assert world.loop is not None
    world.loop.drain("interrupted by SIGINT")
    world.check_agreement()
    left = read_schedule(world.dirs.schedule)
    assert (left.allocations, {one.id for one in left.jobs}) == ((), {"a", "b"})
    world.turn_until(lambda: world.loop is not None and world.loop.finished)
    assert world.nodes.running() == []
    world.loop.drain("interrupted by SIGINT, again")
    assert [event.job for event in world.events("requeue")] == ["a", "b"]


def test_a_run_that_dies_at_its_beginning_is_taken_up(tmp_path: Path) -> None:
    for call in range(60):
        folder = tmp_path / str(call)
        folder.mkdir()
        begun = World(folder, POLICIES.index("fifo"))
        try:
            begun.give(job("a", gpus=2, **trains(20.0)))
            begun.kill_loop(call)
            begun.turn()
            if begun.loop is not None:
                break
            begun.turn_until(lambda world=begun: bool(world.dirs.events.exists() and world.events("finish")))
            assert begun.nodes.wrongs == []
        finally:
            begun.close()
    assert 10 < call < 59, "it dies at each of its first calls, until it outlives them"


def test_a_clock_set_back_between_launchers_keeps_the_log_in_order(world: World) -> None:
    world.give(job("a", gpus=2, low=1, high=2, **trains(400.0)))
    world.turn()
    world.turn_until(lambda: bool(world.events("progress")))
    before = [event.time for event in read_events(world.dirs.events)]
    world.end_loop(0)
    world.clock.set_forward(-3600.0)
    world.turn_until(lambda: bool(world.events("finish")))
    after = [event.time for event in read_events(world.dirs.events)][len(before) :]
    assert [max(before), *after] == sorted([max(before), *after])


def test_a_cancelled_job_has_its_nodes_until_it_is_gone(world: World) -> None:
    world.give(job("a", gpus=2, **trains(1e4)))
    world.turn_until(lambda: bool(world.nodes.training()))
    (unit, *_) = world.nodes.running()
    unit.obeys, unit.dies_in_s = False, 20.0
    world.accepted["a"] = 1e4
    world.cancel(0)
    world.turn_until(lambda: bool(world.events("cancel")))
    world.turn()
    assert (unit.runs, world.events("release")) == (True, [])
    world.turn_until(lambda: not unit.runs)
    world.turn()
    assert [event.job for event in world.events("release")] == ["a"]


def test_a_job_whose_end_cannot_be_recorded_has_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = turns.report_events

    def fail_for_a(report: Any, *about: Any) -> list[Event]:
        if isinstance(report, AttemptEnded) and report.job_id == "a":
            raise ValueError("a time that no log can hold")
        return write(report, *about)

    for name in "ab":
        world.give(job(name, gpus=6, **trains(300.0)))
    monkeypatch.setattr(turns, "report_events", fail_for_a)
    world.turn()
    world.turn_until(lambda: bool(world.events("finish")))
    ended = [(event.job, event.event) for event in world.events("fail", "finish")]
    assert ended == [("a", "fail"), ("b", "finish")]
    world.check_agreement()
    assert [handle.job for handle in world.nodes.attempts] == ["a", "b"]


def test_a_policy_with_rounds_is_asked_every_round(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fifo, "default_interval_s", 10.0)
    world.give(job("a", gpus=2, **trains(1e4)))
    world.turn_until(lambda: bool(world.nodes.training()))
    asked = len(world.events("decision"))
    for _ in range(60):
        world.turn(1.0)
    times_s = [event.time for event in world.events("decision")][asked:]
    assert 5 <= len(times_s) <= 6
    assert all(10.0 <= later - sooner < 11.5 for sooner, later in pairwise(times_s))
