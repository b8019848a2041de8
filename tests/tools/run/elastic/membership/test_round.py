"""One round of a rendezvous: who attends and reaches whom, what ends the waiting, and what is left of it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import agreement, process_group, rendezvous
from pliant.tools.run.elastic.membership.agreement import PlanWatch
from pliant.tools.run.elastic.membership.process_group import FolderStore, pause
from pliant.tools.run.elastic.membership.rendezvous import Door, DoorAddress, Round, unreached
from pliant.tools.run.elastic.state.training import Cursor
from pliant.tools.run.statedir.contract.folders import JobDir, ask_server
from tests.tools.run.elastic.gang import plan, put
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
Patch = pytest.MonkeyPatch


HERE = Cursor(1, 7, 1)
LOCALHOST = "127.0.0.1"
Pool = ThreadPoolExecutor
Attended = list[Cursor | None]


def context(folder: Path, worker: int) -> WorkerContext:
    return WorkerContext(JobDir(folder), plan(3), worker)


def waiting() -> bool:
    pause()
    return False


def called_away() -> bool:
    pause()
    return True


def attend(
    folder: Path, worker: int, cursor: Cursor | None, wait: Callable[[], bool] = waiting, number: int = 0
) -> Attended:
    return Round(context(folder, worker), number, wait).attend(cursor)


def place(folder: Path, number: int = 0) -> Path:
    """Where the first worker waits, once it does."""
    got = context(folder, 0).attempt.meetings / f"3.{number}"
    while not FolderStore(got, waiting).check(["here/0"]):
        pause()
    return got


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(3) as made:
        yield made


def test_all_learn_how_far_each_is_in_private_files(tmp_path: Path, pool: Pool) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    assert place(tmp_path).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place(tmp_path).iterdir()} == {0o600}
    assert attend(tmp_path, 1, None) == first.result(60) == [HERE, None]


def test_a_newer_plan_calls_all_away_or_none(tmp_path: Path, pool: Pool) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    FolderStore(place(tmp_path), waiting).set_once("verdict", "newer")
    with pytest.raises(rendezvous.CalledAwayError):
        first.result(60)
    with pytest.raises(rendezvous.CalledAwayError):
        attend(tmp_path / "other", 1, HERE, called_away)


def test_a_decided_round_goes_before_a_newer_plan(tmp_path: Path, pool: Pool) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    FolderStore(place(tmp_path), waiting).set_once("verdict", "1 7 1,-")
    assert attend(tmp_path, 1, None, called_away) == first.result(60) == [HERE, None]


@pytest.mark.parametrize("over", [False, True])
def test_who_missed_a_round_goes_to_the_next_one(tmp_path: Path, pool: Pool, over: bool) -> None:
    """A round that is over is not taken for the next one."""
    if over:
        meeting = context(tmp_path, 0).attempt.meetings / "3.0"
        meeting.mkdir(parents=True)
        FolderStore(meeting, waiting).set_once("verdict", "-,-")
    first = pool.submit(attend, tmp_path, 0, HERE, number=1 if over else 2)
    second = pool.submit(attend, tmp_path, 1, HERE, number=1)
    assert second.result(60) == first.result(60) == [HERE, HERE]


def test_a_removed_round_calls_a_late_worker_away(tmp_path: Path, pool: Pool) -> None:
    gone = False

    def until_it_is_gone() -> bool:
        pause()
        return gone

    late = pool.submit(attend, tmp_path, 0, HERE, until_it_is_gone)
    shutil.rmtree(place(tmp_path))
    gone = True
    with pytest.raises(rendezvous.CalledAwayError):
        late.result(60)


def test_folders_of_earlier_rounds_are_removed(tmp_path: Path) -> None:
    attempt = context(tmp_path, 0).attempt
    for name in ("2.0", "3.0", "3.1", "12.0"):
        (attempt.meetings / name).mkdir(parents=True)
        (attempt.meetings / name / "store").touch()
    rendezvous.remove_earlier(attempt, (3, 1))
    until(lambda: sorted(path.name for path in attempt.meetings.iterdir()) == ["12.0", "3.1"])


def attend_on_three_hosts(
    folder: Path, patch: Patch, pool: Pool, missed: dict[int, list[int]]
) -> list[BaseException | Attended]:
    """How a round ends for three workers on as many hosts; ``missed``: whom each does not reach."""

    def knock(doors: dict[int, DoorAddress]) -> list[int]:
        assert unreached(doors) == [], "every door is open while others may knock"
        (own,) = {0, 1, 2} - doors.keys()
        return missed.get(own, [])

    patch.setattr(rendezvous, "own_address", lambda _, rank: LOCALHOST)
    patch.setattr(rendezvous, "unreached", knock)
    three = plan(3, range(3), apart=True)
    rounds = [Round(WorkerContext(JobDir(folder), three, one), 0, waiting) for one in range(3)]
    ends = [pool.submit(one.attend, HERE) for one in rounds]
    return [end.exception(60) or end.result() for end in ends]


def test_hosts_that_reach_each_other_meet(tmp_path: Path, monkeypatch: Patch, pool: Any) -> None:
    assert attend_on_three_hosts(tmp_path, monkeypatch, pool, {}) == [[HERE] * 3] * 3


def test_a_worker_that_is_cut_off_is_known_to_all(tmp_path: Path, monkeypatch: Patch, pool: Any) -> None:
    first, *others = attend_on_three_hosts(tmp_path, monkeypatch, pool, {0: [1, 2], 1: [0], 2: [0]})
    assert isinstance(first, rendezvous.CutOffError)
    assert [str(end) for end in others] == ["cut off from the others: n0/0"] * 2
    assert [type(end) for end in others] == [rendezvous.ApartError] * 2


def test_only_an_open_door_is_reached() -> None:
    """Though no worker accepts there."""
    with Door(LOCALHOST) as other:
        closed = other.place
    with ExitStack() as opened:
        doors = {rank: opened.enter_context(Door(LOCALHOST)).place for rank in range(3)}
        for _ in range(3):
            assert unreached(doors) == []
        assert unreached({1: doors[0], 2: closed}) == [2]


def test_a_silent_door_is_given_up_after_the_limit() -> None:
    """As where packets are dropped: a queue that is full answers no one, either."""
    with socket.create_server((LOCALHOST, 0), backlog=0) as full, ExitStack() as filling:
        place = DoorAddress(LOCALHOST, full.getsockname()[1])
        for _ in range(3):
            one = filling.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((place.address, place.port))
        with Door(LOCALHOST) as open_one:
            assert unreached({1: place, 2: open_one.place}, limit_s=0.2) == [1]


def test_a_place_is_written_as_it_is_read() -> None:
    for address in (LOCALHOST, "fd00::1"):
        assert DoorAddress.parse(str(DoorAddress(address, 4711))) == DoorAddress(address, 4711)


@pytest.mark.parametrize(
    ("missed", "gone"),
    [
        ({0: [], 1: [], 2: []}, []),
        ({0: [2], 1: [2], 2: [0, 1]}, [2]),
        ({0: [1, 2], 1: [0], 2: [0]}, [0]),
        ({0: [1], 1: [0]}, [1]),
        ({0: [1], 1: []}, [1]),
        ({0: [2, 3], 1: [2, 3], 2: [0, 1], 3: [0, 1]}, [2, 3]),
        ({0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1], 3: [0, 1]}, [0, 1]),
    ],
)
def test_as_few_go_as_it_takes_and_of_equals_the_last(missed: dict[int, list[int]], gone: list[int]) -> None:
    assert rendezvous.workers_to_leave_out(missed) == gone


class Memories:
    """Each thread is a host: what it has not found, and what folders held, by host and folder."""

    def __init__(self, patch: Patch) -> None:
        self._absent: dict[tuple[int, Path], set[Path]] = {}
        self._held: dict[tuple[int, Path, str], list[Path]] = {}
        self._glob = Path.glob
        self.missed = threading.Event()
        """A host has looked for a file that was not there."""
        for module in (process_group, agreement):
            patch.setattr(module, "is_there", self._is_there)
        for module in (process_group, agreement, rendezvous):
            patch.setattr(module, "ask_server", self._ask)
        patch.setattr(Path, "glob", lambda folder, pattern: iter(self._list(folder, pattern)))

    def _is_there(self, path: Path) -> bool:
        absent = self._absent.setdefault((threading.get_ident(), path.parent), set())
        if path in absent:
            return False
        if not path.exists():
            absent.add(path)
            self.missed.set()
            return False
        return True

    def _list(self, folder: Path, pattern: str) -> list[Path]:
        place = (threading.get_ident(), folder, pattern)
        if place not in self._held:
            self._held[place] = list(self._glob(folder, pattern))
            self.missed.set()
        return self._held[place]

    def _ask(self, folder: Path) -> None:
        ask_server(folder)
        host = threading.get_ident()
        self._absent.pop((host, folder), None)
        for place in [one for one in self._held if one[:2] == (host, folder)]:
            del self._held[place]


@pytest.fixture
def memories(monkeypatch: Patch) -> Memories:
    return Memories(monkeypatch)


def test_a_key_of_another_host_is_seen(tmp_path: Path, memories: Memories, pool: Pool) -> None:
    got: Future[bytes] = pool.submit(FolderStore(tmp_path, lambda: False).get, "later")
    assert memories.missed.wait(60)
    FolderStore(tmp_path, lambda: False).set("later", "here")
    assert got.result(60) == b"here"


def test_workers_on_forgetful_hosts_meet(tmp_path: Path, memories: Memories, pool: Pool) -> None:
    second = pool.submit(Round(context(tmp_path, 1), 0, waiting).attend, HERE)
    assert memories.missed.wait(60)
    first = pool.submit(Round(context(tmp_path, 0), 0, waiting).attend, None)
    assert first.result(60) == second.result(60) == [None, HERE]


def test_counting_includes_other_hosts(tmp_path: Path, memories: Memories, pool: Pool) -> None:
    def count(first: threading.Event, then: threading.Event) -> int:
        store = FolderStore(tmp_path, lambda: False)
        assert not memories._is_there(store._path("n"))
        then.set()
        assert first.wait(60)
        return store.add("n", 1)

    one, other = threading.Event(), threading.Event()
    both = [pool.submit(count, one, other), pool.submit(count, other, one)]
    assert sorted(got.result(60) for got in both) == [1, 2]


def test_a_plan_that_others_saw_is_seen(tmp_path: Path, memories: Memories, pool: Pool) -> None:
    watch = PlanWatch(WorkerContext(put(tmp_path, plan(1)), plan(1), 0))
    got = pool.submit(watch.exactly, 2, 60.0)
    assert memories.missed.wait(60)
    put(tmp_path, plan(2))
    assert got.result(60).generation == 2


def test_a_replaced_plan_is_seen_by_opening_it(tmp_path: Path, monkeypatch: Patch) -> None:
    job = put(tmp_path, plan(1))
    before = os.stat(job.plan)
    monkeypatch.setattr(agreement, "_look", lambda path: before)
    watch = PlanWatch(WorkerContext(job, plan(1), 0))
    assert watch.newest().generation == 1
    put(tmp_path, plan(2))
    while watch.newest().generation == 1:
        pause()
    assert watch.newest().generation == 2
