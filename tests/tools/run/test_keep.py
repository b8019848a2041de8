"""A keeper keeps the newest output on the disk and lets the oldest go; the one that prints never notices."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

import pytest

from pliant.tools.run.backends import keep
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Handle, Unit, UnitStatus, read_record
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_LOG_BYTES
from pliant.tools.run.statedir.contract.presence import last_beat
from tests.builders import cluster
from tests.tools.run.site import until

MOST = 1 << 19
LINES = 50_000
"""Of 50 bytes each: nearly five times what is kept."""


def on_disk(path: Path) -> int:
    return 512 * path.stat().st_blocks


def line(number: int) -> bytes:
    return f"line {number:044d}\n".encode()


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[tuple[Path, FileIO, bytes]]:
    """A file that its writer holds open at its own place, as torchrun's redirection does; its content."""
    path = tmp_path / "stdout.log"
    whole = b"".join(map(line, range(LINES)))
    with path.open("wb", buffering=0) as file:
        file.write(whole)
        yield path, file, whole


def test_the_newest_output_stays_and_the_writer_goes_on(printed: tuple[Path, FileIO, bytes]) -> None:
    path, file, whole = printed
    keep.trim(str(path), on_disk(path))
    assert path.read_bytes() == whole, "it is small enough"
    keep.trim(str(path), MOST)
    assert MOST / 2 <= on_disk(path) <= MOST
    file.write(b"the end\n")
    assert path.stat().st_size == len(whole) + len(b"the end\n")
    assert path.read_bytes()[-MOST // 2 :] == (whole + b"the end\n")[-MOST // 2 :]


def test_without_holes_all_goes_and_the_writer_goes_on(
    printed: tuple[Path, FileIO, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file, _ = printed
    monkeypatch.setattr(keep, "punch", lambda descriptor, end: False)
    keep.trim(str(path), MOST)
    file.write(b"the end\n")
    assert on_disk(path) <= MOST
    assert path.read_bytes().endswith(b"\0the end\n")


@pytest.mark.parametrize("number", [errno.EINTR, errno.EIO, errno.ENOSPC])
def test_output_that_cannot_be_trimmed_at_the_moment_stays(
    printed: tuple[Path, FileIO, bytes], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path, _, whole = printed

    class System:
        @staticmethod
        def fallocate64(*_about: object) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_about, **_more: System)
    with suppress(OSError):
        keep.trim(str(path), MOST)
    assert path.read_bytes() == whole


def test_an_orphan_that_may_not_be_killed_keeps_no_exit_code_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that runs as another user."""
    monkeypatch.setattr(keep, "_KILL_S", 0.05)
    monkeypatch.setattr(keep, "children", lambda: [4711])
    monkeypatch.setattr(keep.os, "waitpid", lambda pid, options: (0, 0))

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(keep.os, "kill", refuse)
    keep.end_orphans()


class Printing:
    """One unit that prints without end, into a file as torchrun's workers do and to its own output."""

    def __init__(self, folder: Path) -> None:
        self.backend = LocalBackend(cluster(1, slots="cpu"), folder / "jobs")
        job = folder / "jobs" / "a"
        self.handle = Handle("a", 1, job / "attempts" / "1")
        self.own = self.handle.files.launcher_log(0)
        self.worker = self.handle.files.logs / "0" / "none_x" / "attempt_0" / "0" / "stdout.log"
        self.worker.parent.mkdir(parents=True)
        self.end = folder / "end"
        script = f"""
import pathlib, sys, time
with open({str(self.worker)!r}, "w") as worker:
    while not pathlib.Path({str(self.end)!r}).exists():
        print("x" * 10_000, flush=True)
        print("y" * 10_000, file=worker, flush=True)
        time.sleep(0.002)
    print("the end", flush=True)
"""
        env = {ENV_JOB_DIR: str(job), ENV_LOG_BYTES: str(MOST)}
        self.backend.start(self.handle, [Unit("n0", (sys.executable, "-c", script), "/", env)])
        record = read_record(self.handle)
        assert record is not None
        assert record.units[0].pid is not None
        self.keeper: int = record.units[0].pid

    def has_printed(self) -> bool:
        paths = (self.own, self.worker)
        return all(path.exists() and path.stat().st_size > 2 * MOST for path in paths)

    def wake(self) -> None:
        """Have the keeper look, as its timer does."""
        os.kill(self.keeper, signal.SIGALRM)
        time.sleep(0.05)

    def ended(self) -> tuple[UnitStatus, ...]:
        self.end.touch()
        until(lambda: self.backend.poll([self.handle])[self.handle] != (UnitStatus("running"),))
        return self.backend.poll([self.handle])[self.handle]


def test_a_keeper_beats_and_trims_output_but_never_stops_it(tmp_path: Path) -> None:
    """If it stands still, the unit goes on; if the worker is silent, too, their host is dead."""
    unit = Printing(tmp_path.resolve())
    until(unit.has_printed)
    for path in (unit.own, unit.worker):
        until(lambda path=path: unit.wake() or 2 * on_disk(path) < path.stat().st_size)
    path = unit.handle.files.keeper(0)
    assert path.stat().st_mode & 0o777 == 0o600
    beat = last_beat(path)
    until(lambda: last_beat(path) > beat)

    os.kill(unit.keeper, signal.SIGSTOP)
    before = unit.own.stat().st_size
    until(lambda: unit.own.stat().st_size > before + (1 << 20))  # far more than a pipe holds
    os.kill(unit.keeper, signal.SIGCONT)
    assert unit.ended() == (UnitStatus("exited", 0),)
    assert unit.own.read_bytes().endswith(b"the end\n")


def test_a_keeper_that_cannot_show_itself_keeps_its_unit_all_the_same(tmp_path: Path) -> None:
    keep.beat(str(tmp_path / "nowhere" / "exit-0"))
    (tmp_path / "elsewhere").touch()
    (tmp_path / "unit-1.alive").symlink_to(tmp_path / "elsewhere")
    before = last_beat(tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere", (1.0, 1.0))
    keep.beat(str(tmp_path / "exit-1"))
    assert last_beat(tmp_path / "elsewhere") == 1.0 < before, "a link leads nowhere"
