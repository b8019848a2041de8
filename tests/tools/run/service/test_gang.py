"""The stages of a stop, on a clock that the test turns and processes that only exist as statuses."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.schemas.schedule import Cut
from pliant.tools.run.backends.protocol import Backend, Handle, MemoryKill, NodeInfo, StopLevel, UnitStatus
from pliant.tools.run.service import members as members_module
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import make_member, make_plan, next_plan, read_plan, write_plan
from pliant.tools.run.service.drain_notices import Notice
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.service.launching import gang_class
from pliant.tools.run.service.members import GangMembers, WorkerFailure
from pliant.tools.run.service.stop_stages import Timeouts
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

RUNNING, CLEAN, FAILED = UnitStatus("running"), UnitStatus("exited", 0), UnitStatus("exited", 1)
ADDED = Slot("n1", 1)
CUT = (8, 1, 1.0)
FULL = UnitStatus("exited", -9, memory=MemoryKill(limit=100 << 20, peak=99 << 20))
COPED = replace(FULL, code=0)
TIMES = Timeouts(abort_s=60.0, term_s=30.0, kill_s=5.0, broken_s=5.0)


def renamed(path: Path, text: str) -> None:
    """Replace a file as workers do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Stops:
    """A backend that only remembers the stops that are asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        self.asked.append(level if only is None else f"{level} {sorted(only)}")


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
        handle.files.logs.mkdir(parents=True)
        self.gang: Gang = gang_class(spec)(
            handle, plan, target, cast("Backend", self.backend), timeouts=TIMES
        )
        self.gang.statuses = (RUNNING, RUNNING)

    def reaches(self, generation: int) -> None:
        renamed(self.gang.handle.files.reached, f"{generation}\n")

    def grows(self, slot: Slot = ADDED, number: int = 2, cut: Cut = CUT) -> None:
        """One more worker is started."""
        added = make_member(slot, NodeInfo(slot.node, 2), number)
        self.goes_on(*self.gang.plan.members, added, cut=cut)
        self.gang.statuses = (*self.gang.statuses, RUNNING)

    def says(self, rank: int, outcome: str, message: str = "", *, goes_on: bool = False) -> None:
        fields = {"outcome": outcome, "message": message, "goes_on": goes_on}
        text = WorkerOutcome.model_validate(fields).model_dump_json()
        renamed(self.gang.handle.files.outcome(rank), text)

    def watch(self, *times_s: float) -> list[str]:
        """Look at these times; the stops that were asked for so far."""
        for now_s in times_s:
            if (going_on := self.gang.watch(now_s)) is not None:
                self.publish(*going_on)
        return self.backend.asked

    def stop(self, now_s: float) -> None:
        if (plan := self.gang.plan_to_stop()) is not None:
            self.publish(plan)
        self.gang.stop(now_s)

    def goes_on(self, *members: Member, cut: Cut = CUT) -> None:
        """A plan of these members is published."""
        self.publish(next_plan(self.gang.plan, members, cut))

    def taken_over(self, seen: int = 0) -> Gang:
        """The gang as the next launcher has it."""
        before, backend = self.gang, cast("Backend", self.backend)
        after: Gang = gang_class(before.target.job)(
            before.handle, before.plan, before.target, backend, timeouts=TIMES, seen=seen
        )
        after.statuses = (RUNNING, RUNNING)
        return after

    @property
    def members(self) -> list[int]:
        return list(self.gang.plan.workers)

    def publish(self, plan: Plan, setback: WorkerFailure | None = None) -> None:
        """As the executor does."""
        write_plan(self.job, plan)
        self.gang.switch_to(plan, setback)


@pytest.fixture(params=["size", "none"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, request.param)


@pytest.fixture
def elastic(tmp_path: Path) -> Scene:
    return Scene(tmp_path, "size")


def test_training_that_begins_in_a_look_counts_as_starting(elastic: Scene, monkeypatch: pytest.MonkeyPatch):
    def read_too_early(files: AttemptDir, _known: object) -> None:
        elastic.reaches(1)
        files.progress.touch()

    monkeypatch.setattr(members_module, "read_reached", read_too_early)
    assert elastic.gang.training() == (None, False)


def test_a_given_up_slot_is_busy_until_its_worker_is_gone(elastic: Scene) -> None:
    """A plan to stop is for all who train, also those that a plan before it, not in force yet, leaves out."""
    elastic.reaches(1)
    elastic.goes_on(elastic.gang.plan.members[0])
    assert elastic.gang.busy == set(elastic.target.slots)
    for nodes, asked in ({"n0"}, []), ({"n0", "n1"}, ["kill [1]"]):
        elastic.gang.end_left_over(nodes)
        assert elastic.backend.asked == asked, "units that the plan does without are ended by node"
    elastic.stop(0.0)
    assert elastic.gang.plan.workers == (0, 1)
    assert elastic.gang.busy == set(elastic.target.slots)
    elastic.gang.statuses = (RUNNING, CLEAN)
    assert elastic.gang.busy == set(elastic.target.slots[:1])


def test_only_a_worker_that_stops_sets_the_other_a_deadline(scene: Scene) -> None:
    scene.says(1, "done")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(0.0, 100.0, 1e6) == []
    assert not scene.gang.stopping
    scene.says(1, "stopped")
    assert (scene.watch(2e6, 2e6 + 59.0).copy(), scene.watch(2e6 + 60.0)) == ([], ["term"])


def test_a_requested_stop_has_a_deadline_for_the_last_worker(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.stop(0.0)
    scene.says(1, "stopped")
    scene.gang.statuses = (RUNNING, CLEAN)
    assert scene.watch(59.0) == []
    assert scene.watch(60.0) == ["term"]
    assert scene.watch(90.0, 95.0) == ["term", "kill", "kill"]


def test_a_broken_gang_is_ended_for_the_reason_of_the_first_loss(scene: Scene) -> None:
    scene.gang.statuses = (RUNNING, UnitStatus("exited", -9))
    assert scene.watch(0.0, 4.9) == ["term"]
    assert scene.watch(5.0) == ["term", "kill"]
    scene.gang.statuses = (UnitStatus("exited", -15), UnitStatus("exited", -9))
    scene.watch(6.0)
    assert scene.gang.verdict().message.startswith("killed by SIGKILL")


@pytest.mark.parametrize("queued", [False, True])
def test_a_stop_without_anything_to_wait_for_signals_at_once(elastic: Scene, queued: bool) -> None:
    """What waits in a queue has nothing to save, and the time of a notice may be over."""
    elastic.gang.statuses = (UnitStatus("running", queued=queued),) * 2
    if not queued:
        elastic.gang.stages.apply_notice(Notice(stop_s=10.0, term_s=20.0, over_s=26.0), 5.0)
    elastic.stop(30.0)
    assert elastic.watch(30.0) == ["term"]
    assert elastic.watch(30.1) == (["term"] if queued else ["term", "kill"])


def test_a_notice_takes_the_place_of_the_usual_limits_of_a_stop(scene: Scene) -> None:
    scene.gang.handle.files.progress.touch()
    scene.stop(100.0)
    soon, late = Notice(stop_s=105.0, term_s=120.0, over_s=126.0), Notice(400.0, 500.0, 530.0)
    for now_s in (110.0, 119.0):  # what is known already sets no other time
        scene.gang.stages.apply_notice(soon, now_s)
        assert scene.watch(now_s) == []
    assert scene.watch(120.0, 125.9) == ["term"]
    scene.gang.stages.apply_notice(late, 125.9)
    assert scene.watch(126.0, 529.9) == ["term"], "it has more time than without a notice, too"
    scene.gang.stages.apply_notice(None, 529.9)
    assert scene.watch(559.8) == ["term"], "the node was resumed"
    assert scene.watch(559.9) == ["term", "kill"]


def test_a_gang_is_in_doubt_only_while_it_neither_stops_nor_ends(elastic: Scene) -> None:
    """A call from cron stays for as long as it is."""
    elastic.gang._members.in_doubt = lambda _timeouts: False  # type: ignore[method-assign]
    assert not elastic.gang.in_doubt
    elastic.gang._members.in_doubt = lambda _timeouts: True  # type: ignore[method-assign]
    assert elastic.gang.in_doubt
    elastic.gang.statuses = (CLEAN, CLEAN)
    assert not elastic.gang.in_doubt
    elastic.gang.statuses = (RUNNING, CLEAN)
    elastic.stop(0.0)
    assert not elastic.gang.in_doubt


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
def training(elastic: Scene) -> Scene:
    """Two workers that train."""
    write_plan(elastic.job, elastic.gang.plan)
    elastic.reaches(1)
    return elastic


def test_the_others_go_on_without_a_worker_that_died(training: Scene, lives: Lives) -> None:
    lives.of[0] = "gone"
    assert training.watch(1.0) == ["kill [0]"]
    assert (training.gang.plan.generation, training.members) == (2, [1])
    assert read_plan(training.job) == training.gang.plan
    assert not training.gang.stopping
    training.gang.statuses = (FAILED, RUNNING)
    training.reaches(2)
    assert training.watch(2.0) == ["kill [0]"], "its unit ended: nothing is to be done"
    assert not training.gang.serves(training.target), "the slot is the job's: a new worker shall take it"


@pytest.mark.parametrize(
    ("outcome", "gone", "second", "stops", "members"),
    [
        pytest.param("cut_off", {1}, FAILED, "kill [1]", [0], id="cut off from the others: they go on"),
        pytest.param("crashed", {1}, RUNNING, "term", [0, 1], id="a crash of its script ends the attempt"),
        pytest.param("", {0, 1}, FAILED, "term", [0, 1], id="all died: the attempt has failed"),
        pytest.param("", {1}, FULL, "term", [0, 1], id="killed for its memory: so would a new one be"),
    ],
)
def test_what_a_loss_means_for_the_others(
    training: Scene, lives: Lives, outcome: str, gone: set[int], second: UnitStatus, stops: str, members: list
) -> None:
    if outcome:
        training.says(1, outcome)
    lives.of |= dict.fromkeys(gone, "gone")
    training.gang.statuses = (FAILED if 0 in gone else RUNNING, second)
    assert training.watch(1.0) == [stops]
    assert (training.members, training.gang.stopping) == (members, stops == "term")


@pytest.mark.parametrize("outcome", ["", "stopped", "crashed", "done"])
def test_a_kill_for_memory_is_named_and_not_tried_again(training: Scene, outcome: str) -> None:
    training.gang.statuses = (RUNNING, COPED)  # whose script has gone on without what was killed
    training.watch(1.0)
    assert not training.gang.stopping
    if outcome:
        training.says(0, outcome)
    training.gang.statuses = (FAILED, COPED)
    assert "killed for memory" not in training.gang.verdict().message
    training.gang.statuses = (CLEAN if outcome == "done" else FAILED, FULL)
    verdict = training.gang.verdict()
    assert (verdict.end, verdict.is_final) == (("done", False) if outcome == "done" else ("failed", True))
    said = "killed for memory: limit 100 MiB, peak 99 MiB; it would be again with as much: "
    assert verdict.message.startswith("" if outcome == "done" else said)


@pytest.mark.parametrize(
    ("code", "silent", "at_s", "reason"),
    [
        (-9, False, 101.5, "killed by SIGKILL"),  # that its process is gone is seen before its exit code
        (None, False, 106.0, "its process is gone"),  # nothing says how
        (-9, True, 101.5, "it stood still, and was killed"),
    ],
)
def test_a_lost_worker_is_reported_once_with_what_killed_it(
    training: Scene, lives: Lives, code: int | None, silent: bool, at_s: float, reason: str
) -> None:
    lives.silent = frozenset({0} if silent else ())
    lives.of[0] = "alive" if silent else "gone"
    training.watch(101.0)
    assert training.gang.losses(101.0) == []
    if code is not None:
        training.gang.statuses = (UnitStatus("exited", code), RUNNING)
    ((slots, words),) = training.gang.losses(at_s)
    assert (slots, words.startswith(reason)) == ((Slot("n0", 0),), True)
    assert training.gang.losses(at_s + 1.0) == []


def test_a_silent_worker_is_killed_and_its_slot_stays_busy(training: Scene, lives: Lives) -> None:
    lives.silent = frozenset({1})
    assert training.watch(1.0)[0] == "kill [1]"
    assert training.members == [0]
    lives.silent = frozenset()
    training.watch(2.0)
    assert training.gang.leaving == {Slot("n1", 0)}, "on a dead host the kill does nothing"


def test_when_all_stand_still_all_are_killed(training: Scene, lives: Lives) -> None:
    """None can go on, and none would ever end by itself."""
    lives.silent = frozenset({0, 1})
    assert training.watch(1.0) == ["kill [0, 1]"]
    training.gang.statuses = (UnitStatus("exited", -9), UnitStatus("exited", -9))
    training.watch(2.0)
    assert training.gang.verdict().end == "failed"


def test_a_silent_worker_on_a_gpu_ends_the_attempt(elastic: Scene, lives: Lives) -> None:
    elastic.goes_on(*(one.model_copy(update={"device": "cuda"}) for one in elastic.gang.plan.members))
    elastic.reaches(2)
    lives.silent = frozenset({1})
    assert elastic.watch(1.0) == ["kill [1]"]
    assert not elastic.gang.stopping
    elastic.gang.statuses = (RUNNING, UnitStatus("exited", -9))
    lives.of[1], lives.silent = "gone", frozenset()
    assert elastic.watch(2.0) == ["kill [1]", "term"], "GPU operations of the others may hang"
    assert elastic.members == [0, 1]


@pytest.mark.parametrize("message", ["", "out of memory"])
def test_a_newcomer_that_fails_leaves_the_others_as_they_were(training: Scene, lives: Lives, message: str):
    before = training.target
    training.grows(cut=(32, 1, 4.0))
    assert training.gang.plan.cut == (32, 1, 4.0)
    lives.of[2] = "gone"
    if message:
        training.gang.statuses = (RUNNING, RUNNING, FAILED)
        training.says(2, "crashed", message)
    assert training.watch(1.0) == ["kill [2]"]
    assert (training.gang.plan.generation, training.members, training.gang.stopping) == (3, [0, 1], False)
    reason = "the new workers on n1/1 ended before they trained" + (message and f": {message}")
    assert training.gang.failure() == WorkerFailure((Slot("n1", 1),), reason)
    assert training.gang.failure() is None, "it is reported once"
    assert training.gang.serves(before)
    assert training.gang.plan.cut == training.gang.target.allocation.cut == (8, 1, 1.0)


def test_of_two_new_workers_the_one_that_lives_is_kept(training: Scene, lives: Lives) -> None:
    training.grows(cut=(32, 1, 4.0))
    training.grows(Slot("n0", 1), 3, cut=(32, 1, 4.0))
    lives.of |= {2: "gone", 3: "absent"}
    training.watch(1.0)
    assert training.members == [0, 1, 3]
    assert training.gang.plan.cut == (32, 1, 4.0), "it grows still"
    assert training.backend.asked == ["kill [2]"]


def test_a_new_worker_is_waited_for_while_it_is_wanted(training: Scene, lives: Lives) -> None:
    training.grows()
    lives.of[2] = "absent"
    assert training.watch(1.0, 1e6) == []
    assert (training.members, training.gang.failure()) == ([0, 1, 2], None)
    training.goes_on(*training.gang.plan.members[:2])
    assert training.watch(1e6 + 1, 1e6 + 60) == []
    assert training.watch(1e6 + 61) == ["kill [2]"]


@pytest.mark.parametrize("outcome", ["done", ""])
def test_a_launcher_that_outlives_its_worker_is_killed_in_time(training: Scene, lives: Lives, outcome: str):
    """A torchrun that hangs, or that was stopped, also where its worker died without a word."""
    for worker in (0, 1):
        if outcome:
            training.says(worker, outcome)
        lives.of[worker] = "gone"
    assert training.watch(0.0, 9.0) == []
    assert training.watch(10.0) == ["kill [0, 1]"]
    if outcome:
        assert training.watch(11.0, 19.0) == ["kill [0, 1]"], "not once a look"
        training.gang.statuses = (RUNNING, UnitStatus("lost"))
        training.watch(19.5)
        assert not training.gang.stopping, "a launcher that was killed after its worker was done is no break"
        training.gang.statuses = (UnitStatus("exited", -9), UnitStatus("lost"))
        training.watch(20.0)
        assert training.gang.verdict().end == "done"


@pytest.mark.parametrize(("code", "end"), [(0, "done"), (3, "failed"), (-9, "failed")])
def test_a_script_may_become_another_program_after_its_training(
    training: Scene, lives: Lives, code: int, end: str
) -> None:
    """By ``exec``, which frees its lock, or it has no last word: only an exit code of 0 is its end."""
    for worker in (0, 1):
        training.says(worker, "done", goes_on=True)
        lives.of[worker] = "gone"
    assert training.watch(0.0, 10.0, 1e6) == [], "it may evaluate for as long as it likes"
    training.gang.statuses = (RUNNING, UnitStatus("exited", 0))
    assert (training.watch(1e6 + 1), training.gang.stopping) == ([], False)
    training.gang.statuses = (UnitStatus("exited", code), UnitStatus("exited", 0))
    assert training.gang.verdict().end == end


def test_an_idle_launcher_of_a_rigid_job_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Its workers write nothing of themselves, so the process tree has to do."""
    scene = Scene(tmp_path, "none")
    scene.gang.statuses = (RUNNING, UnitStatus("running", idle=True))
    assert scene.watch(0.0, 9.0) == []
    assert scene.watch(10.0) == ["kill [1]"]
    assert "processes on n1 do not end" in caplog.text


def test_a_plan_may_name_a_worker_that_is_still_to_be_started(elastic: Scene, lives: Lives) -> None:
    elastic.goes_on(*elastic.gang.plan.members, make_member(ADDED, NodeInfo("n1", 2), 2))
    assert (elastic.watch(0.0), elastic.gang.stopping) == ([], False)


def test_a_gang_that_does_not_train_yet_has_no_limit(scene: Scene, lives: Lives) -> None:
    lives.of = {0: "absent", 1: "absent"}
    scene.watch(1e6)
    assert scene.gang.serves(scene.target)


def test_the_next_launcher_knows_the_workers_and_what_was_read(training: Scene) -> None:
    """No other worker may be started where one has not ended yet."""
    with EventWriter(training.gang.handle.files.progress) as writer:
        writer.append([Event(1.0, "progress", "a", detail={"generation": 1}), Event(2.0, "progress", "a")])
    after = training.taken_over(seen=1)
    assert [after.reports.settles(event, after.plan) for event in after.reports.new_events()] == [True]
    other = training.taken_over()
    late = Event(2.0, "progress", "a")
    assert not other.reports.settles(late, other.plan), "its plan may not be in force yet"
    training.goes_on(training.gang.plan.members[0])
    after = training.taken_over()
    assert (after.leaving, after.busy) == ({Slot("n1", 0)}, {Slot("n0", 0), Slot("n1", 0)})


def test_the_next_launcher_stops_a_script_as_it_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "none")
    reports(scene, 72.0, watches_stop=True)
    scene.gang = scene.taken_over()
    scene.stop(0.0)
    assert scene.gang.handle.files.stop.read_text() == "asked\n"
    assert scene.watch(59.0) == [], "it has its time to save"


def test_a_gang_in_which_nothing_happens_costs_no_reads(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "FRESH_S", 0.0)
    monkeypatch.setattr(folders, "STALE_S", float("inf"))
    scene.reaches(1)
    os.utime(scene.gang.handle.folder, (1, 1))  # whatever happens from now on has another stamp
    assert scene.watch(0.0) == []
    read: list[Path] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or real(path))
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
    if (report := scene.gang.reports.newest()) is not None:
        scene.gang.reports.script_events(report)


def test_a_failed_script_goes_back_to_its_last_save(tmp_path: Path) -> None:
    """Its next attempt begins at the save; until it reports, nothing may say that it is further."""
    scene = Scene(tmp_path, "none")
    assert scene.gang.reports.lost_work() is None, "it has not reported"
    reports(scene, 40.0)
    assert scene.gang.reports.lost_work() is None
    reports(scene, 72.0)
    lost = scene.gang.reports.lost_work()
    assert lost is not None
    kept, event = lost
    assert (kept.step, kept.samples_done, event.samples_done) == (5, 40.0, 40.0)
    assert (event.event, (event.detail or {})["lost_samples"]) == ("checkpoint", 32.0)
    assert ProgressFile(scene.job.progress).fresh() == kept
    elastic = Scene(tmp_path / "elastic", "size")
    assert elastic.gang.reports.lost_work() is None, "its workers say what they save"


def stands_in(scene: Scene, worker: int, function: str) -> None:
    """A worker answers the newest question: it is in this function."""
    files = scene.gang.handle.files
    thread = ThreadStack(name="MainThread", frames=(Frame("train.py", 3, function),))
    answer(files, worker, StackAnswer(question=question(files), threads=(thread,)))


def test_workers_that_do_not_stop_are_asked_for_their_stacks(elastic: Scene) -> None:
    files = elastic.gang.handle.files
    elastic.reaches(1)
    elastic.stop(1000.0)
    assert elastic.watch(1056.0) == []
    assert question(files) == "", "a stop that goes well asks nothing"
    elastic.watch(1057.5)
    assert question(files) != ""
    stands_in(elastic, 1, "all_reduce")
    assert elastic.watch(1060.0) == ["term"]
    kept = files.kept_stacks.read_text()
    assert "1 worker (n1/0)\n  all_reduce (train.py:3)" in kept
    assert "n0/0" not in kept, "it has not answered"
    elastic.gang.statuses = (UnitStatus("exited", -9), UnitStatus("exited", -9))
    elastic.watch(1090.0)
    assert elastic.gang.verdict().message.endswith("attempts/1/logs/stacks.log")


def test_a_worker_that_hangs_after_its_training_is_asked_too(elastic: Scene) -> None:
    files = elastic.gang.handle.files
    elastic.reaches(1)
    elastic.gang._members.life = lambda _worker: "alive"  # type: ignore[method-assign]
    elastic.gang._members.overdue = lambda *_: [1] if question(files) == "" else []  # type: ignore[method-assign]
    assert elastic.watch(300.0) == []
    stands_in(elastic, 1, "finishes")
    assert elastic.watch(302.0) == []
    assert elastic.watch(303.5) == ["kill [1]"]
    assert "finishes" in files.kept_stacks.read_text()
