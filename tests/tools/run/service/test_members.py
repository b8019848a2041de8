"""Workers of an attempt: what their files say, and how long they lasted."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.endings import Ending, broken, describe, judge
from pliant.tools.run.service.members import TOO_MANY, YOUNG_S, GangMembers, Lifetimes, WorkerFailure
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.contract import liveness as heartbeat
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.liveness import FileClock
from pliant.tools.run.statedir.contract.plan import LOST_PEER, Member, Plan, WorkerOutcome
from tests.builders import job

TIMES = Timeouts(silent_s=30.0, dead_s=10.0)
SECONDS = 40


class Scene:
    """Two workers, their supervisors, and a launcher that looks once a second."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.files, self.now_s = AttemptDir(folder), 0.0
        both = tuple(Member(slot=f"n{i}/0", node=f"n{i}", address=f"n{i}", worker=i) for i in range(2))
        self.plan = Plan(job="a", generation=1, attempt=1, members=both)
        self.members = GangMembers(self.files, self.plan)
        patch.setattr(GangMembers, "life", lambda members, worker: "alive")
        patch.setattr(FileClock, "now_s", lambda clock, path: 1000.0 + self.now_s)
        self.beat(*self.files_of(0), *self.files_of(1))

    def files_of(self, worker: int) -> tuple[Path, Path]:
        return self.files.presence(worker), self.files.supervisor(worker)

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


@pytest.mark.parametrize("supervisor", ["beats", "is missing", "stands still"])
def test_a_silent_worker_is_missed_sooner_with_its_supervisor(scene: Scene, supervisor: str) -> None:
    """A dead host is missed soon; a worker alone that stands still has more time."""
    if supervisor == "is missing":
        scene.files.supervisor(1).unlink()
    still = scene.files_of(1)[:1] if supervisor == "beats" else scene.files_of(1)
    assert scene.lost_after(*still) == pytest.approx(10.0 if supervisor == "stands still" else 30.0, abs=1.0)


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
    assert silent == {1}, "by its own file, and then by that of its supervisor"


def test_files_are_looked_at_no_more_than_needed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither supervisors of workers that beat, nor workers more often than they beat."""
    seen: list[str] = []
    look = heartbeat.last_beat
    monkeypatch.setattr(heartbeat, "last_beat", lambda path: seen.append(Path(path).name) or look(path))
    for now_s in (100.0, 100.5, 100.9):
        scene.members.listen(now_s, TIMES)
    assert seen == ["worker-0.alive", "worker-1.alive"]
    scene.members.listen(101.0, TIMES)
    assert len(seen) == 4
    scene.now_s = 101.0
    assert scene.lost_after(scene.files.supervisor(1)) is None, "a supervisor alone may stand still"
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


def lost(
    losses: Lifetimes, worker: int, slot: Slot, now_s: float, trained: bool = True
) -> WorkerFailure | None:
    return losses.mark_lost({worker: slot}, {worker} if trained else set(), lambda worker: "no memory", now_s)


def test_workers_that_die_young_in_a_row_give_their_slot_away() -> None:
    losses, setbacks = Lifetimes(), []
    for worker in range(TOO_MANY):
        losses.train({worker: HERE}, 100.0 * worker)
        setbacks.append(lost(losses, worker, HERE, 100.0 * worker + YOUNG_S / 2))
    assert setbacks[:-1] == [None] * (TOO_MANY - 1)
    assert setbacks[-1] == WorkerFailure((HERE,), f"lost {TOO_MANY} workers in a row on n0/0")


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
    assert lost(Lifetimes(), 3, THERE, 1.0, trained=False) == WorkerFailure((THERE,), early)
    losses = Lifetimes()
    for worker in range(TOO_MANY - 1):
        lost(losses, worker, HERE, 1.0)
    found = losses.mark_lost({8: HERE, 9: THERE}, {8}, lambda worker: f"of {worker}", 1.0)
    reason = "the new workers on n0/1 ended before they trained: of 9"
    assert found == WorkerFailure((THERE, HERE), f"{reason}; lost {TOO_MANY} workers in a row on n0/0")


def test_a_setback_takes_slots_and_all_of_a_job_that_shares() -> None:
    target = Assignment.of(job("a", gpus=1, high=3), (THERE, Slot("n1", 0), HERE), (8, 1, 1.0))
    cut = (4, 2, 0.5)
    assert WorkerFailure((Slot("n2", 0),), "").without(target, cut, shared=True) is target
    kept = WorkerFailure((HERE, Slot("n2", 0)), "").without(target, cut, shared=False)
    assert (kept.slots, kept.allocation.placement) == ((THERE, Slot("n1", 0)), (("n0", 1), ("n1", 1)))
    assert (kept.allocation.cut, kept.job) == (cut, target.job)
    assert WorkerFailure((HERE,), "").without(target, cut, shared=True).slots == ()
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
    assert found == WorkerFailure((THERE,), "the new workers on n0/1 ended in their first steps: no memory")
    assert losses.newcomers({0, 1}, 100.0 + YOUNG_S) == frozenset()


# How an attempt ended, by what its workers say and how its units exited.


KILLED = "killed by SIGKILL, which the system sends where memory runs out"
CLEAN = UnitStatus("exited", 0)
FAILED = UnitStatus("exited", 1)
KILL = UnitStatus("exited", -9)
LOST = UnitStatus("lost")
RUNS = UnitStatus("running")


def said(outcome: str, samples: float = 100.0, message: str = "") -> WorkerOutcome:
    return WorkerOutcome.model_validate({"outcome": outcome, "samples_done": samples, "message": message})


def verdict(
    outcomes: dict[int, WorkerOutcome], *units: UnitStatus, elastic: bool = True, asked: bool = False
) -> Ending:
    return judge(outcomes, units, ranks=2, elastic=elastic, stop_requested=asked)


BOTH_DONE = {0: said("done"), 1: said("done")}
BOTH_STOPPED = {0: said("stopped"), 1: said("stopped")}
NOTICED = said("crashed", message=f"{LOST_PEER}: RuntimeError: closed by peer")
NO_MEMORY, NO_FILE = said("crashed", message="out of memory"), said("crashed", message="no file")


OUT_OF_MEMORY = "rank 1 crashed: out of memory"
VANISHED = f"rank 1 vanished ({KILLED})"
JUST_NOTICED = f"rank 0 crashed: {NOTICED.message}"


@pytest.mark.parametrize(
    ("asked", "outcomes", "units", "end", "message"),
    [
        (False, BOTH_DONE, (FAILED, FAILED), "done", ""),  # whatever torchrun says
        (False, BOTH_STOPPED, (CLEAN, CLEAN), "failed", "stopped by somebody else"),
        (False, {0: said("stopped"), 1: NO_MEMORY}, (CLEAN, FAILED), "failed", OUT_OF_MEMORY),
        (False, {0: NOTICED, 1: NO_MEMORY}, (FAILED, FAILED), "failed", OUT_OF_MEMORY),  # what comes first
        (False, {0: NOTICED, 1: NOTICED}, (FAILED, FAILED), "failed", JUST_NOTICED),
        (False, {0: NO_FILE, 1: NO_MEMORY}, (FAILED, FAILED), "failed", "rank 0 crashed: no file"),
        (False, {0: NOTICED}, (FAILED, KILL), "failed", VANISHED),
        (False, {1: NOTICED}, (RUNS, FAILED), "failed", f"rank 1 crashed: {NOTICED.message}"),
        (False, {0: said("stopped")}, (CLEAN, KILL), "failed", VANISHED),
        (True, BOTH_STOPPED, (FAILED, FAILED), "stopped", ""),  # as torchrun exits
        (True, {0: NOTICED}, (FAILED, KILL), "stopped", JUST_NOTICED),
        (True, {0: said("stopped")}, (CLEAN, LOST), "stopped", "rank 1 vanished (killed, no exit code)"),
        (True, BOTH_DONE, (CLEAN, CLEAN), "done", ""),
    ],
)
def test_an_elastic_job_is_judged_by_what_its_workers_say(
    asked: bool, outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...], end: Any, message: str
) -> None:
    found = verdict(outcomes, *units, asked=asked)
    assert (found.end, found.message, found.samples_done) == (end, message, 100.0)


def test_a_script_that_gives_up_in_its_training_has_failed() -> None:
    left = said("done").model_copy(update={"exit_counts": True})
    found = verdict({0: left, 1: left}, FAILED, FAILED)
    assert (found.end, found.message) == ("failed", "the script ended with exit code 1")
    assert verdict({0: left, 1: left}, CLEAN, CLEAN) == Ending("done", "", 100.0)
    assert verdict({0: left, 1: left}, LOST, LOST).end == "done", "a launcher that is gone says nothing"


TAKEN = UnitStatus("exited", -15, displaced="its node was taken away")


@pytest.mark.parametrize(
    "outcomes",
    [
        {},
        BOTH_STOPPED,
        {0: said("cut_off", message=f"{LOST_PEER} 1")},
        {0: said("stopped"), 1: said("crashed", message="KeyboardInterrupt")},
    ],
)
@pytest.mark.parametrize("units", [(CLEAN, TAKEN), (TAKEN, LOST), (TAKEN, FAILED)])
def test_an_attempt_whose_place_was_taken_is_displaced(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...]
) -> None:
    found = verdict(outcomes, *units)
    assert (found.end, found.message, found.began) == ("displaced", "its node was taken away", True)
    assert verdict(outcomes, *units, asked=True).end == "stopped"
    assert verdict(BOTH_DONE, *units).end == "done"
    nowhere = UnitStatus("lost", displaced="nothing starts on node n0", began=False)
    assert verdict({}, nowhere, FAILED).began is False


TWICE = "ValueError: trying to initialize the default process group twice!"
NO_ADDRESS = "ValueError: environment variable MASTER_ADDR expected, but not set"
NO_GROUP = "ValueError: Default process group has not been initialized, please call it"


def test_an_obstacle_in_the_script_is_named_with_its_remedy(golden_text: Callable[..., None]) -> None:
    """It connects the workers besides the elastic library, or needs torchrun on its one GPU."""
    ask, found = partial(judge, units=[FAILED], ranks=1, stop_requested=False), []
    for line, message in (
        ("", TWICE),
        ("fully_shard(model)", NO_ADDRESS),
        ("accelerator = Accelerator()", NO_ADDRESS),
        ("model = DDP(model)", NO_GROUP),
    ):
        trace = ["Traceback (most recent call last):", f"    {line}", message]
        crashed = {0: said("crashed", message=message)}
        found += [ask(crashed, elastic=True, trace=lambda trace=trace: trace).message]
        if message != NO_ADDRESS:
            plain = verdict(crashed, FAILED, elastic=message == NO_GROUP)
            assert plain.message == f"rank 0 crashed: {message}", "not elastic, or no line that shows why"
    for words in ("KeyError: 'LOCAL_RANK'", "ValueError: environment variable RANK expected"):
        found += [ask({}, elastic=False, words=lambda _, words=words: words).message]
    golden_text("\n".join(found))


@pytest.mark.parametrize(
    ("units", "end", "message"),
    [
        ([CLEAN], "done", ""),
        ([UnitStatus("exited", 3)], "failed", "exit code 3"),
        ([UnitStatus("exited", -15)], "failed", "killed by SIGTERM"),
        ([LOST], "failed", "killed, no exit code"),
        ([], "failed", "no exit code"),  # never started
    ],
)
def test_a_plain_script_is_judged_by_its_exit_code(units: list[UnitStatus], end: str, message: str) -> None:
    ending = verdict({}, *units, elastic=False)
    assert (ending.end, ending.message, ending.samples_done) == (end, message, None)
    assert ending.by_itself is (end == "failed" and units not in ([], [LOST]))
    assert verdict({}, UnitStatus("exited", -15), elastic=False, asked=True).end == "stopped"
    unused = verdict({}, CLEAN, CLEAN)
    assert (unused.end, 'set "elastic" to "none"' in unused.message) == ("failed", True)


def test_what_breaks_a_gang() -> None:
    done = {1: said("done")}
    assert broken([RUNS, FAILED], {})
    assert broken([RUNS, LOST], {})
    assert broken([RUNS, RUNS], {1: said("crashed")})
    assert not broken([RUNS, CLEAN], done)
    assert broken([RUNS, FAILED], done), "its script failed after the training"
    assert not broken([RUNS, LOST], done), "a launcher that was killed says nothing"
    assert not broken([RUNS, KILL], done)


def test_an_exit_in_words() -> None:
    words = {0: "", 1: "KeyError: 7"}
    assert describe([CLEAN, FAILED], words.__getitem__) == "exit code 1: KeyError: 7"
    assert describe([FAILED, CLEAN], words.__getitem__) == "exit code 1"
    assert describe([CLEAN, KILL], words.__getitem__) == KILLED
    assert describe([UnitStatus("exited", -40)]) == "killed by signal 40"
    assert describe([CLEAN, UnitStatus("exited", -11)]) == "killed by SIGSEGV"
    assert describe([CLEAN]) == "no exit code"


def test_a_stop_names_the_signal_and_the_exit_code_alone() -> None:
    """torchrun exits with 1 after a SIGTERM, and its workers printed a warning last, or a progress bar."""

    def printed(_: int) -> str:
        return "local_plan = storage_writer.prepare_local_plan()"

    ask = partial(judge, {}, ranks=1, elastic=False, stop_requested=True, words=printed)
    assert ask([FAILED], sent="SIGTERM").message == (
        "ended by SIGTERM, which was sent to stop it (exit code 1)"
    )
    killed = ask([KILL], sent="SIGKILL")
    assert (killed.end, killed.message) == ("stopped", "ended by SIGKILL, which was sent to stop it")
    assert ask([FAILED]).message == "exit code 1"
