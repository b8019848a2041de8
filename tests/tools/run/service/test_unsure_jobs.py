"""Jobs of which it is not sure what runs: no other job is started on their slots, and none of them twice."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.service.executor import Condemned
from pliant.tools.run.statedir.contract.folders import UnreadableError
from tests.tools.run.simulated.world import POLICIES, World

TOO_MANY_FILES = UnreadableError("too many open files")
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
DIES_IN_S = 20.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three nodes of two slots; each job gets what it asks for, in the order of submission."""
    made = World(tmp_path, POLICIES.index("fifo"))
    yield made
    made.close()


def begin_again_without_the_plan_of(world: World, name: str) -> None:
    world.end_loop(0)
    world.hazard.hidden.add(world.dirs.job(name).plan)
    world.turn()


@pytest.mark.parametrize("copy_is_damaged", [False, True])
@pytest.mark.parametrize("order", ["cancel", "hold"])
def test_a_job_with_an_unreadable_plan_keeps_its_slots(world: World, order: str, copy_is_damaged: bool):
    world.ask("a", 2)
    world.turn_until(lambda: world.slots("a"))
    if copy_is_damaged:
        world.dirs.job("a").attempt(1).kept_plan(1).write_text("{")
    begin_again_without_the_plan_of(world, "a")
    if order == "cancel":
        world.cancel(0)
    else:
        world.order(0)
    world.ask("b", 6)
    for _ in range(10):
        world.turn()
    assert [event.job for event in world.events("start")] == ["a", "b"], "it has the slots by the policy"
    assert len(world.slots("a")) == 2
    assert world.attempts("b") == [], "and waits for the workers of the other"
    world.show_plans(0)
    world.turn_until(lambda: world.slots("b"))
    assert world.nodes.wrongs == []


def test_a_job_with_an_unreadable_plan_stays_where_it_is(world: World, caplog: pytest.LogCaptureFixture):
    for name in "ab":
        world.ask(name, 1)
    world.turn_until(lambda: world.slots("b"))
    world.cancel(0)
    world.turn_until(lambda: not world.slots("a"))
    assert world.slots("b") == {"n0/1"}
    begin_again_without_the_plan_of(world, "b")
    assert "job b is left as it is" in caplog.text
    world.ask("c", 1)
    world.turn_until(lambda: world.slots("c"), most=3)
    world.show_plans(0)
    for _ in range(5):
        world.turn()
    assert (world.slots("b"), world.attempts("b")) == ({"n0/1"}, [1]), "it trains on where it is"
    assert (world.slots("c"), world.nodes.wrongs) == ({"n0/0"}, [])


@pytest.mark.parametrize("error", [BROKEN, TOO_MANY_FILES])
@pytest.mark.parametrize("elastic", ["size", "none"])
def test_a_start_that_fails_halfway_is_repeated_later(world: World, elastic: str, error: Exception) -> None:
    """It fails once all of it runs, and what runs takes its time to die."""

    def break_it() -> None:
        if found := world.nodes.running():
            for unit in found:
                unit.dies_in_s = DIES_IN_S
            world.nodes.before_each = world.hazard.point
            raise error

    world.nodes.before_each = break_it
    world.ask("a", 2, low=1 if elastic == "size" else None, high=4 if elastic == "size" else None)
    world.ask("b", 2)
    world.turn_until(lambda: world.attempts("a") == [1, 2])
    requeued = world.events("requeue")[0]
    assert str((requeued.detail or {})["reason"]).startswith("cannot be started: ")
    assert requeued.time - world.events("start")[0].time >= DIES_IN_S
    assert world.attempts("b") == [1]
    assert world.nodes.wrongs == []


def test_a_started_job_that_cannot_be_seen_for_a_moment_goes_on(world: World) -> None:
    def fail_the_looks() -> None:
        if world.nodes.attempts:
            world.nodes.next_looks += [TOO_MANY_FILES] * 2
            world.nodes.before_each = world.hazard.point

    world.nodes.before_each = fail_the_looks
    world.ask("a", 2, samples=100.0, low=1, high=4)
    world.turn()
    world.turn_until(lambda: world.events("finish"))
    assert (world.attempts("a"), world.events("requeue"), world.nodes.wrongs) == ([1], [], [])


def test_a_job_that_cannot_be_seen_keeps_its_slots(world: World) -> None:
    """What the last look saw may have changed: it is not resized, nor signalled, by what it was."""
    world.ask("a", 4, low=1, high=4)
    world.turn()
    world.turn_until(lambda: world.events("progress"))
    world.ask("b", 4)
    world.order_node(0)  # n0 is drained, and jobs leave it
    plan = world.dirs.job("a").plan.read_bytes()
    for _ in range(3):
        world.nodes.next_looks += [TOO_MANY_FILES]
        world.turn()
    assert world.events("shrink", "move"), "it is decided"
    assert world.dirs.job("a").plan.read_bytes() == plan, "and waits"
    world.turn_until(lambda: not any(slot.startswith("n0") for slot in world.slots("a")))
    assert world.nodes.wrongs == []


# What could not be taken up.


class Backend:
    """One attempt; a kill ends it where its record can be read, and where it dies at once."""

    readable = dies = False
    runs = True

    def stop(self, *_about: object) -> None:
        if not self.readable:
            raise UnreadableError("launch.json: cannot be read: permission denied")
        self.runs = not self.dies

    def poll(self, handles: list[Handle]) -> dict[Handle, tuple[UnitStatus, ...]]:
        return {handle: (UnitStatus("running" if self.runs else "exited"),) for handle in handles}


def test_an_attempt_has_ended_once_nothing_of_it_runs(tmp_path: Path) -> None:
    """Its processes train on: a second attempt would write into the same folder."""
    backend: Any = Backend()
    gangs: Any = {"a": SimpleNamespace(handle=Handle("a", 1, tmp_path / "1"))}
    ending = Condemned(backend, lambda _job: Handle("a", 3, tmp_path / "3"))
    ending.add("a", "its folder cannot be written")
    assert list(ending.finish_off(gangs)) == [], "its record cannot be read"
    backend.readable = True
    assert [*ending.finish_off(gangs), *ending.finish_off({})] == [], "a kill may take its time"
    assert "a" in ending.jobs
    backend.dies = True
    assert list(ending.finish_off(gangs)) == [("a", 1, "its folder cannot be written")]
    assert "a" not in ending.jobs
    ending.add("a", "it cannot be taken up")
    assert list(ending.finish_off({})) == [("a", 2, "it cannot be taken up")], "the last of those begun"
