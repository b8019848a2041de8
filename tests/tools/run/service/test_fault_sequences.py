"""Whatever happens in whatever order: nothing is lost, nothing runs twice, and every job comes to its end.

The loop is the real one, on the files of a real state directory; nodes, workers and clocks are simulated.
``make bench NAME=operate`` lives through a thousand such sequences.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts.chaos.world import DEEDS, MEMORY, POLICIES, World, live_through
from pliant.schemas.io import read_events
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import read_log
from pliant.tools.run.watch.job_page import status_document
from pliant.tools.run.watch.status import Watcher, closed_lines
from tests.builders import cluster

deeds = st.tuples(st.sampled_from(("submit", "submit", "submit", *DEEDS)), st.integers(0, 999))


@pytest.fixture
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silence")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(POLICIES) - 1), st.lists(deeds, min_size=3, max_size=25))
def test_no_sequence_of_faults_breaks_a_promise(policy: int, story: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        live_through(Path(folder).resolve(), policy, story)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("seed", range(2))
def test_no_faults_break_a_promise_while_jobs_share_slots(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    crowd = [
        ("submit", 140 * drawn.randrange(4) + drawn.choice((13, 20, 21, 40, 41, 60, 61))) for _ in range(12)
    ]
    names = ("submit", "wait", *DEEDS)
    faults = [(drawn.choice(names), drawn.randrange(1000)) for _ in range(20)]
    world = live_through(tmp_path, POLICIES.index("lucid"), [*crowd, *[("wait", 5)] * 3, *faults])
    assert any("beside" in (event.detail or {}) for event in read_events(world.dirs.events))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, nodes=cluster(2, 2, slots="cpu"))
    found.turn()
    yield found
    found.close()


def until(world: World, name: str, value: object) -> RunLog:
    """Turn the loop until a job of the log is placed so, or a node is down or not; returns the log."""

    def is_so() -> bool:
        found = read_log(world.dirs.path)
        return (dict(found.jobs[name].placement) if name in found.jobs else name in found.down) == value

    world.turn_until(is_so)
    return read_log(world.dirs.path)


@pytest.mark.parametrize("runs_on", [False, True])
def test_an_elastic_job_shrinks_and_grows_again(world: World, runs_on: bool) -> None:
    """To its smallest size; what runs on a node that is drained may go on there for a while."""
    world.ask("a", 4, low=2, high=4)
    until(world, "a", {"n0": 2, "n1": 2})
    world.turn(20.0)
    if runs_on:
        world.nodes.lost.add("n1")
    else:
        world.nodes.lose("n1")
    until(world, "a", {"n0": 2})
    until(world, "n1", True)
    world.turn(20.0 if runs_on else 1.0)
    world.nodes.lost.clear()
    assert not until(world, "a", {"n0": 2, "n1": 2}).down
    down, up = world.events("node_down", "node_up")
    assert (down.detail, up.detail) == ({"node": "n1", "reason": "down"}, {"node": "n1"})
    changes = world.lines("start", "shrink", "grow", "preempt", "requeue", "resume")
    assert changes == ["start a 4", "shrink a 2", "grow a 4"] or not runs_on


def test_a_job_that_cannot_be_resized_waits_and_is_not_at_fault(world: World) -> None:
    world.ask("a", 4)
    until(world, "a", {"n0": 2, "n1": 2})
    world.nodes.lost.add("n1")  # it is drained: what runs there still does
    until(world, "a", {})
    (requeue,) = world.events("requeue")
    assert requeue.detail == {"reason": "node n1 is down: down"}
    world.nodes.lost.clear()
    assert until(world, "a", {"n0": 2, "n1": 2}).jobs["a"].retry.failures == 0


def test_a_node_that_is_down_is_known_to_the_next_run(world: World) -> None:
    world.nodes.lost.add("n0")
    until(world, "n0", True)
    seen = Watcher(world.dirs.path).look()
    assert closed_lines(seen, 0.0) == ["node n0 is down: down"]
    document = json.loads(status_document(seen, [], world.clock.wall()))
    assert document["down_nodes"] == [{"node": "n0", "reason": "down"}]
    world.end_loop(0)
    world.ask("a", 2)
    until(world, "a", {"n1": 2})
    assert len(world.events("node_down")) == 1
    assert not world.events("requeue", "fail", "slot_down")
