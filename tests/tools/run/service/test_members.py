"""Workers of an attempt: what their files say, and how long they lasted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.members import TOO_MANY, YOUNG_S, GangMembers, Lifetimes, Setback, Timeouts
from pliant.tools.run.statedir.contract import presence as heartbeat
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import Member, Plan
from pliant.tools.run.statedir.contract.presence import FileClock
from tests.builders import job

TIMES = Timeouts(silent_s=30.0, dead_s=10.0)
SECONDS = 40


class Scene:
    """Two workers, their keepers, and a launcher that looks once a second."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.files, self.now_s = AttemptDir(folder), 0.0
        both = tuple(Member(slot=f"n{i}/0", node=f"n{i}", address=f"n{i}", worker=i) for i in range(2))
        self.plan = Plan(job="a", generation=1, attempt=1, members=both)
        self.members = GangMembers(self.files, self.plan)
        patch.setattr(GangMembers, "life", lambda members, worker: "alive")
        patch.setattr(FileClock, "now_s", lambda clock, path: 1000.0 + self.now_s)
        self.beat(*self.files_of(0), *self.files_of(1))

    def files_of(self, worker: int) -> tuple[Path, Path]:
        return self.files.presence(worker), self.files.keeper(worker)

    def beat(self, *paths: Path) -> None:
        for path in paths:
            path.touch()
            os.utime(path, (1000.0 + self.now_s, 1000.0 + self.now_s))

    def lost_after(self, *still: Path) -> float | None:
        """When the second worker is found silent, where all but these files go on; None: not in this time."""
        moving = {*self.files_of(0), *self.files_of(1)}.difference(still)
        for _ in range(SECONDS):
            self.now_s += 1.0
            self.beat(*moving)
            found = self.members.listen(self.now_s, TIMES)
            assert found <= {1}
            if found:
                assert self.members.lost({0, 1}, {0, 1}) == {1}
                return self.now_s
        return None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_worker_on_a_dead_host_is_missed_soon(scene: Scene) -> None:
    assert scene.lost_after(*scene.files_of(1)) == pytest.approx(10.0, abs=1.0)


@pytest.mark.parametrize("keeper", ["runs", "is missing"])
def test_a_worker_that_stands_still_has_more_time_unless_its_keeper_does_too(scene: Scene, keeper: str):
    if keeper == "is missing":
        scene.files.keeper(1).unlink()
    still = scene.files_of(1) if keeper == "is missing" else scene.files_of(1)[:1]
    assert scene.lost_after(*still) == pytest.approx(30.0, abs=1.0)


def test_a_launcher_that_has_just_come_is_in_doubt_until_it_has_looked_for_a_while(scene: Scene) -> None:
    """So a call from cron stays for some seconds more, and then knows."""
    scene.now_s = 20.0
    looks = 0
    while not looks or scene.members.in_doubt(TIMES):
        scene.now_s += 1.0
        scene.beat(*scene.files_of(0))
        found = scene.members.listen(scene.now_s, TIMES)
        looks += 1
        assert looks < 10
    assert found == {1}, "by its own file, and then by that of its keeper"


def looked_at_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose last beat is looked for, as it happens."""
    found: list[str] = []
    look = heartbeat.last_beat
    monkeypatch.setattr(heartbeat, "last_beat", lambda path: found.append(Path(path).name) or look(path))
    return found


def test_the_keeper_of_a_worker_that_beats_is_not_looked_at_and_may_stand_still(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = looked_at_from_now_on(monkeypatch)
    assert scene.lost_after(scene.files.keeper(1)) is None
    assert set(looked_at) == {"worker-0.alive", "worker-1.alive"}


def test_where_a_kill_does_nothing_it_is_tried_again_seldom(scene: Scene) -> None:
    """A dead host: each try may be a question to a controller, and a line for the owner."""
    scene.lost_after(*scene.files_of(1))
    moving = scene.files_of(0)
    found = []
    for _ in range(int(2 * TIMES.dead_s)):
        scene.now_s += 1.0
        scene.beat(*moving)
        found.append(scene.members.listen(scene.now_s, TIMES))
        assert scene.members.lost({0, 1}, {0, 1}) == {1}, "it stays lost meanwhile"
    assert [len(one) for one in found].count(1) == 2


def test_it_is_not_listened_more_often_than_workers_beat(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    looked_at = looked_at_from_now_on(monkeypatch)
    for now_s in (100.0, 100.5, 100.9):
        scene.members.listen(now_s, TIMES)
    assert looked_at == ["worker-0.alive", "worker-1.alive"]
    scene.members.listen(101.0, TIMES)
    assert len(looked_at) == 4


def test_a_worker_that_ran_for_long_enough_after_its_plan_was_in_force_proves_its_slot(scene: Scene) -> None:
    assert scene.members.proven([0, 1], YOUNG_S) == set(), "no plan is in force yet"
    scene.files.reached.write_text("1\n")
    os.utime(scene.files.reached, (1000.0, 1000.0))
    scene.now_s = YOUNG_S - 0.1
    scene.beat(scene.files.presence(0))
    assert scene.members.proven([0, 1], YOUNG_S) == set()
    scene.now_s = YOUNG_S
    scene.beat(scene.files.presence(0))
    assert scene.members.proven([0, 1, 7], YOUNG_S) == {Slot("n0", 0)}
    assert scene.members.proven([1], YOUNG_S) == set()


HERE, THERE = Slot("n0", 0), Slot("n0", 1)


def lost(losses: Lifetimes, worker: int, slot: Slot, now_s: float, trained: bool = True) -> Setback | None:
    return losses.mark_lost({worker: slot}, {worker} if trained else set(), lambda worker: "no memory", now_s)


def test_workers_that_die_young_one_after_the_other_give_their_slot_away() -> None:
    losses, found = Lifetimes(), []
    for worker in range(TOO_MANY):
        losses.train({worker: HERE}, 100.0 * worker)
        found.append(lost(losses, worker, HERE, 100.0 * worker + YOUNG_S / 2))
    assert found[:-1] == [None] * (TOO_MANY - 1)
    assert found[-1] == Setback((HERE,), f"lost {TOO_MANY} workers in a row on n0/0")


def test_a_slot_that_lost_many_and_one_whose_worker_never_trained_are_given_away_together() -> None:
    losses = Lifetimes()
    for worker in range(TOO_MANY - 1):
        lost(losses, worker, HERE, 1.0)
    found = losses.mark_lost({8: HERE, 9: THERE}, {8}, lambda worker: f"of {worker}", 1.0)
    early = "the new workers on n0/1 ended before they trained: of 9"
    assert found == Setback((THERE, HERE), f"{early}; lost {TOO_MANY} workers in a row on n0/0")


def test_a_setback_takes_its_slots_from_a_job_and_all_from_one_that_shares_them() -> None:
    target = Assignment.of(job("a", gpus=1, high=3), (THERE, Slot("n1", 0), HERE), (8, 1, 1.0))
    cut = (4, 2, 0.5)
    assert Setback((Slot("n2", 0),), "").without(target, cut, shared=True) is target
    left = Setback((HERE, Slot("n2", 0)), "").without(target, cut, shared=False)
    assert (left.slots, left.allocation.placement) == ((THERE, Slot("n1", 0)), (("n0", 1), ("n1", 1)))
    assert (left.allocation.cut, left.job) == (cut, target.job)
    assert Setback((HERE,), "").without(target, cut, shared=True).slots == ()


def test_a_stop_takes_no_longer_than_its_stages_together() -> None:
    assert Timeouts(abort_s=60.0, term_s=30.0, kill_s=5.0).to_end() == 95.0


def test_slots_are_counted_each_for_itself() -> None:
    losses = Lifetimes()
    for worker in range(2 * (TOO_MANY - 1)):
        assert lost(losses, worker, (HERE, THERE)[worker % 2], 1.0) is None


def test_one_that_grows_old_clears_its_slot_also_when_it_is_not_lost() -> None:
    losses = Lifetimes()
    for worker in range(TOO_MANY - 1):
        lost(losses, worker, HERE, 1.0)
    losses.train({9: HERE}, 10.0)
    losses.train({9: HERE}, 10.0 + YOUNG_S)
    assert lost(losses, 10, HERE, 20.0) is None


def test_one_that_never_trained_gives_its_slot_away_at_once() -> None:
    found = lost(Lifetimes(), 3, THERE, 1.0, trained=False)
    assert found == Setback((THERE,), "the new workers on n0/1 ended before they trained: no memory")


def test_a_newcomer_that_says_what_it_died_of_gives_its_slot_away_at_once() -> None:
    losses = Lifetimes()
    losses.train({0: HERE}, 1.0)
    losses.train({0: HERE, 1: THERE}, 100.0)
    assert losses.newcomers({0, 1}, 101.0) == {1}
    found = losses.mark_lost({1: THERE}, {0, 1}, lambda worker: "no memory", 101.0)
    assert found == Setback((THERE,), "the new workers on n0/1 ended in their first steps: no memory")
    assert losses.newcomers({0, 1}, 100.0 + YOUNG_S) == frozenset()


def test_workers_that_began_together_are_not_newcomers() -> None:
    losses = Lifetimes()
    losses.train({0: HERE, 1: THERE}, 1.0)
    assert losses.newcomers({0, 1}, 1.0) == frozenset()
    assert losses.mark_lost({1: THERE}, {0, 1}, lambda worker: "no memory", 1.5) is None
