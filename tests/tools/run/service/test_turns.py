"""Turns of the loop on simulated nodes: what is in its log before it is done, and what a drain leaves."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.parts.chaos.world import POLICIES, World, trains
from pliant.schemas.errors import BadInputError, LockedError, ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.schemas.io import read_events, read_schedule, write_cluster
from pliant.schemas.job import Job
from pliant.tools.run.backends.protocol import Handle, NodeInfo, UnitStatus
from pliant.tools.run.backends.simulated.nodes import SimulatedNodes
from pliant.tools.run.service import launching as runnable
from pliant.tools.run.service import loop as turns
from pliant.tools.run.service.executor import STARTING_S, UNSEEN_S, KillList
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.reports import AttemptEnded, WorkerEvents, in_turns
from pliant.tools.run.statedir.contract.folders import UnreadableError
from pliant.tools.run.statedir.slot_faults import Faults
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.job_status import in_order as jobs_in_order
from pliant.tools.run.watch.status import Watcher
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three nodes of two slots; each job gets what it asks for, in the order of submission."""
    made = World(tmp_path, POLICIES.index("fifo"))
    yield made
    made.close()


def test_a_start_is_in_the_log_or_is_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else workers would run that no later launcher knows of."""
    world.turn()
    loop, record = world.loop, State.record
    assert loop is not None
    known: list[list[str]] = []

    def note() -> None:
        known.append([job_id for job_id, found in read_log(world.dirs.path).active.items() if found.gpus])

    def refuse_starts(state: State, events: Iterable[Event]) -> None:
        batch = list(events)
        if any(event.event == "start" and event.job == "b" for event in batch):
            raise ServiceMissingError("events.jsonl: cannot be written: no space left on device")
        record(state, batch)

    world.nodes.before_each = note
    world.ask("a", 2)
    world.turn_until(lambda: world.nodes.attempts)
    assert known[0] == ["a"], "before its first process runs"
    world.ask("b", 2)
    with monkeypatch.context() as patch:
        patch.setattr(State, "record", refuse_starts)
        with pytest.raises(ServiceMissingError):
            loop.step()
    loop.executor.tick()
    assert ([*loop.executor.targets], [handle.job for handle in world.nodes.attempts]) == (
        ["a"],
        ["a"],
    )


def test_after_a_drain_nothing_gives_a_job_gpus(world: World) -> None:
    world.ask("a", 2, low=1, high=2)
    world.ask("b", 2)
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
            assert begun.nodes.violations == []
        finally:
            begun.close()
    assert 10 < call < 59, "it dies at each of its first calls, until it outlives them"


def test_a_clock_set_back_keeps_the_log_in_order(world: World) -> None:
    world.ask("a", 2, 400.0, low=1, high=2)
    world.turn()
    world.turn_until(lambda: world.events("progress"))
    before = [event.time for event in read_events(world.dirs.events)]
    world.end_loop(0)
    world.clock.set_forward(-3600.0)
    world.turn_until(lambda: world.events("finish"))
    after = [event.time for event in read_events(world.dirs.events)][len(before) :]
    assert [max(before), *after] == sorted([max(before), *after])


def test_a_cancelled_job_has_its_nodes_until_it_is_gone(world: World) -> None:
    world.ask("a", 2)
    world.turn_until(world.nodes.training)
    (unit, *_) = world.nodes.running()
    unit.responds, unit.dies_in_s = False, 20.0
    world.cancel(0)
    world.turn_until(lambda: world.events("cancel"))
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
        world.ask(name, 6, 300.0)
    monkeypatch.setattr(turns, "report_events", fail_for_a)
    world.turn()
    world.turn_until(lambda: world.events("finish"))
    ended = [(event.job, event.event) for event in world.events("fail", "finish")]
    assert ended == [("a", "fail"), ("b", "finish")]
    world.check_agreement()
    assert [handle.job for handle in world.nodes.attempts] == ["a", "b"]


def test_only_what_no_job_is_to_blame_for_ends_the_loop(tmp_path: Path) -> None:
    ended: list[str] = []
    faults = Faults(tmp_path, lambda job_id, reason: ended.append(job_id))
    for error in (MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), faults.of("a"):
            raise error
    assert ended == []
    with faults.of("a"):
        raise ValueError("a bug in its work")
    assert ended == ["a"]


def test_a_policy_with_rounds_is_asked_every_round(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fifo, "traits", replace(Fifo.traits, default_interval_s=10.0))
    world.ask("a", 2)
    world.turn_until(world.nodes.training)
    asked = len(world.events("decision"))
    for _ in range(60):
        world.turn(1.0)
    times_s = [event.time for event in world.events("decision")][asked:]
    assert 5 <= len(times_s) <= 6
    assert all(10.0 <= later - sooner < 11.5 for sooner, later in pairwise(times_s))


# Decisions that cannot be carried out or recorded: the loop goes on, and asks again.


ONE_GPU, FOUR_GPUS = 60, 63  # kinds of jobs: of these many GPUs, and not elastic


def errors(world: World) -> list[str]:
    """What failed decisions have left in the log."""
    details = (event.detail or {} for event in world.events("decision"))
    return [detail["error"] for detail in details if "error" in detail]


def test_a_decision_without_slots_has_failed_and_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node has fewer GPUs than the cluster file says; it gets them back."""
    world.turn()
    world.submit(ONE_GPU)
    world.turn()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "pliant"):
        smaller = [NodeInfo(name, 1) for name in ("n0", "n1", "n2")]
        patched.setattr(SimulatedNodes, "nodes", lambda nodes: smaller)
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


def test_what_a_policy_says_and_no_log_can_hold_has_failed(world: World, monkeypatch: pytest.MonkeyPatch):
    world.turn()
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
    end_s = 5.0 + ((world.loop and world.loop.state.log.origin_s) or 0.0)
    monkeypatch.setattr(Fifo, "decide", says({"j1": {"admitted": True, "end_s": 5.0}}, {}))
    world.submit(ONE_GPU)
    world.turn()
    said = [(event.detail or {}).get("admissions") for event in read_events(world.dirs.events)]
    assert {"j1": {"admitted": True, "end_s": end_s}} in said, "by the clock of the log"
    world.settle()
    world.check()


# Ends of attempts and of jobs across runs.


def train(world: World, name: str, samples: float) -> None:
    world.ask(name, 3, samples, low=1, high=3)
    world.turn()
    world.turn_until(lambda: world.events("progress"))


def test_reports_reach_policy_and_status_but_not_the_log(world: World) -> None:
    """The log has the first step, and how far the job was when it failed."""
    train(world, "a", 1e4)
    for _ in range(2):
        world.turn(1.0)
    (workers,) = world.nodes.training()
    done = workers.done
    assert world.loop is not None
    job = world.loop.session.jobs["a"]
    assert (job.samples_done(world.loop.session.changes.now_s), len(job.observations)) == (done, 1)
    (shown,) = jobs_in_order(Watcher(world.dirs.path).look().log)
    assert shown.samples_done == done, "another process sees it, too"
    for unit in workers.units:
        unit.end(-9)
    world.turn_until(lambda: world.events("requeue"))
    assert [event.samples_done for event in world.events("requeue")] == [done]
    assert len(world.events("progress", "checkpoint")) == 1


def test_a_worker_lost_right_before_the_end_is_in_the_log(world: World) -> None:
    """How it ended is waited for, and the job may end meanwhile."""
    train(world, "a", 300.0)
    (workers,) = world.nodes.training()
    lost = workers.units[1]
    os.close(lost.lock)  # its process is gone, its launcher not yet
    lost.lock, lost.stands_still, lost.dies_in_s = -1, True, 0.5
    world.turn(0.1)
    workers.done = 299.0
    world.turn(1.0)
    world.turn_until(lambda: world.events("finish"))
    said = [event.detail or {} for event in world.events("progress")]
    assert [found["lost_workers"] for found in said if "lost_workers" in found] == [["n0/1"]]
    assert [str(found["reason"])[:17] for found in said if "reason" in found] == ["killed by SIGKILL"]


def test_a_job_that_the_next_run_cannot_take_up_is_ended(world: World, monkeypatch: pytest.MonkeyPatch):
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


def test_each_failure_is_in_the_log_once(world: World) -> None:
    train(world, "a", 1e4)
    world.crash(0)
    world.turn_until(lambda: world.events("requeue"))
    for _ in range(3):
        world.end_loop(0)
        world.turn(0.1)
    assert [(event.detail or {})["failures"] for event in world.events("requeue")] == [1]
    world.turn_until(lambda: len(world.nodes.attempts) == 2)
    world.turn(10.0)
    world.end_loop(0)
    for unit in world.nodes.running():  # no run sees this one
        unit.end(-9)
    for _ in range(2):
        world.turn()
        world.turn(0.1)
        world.end_loop(0)
    assert [(event.detail or {})["attempt"] for event in world.events("requeue")] == [1, 2]


def test_a_stop_that_a_dead_run_has_begun_comes_to_its_end(world: World) -> None:
    """Its workers react to nothing: without limits they would keep the job from ever being started again."""
    train(world, "a", 1e4)
    for unit in world.nodes.running():
        unit.responds = False
    world.order(0)  # held
    world.turn_until(lambda: world.events("preempt"))
    world.order(1)  # and released
    world.turn_until(lambda: world.events("resume"))
    assert len(world.nodes.attempts) == 1, "its workers are still there"
    world.end_loop(0)
    world.turn_until(lambda: len(world.nodes.attempts) == 2, most=15)
    assert world.nodes.violations == []


def test_of_two_runs_in_an_empty_folder_only_one_begins(tmp_path: Path) -> None:
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


# What a turn costs.


JOBS = 6


def ask_for_many(world: World) -> None:
    """Jobs that begin on one GPU each; it is decided, and none has started."""
    for number in range(JOBS):
        world.ask(f"j{number}", 1, low=1, high=2)
    world.turn()
    world.turn()


def test_a_tick_starts_jobs_for_a_while_and_the_next_one_goes_on(world: World) -> None:
    ask_for_many(world)
    world.nodes.before_each = lambda: world.clock.advance(STARTING_S / 2)  # twice for each start
    seen = []
    for _ in range(JOBS):
        world.turn()
        seen.append(len(world.nodes.training()))
    assert seen[:2] == [2, 4], "each turn starts some"
    assert max(seen) == JOBS


def test_what_many_workers_say_goes_into_the_log_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    """Each write is forced to disk, which takes as long for one line as for many."""
    ask_for_many(world)
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


def test_what_one_job_says_stays_in_order() -> None:
    said = [
        WorkerEvents("a", 1, (), settled=True),
        WorkerEvents("b", 1, (), settled=True),
        WorkerEvents("a", 2, (), settled=True),
    ]
    assert list(in_turns(said)) == [said[:2], said[2:]]
    assert list(in_turns([])) == []


# Jobs that were accepted when nothing looked at what they demand of nodes.


DEMANDS: dict[str, dict[str, Any]] = {
    "parameter servers": {"worker": {"bandwidth": 2e9}, "ps": {"bandwidth": 1e9}},
    "two GPUs for each worker": {"worker": {"gpu": 2.0}},
    "cores and memory that no node has": {"worker": {"cpu": 1e4, "memory": 1e15}},
    "next to no bandwidth of its servers": {"worker": {"bandwidth": 1e300}, "ps": {"bandwidth": 1e-300}},
}


@pytest.mark.parametrize(("what", "next_policy"), [*zip(DEMANDS, ("fifo", "fair-share") * 2, strict=True)])
def test_a_restart_ends_no_job_that_was_accepted(
    what: str, next_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them runs, and one waits, when a launcher takes over that looks at demands."""
    plain = cluster(2, 2, 2)
    nodes = tuple(node.model_copy(update={"cpus": 8.0, "memory": 1 << 34}) for node in plain.nodes)
    world = World(tmp_path, POLICIES.index("fifo"), nodes=plain.model_copy(update={"nodes": nodes}))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Job, "takes_room", False)
            patched.setattr(runnable, "_unserved", lambda job: {})
            for name in "ab":
                world.ask(name, 4, 200.0, resources=DEMANDS[what])
            world.turn()
            world.turn()
            world.end_loop(0)
        world.policy = next_policy
        assert world.lines("submit", "start") == ["submit a", "submit b", "start a 4"]
        world.settle()
        world.check()
        assert sorted(world.lines("finish", "fail", "reject")) == ["finish a 0", "finish b 0"]
    finally:
        world.close()


# Jobs of which it is not sure what runs: no other job is started on their slots, and none of them twice.


TOO_MANY_FILES = UnreadableError("too many open files")
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
DIES_IN_S = 20.0


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
    assert world.nodes.violations == []


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
    assert (world.slots("c"), world.nodes.violations) == ({"n0/0"}, [])


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
    assert world.nodes.violations == []


def test_a_started_job_that_cannot_be_seen_for_a_moment_goes_on(world: World) -> None:
    def fail_the_looks() -> None:
        if world.nodes.attempts:
            world.nodes.next_polls += [TOO_MANY_FILES] * 2
            world.nodes.before_each = world.hazard.point

    world.nodes.before_each = fail_the_looks
    world.ask("a", 2, samples=100.0, low=1, high=4)
    world.turn()
    world.turn_until(lambda: world.events("finish"))
    assert (world.attempts("a"), world.events("requeue"), world.nodes.violations) == ([1], [], [])


def test_a_job_that_cannot_be_seen_keeps_its_slots(world: World) -> None:
    """What the last look saw may have changed: it is not resized, nor signalled, by what it was."""
    world.ask("a", 4, low=1, high=4)
    world.turn()
    world.turn_until(lambda: world.events("progress"))
    world.ask("b", 4)
    world.order_node(0)  # n0 is drained, and jobs leave it
    plan = world.dirs.job("a").plan.read_bytes()
    for _ in range(3):
        world.nodes.next_polls += [TOO_MANY_FILES]
        world.turn()
    assert world.events("shrink", "move"), "it is decided"
    assert world.dirs.job("a").plan.read_bytes() == plan, "and waits"
    world.turn_until(lambda: not any(slot.startswith("n0") for slot in world.slots("a")))
    assert world.nodes.violations == []


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
    ending = KillList(backend, lambda _job: Handle("a", 3, tmp_path / "3"))
    ending.add("a", "its folder cannot be written")
    assert list(ending.finish_off(gangs)) == [], "its record cannot be read"
    backend.readable = True
    assert [*ending.finish_off(gangs), *ending.finish_off({})] == [], "a kill may take its time"
    assert "a" in ending.jobs
    backend.dies = True
    assert list(ending.finish_off(gangs)) == [("a", 1, "its folder cannot be written")]
    assert "a" not in ending.jobs
    ending.add("a", "its files are gone")
    backend.readable, backend.runs, unseen = False, True, "its files are gone; whether it still runs"
    found = [[*ending.finish_off(gangs, now_s)] for now_s in (0.0, UNSEEN_S - 1.0, UNSEEN_S, UNSEEN_S + 1.0)]
    assert [len(each) for each in found] == [0, 0, 1, 0], "nobody waits for it any longer"
    assert (found[2][0][2][: len(unseen)], ending.out_of_sight) == (unseen, {"a"})
    backend.readable = True
    assert list(ending.finish_off(gangs, 900.0)) == [("a", 1, "its files are gone")]
    assert (ending.out_of_sight, [*ending.jobs]) == (set(), [])
    ending.add("a", "it cannot be taken up")
    assert list(ending.finish_off({})) == [("a", 2, "it cannot be taken up")], "the last of those begun"
