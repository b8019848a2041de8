"""The stages of a stop, on a clock that the test turns and processes that only exist as statuses."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo, StopLevel, UnitStatus
from pliant.tools.run.gang import Gang, Timeouts
from pliant.tools.run.layout import JobDir
from pliant.tools.run.plan import WorkerOutcome
from pliant.tools.run.planning import make_plan
from pliant.tools.run.slots import Slot
from pliant.tools.run.steps import Share, Target
from tests.builders import job

RUNNING, CLEAN = UnitStatus("running"), UnitStatus("exited", 0)
TIMES = Timeouts(abort_s=60.0, term_s=30.0, kill_s=5.0, broken_s=5.0)


class Stops:
    """A backend that only remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[StopLevel] = []

    def stop(self, handle: Handle, level: StopLevel, only: object = None) -> None:
        self.told.append(level)


class Scene:
    """Two workers on two nodes, both running."""

    def __init__(self, folder: Path, elastic: str) -> None:
        spec = job("a", gpus=1 if elastic == "size" else 2, high=2 if elastic == "size" else None)
        target = Target(Share(spec, (("n0", 1), ("n1", 1)), 8), (Slot("n0", 0), Slot("n1", 0)))
        plan = make_plan(target, 1, 1, {name: NodeInfo(name, 1) for name in ("n0", "n1")})
        self.job = JobDir(folder)
        self.backend = Stops()
        handle = Handle("a", 1, self.job.attempt(1).path)
        handle.folder.mkdir(parents=True)
        self.gang = Gang(handle, plan, target, cast("Backend", self.backend), timeouts=TIMES)
        self.gang.statuses = (RUNNING, RUNNING)

    def says(self, rank: int, outcome: str) -> None:
        text = WorkerOutcome.model_validate({"outcome": outcome}).model_dump_json()
        self.gang.handle.files.outcome(rank).write_text(text)

    def watch(self, *times_s: float) -> list[StopLevel]:
        for now_s in times_s:
            self.gang.watch(self.job, now_s)
        return self.backend.told


@pytest.fixture(params=["size", "none"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, request.param)


def test_a_worker_that_is_done_first_leaves_the_other_all_the_time_it_needs(scene: Scene) -> None:
    scene.says(1, "done")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(0.0, 100.0, 1e6) == []
    assert not scene.gang.stopping


def test_a_stop_that_was_asked_for_has_a_deadline_also_where_one_worker_has_left(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.gang.request_stop(scene.job, 0.0)
    scene.says(1, "stopped")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(59.0) == []
    assert scene.watch(60.0) == ["term"]
    assert scene.watch(90.0, 95.0) == ["term", "kill", "kill"]


def test_a_worker_that_stopped_by_itself_takes_the_other_along(scene: Scene) -> None:
    scene.says(1, "stopped")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(0.0, 59.0) == []
    assert scene.watch(60.0) == ["term"]


def test_who_lost_a_worker_is_sent_home_at_once(scene: Scene) -> None:
    scene.gang.statuses = (RUNNING, UnitStatus("exited", 1))
    assert scene.watch(0.0) == ["term"]
    assert scene.watch(5.0) == ["term", "kill"]


def test_the_reason_names_the_worker_that_fell_first_not_those_sent_home_after_it(scene: Scene) -> None:
    scene.gang.statuses = (RUNNING, UnitStatus("exited", -9))
    assert scene.watch(0.0) == ["term"]
    scene.gang.statuses = (UnitStatus("exited", -15), UnitStatus("exited", -9))
    scene.gang.watch(scene.job, 1.0)
    assert scene.gang.verdict().message == "killed by SIGKILL"
