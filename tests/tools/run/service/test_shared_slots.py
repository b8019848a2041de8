"""Two jobs on the same slots: real processes on this machine, and backends that cannot have that."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.parts.chaos.world import POLICIES, World
from pliant.schemas.cluster import Sharing
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_events, read_schedule, write_schedule
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import cancel
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.policies.lucid import Lucid
from pliant.tools.schedule.policy import Decision, Target
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster
from tests.tools.run.instant import InstantBackend
from tests.tools.run.site import Site

TOGETHER = Sharing(unmeasured="together", speed=0.8)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Jobs a and b on one slot, which wait for a gate."""
    made = Site(tmp_path, slots=1)
    made.cluster = made.cluster.model_copy(update={"sharing": TOGETHER})
    for name in "ab":
        made.job(name, "--gate", made.gate, samples=50)
    return made


def schedule(site: Site) -> str:
    """Both start on the one slot."""
    found = decide(site.jobs, site.cluster, None, Question("lucid"))
    (first,) = found.allocations
    pair = [first.model_copy(update={"job": me, "beside": you}) for me, you in ("ab", "ba")]
    path = site.folder / "schedule.json"
    write_schedule(found.model_copy(update={"allocations": tuple(pair), "waiting": ()}), path)
    return str(path)


@pytest.mark.usefixtures("plain_python")
def test_two_jobs_train_on_one_slot_at_the_same_time(site: Site) -> None:
    def view(log: RunLog, now_s: float) -> None:
        if {job_id for job_id, each in log.jobs.items() if each.samples_done > 0} == {"a", "b"}:
            site.gate.touch()

    options, path = site.options(), schedule(site)
    assert '"pliant.schedule/1.3"' in Path(path).read_text()
    log, _ = run_until_done(replace(options, schedule=path), view)
    assert {each.phase for each in log.jobs.values()} == {"finished"}
    plans = [json.loads((site.state / "jobs" / name / "plan.json").read_text()) for name in "ab"]
    assert [[member["slot"] for member in plan["members"]] for plan in plans] == [["n0/0"], ["n0/0"]]
    starts = {event.job: event.detail for event in site.events() if event.event == "start"}
    assert {job_id: (detail or {}).get("beside") for job_id, detail in starts.items()} == {"a": "b", "b": "a"}


def test_a_schedule_that_cannot_share_so_is_refused(site: Site) -> None:
    """A backend gives a GPU to one job, or its jobs disagree."""
    path, backend = Path(schedule(site)), InstantBackend(site.cluster)
    backend.shares_slots = False
    options = replace(site.options(), schedule=schedule(site), backend="slurm")
    with pytest.raises(BadInputError, match="slurm gives a GPU to one job"):
        PreparedRun.read(options, lambda *_: backend, resume=False)
    text = json.loads(path.read_text())
    given = text["allocations"][1]
    for change, wrong in (
        ({"beside": None}, "a job that holds the same"),
        ({"placement": []}, "the same GPUs"),
    ):
        text["allocations"][1] = given | change
        path.write_text(json.dumps(text))
        with pytest.raises(BadInputError, match=f"expected {wrong}"):
            read_schedule(path)


@pytest.mark.parametrize("machines", ["go on", "were started again"])
def test_jobs_that_share_are_parted_when_a_run_goes_on_there(tmp_path: Path, machines: str) -> None:
    """Machines that were started again know nothing of what the log says runs there."""
    with pair(tmp_path, 2) as world:
        world.end_loop(0)
        world.nodes.shares_slots = False
        if machines != "go on":
            for unit in world.nodes.running():
                unit.end(-9)
            world.nodes.attempts.clear()
            world.nodes.most = 1
            world.turn_until(world.nodes.training)
        world.turn_until(lambda: world.lines("preempt"))
        assert world.lines("preempt") == ["preempt b 0"]
        world.turn_until(lambda: [one.handle.job for one in world.nodes.training()] == ["a"])
        assert not world.lines("fail", "reject")


def test_a_policy_that_packs_shares_no_slots_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, POLICIES.index("lucid"))
    world.nodes.shares_slots = False
    with closing(world), caplog.at_level(logging.WARNING, "pliant"):
        for _ in range(4):
            world.submit(41)
        world.settle()
        world.check()
    assert 'policy "lucid" packs jobs, and this backend gives a GPU to one: none share' in caplog.text
    assert not any("beside" in (event.detail or {}) for event in read_events(world.dirs.events))


@contextmanager
def pair(folder: Path, *node_gpus: int) -> Iterator[World]:
    """Jobs a and b train on all slots of these nodes."""
    with closing(World(folder, POLICIES.index("lucid"), nodes=cluster(*node_gpus, slots="cpu"))) as world:
        for name in "ab":
            world.ask(name, sum(node_gpus), 4000.0, low=1, high=sum(node_gpus))
            world.turn_until(lambda name=name: world.nodes.trained.get(name) is not None)
        world.turn_until(lambda: all(one.trains is not None for one in world.nodes.training()))
        yield world
        assert world.nodes.violations == []


def lose_slot(world: World, name: str) -> None:
    """The worker on the last slot of a job dies, and the new one there before it trains."""
    for _ in range(2):
        workers = world.workers(name)
        assert workers is not None
        [unit for unit in workers.units if unit.runs][-1].end(-9)
        world.turn(0.5)
        world.turn(0.5)


def test_a_job_that_loses_a_shared_slot_starts_again_elsewhere(tmp_path: Path) -> None:
    """Workers of two jobs died there, and yet the slot is not withheld from all: one of them trains on it."""
    with pair(tmp_path, 2) as world:
        lose_slot(world, "a")
        world.turn_until(lambda: world.lines("resume") == ["resume a 2"])
        found = world.lines("shrink", "requeue", "slot_down", "resume", "fail")
        assert found == ["requeue a 0", "slot_down a", "resume a 2"]
        world.turn_until(lambda: [one.trains is not None for one in world.nodes.training()] == [True, True])
        slots = {unit.slots[0] for workers in world.nodes.training() for unit in workers.units if unit.runs}
        assert slots == {"n0/0", "n0/1"}
        lose_slot(world, "b")
        assert world.lines("requeue", "slot_down")[2:] == ["requeue b 0", "slot_down b"]
        world.ask("c", 1, 4000.0, low=1, high=1)
        world.turn_until(lambda: {one.handle.job for one in world.nodes.training()} >= {"a", "b"})
        assert not world.lines("fail", "reject")


def packs(self: Lucid, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
    """Lucid itself shares GPUs of one node only."""
    a, b = snapshot.jobs.get("a"), snapshot.jobs.get("b")
    if a is not None and not a.gpus and snapshot.free_gpus["gpu"] == 2:
        return Decision({"a": Target(2)})
    return Decision({"b": Target(2, beside="a")} if a and b and not b.gpus and a.gpus == 2 else {})


def test_of_two_that_share_a_lost_node_one_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Lucid, "decide", packs)
    with pair(tmp_path, 1, 1) as world:
        world.nodes.lose("n1")
        world.turn_until(lambda: world.lines("node_down"))
        assert world.lines("shrink", "requeue", "fail") == ["requeue a 0", "shrink b 1"]
        world.turn_until(lambda: world.slots("b") == {"n0/0"})
        world.end_loop(0)
        world.turn()
        assert world.loop is not None
        held = world.loop.executor.targets.allocations
        assert {job_id: share.placement for job_id, share in held.items()} == {"b": (("n0", 1),)}


def test_a_job_alone_again_stays_so_if_the_policy_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What it held with the other one is not put back: that one has ended."""
    with pair(tmp_path, 2) as world:
        cancel(world.dirs.path, ["a"])
        world.turn_until(lambda: world.lines("release"))
        assert world.loop is not None
        (held,) = world.loop.executor.targets.allocations.values()
        assert (held.job, held.gpus, held.beside) == ("b", 2, None)
        monkeypatch.setattr(Lucid, "decide", lambda *_: 1 / 0)
        world.ask("c", 1, 4000.0, low=1, high=1)
        world.turn_until(lambda: any("error" in (event.detail or {}) for event in world.events("decision")))
        (error,) = {(event.detail or {}).get("error") for event in world.events("decision")} - {None}
        assert "division by zero" in error
        assert [one.handle.job for one in world.nodes.training()] == ["b"]
        assert not world.lines("fail", "reject", "preempt", "requeue")
