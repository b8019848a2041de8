"""How the workers of a plan come together, and what they do where that does not succeed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.elastic.context import Context, WorkerContext
from pliant.tools.run.elastic.membership import process_group, rendezvous
from pliant.tools.run.elastic.membership.agreement import PlanWatch, StopAskedError
from pliant.tools.run.elastic.membership.process_group import ProcessGroup
from pliant.tools.run.elastic.membership.rendezvous import TRIES, Rendezvous, RendezvousWait, Round
from pliant.tools.run.elastic.state.training import Cursor
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.presence import FileClock
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
    with ThreadPoolExecutor(2) as made:
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
    assert sorted(tried) == [("1.0", rendezvous.CONNECT)] * 2 + [("1.1", 2 * rendezvous.CONNECT)] * 2


def test_a_worker_called_away_again_and_again_can_be_stopped(job: Path, monkeypatch: Patch) -> None:
    def away(self: Round, cursor: Cursor | None) -> Attended:
        attended.append(None)
        assert len(attended) < 100, "it goes to the round again and again"
        raise rendezvous.CalledAwayError

    def stop(self: PlanWatch, *, fresh: bool) -> None:
        if len(attended) == 3:
            raise StopAskedError

    attended: list[None] = []
    monkeypatch.setattr(Round, "attend", away)
    monkeypatch.setattr(PlanWatch, "check_needed", stop)
    with pytest.raises(StopAskedError):
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
    until(lambda: disk.refused > 4 * TRIES or any(one.done() for one in both))
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
    with pytest.raises(rendezvous.LeftAloneError, match="cannot connect: no route to host"):
        trained.result(60)
    assert len(tried) == 2 * TRIES


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
