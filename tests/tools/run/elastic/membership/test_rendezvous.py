"""How the workers of a plan come together, and what they do where that does not succeed."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.elastic.context import Context, WorkerContext
from pliant.tools.run.elastic.membership import process_group, rendezvous, switch_step
from pliant.tools.run.elastic.membership.process_group import FolderStore, ProcessGroup, pause
from pliant.tools.run.elastic.membership.rendezvous import (
    MAX_CONNECT_ATTEMPTS,
    Endpoint,
    ProbeListener,
    Rendezvous,
    RendezvousWait,
    Round,
    unreachable,
)
from pliant.tools.run.elastic.membership.switch_step import PlanWatch, StopRequestedError
from pliant.tools.run.elastic.state.training import Cursor
from pliant.tools.run.statedir.contract.folders import JobDir, refresh_folder
from pliant.tools.run.statedir.contract.liveness import FileClock
from tests.tools.run.elastic.gang import plan, put
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
HERE = Cursor(1, 7, 1)
Patch = pytest.MonkeyPatch
Pool = ThreadPoolExecutor
Attended = list[Cursor | None]


class Disk:
    """A disk that is full for a while."""

    def __init__(self) -> None:
        self.full, self.refused = True, 0

    def write(self, folder: Path) -> None:
        if self.full:
            self.refused += 1
            error = OSError(errno.ENOSPC, "No space left on device", str(folder))
            raise ServiceMissingError(f"{folder}: cannot be written") from error


@pytest.fixture
def job(tmp_path: Path, monkeypatch: Patch) -> Path:
    put(tmp_path, plan())
    monkeypatch.setattr(RendezvousWait, "missing", lambda self: [])
    return tmp_path


@pytest.fixture
def disk(monkeypatch: Patch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(rendezvous, "probe_room", disk.write)
    return disk


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def meet(folder: Path, rank: int, cursor: Cursor | None, device: str = "cpu") -> Attended:
    context = WorkerContext(JobDir(folder), plan(), rank, torch.device(device))
    return Rendezvous(context, ProcessGroup(context, None), PlanWatch(context)).meet(cursor)


def connect_by(patch: Patch, connect: Callable[[str, timedelta], object]) -> None:
    """``connect`` gets the round and its limit, and raises where the workers do not connect."""
    patch.setattr(ProcessGroup, "form", lambda self, folder, away, limit: connect(folder.name, limit))


def test_a_failed_round_is_followed_by_a_longer_one(job: Path, monkeypatch: Patch, pool: Pool) -> None:
    tried: list[tuple[str, timedelta]] = []

    def connect(name: str, limit: timedelta) -> None:
        tried.append((name, limit))
        if name == "1.0":
            raise RuntimeError("NCCL error")

    connect_by(monkeypatch, connect)
    both = [pool.submit(meet, job, rank, (None, HERE)[rank]) for rank in range(2)]
    assert [one.result(60) for one in both] == [[None, HERE]] * 2
    assert (
        sorted(tried)
        == [("1.0", rendezvous.CONNECT_TIMEOUT)] * 2 + [("1.1", 2 * rendezvous.CONNECT_TIMEOUT)] * 2
    )


def test_a_worker_called_away_again_and_again_can_be_stopped(job: Path, monkeypatch: Patch) -> None:
    def away(self: Round, cursor: Cursor | None) -> Attended:
        attended.append(None)
        assert len(attended) < 100, "it goes to the round again and again"
        raise rendezvous.SupersededError

    def stop(self: PlanWatch, *, fresh: bool) -> None:
        if len(attended) == 3:
            raise StopRequestedError

    attended: list[None] = []
    monkeypatch.setattr(Round, "attend", away)
    monkeypatch.setattr(PlanWatch, "check_needed", stop)
    with pytest.raises(StopRequestedError):
        meet(job, 1, HERE)


def test_on_gpus_a_group_needs_room_for_its_store(job: Path, monkeypatch: Patch) -> None:
    asked: list[Path] = []
    formed: list[str] = []

    def probe(folder: Path, size_bytes: int) -> None:
        """A disk that has room from the third time on."""
        assert size_bytes == process_group.STORE_BYTES
        asked.append(folder)
        if len(asked) < 3:
            raise ServiceMissingError(f"{folder}: cannot be written: no space left on device")

    monkeypatch.setattr(process_group, "probe_room", probe)
    monkeypatch.setattr(Round, "attend", lambda self, cursor: [cursor, None])
    connect_by(monkeypatch, lambda name, limit: formed.append(name))
    with pytest.raises(ServiceMissingError, match="no space left"):
        meet(job, 0, None, "cuda:0")
    assert not formed
    assert meet(job, 0, HERE, "cuda:0") == [HERE, None]
    assert asked == [JobDir(job).attempt(1).path] * 3
    assert len(formed) == 1
    ProcessGroup(Context(0, 1, torch.device("cpu")), None).check_room(job)
    assert len(asked) == 3, "gloo on CPU slots forms over files that are there as a whole or not at all"


def test_trained_workers_wait_for_room(
    job: Path, disk: Disk, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, pool: Pool
) -> None:
    attend = Round.attend

    def attend_with_room(self: Round, cursor: Cursor | None) -> Attended:
        if disk.full:
            disk.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", f"{self.folder}/.key.{disk.refused}")
        return attend(self, cursor)

    monkeypatch.setattr(Round, "attend", attend_with_room)
    connect_by(monkeypatch, lambda name, limit: None)
    both = [pool.submit(meet, job, rank, HERE) for rank in range(2)]
    until(lambda: disk.refused > 4 * MAX_CONNECT_ATTEMPTS or any(one.done() for one in both))
    disk.full = False
    assert [one.result(60) for one in both] == [[HERE] * 2] * 2
    warnings = [record.message for record in caplog.records if "No space left" in record.message]
    assert len(warnings) == 2 * 2, "each warns once that it waits, and that the workers did not come together"


def test_workers_wait_while_the_disk_of_others_is_full(
    job: Path, disk: Disk, monkeypatch: Patch, pool: Pool
) -> None:
    fails: dict[str, bool] = {}
    """Whether the workers of a round connect: either both do, or none."""

    def connect(name: str, limit: timedelta) -> None:
        if fails.setdefault(name, disk.full):
            raise RuntimeError("gloo: a worker did not connect")

    connect_by(monkeypatch, connect)
    both = [pool.submit(meet, job, rank, HERE) for rank in range(2)]
    until(lambda: disk.refused > 3 or any(one.done() for one in both))
    disk.full = False
    assert [one.result(60) for one in both] == [[HERE] * 2] * 2


def test_workers_that_never_connect_end(job: Path, monkeypatch: Patch, pool: Pool) -> None:
    tried: list[str] = []

    def connect(name: str, limit: timedelta) -> None:
        tried.append(name)
        raise RuntimeError("no route to host")

    connect_by(monkeypatch, connect)
    fresh, trained = pool.submit(meet, job, 0, None), pool.submit(meet, job, 1, HERE)
    with pytest.raises(ServiceMissingError, match=r"generation 1: .* cannot connect: no route"):
        fresh.result(60)
    with pytest.raises(rendezvous.NoPlanError, match="cannot connect: no route to host"):
        trained.result(60)
    assert len(tried) == 2 * MAX_CONNECT_ATTEMPTS


def test_a_locked_but_silent_worker_is_missing(tmp_path: Path, monkeypatch: Patch) -> None:
    """Its host is dead; those that wait for it without a launcher would else wait for half an hour."""
    job = put(tmp_path, plan())
    context = WorkerContext(job, plan(), 0)
    waiting = RendezvousWait(context, PlanWatch(context), fresh=False)
    monkeypatch.setattr(rendezvous, "life", lambda path: "alive")
    now_s = [0.0]
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(FileClock, "now_s", lambda clock, path: 1000.0 + now_s[0])
    other = job.attempt(1).presence(1)
    other.touch()
    got = []
    for last_beat_s in (0.0, 4.0, 8.0, 8.0, 8.0, 8.0):
        os.utime(other, (1000.0 + last_beat_s,) * 2)
        got.append(waiting.missing())
        now_s[0] += 4.0
    assert got == [[], [], [], [], [], ["n0/1"]]


LOCALHOST = "127.0.0.1"


def context(folder: Path, worker: int) -> WorkerContext:
    return WorkerContext(JobDir(folder), plan(3), worker)


def waiting() -> bool:
    pause()
    return False


def is_superseded() -> bool:
    pause()
    return True


def attend(
    folder: Path, worker: int, cursor: Cursor | None, wait: Any = waiting, number: int = 0
) -> Attended:
    return Round(context(folder, worker), number, wait).attend(cursor)


def place(folder: Path, number: int = 0) -> Path:
    """Where the first worker waits, once it does."""
    got = context(folder, 0).attempt.meetings / f"3.{number}"
    while not FolderStore(got, waiting).check(["here/0"]):
        pause()
    return got


def test_all_learn_how_far_each_is_in_private_files(tmp_path: Path, pool: Pool) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    assert place(tmp_path).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place(tmp_path).iterdir()} == {0o600}
    assert attend(tmp_path, 1, None) == first.result(60) == [HERE, None]


@pytest.mark.parametrize("verdict", ["newer", "1 7 1,-"], ids=["newer plan", "decided"])
def test_a_newer_plan_calls_all_away_or_none(tmp_path: Path, pool: Pool, verdict: str) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    FolderStore(place(tmp_path), waiting).set_once("verdict", verdict)
    if verdict == "newer":
        with pytest.raises(rendezvous.SupersededError):
            first.result(60)
        with pytest.raises(rendezvous.SupersededError):
            attend(tmp_path / "other", 1, HERE, is_superseded)
    else:
        assert attend(tmp_path, 1, None, is_superseded) == first.result(60) == [HERE, None]


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
    with pytest.raises(rendezvous.SupersededError):
        late.result(60)


def test_folders_of_earlier_rounds_are_removed(tmp_path: Path) -> None:
    attempt = context(tmp_path, 0).attempt
    for name in ("2.0", "3.0", "3.1", "12.0"):
        (attempt.meetings / name).mkdir(parents=True)
        (attempt.meetings / name / "store").touch()
    rendezvous.remove_earlier_rounds(attempt, (3, 1))
    until(lambda: sorted(path.name for path in attempt.meetings.iterdir()) == ["12.0", "3.1"])


def attend_on_three_hosts(
    folder: Path, patch: Patch, pool: Pool, missed: dict[int, list[int]]
) -> list[BaseException | Attended]:
    """How a round ends for three workers on as many hosts; ``missed``: whom each does not reach."""

    def probe(endpoints: dict[int, Endpoint]) -> list[int]:
        assert unreachable(endpoints) == [], "each listens while others may connect"
        (own,) = {0, 1, 2} - endpoints.keys()
        return missed.get(own, [])

    patch.setattr(rendezvous, "own_address", lambda _, rank: LOCALHOST)
    patch.setattr(rendezvous, "unreachable", probe)
    three = plan(3, range(3), apart=True)
    rounds = [Round(WorkerContext(JobDir(folder), three, one), 0, waiting) for one in range(3)]
    ends = [pool.submit(one.attend, HERE) for one in rounds]
    return [end.exception(60) or end.result() for end in ends]


def test_a_worker_that_is_cut_off_is_known_to_all(tmp_path: Path, monkeypatch: Patch, pool: Any) -> None:
    """Hosts that reach each other meet, under the keys that workers of earlier versions read."""
    assert attend_on_three_hosts(tmp_path / "all", monkeypatch, pool, {}) == [[HERE] * 3] * 3
    assert FolderStore(place(tmp_path / "all"), waiting).check([f"door/{rank}" for rank in range(3)])
    missed = {0: [1, 2], 1: [0], 2: [0]}
    first, *others = attend_on_three_hosts(tmp_path / "apart", monkeypatch, pool, missed)
    assert isinstance(first, rendezvous.CutOffError)
    assert [str(end) for end in others] == ["cut off from the others: n0/0"] * 2
    assert [type(end) for end in others] == [rendezvous.UnreachableError] * 2


def test_only_an_open_listener_is_reached() -> None:
    """Though no worker accepts there. A silent one is given up, as where packets are dropped."""
    with ProbeListener(LOCALHOST) as other:
        closed = other.endpoint
    with socket.create_server((LOCALHOST, 0), backlog=0) as full, ExitStack() as opened:
        endpoints = {rank: opened.enter_context(ProbeListener(LOCALHOST)).endpoint for rank in range(3)}
        for _ in range(3):
            assert unreachable(endpoints) == []
        assert unreachable({1: endpoints[0], 2: closed}) == [2]
        silent = Endpoint(LOCALHOST, full.getsockname()[1])
        for _ in range(3):  # a queue that is full answers no one
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((silent.address, silent.port))
        assert unreachable({1: silent, 2: endpoints[0]}, limit_s=0.2) == [1]
    for address in (LOCALHOST, "fd00::1"):
        assert Endpoint.parse(str(Endpoint(address, 4711))) == Endpoint(address, 4711)


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
        for module in (process_group, switch_step):
            patch.setattr(module, "is_there", self._is_there)
        for module in (process_group, switch_step, rendezvous):
            patch.setattr(module, "refresh_folder", self._ask)
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
        refresh_folder(folder)
        host = threading.get_ident()
        self._absent.pop((host, folder), None)
        for place in [one for one in self._held if one[:2] == (host, folder)]:
            del self._held[place]


@pytest.fixture
def memories(monkeypatch: Patch) -> Memories:
    return Memories(monkeypatch)


def test_workers_on_forgetful_hosts_meet(tmp_path: Path, memories: Memories, pool: Pool) -> None:
    second = pool.submit(attend, tmp_path, 1, HERE)
    assert memories.missed.wait(60)
    assert attend(tmp_path, 0, None) == second.result(60) == [None, HERE]


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
    monkeypatch.setattr(switch_step, "_look", lambda path: before)
    watch = PlanWatch(WorkerContext(job, plan(1), 0))
    assert watch.newest().generation == 1
    put(tmp_path, plan(2))
    while watch.newest().generation == 1:
        pause()
    assert watch.newest().generation == 2
