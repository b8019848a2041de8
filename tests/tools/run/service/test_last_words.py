"""Ends of attempts and of jobs across runs: what the log says of them, and what the next run does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, LockedError
from pliant.schemas.io import write_cluster
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend
from tests.tools.run.simulated.world import POLICIES, World, trains


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, POLICIES.index("fifo"))
    yield made
    made.close()


def train(world: World, name: str, samples: float) -> None:
    world.give(job(name, gpus=3, low=1, high=3, **trains(samples)))
    world.turn()
    world.turn_until(lambda: bool(world.events("progress")))


def test_a_worker_that_was_lost_right_before_the_job_was_done_is_in_the_log(world: World) -> None:
    """How it ended is waited for, and the job may end meanwhile."""
    train(world, "a", 300.0)
    (workers,) = world.nodes.training()
    lost = workers.units[1]
    os.close(lost.lock)  # its process is gone, its launcher not yet
    lost.lock, lost.stands_still, lost.dies_in_s = -1, True, 0.5
    world.turn(0.1)
    workers.done = 299.0
    world.turn(1.0)
    world.turn_until(lambda: bool(world.events("finish")))
    said = [event.detail or {} for event in world.events("progress")]
    assert [found["lost_workers"] for found in said if "lost_workers" in found] == [["n0/1"]]
    assert [str(found["reason"])[:17] for found in said if "reason" in found] == ["killed by SIGKILL"]


def test_a_running_job_that_the_next_run_cannot_take_up_is_ended_and_not_left_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(world, "a", 1e4)
    world.end_loop(0)
    submit = Session.submit

    def refuse(session: Session, spec: object, time_s: float) -> object:
        if getattr(spec, "id", "") == "a":
            raise BadInputError("its work cannot be computed")
        return submit(session, spec, time_s)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "submit", refuse)
    for unit in world.nodes.running():
        unit.dies_in_s = 6.0
    world.turn()
    decided = len(world.events("decision"))
    world.turn()
    assert len(world.events("decision")) <= decided + 1, "no one is asked again and again meanwhile"
    assert world.events("fail") == [], "it has not ended before its workers have"
    world.turn_until(lambda: not world.nodes.training())
    world.turn()
    reasons = [(event.detail or {})["reason"] for event in world.events("fail")]
    assert reasons == ["its work cannot be computed"]
    assert world.loop is not None
    assert world.loop.state.log.active == {}


def test_an_attempt_whose_failure_is_in_the_log_has_not_failed_again_for_the_next_run(world: World) -> None:
    train(world, "a", 1e4)
    world.crash(0)
    world.turn_until(lambda: bool(world.events("requeue")))
    for _ in range(3):
        world.end_loop(0)
        world.turn(0.1)
    assert [(event.detail or {})["failures"] for event in world.events("requeue")] == [1]
    world.turn_until(lambda: len(world.nodes.attempts) == 2)
    assert len(world.events("requeue")) == 1


def test_a_failure_that_no_run_saw_is_in_the_log_of_the_next_one_once(world: World) -> None:
    train(world, "a", 1e4)
    world.end_loop(0)
    world.crash(0)
    for unit in world.nodes.running():
        unit.end(-9)
    world.turn()
    world.turn(0.1)
    world.end_loop(0)
    world.turn(0.1)
    assert [(event.detail or {})["attempt"] for event in world.events("requeue")] == [1]


def test_a_stop_that_a_dead_run_has_begun_comes_to_its_end_though_the_job_shall_run_there_again(
    world: World,
) -> None:
    """Its workers heed nothing: without limits they would keep the job from ever being started again."""
    train(world, "a", 1e4)
    world.accepted["a"] = 1e4
    for unit in world.nodes.running():
        unit.obeys = False
    world.order(0)  # held
    world.turn_until(lambda: bool(world.events("preempt")))
    world.order(1)  # and released
    world.turn_until(lambda: bool(world.events("resume")))
    assert len(world.nodes.attempts) == 1, "its workers are still there"
    world.end_loop(0)
    world.turn_until(lambda: len(world.nodes.attempts) == 2, most=15)
    assert world.nodes.wrongs == []


def test_of_two_runs_that_find_an_empty_folder_only_one_begins_there(tmp_path: Path) -> None:
    """The other one has read its inputs before it got the lock; to begin again would end what runs."""
    write_cluster(cluster(2), tmp_path / "cluster.json")
    options = RunOptions(tmp_path / "live", question=Question("fifo"), cluster=str(tmp_path / "cluster.json"))

    def prepared() -> PreparedRun:
        return PreparedRun.read(options, lambda _name, nodes, _dirs: InstantBackend(nodes), resume=True)

    first, second = prepared(), prepared()
    with first.open(past=False) as state:
        first.loop(state, follow=True)
    written = (tmp_path / "live" / "events.jsonl").read_bytes()
    with pytest.raises(LockedError, match="was written by another process meanwhile: try again"):
        second.open(past=False)
    assert (tmp_path / "live" / "events.jsonl").read_bytes() == written
    again = PreparedRun.read(
        replace(options, cluster=None), lambda _name, nodes, _dirs: InstantBackend(nodes), resume=True
    )
    again.open(past=False).close()  # the lock is free
