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


@pytest.mark.parametrize("keeper", ["beats", "is missing", "stands still"])
def test_a_silent_worker_is_missed_and_sooner_with_its_keeper(scene: Scene, keeper: str) -> None:
    """A dead host is missed soon; a worker alone that stands still has more time."""
    if keeper == "is missing":
        scene.files.keeper(1).unlink()
    still = scene.files_of(1)[:1] if keeper == "beats" else scene.files_of(1)
    assert scene.lost_after(*still) == pytest.approx(10.0 if keeper == "stands still" else 30.0, abs=1.0)


def test_a_new_launcher_is_in_doubt_for_some_seconds(scene: Scene) -> None:
    """So a call from cron stays for these, and then knows."""
    scene.now_s = 20.0
    looks = 0
    while not looks or scene.members.in_doubt(TIMES):
        scene.now_s += 1.0
        scene.beat(*scene.files_of(0))
        silent = scene.members.listen(scene.now_s, TIMES)
        looks += 1
        assert looks < 10
    assert silent == {1}, "by its own file, and then by that of its keeper"


def test_files_are_looked_at_no_more_than_needed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither keepers of workers that beat, nor workers more often than they beat."""
    seen: list[str] = []
    look = heartbeat.last_beat
    monkeypatch.setattr(heartbeat, "last_beat", lambda path: seen.append(Path(path).name) or look(path))
    for now_s in (100.0, 100.5, 100.9):
        scene.members.listen(now_s, TIMES)
    assert seen == ["worker-0.alive", "worker-1.alive"]
    scene.members.listen(101.0, TIMES)
    assert len(seen) == 4
    scene.now_s = 101.0
    assert scene.lost_after(scene.files.keeper(1)) is None, "a keeper alone may stand still"
    assert set(seen) == {"worker-0.alive", "worker-1.alive"}


def test_a_kill_that_does_nothing_is_repeated_seldom(scene: Scene) -> None:
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


def test_a_worker_that_ran_long_enough_proves_its_slot(scene: Scene) -> None:
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


def test_workers_that_die_young_in_a_row_give_their_slot_away() -> None:
    losses, setbacks = Lifetimes(), []
    for worker in range(TOO_MANY):
        losses.train({worker: HERE}, 100.0 * worker)
        setbacks.append(lost(losses, worker, HERE, 100.0 * worker + YOUNG_S / 2))
    assert setbacks[:-1] == [None] * (TOO_MANY - 1)
    assert setbacks[-1] == Setback((HERE,), f"lost {TOO_MANY} workers in a row on n0/0")


def test_losses_in_a_row_count_by_slot_until_one_grows_old() -> None:
    losses = Lifetimes()
    for worker in range(2 * (TOO_MANY - 1)):
        assert lost(losses, worker, (HERE, THERE)[worker % 2], 1.0) is None
    losses.train({9: HERE}, 10.0)
    losses.train({9: HERE}, 10.0 + YOUNG_S)
    assert lost(losses, 10, HERE, 20.0) is None
    assert lost(losses, 11, THERE, 20.0) is not None


def test_a_slot_whose_worker_never_trained_is_given_away_at_once() -> None:
    """Together with one that lost many."""
    early = "the new workers on n0/1 ended before they trained: no memory"
    assert lost(Lifetimes(), 3, THERE, 1.0, trained=False) == Setback((THERE,), early)
    losses = Lifetimes()
    for worker in range(TOO_MANY - 1):
        lost(losses, worker, HERE, 1.0)
    found = losses.mark_lost({8: HERE, 9: THERE}, {8}, lambda worker: f"of {worker}", 1.0)
    reason = "the new workers on n0/1 ended before they trained: of 9"
    assert found == Setback((THERE, HERE), f"{reason}; lost {TOO_MANY} workers in a row on n0/0")


def test_a_setback_takes_slots_and_all_of_a_job_that_shares() -> None:
    target = Assignment.of(job("a", gpus=1, high=3), (THERE, Slot("n1", 0), HERE), (8, 1, 1.0))
    cut = (4, 2, 0.5)
    assert Setback((Slot("n2", 0),), "").without(target, cut, shared=True) is target
    kept = Setback((HERE, Slot("n2", 0)), "").without(target, cut, shared=False)
    assert (kept.slots, kept.allocation.placement) == ((THERE, Slot("n1", 0)), (("n0", 1), ("n1", 1)))
    assert (kept.allocation.cut, kept.job) == (cut, target.job)
    assert Setback((HERE,), "").without(target, cut, shared=True).slots == ()
    assert Timeouts(abort_s=60.0, term_s=30.0, kill_s=5.0).to_end() == 95.0


def test_a_newcomer_that_says_why_it_died_gives_its_slot_away() -> None:
    """Workers that began together are no newcomers."""
    losses = Lifetimes()
    losses.train({0: HERE, 7: THERE}, 1.0)
    assert losses.newcomers({0, 1, 7}, 1.0) == frozenset()
    assert losses.mark_lost({7: THERE}, {0, 7}, lambda worker: "no memory", 1.5) is None
    losses.train({0: HERE, 1: THERE}, 100.0)
    assert losses.newcomers({0, 1}, 101.0) == {1}
    found = losses.mark_lost({1: THERE}, {0, 1}, lambda worker: "no memory", 101.0)
    assert found == Setback((THERE,), "the new workers on n0/1 ended in their first steps: no memory")
    assert losses.newcomers({0, 1}, 100.0 + YOUNG_S) == frozenset()
