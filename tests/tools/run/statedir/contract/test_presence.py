"""Who lives, by locks and by heartbeats."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.statedir.contract.folders import AttemptDir, look_again
from pliant.tools.run.statedir.contract.presence import FileClock, Heartbeats, Sighting, last_beat, life
from tests.tools.run.site import until

PRESENT = """
import subprocess, sys
from pathlib import Path
from pliant.tools.run.statedir.contract.presence import Presence

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[2]).write_text(str(child.pid))
Presence(Path(sys.argv[1])).begin()
sys.stdin.read()
"""


class Worker:
    """A process that is present, and has a child that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.files = AttemptDir(folder)
        self.path = self.files.presence(0)
        command = [sys.executable, "-c", PRESENT, str(self.path), str(folder / "child")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
        until(self.path.exists)
        self.child = int((folder / "child").read_text())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    started: list[Worker] = []

    def start() -> Worker:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Worker(folder))
        return started[-1]

    yield start
    for each in started:
        each.end()
        os.kill(each.child, signal.SIGKILL)


def test_a_worker_is_absent_then_alive_then_gone(
    workers: Callable[[], Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a child lives on. A look takes no lock: another observer would take that for a sign of life."""
    assert life(tmp_path / "absent") == "absent"
    worker, taken = workers(), list[int]()
    with monkeypatch.context() as during:
        during.setattr(fcntl, "lockf", lambda descriptor, *_: taken.append(descriptor))
        assert [life(worker.path) for _ in range(3)] == ["alive"] * 3
        worker.end()
        assert life(worker.path) == "gone"
    os.kill(worker.child, 0)
    assert taken == [] or sys.platform != "linux"


def test_a_file_stays_open_while_its_worker_lives(
    workers: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a look opens nothing. Many looks use at most half of the descriptors."""
    worker = workers()
    before = psutil.Process().num_fds()
    with monkeypatch.context() as during:
        during.setattr(resource, "getrlimit", lambda _which: (8, 8))
        sightings = [Sighting(worker.path) for _ in range(20)]
        assert [sighting.life() for sighting in sightings * 2] == ["alive"] * 40
        assert psutil.Process().num_fds() <= before + 4
    sightings.clear()
    assert psutil.Process().num_fds() == before, "what is not looked at any more is closed"
    sighting = Sighting(worker.path)
    assert sighting.life() == "alive"
    with monkeypatch.context() as during:
        during.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
        assert [sighting.life() for _ in range(3)] == ["alive"] * 3
    worker.end()
    other = workers()
    other.path.replace(worker.path)
    assert sighting.life() == "alive", "another worker took its place"
    other.end()
    os.kill(other.child, 0)
    assert sighting.life() == "gone"
    worker.path.unlink()
    assert sighting.life() == "absent"


LONG_AGO_S = 1000.0
LIMIT_S = 10.0


def beats(path: Path, at_s: float) -> str:
    """A file whose owner showed that it runs at that time of the file system's clock."""
    path.touch()
    os.utime(path, (at_s, at_s))
    return str(path)


def silences(watch: Heartbeats, path: str, times_s: Sequence[float]) -> list[bool]:
    result = []
    for now_s in times_s:
        watch.look([path], now_s)
        result.append(watch.silence_s(path, LIMIT_S) >= LIMIT_S)
    return result


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The file system's clock, which a test sets."""
    now_s = [0.0]
    monkeypatch.setattr(FileClock, "now_s", lambda clock, path: now_s[0])
    return now_s


def test_silence_is_time_under_observation(tmp_path: Path, clock: list[float]) -> None:
    """A clock that is set makes no one silent, nor is a file that is not there."""
    path = beats(tmp_path / "worker", 500.0)
    assert silences(Heartbeats(), path, [0.0, 4.0, 8.0, 12.0]) == [False, False, False, True]
    assert silences(Heartbeats(), path, [0.0, 60.0, 120.0]) == [False] * 3, "the observer was away"
    watch, path = Heartbeats(), str(tmp_path / "absent")
    assert silences(watch, path, [0.0, 4.0, 8.0, 12.0]) == [False] * 4
    assert not watch.in_doubt(path, LIMIT_S)
    assert last_beat(path) == 0.0
    watch, path, now_s = Heartbeats(), tmp_path / "worker", time.time()
    for turn, ahead_s in enumerate([0.0, 3600.0, -3600.0, 0.0]):
        clock[0] = now_s + LONG_AGO_S
        own = beats(path, now_s + ahead_s + turn)
        assert silences(watch, own, [2.0 * turn]) == [False]


def test_an_observer_without_memory_takes_the_file_systems_clock(tmp_path: Path, clock: list[float]) -> None:
    """A call from cron has no memory. After the machine has slept, the file beats again."""
    path = beats(tmp_path / "worker", 500.0)
    clock[0] = 500.0 + LONG_AGO_S
    for beats_again in (False, True):
        watch = Heartbeats()
        assert silences(watch, path, [0.0, 1.0]) == [False, False]
        assert watch.in_doubt(path, LIMIT_S)
        if beats_again:
            beats(tmp_path / "worker", clock[0])
        assert silences(watch, path, [2.0, 5.0]) == [False, not beats_again]
        assert not watch.in_doubt(path, LIMIT_S)


def test_a_worker_may_be_silent_after_the_machine_slept(tmp_path: Path, clock: list[float]) -> None:
    """Its script may hold the interpreter for some seconds just then, while its file is hours old."""
    path = tmp_path / "worker"
    watch = Heartbeats()
    for turn in range(3):
        assert silences(watch, beats(path, 500.0 + turn), [float(turn)]) == [False]
    clock[0] = 500.0 + LONG_AGO_S
    assert silences(watch, str(path), [3.0, 6.0, 9.0]) == [False] * 3
    assert not watch.in_doubt(str(path), LIMIT_S)
    assert silences(watch, str(path), [12.0]) == [True], "what it does not do while somebody looks counts"


def test_the_file_systems_clock_is_that_of_a_file_made_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look again opens the file, so that the server is asked."""
    own, (before, after) = FileClock(), (tmp_path / name for name in ("before", "after"))
    before.touch()
    result = own.now_s(str(tmp_path / "worker"))
    after.touch()
    assert last_beat(before) <= result <= last_beat(after)
    assert own.about_s(str(tmp_path / "worker")) == pytest.approx(result, abs=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before"]
    assert FileClock().now_s(str(tmp_path / "nowhere" / "worker")) == 0.0
    opened: list[object] = []
    real = os.open
    path = beats(tmp_path / "worker", 500.0)
    monkeypatch.setattr(os, "open", lambda path, flags, _mode=0: opened.append(path) or real(path, flags))
    result = look_again(path)
    assert result is not None
    assert (result.st_mtime, opened) == (500.0, [path])
    assert look_again(tmp_path / "absent") is None
