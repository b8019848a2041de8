"""What a turn of the loop costs does not grow with what could be done once, or later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.service.executor import STARTING_S
from pliant.tools.run.service.reports import Said, in_turns
from tests.tools.run.simulated.world import World

JOBS = 6
SMALL = 4  # a deed's number: a job that begins on one GPU


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path.resolve())
    for _ in range(JOBS):
        world.submit(SMALL)
    world.turn()  # it begins
    world.turn()  # it decides
    yield world
    world.close()


def test_a_tick_starts_jobs_for_a_while_and_the_next_one_goes_on(world: World) -> None:
    world.nodes.before_each = lambda: world.clock.advance(STARTING_S / 2)  # twice for each start
    seen = []
    for _ in range(JOBS):
        world.turn()
        seen.append(len(world.nodes.training()))
    assert seen[:2] == [2, 4], "each turn starts some"
    assert max(seen) == JOBS


def test_what_the_workers_of_many_jobs_say_goes_into_the_log_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is forced to disk, which takes as long for one line as for many."""
    world.turn()
    written: list[list[str]] = []
    append = EventWriter.append

    def note(writer: EventWriter, events: tuple[Event, ...]) -> None:
        if writer.path == world.dirs.events.resolve():
            written.append([event.event for event in events])
        append(writer, events)

    monkeypatch.setattr(EventWriter, "append", note)
    while not any("progress" in names for names in written):
        world.turn()
    assert ["progress"] * JOBS in written


def test_what_one_job_says_stays_in_order(world: World) -> None:
    said = [Said("a", 1, (), settled=True), Said("b", 1, (), settled=True), Said("a", 2, (), settled=True)]
    assert list(in_turns(said)) == [said[:2], said[2:]]
    assert list(in_turns([])) == []
