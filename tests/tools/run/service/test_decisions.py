"""Decisions that cannot be carried out or recorded: the loop goes on, and asks again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.schemas.io import read_events
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.snapshot import Snapshot
from tests.tools.run.simulated.nodes import SimulatedNodes
from tests.tools.run.simulated.world import POLICIES, World

ONE_GPU, FOUR_GPUS = 60, 63  # kinds of jobs: of these many GPUs, and not elastic


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, POLICIES.index("fifo"))
    found.turn()
    yield found
    found.close()


def errors(world: World) -> list[str]:
    """What failed decisions have left in the log."""
    details = (event.detail or {} for event in world.events("decision"))
    return [detail["error"] for detail in details if "error" in detail]


def test_a_decision_that_the_nodes_have_no_slots_for_has_failed_and_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node has fewer GPUs than the cluster file says; it gets them back."""
    world.submit(ONE_GPU)
    world.turn()

    def without_one(nodes: SimulatedNodes) -> Sequence[NodeInfo]:
        return [NodeInfo(name, 1) for name in ("n0", "n1", "n2")]

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "pliant"):
        patched.setattr(SimulatedNodes, "nodes", without_one)
        patched.setattr(Fifo, "decide", says({}, {"j3": "out of fashion"}))
        world.turn(5.0)
        world.submit(FOUR_GPUS)
        world.submit(FOUR_GPUS)
        world.turn()
        world.turn()
    assert world.loop is not None
    assert world.loop.state.log.jobs["j3"].reason == "out of fashion", "what it turned away is out"
    assert errors(world) == ['policy "fifo": node n1 has 1 free slots, 2 more are asked for']
    assert caplog.text.count("2 more are asked for; what runs goes on as it is") == 1
    assert [unit.slots for unit in world.nodes.running()] == [("n0/0",)]
    world.turn(5.0)
    world.submit(ONE_GPU)
    world.settle()
    world.check()


def says(admissions: Mapping[Any, Any], rejected: Mapping[str, str]) -> Callable[..., Decision]:
    """The decisions of a policy that says this of jobs, whichever are there."""
    decide = Fifo.decide

    def with_words(self: Fifo, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        found = decide(self, snapshot, rng)
        found.admissions = admissions
        found.rejected |= {job_id: reason for job_id, reason in rejected.items() if job_id in snapshot.jobs}
        for job_id in found.rejected:
            found.targets.pop(job_id, None)
        return found

    return with_words


WORDS: Sequence[tuple[Any, dict[str, str]]] = (
    ({"j1": {"worth": float("nan")}}, {}),
    ({"j1": {"worth": object()}}, {}),
    ({"j1": {"end_s": "soon"}}, {}),
    ({"j1": {"why": "\ud800"}}, {}),
    ({"j1": "admitted"}, {}),
    ({1: {"admitted": True}}, {}),
    ([], {}),
    ({}, {"j1": "\ud800"}),
)


def test_what_a_policy_says_and_no_log_can_hold_is_a_failed_decision(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, (admissions, rejected) in enumerate(WORDS, 1):
        with monkeypatch.context() as patched:
            patched.setattr(Fifo, "decide", says(admissions, rejected))
            world.submit(ONE_GPU)
            world.turn()
            world.turn()
        found = errors(world)
        assert len(found) == count
        assert found[-1].startswith('policy "fifo" ')
        assert found[-1].endswith("this is a bug in the policy")
    world.settle()
    world.check()


def test_what_a_policy_says_of_jobs_is_in_the_log_by_its_clock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fifo, "decide", says({"j1": {"admitted": True, "end_s": 5.0}}, {}))
    world.submit(ONE_GPU)
    world.turn()
    said = [(event.detail or {}).get("admissions") for event in read_events(world.dirs.events)]
    origin_s = world.loop.state.log.origin_s if world.loop is not None else None
    assert {"j1": {"admitted": True, "end_s": 5.0 + (origin_s or 0.0)}} in said
