import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.statedir.contract.folders import (
    FRESH_S,
    MOST_NAMES,
    STALE_S,
    AttemptDir,
    DamagedError,
    FolderCache,
    UnreadableError,
    look_again,
    read_record,
    refuse_public,
    write_record,
)
from pliant.tools.run.statedir.contract.liveness import FileClock, Heartbeats, LivenessProbe, last_beat, life
from pliant.tools.run.statedir.contract.plan import (
    Member,
    Plan,
    Progress,
    ProgressFile,
    WorkerOutcome,
    write_progress,
)
from tests.tools.run.site import until

PLAN = Plan(job="a", generation=3, attempt=2, members=(Member(slot="n0/0", node="n0", address="n0"),))


def test_a_file_names_its_schema_and_is_its_owners_alone(tmp_path: Path) -> None:
    """Only an unknown major version is refused."""
    path = tmp_path / "plan.json"
    assert read_record(path, "plan", Plan) is WorkerOutcome.read(path) is None, "it was never written"
    write_record(path, "plan", PLAN)
    assert json.loads(path.read_text())["schema"] == "pliant.plan/1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_record(path, "plan", Plan) == PLAN
    fields = json.loads(PLAN.model_dump_json())
    path.write_text(json.dumps({"schema": "pliant.plan/2", **fields}))
    with pytest.raises(BadInputError, match="major version 2 of 'plan' is unknown") as refused:
        read_record(path, "plan", Plan)
    assert not isinstance(refused.value, DamagedError)
    for readable in ({"schema": "pliant.plan/1.7", **fields, "colour": "red"}, fields):
        path.write_text(json.dumps(readable))  # files of the first version name no schema
        assert read_record(path, "plan", Plan) == PLAN
    for text in ("", "{", "[]", '{"schema": "pliant.plan/1", "job": 7}'):
        path.write_text(text)
        with pytest.raises(DamagedError):
            read_record(path, "plan", Plan)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO, errno.EACCES])
def test_an_unreadable_file_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number) -> None:
    path = tmp_path / "plan.json"
    write_record(path, "plan", PLAN)
    left, read = [number], Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if left:
            raise OSError(left.pop(), "it cannot be")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert read_record(path, "plan", Plan) == PLAN
    left += [number] * 2
    with pytest.raises(UnreadableError, match=r"plan\.json: cannot be read: it cannot be"):
        read_record(path, "plan", Plan)


def test_workers_meet_on_this_machine_or_in_a_private_network() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "192.168.0.7", "::1", "fd00::1", "fe80::1%eth0"):
        refuse_public(address)
    everywhere = ("0.0.0.0", "::")  # noqa: S104 - refused
    strangers = ("8.8.8.8", "224.0.0.1", "239.1.1.1", "ff02::1", "100.64.0.1", "::ffff:8.8.8.8")
    for address in (*everywhere, *strangers):
        with pytest.raises(UsageError, match="not a loopback or private address"):
            refuse_public(address)
    with pytest.raises(UsageError, match="not an IP address"):
        refuse_public("localhost")


AGES_AGO_S = 1_000_000_000


class Site:
    """A folder with one file, a clock that the test turns, and a count of how often the file was read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "file"
        self.now_s = 0.0
        self.reads = 0
        self.cache = FolderCache(folder, lambda: self.now_s)

    def replace(self, text: str, stamp_s: float) -> None:
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.file)
        os.utime(self.folder, (stamp_s, stamp_s))

    def look(self, after_s: float = 0.0) -> str | None:
        self.now_s += after_s
        self.cache.look()
        return self.cache.get("file", self._read)

    def _read(self) -> str | None:
        self.reads += 1
        return self.file.read_text() if self.file.exists() else None


def test_a_file_is_read_again_only_after_a_change_or_a_long_time(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.replace("a", AGES_AGO_S)
    site.look()
    site.look(FRESH_S)
    before = site.reads
    assert [site.look(0.01) for _ in range(100)] == ["a"] * 100
    assert site.reads == before
    site.replace("b", AGES_AGO_S)
    assert site.look(STALE_S) == "b"
    cache = FolderCache(tmp_path / "later")
    cache.look()
    assert cache.get("file", lambda: None) is None
    (tmp_path / "later").mkdir()
    cache.look()
    assert cache.get("file", lambda: "there") == "there"


def test_a_change_is_noticed_at_the_next_look(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.look() is None
    site.look(FRESH_S)
    site.replace("a", AGES_AGO_S)
    assert site.look(0.1) == "a"
    site.replace("b", AGES_AGO_S)
    assert site.look(0.1) == "b", "the clock of a file system may stand still between two changes"
    site.look(FRESH_S)
    site.replace("c", AGES_AGO_S + 1)
    assert site.look(0.1) == "c"
    site.look(FRESH_S)
    site.file.unlink()
    assert site.look(0.1) is None


def test_folders_read_together_are_not_all_read_again_together(tmp_path: Path) -> None:
    """A launcher of thousands of jobs would spend a whole turn on that."""
    sites = [Site(tmp_path / str(number)) for number in range(100)]
    for site in sites:
        site.folder.mkdir()
        site.replace("a", AGES_AGO_S)
        site.look()
        site.look(STALE_S * 0.85)
    assert 0 < sum(site.reads > 1 for site in sites) < 100


def test_links_of_a_job_make_no_search_without_an_end(tmp_path: Path) -> None:
    """Forty names in each of three folders are 64,000 paths; a thousand would be a thousand million."""
    attempt = AttemptDir(tmp_path)
    assert attempt.launcher_logs() == attempt.worker_errors(0) == []
    attempt.logs.mkdir()
    folders = [tmp_path / name for name in ("starts", "workers", "worker")]
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "stderr.log").touch()
    above = attempt.logs / "0"
    above.mkdir()
    for place, leads_to in zip((above, *folders), folders, strict=False):
        for number in range(40):
            (place / f"attempt_{number}").symlink_to(leads_to)
    result = attempt.worker_errors(0)
    assert 0 < len(result) <= MOST_NAMES


def report(samples: float = 64.0, **more: Any) -> Progress:
    known: dict[str, Any] = {"job": "a", "attempt": 1, "generation": 1, "gpus": 2, "global_batch": 8}
    return Progress(**{**known, "step": 8, "epoch": 0, "samples_done": samples, **more})


def test_each_report_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    file = ProgressFile(path)
    assert file.fresh() is None
    write_progress(path, report())
    assert file.fresh() == report()
    assert file.fresh() is None
    before = os.umask(0)
    try:
        write_progress(path, report(128.0, loss=0.5))
    finally:
        os.umask(before)
    assert file.fresh() == report(128.0, loss=0.5)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b'"schema":"pliant.progress/1"' in path.read_bytes()
    path.with_name("progress.json.new").mkdir()
    with pytest.raises(OSError, match=r"progress\.json\.new"):
        write_progress(path, report())
    assert ProgressFile(path).fresh() == report(128.0, loss=0.5)


def test_a_torn_or_strange_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    file = ProgressFile(path)
    write_progress(path, report())
    file.fresh()
    whole = path.read_bytes()
    for strange in (whole[:40], b"", b"[]", whole.replace(b"progress/1", b"progress/2"), b"\xff" * 99):
        path.write_bytes(strange)
        assert file.fresh() is None
        assert file.newest == report()
    path.unlink()
    assert file.fresh() is None
    os.mkfifo(path)
    assert file.fresh() is None
    path.unlink()
    write_progress(path, report(128.0))
    assert file.fresh() == report(128.0)


PRESENT = """
import subprocess, sys
from pathlib import Path
from pliant.tools.run.statedir.contract.liveness import LivenessFile

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[2]).write_text(str(child.pid))
LivenessFile(Path(sys.argv[1])).begin()
sys.stdin.read()
"""


class Worker:
    """A process that is present, and has a child that outlives it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = AttemptDir(folder).presence(0)
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
        started.append(Worker(tmp_path / str(len(started))))
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
    sighting = LivenessProbe(worker.path)
    with monkeypatch.context() as during:
        during.setattr(fcntl, "lockf", lambda descriptor, *_: taken.append(descriptor))
        assert [life(worker.path) for _ in range(3)] == ["alive"] * 3
        assert sighting.life() == "alive"
        worker.end()
        assert life(worker.path) == "gone"
    assert taken == [] or sys.platform != "linux"
    os.kill(worker.child, 0)
    other = workers()
    other.path.replace(worker.path)
    assert sighting.life() == "alive", "another worker took its place"
    other.end()
    assert sighting.life() == "gone"
    worker.path.unlink()
    assert sighting.life() == "absent"


def test_a_file_stays_open_while_its_worker_lives(workers: Callable[[], Worker], monkeypatch) -> None:
    """So a look opens nothing. Many looks use at most half of the descriptors."""
    worker = workers()
    before = psutil.Process().num_fds()
    with monkeypatch.context() as during:
        during.setattr(resource, "getrlimit", lambda _which: (8, 8))
        sightings = [LivenessProbe(worker.path) for _ in range(20)]
        assert [sighting.life() for sighting in sightings * 2] == ["alive"] * 40
        assert psutil.Process().num_fds() <= before + 4
    sightings.clear()
    assert psutil.Process().num_fds() == before, "what is not looked at any more is closed"
    sighting = LivenessProbe(worker.path)
    assert sighting.life() == "alive"
    with monkeypatch.context() as during:
        during.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
        assert [sighting.life() for _ in range(3)] == ["alive"] * 3


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


def test_the_file_systems_clock_is_that_of_a_file_made_now(tmp_path, monkeypatch) -> None:
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
