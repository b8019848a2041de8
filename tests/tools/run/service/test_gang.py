"""The stages of a stop, on a clock that the test turns and processes that only exist as statuses."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.schemas.schedule import Cut
from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo, StopLevel, UnitStatus
from pliant.tools.run.service import members as members_module
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import make_member, make_plan, next_plan, read_plan, write_plan
from pliant.tools.run.service.gang import Gang, Notice
from pliant.tools.run.service.members import GangMembers, Setback, Timeouts
from pliant.tools.run.statedir.contract import folders
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.contract.plan import (
    LastCheckpoint,
    Member,
    Plan,
    Progress,
    ProgressFile,
    WorkerOutcome,
    write_progress,
)
from pliant.tools.run.statedir.contract.stacks import Frame, StackAnswer, ThreadStack, answer, question
from tests.builders import job

RUNNING, CLEAN = UnitStatus("running"), UnitStatus("exited", 0)
ADDED = Slot("n1", 1)
CUT = (8, 1, 1.0)
TIMES = Timeouts(abort_s=60.0, term_s=30.0, kill_s=5.0, broken_s=5.0)


def renamed(path: Path, text: str) -> None:
    """Replace a file as workers do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Stops:
    """A backend that only remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        self.told.append(level if only is None else f"{level} {sorted(only)}")


class Scene:
    """Two workers on two nodes, both running."""

    def __init__(self, folder: Path, elastic: str) -> None:
        spec = job("a", gpus=1 if elastic == "size" else 2, high=2 if elastic == "size" else None)
        target = Assignment.of(spec, (Slot("n0", 0), Slot("n1", 0)), CUT)
        plan = make_plan(target, 1, 1, {name: NodeInfo(name, 1) for name in ("n0", "n1")})
        self.target = target
        self.job = JobDir(folder)
        self.backend = Stops()
        handle = Handle("a", 1, self.job.attempt(1).path)
        handle.folder.mkdir(parents=True)
        self.gang = Gang(handle, plan, target, cast("Backend", self.backend), timeouts=TIMES)
        self.gang.statuses = (RUNNING, RUNNING)

    def reaches(self, generation: int) -> None:
        renamed(self.gang.handle.files.reached, f"{generation}\n")

    def grows(self, slot: Slot = ADDED, number: int = 2, cut: Cut = CUT) -> None:
        """One more worker is started."""
        added = make_member(slot, NodeInfo(slot.node, 2), number)
        self.goes_on(*self.gang.plan.members, added, cut=cut)
        self.gang.statuses = (*self.gang.statuses, RUNNING)

    def replaces(self, number: int) -> None:
        """A new worker takes the place of the second one, and trains."""
        added = make_member(Slot("n1", 0), NodeInfo("n1", 1), number)
        self.goes_on(self.gang.plan.members[0], added)
        self.reaches(self.gang.plan.generation)
        self.gang.statuses = (*self.gang.statuses, RUNNING)

    def says(self, rank: int, outcome: str) -> None:
        text = WorkerOutcome.model_validate({"outcome": outcome}).model_dump_json()
        renamed(self.gang.handle.files.outcome(rank), text)

    def watch(self, *times_s: float) -> list[str]:
        for now_s in times_s:
            if (found := self.gang.watch(now_s)) is not None:
                self.publish(*found)
        return self.backend.told

    def stop(self, now_s: float) -> None:
        if (plan := self.gang.plan_to_stop()) is not None:
            self.publish(plan)
        self.gang.stop(now_s)

    def goes_on(self, *members: Member, cut: Cut = CUT) -> None:
        """A plan of these members is published."""
        self.publish(next_plan(self.gang.plan, members, cut))

    def publish(self, plan: Plan, setback: Setback | None = None) -> None:
        """As the executor does."""
        write_plan(self.job, plan)
        self.gang.take_up(plan, setback)


@pytest.fixture(params=["size", "none"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, request.param)


def test_a_gang_that_begins_to_train_while_it_is_looked_at_counts_as_one_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, "size")

    def read_too_early(files: AttemptDir, _known: object) -> None:
        scene.reaches(1)
        files.progress.touch()

    monkeypatch.setattr(members_module, "read_reached", read_too_early)
    trains, reports = scene.gang.training()
    assert (trains, reports) == (None, False)


def test_a_slot_that_is_given_up_is_busy_until_its_worker_is_gone_also_where_the_job_stops(
    tmp_path: Path,
) -> None:
    """A plan to stop is for all who train, also those that a plan before it, not in force yet, left out."""
    scene = Scene(tmp_path, "size")
    scene.reaches(1)
    scene.goes_on(scene.gang.plan.members[0])
    assert scene.gang.busy == set(scene.target.slots)
    scene.stop(0.0)
    assert scene.gang.plan.workers == (0, 1)
    assert scene.gang.busy == set(scene.target.slots)
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.gang.busy == set(scene.target.slots[:1])


def test_a_worker_that_is_done_first_leaves_the_other_all_the_time_it_needs(scene: Scene) -> None:
    scene.says(1, "done")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(0.0, 100.0, 1e6) == []
    assert not scene.gang.stopping


def test_a_stop_that_was_asked_for_has_a_deadline_also_where_one_worker_has_left(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.stop(0.0)
    scene.says(1, "stopped")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(59.0) == []
    assert scene.watch(60.0) == ["term"]
    assert scene.watch(90.0, 95.0) == ["term", "kill", "kill"]


def test_what_waits_in_a_queue_has_nothing_to_save_and_is_ended_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "size")
    scene.gang.statuses = (UnitStatus("running", queued=True),) * 2
    scene.stop(0.0)
    assert scene.backend.told == ["term"]


def test_a_worker_that_stopped_by_itself_takes_the_other_along(scene: Scene) -> None:
    scene.says(1, "stopped")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert (scene.watch(0.0, 59.0).copy(), scene.watch(60.0)) == ([], ["term"])


def test_a_gang_that_lost_a_worker_is_ended_for_the_reason_of_the_first(scene: Scene) -> None:
    scene.gang.statuses = (RUNNING, UnitStatus("exited", -9))
    assert scene.watch(0.0, 4.9) == ["term"]
    assert scene.watch(5.0) == ["term", "kill"]
    scene.gang.statuses = (UnitStatus("exited", -15), UnitStatus("exited", -9))
    scene.watch(6.0)
    assert scene.gang.verdict().message.startswith("killed by SIGKILL")


def test_what_has_to_leave_a_node_by_a_time_has_that_time_instead_of_the_usual_one(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.stop(100.0)
    soon, late = Notice(stop_s=105.0, term_s=120.0, over_s=126.0), Notice(400.0, 500.0, 530.0)
    for now_s in (110.0, 119.0):  # what is known already sets no other time
        scene.gang.heed(soon, now_s)
        assert scene.watch(now_s) == []
    assert scene.watch(120.0, 125.9) == ["term"]
    scene.gang.heed(late, 125.9)
    assert scene.watch(126.0, 529.9) == ["term"], "it has more time than without a notice, too"
    scene.gang.heed(None, 529.9)
    assert scene.watch(559.8) == ["term"], "the node was resumed"
    assert scene.watch(559.9) == ["term", "kill"]


def test_a_stop_after_its_time_goes_on_to_signals_at_once(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.gang.heed(Notice(stop_s=10.0, term_s=20.0, over_s=26.0), 5.0)
    scene.stop(30.0)
    assert scene.watch(30.0) == ["term"]
    assert scene.watch(30.1) == ["term", "kill"]


def test_only_what_the_plan_goes_on_without_is_ended_on_a_node_that_is_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "size")
    scene.reaches(1)
    scene.goes_on(scene.gang.plan.members[0])
    scene.gang.end_left_over({"n0"})
    assert scene.backend.told == []
    scene.gang.end_left_over({"n0", "n1"})
    assert scene.backend.told == ["kill [1]"]


def test_whether_a_worker_stands_still_matters_until_the_gang_ends_or_has_ended(tmp_path: Path) -> None:
    """A call from cron stays for as long as it does."""
    scene = Scene(tmp_path, "size")
    scene.gang._members.in_doubt = lambda _timeouts: False  # type: ignore[method-assign]
    assert not scene.gang.in_doubt
    scene.gang._members.in_doubt = lambda _timeouts: True  # type: ignore[method-assign]
    assert scene.gang.in_doubt
    scene.gang.statuses = (CLEAN, CLEAN)
    assert not scene.gang.in_doubt
    scene.gang.statuses = (RUNNING, CLEAN)
    scene.stop(0.0)
    assert not scene.gang.in_doubt


class Lives:
    """What workers' own files would say."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, str] = dict.fromkeys(range(9), "alive")
        self.silent = frozenset[int]()
        patch.setattr(GangMembers, "life", lambda members, worker: self.of[worker])
        patch.setattr(GangMembers, "listen", lambda members, now_s, timeouts: self._listen(members))

    def _listen(self, members: GangMembers) -> frozenset[int]:
        members._silent = self.silent
        return self.silent


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(monkeypatch)


@pytest.fixture
def training(tmp_path: Path) -> Scene:
    """Two workers that train."""
    made = Scene(tmp_path, "size")
    write_plan(made.job, made.gang.plan)
    made.reaches(1)
    return made


def members(scene: Scene) -> list[int]:
    return list(scene.gang.plan.workers)


def test_the_others_go_on_without_a_worker_that_died(training: Scene, lives: Lives) -> None:
    lives.of[0] = "gone"
    assert training.watch(1.0) == ["kill [0]"]
    assert (training.gang.plan.generation, members(training)) == (2, [1])
    assert read_plan(training.job) == training.gang.plan
    assert not training.gang.stopping
    training.gang.statuses = (UnitStatus("exited", 1), RUNNING)
    training.reaches(2)
    assert training.watch(2.0) == ["kill [0]"], "its unit ended: nothing is left to do"
    assert not training.gang.serves(training.target), "the slot is the job's: somebody shall take it"


@pytest.mark.parametrize(
    ("code", "silent", "told_s", "reason"),
    [
        (-9, False, 101.5, "killed by SIGKILL"),  # that its process is gone is seen before its exit code
        (None, False, 106.0, "its process is gone"),  # nothing says how
        (-9, True, 101.5, "it stood still, and was killed"),
    ],
)
def test_a_worker_that_died_is_reported_once_with_what_killed_it(
    training: Scene, lives: Lives, code: int | None, silent: bool, told_s: float, reason: str
) -> None:
    lives.silent = frozenset({0} if silent else ())
    lives.of[0] = "alive" if silent else "gone"
    training.watch(101.0)
    assert training.gang.losses(101.0) == []
    if code is not None:
        training.gang.statuses = (UnitStatus("exited", code), RUNNING)
    ((slots, found),) = training.gang.losses(told_s)
    assert (slots, found.startswith(reason)) == ((Slot("n0", 0),), True)
    assert training.gang.losses(told_s + 1.0) == []


def test_who_stands_still_is_killed_and_left_out_though_a_dead_host_kills_nothing(
    training: Scene, lives: Lives
) -> None:
    lives.silent = frozenset({1})
    assert training.watch(1.0)[0] == "kill [1]"
    assert members(training) == [0]
    lives.silent = frozenset()
    training.watch(2.0)
    assert training.gang.leaving == {Slot("n1", 0)}, "no other worker may be started where it may still run"


def test_when_all_stand_still_all_are_killed(training: Scene, lives: Lives) -> None:
    """None is left to go on, and none would ever end by itself."""
    lives.silent = frozenset({0, 1})
    assert training.watch(1.0) == ["kill [0, 1]"]
    training.gang.statuses = (UnitStatus("exited", -9), UnitStatus("exited", -9))
    training.watch(2.0)
    assert training.gang.verdict().end == "failed"


def test_a_worker_that_stands_still_on_a_gpu_is_killed_and_the_attempt_ends(
    tmp_path: Path, lives: Lives
) -> None:
    scene = Scene(tmp_path, "size")
    gpus = [one.model_copy(update={"device": "cuda"}) for one in scene.gang.plan.members]
    scene.goes_on(*gpus)
    scene.reaches(2)
    lives.silent = frozenset({1})
    assert scene.watch(1.0) == ["kill [1]"]
    assert not scene.gang.stopping
    scene.gang.statuses = (RUNNING, UnitStatus("exited", -9))
    lives.of[1], lives.silent = "gone", frozenset()
    assert scene.watch(2.0) == ["kill [1]", "term"], "GPU operations of the others may hang"
    assert members(scene) == [0, 1]


def test_a_worker_that_is_cut_off_from_the_others_is_left_out_and_the_job_goes_on(
    training: Scene, lives: Lives
) -> None:
    training.says(1, "cut_off")
    lives.of[1] = "gone"
    training.gang.statuses = (RUNNING, UnitStatus("exited", 1))
    assert training.watch(1.0) == ["kill [1]"]
    assert (members(training), training.gang.stopping) == ([0], False)


def test_when_all_died_the_attempt_has_failed(training: Scene, lives: Lives) -> None:
    lives.of = {0: "gone", 1: "gone"}
    training.gang.statuses = (UnitStatus("exited", 1), UnitStatus("exited", 1))
    assert training.watch(1.0) == ["term"]
    assert members(training) == [0, 1]


def test_a_worker_that_crashed_by_its_script_takes_the_attempt_down(training: Scene, lives: Lives) -> None:
    training.says(1, "crashed")
    lives.of[1] = "gone"
    assert training.watch(1.0) == ["term"]


def test_a_new_worker_that_dies_before_it_trains_leaves_the_others_at_their_size_and_batch(
    training: Scene, lives: Lives
) -> None:
    before = training.target
    training.grows(cut=(32, 1, 4.0))
    assert training.gang.plan.cut == (32, 1, 4.0)
    lives.of[2] = "gone"
    training.watch(1.0)
    assert (training.gang.plan.generation, members(training)) == (3, [0, 1])
    assert training.gang.setback() == Setback(
        (Slot("n1", 1),), "the new workers on n1/1 ended before they trained"
    )
    assert training.gang.setback() is None, "it is reported once"
    assert training.gang.serves(before)
    assert training.gang.plan.cut == training.gang.target.allocation.cut == (8, 1, 1.0)


def test_a_new_worker_whose_script_fails_leaves_the_others_training(training: Scene, lives: Lives) -> None:
    training.grows()
    training.gang.statuses = (RUNNING, RUNNING, UnitStatus("exited", 1))
    text = WorkerOutcome(outcome="crashed", message="out of memory").model_dump_json()
    training.gang.handle.files.outcome(2).write_text(text)
    assert training.watch(1.0) == ["kill [2]"]
    assert (members(training), training.gang.stopping) == ([0, 1], False)
    found = training.gang.setback()
    assert found is not None
    assert found.reason == "the new workers on n1/1 ended before they trained: out of memory"


def test_of_two_new_workers_the_one_that_lives_is_kept(training: Scene, lives: Lives) -> None:
    training.grows(cut=(32, 1, 4.0))
    training.grows(Slot("n0", 1), 3, cut=(32, 1, 4.0))
    lives.of |= {2: "gone", 3: "absent"}
    training.watch(1.0)
    assert members(training) == [0, 1, 3]
    assert training.gang.plan.cut == (32, 1, 4.0), "it grows still"
    assert training.backend.told == ["kill [2]"]


def test_a_slot_that_loses_one_worker_after_the_other_is_left_alone_and_the_others_train_on(
    training: Scene, lives: Lives
) -> None:
    for number in range(2, 7):
        assert training.gang.setback() is None
        training.replaces(number)
        lives.of[number] = "gone"
        training.watch(number + 0.5, number + 0.6)
    assert (members(training), training.gang.stopping) == ([0], False)
    assert training.gang.setback() == Setback((Slot("n1", 0),), "lost 5 workers in a row on n1/0")


def test_a_new_worker_is_waited_for_while_the_others_train_until_it_is_no_longer_wanted(
    training: Scene, lives: Lives
) -> None:
    training.grows()
    lives.of[2] = "absent"
    assert training.watch(1.0, 1e6) == []
    assert (members(training), training.gang.setback()) == ([0, 1, 2], None)
    training.goes_on(*training.gang.plan.members[:2])
    assert training.watch(1e6 + 1, 1e6 + 60) == []
    assert training.watch(1e6 + 61) == ["kill [2]"]


def test_a_launcher_that_outlives_its_worker_has_a_limit_to_end(training: Scene, lives: Lives) -> None:
    """A torchrun that hangs, or that somebody stopped: the worker's outcome says all there is to say."""
    for worker in (0, 1):
        training.says(worker, "done")
        lives.of[worker] = "gone"
    assert training.watch(0.0, 9.0) == []
    assert training.watch(10.0) == ["kill [0, 1]"]
    assert training.watch(11.0, 19.0) == ["kill [0, 1]"], "not once a look"
    training.gang.statuses = (UnitStatus("exited", -9), UnitStatus("lost"))
    training.watch(20.0)
    assert training.gang.verdict().end == "done"


def test_a_launcher_that_was_killed_after_its_worker_was_done_does_not_take_the_others_along(
    training: Scene, lives: Lives
) -> None:
    training.says(1, "done")
    lives.of[1] = "gone"
    training.watch(0.0, 10.0)
    training.gang.statuses = (RUNNING, UnitStatus("lost"))
    training.watch(11.0)
    assert not training.gang.stopping


def test_a_worker_that_died_under_a_launcher_that_stands_still_is_noticed_where_it_was_the_last(
    training: Scene, lives: Lives
) -> None:
    lives.of = {0: "gone", 1: "gone"}
    assert training.watch(0.0, 10.0) == ["kill [0, 1]"]


def test_a_stopped_launcher_of_a_job_that_is_not_elastic_has_a_limit_once_its_workers_have_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers write nothing of themselves, so the process tree has to do."""
    scene = Scene(tmp_path, "none")
    scene.gang.statuses = (RUNNING, UnitStatus("running", idle=True))
    assert scene.watch(0.0, 9.0) == []
    assert scene.watch(10.0) == ["kill [1]"]
    assert "what is left on n1 does not end" in caplog.text


def test_a_gang_that_does_not_train_yet_has_no_such_limit(scene: Scene, lives: Lives) -> None:
    lives.of = {0: "absent", 1: "absent"}
    scene.watch(1e6)
    assert scene.gang.serves(scene.target)


def test_a_launcher_that_takes_over_knows_where_workers_are_that_a_former_plan_named(
    training: Scene, lives: Lives
) -> None:
    """They may not have left yet: no other worker may be started there."""
    training.goes_on(training.gang.plan.members[0])
    backend, before = cast("Backend", training.backend), training.gang
    after = Gang(before.handle, before.plan, before.target, backend, timeouts=TIMES)
    after.statuses = (RUNNING, RUNNING)
    assert (after.leaving, after.busy) == ({Slot("n1", 0)}, {Slot("n0", 0), Slot("n1", 0)})


def test_a_plan_may_name_a_worker_that_is_still_to_be_started(tmp_path: Path, lives: Lives) -> None:
    scene = Scene(tmp_path, "size")
    scene.goes_on(*scene.gang.plan.members, make_member(ADDED, NodeInfo("n1", 2), 2))
    assert scene.watch(0.0) == []
    assert not scene.gang.stopping


def test_a_launcher_that_takes_over_knows_what_the_one_before_was_told(training: Scene) -> None:
    before = training.gang
    said = EventWriter(before.handle.files.progress)
    said.append([Event(1.0, "progress", "a", detail={"generation": 1}), Event(2.0, "progress", "a")])
    said.close()
    backend = cast("Backend", training.backend)
    after = Gang(before.handle, before.plan, training.target, backend, timeouts=TIMES, seen=1)
    assert [after.settles(event) for event in after.tail.read()] == [True]
    unseen = Gang(before.handle, before.plan, training.target, backend, timeouts=TIMES)
    assert not unseen.settles(Event(2.0, "progress", "a")), "its plan may not be in force yet"


def test_a_gang_in_which_nothing_happens_is_looked_at_without_reading_its_files(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FRESH_S", 0.0)
    monkeypatch.setattr(folders, "STALE_S", float("inf"))
    scene.reaches(1)
    os.utime(scene.gang.handle.folder, (1, 1))  # whatever happens from now on has another stamp
    assert scene.watch(0.0) == []
    read: list[Path] = []
    told = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or told(path))
    assert scene.watch(*(0.1 * turn for turn in range(100))) == []
    assert read == []
    scene.says(1, "stopped")
    scene.watch(10.0)
    assert scene.gang.handle.files.outcome(1) in read
    assert scene.gang.stopping


def reports(scene: Scene, samples: float, **more: object) -> None:
    """A script without the library reports that it has trained these, and saved at 40."""
    saved = LastCheckpoint(step=5, samples_done=40.0, seconds=0.1, age_s=0.0)
    fields = {"job": "a", "attempt": 1, "generation": 1, "gpus": 2, "global_batch": 8, "epoch": 0, "rank": 0}
    own = {"step": int(samples // 8), "samples_done": samples, "checkpoint": saved.model_dump()}
    write_progress(scene.job.progress, Progress.model_validate({**fields, **own, **more}))
    if (found := scene.gang.reported()) is not None:
        scene.gang.said(found)


def test_what_a_script_trained_after_its_last_save_is_taken_back_where_it_fails(tmp_path: Path) -> None:
    """Its next attempt begins at the save; until it reports, nothing may say that it is further."""
    scene = Scene(tmp_path, "none")
    assert scene.gang.lost_work() is None, "it has not reported"
    reports(scene, 40.0)
    assert scene.gang.lost_work() is None
    reports(scene, 72.0)
    lost = scene.gang.lost_work()
    assert lost is not None
    left, event = lost
    assert (left.step, left.samples_done, event.samples_done) == (5, 40.0, 40.0)
    assert (event.event, (event.detail or {})["lost_samples"]) == ("checkpoint", 32.0)
    assert ProgressFile(scene.job.progress).fresh() == left
    elastic = Scene(tmp_path / "elastic", "size")
    assert elastic.gang.lost_work() is None, "its workers say what they save"


def test_a_launcher_that_takes_over_asks_a_script_to_stop_as_the_script_wants_to_be_asked(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, "none")
    reports(scene, 72.0, watches_stop=True)
    before, backend = scene.gang, cast("Backend", scene.backend)
    scene.gang = Gang(before.handle, before.plan, scene.target, backend, timeouts=TIMES)
    scene.gang.statuses = (RUNNING, RUNNING)
    scene.stop(0.0)
    assert before.handle.files.stop.read_text() == "asked\n"
    assert scene.watch(59.0) == [], "it has its time to save"


def stands_in(scene: Scene, worker: int, function: str) -> None:
    """A worker answers the newest question: it is in this function."""
    files = scene.gang.handle.files
    thread = ThreadStack(name="MainThread", frames=(Frame("train.py", 3, function),))
    answer(files, worker, StackAnswer(question=question(files), threads=(thread,)))


def test_workers_that_do_not_stop_say_where_they_are_before_they_are_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "size")
    files = scene.gang.handle.files
    files.logs.mkdir()
    scene.reaches(1)
    scene.stop(1000.0)
    assert scene.watch(1056.0) == []
    assert question(files) == "", "a stop that goes well asks nothing"
    scene.watch(1057.5)
    assert question(files) != ""
    stands_in(scene, 1, "all_reduce")
    assert scene.watch(1060.0) == ["term"]
    kept = files.kept_stacks.read_text()
    assert "1 worker (n1/0)\n  all_reduce (train.py:3)" in kept
    assert "n0/0" not in kept, "it has not answered"
    scene.gang.statuses = (UnitStatus("exited", -9), UnitStatus("exited", -9))
    scene.watch(1090.0)
    assert scene.gang.verdict().message.endswith("attempts/1/logs/stacks.log")


def test_a_worker_that_has_ended_its_training_and_hangs_says_where_it_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "size")
    files = scene.gang.handle.files
    files.logs.mkdir()
    scene.reaches(1)
    scene.gang._members.life = lambda _worker: "alive"  # type: ignore[method-assign]
    scene.gang._members.overdue = lambda *_: [1] if question(files) == "" else []  # type: ignore[method-assign]
    assert scene.watch(300.0) == []
    stands_in(scene, 1, "finishes")
    assert scene.watch(302.0) == []
    assert scene.watch(303.5) == ["kill [1]"]
    assert "finishes" in files.kept_stacks.read_text()
