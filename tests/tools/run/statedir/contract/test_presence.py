"""A worker's own file: seen by other processes, and by its death at once."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.presence import Sighting, life
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
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.end()
    os.kill(made.child, signal.SIGKILL)


def test_a_worker_is_absent_then_alive_then_gone_though_a_child_lives_on(
    worker: Worker, tmp_path: Path
) -> None:
    assert life(tmp_path / "nobody") == "absent"
    assert [life(worker.path) for _ in range(3)] == ["alive"] * 3
    worker.end()
    assert life(worker.path) == "gone"
    os.kill(worker.child, 0)


def test_to_look_whether_a_worker_lives_takes_no_lock(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who looks would else see another one's look as a sign of life."""
    taken: list[int] = []
    monkeypatch.setattr(fcntl, "lockf", lambda descriptor, *_: taken.append(descriptor))
    assert life(worker.path) == "alive"
    worker.end()
    assert life(worker.path) == "gone"
    assert taken == [] or sys.platform != "linux"


def test_a_file_stays_open_while_its_worker_lives_so_a_look_opens_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sighting = Sighting(worker.path)
    assert sighting.life() == "alive"
    with monkeypatch.context() as during:
        during.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
        assert [sighting.life() for _ in range(3)] == ["alive"] * 3
    worker.end()
    assert sighting.life() == "gone"
    worker.path.unlink()
    assert sighting.life() == "absent"


def test_a_worker_that_took_the_place_of_another_one_is_seen_to_live(worker: Worker, tmp_path: Path) -> None:
    sighting = Sighting(worker.path)
    assert sighting.life() == "alive"
    worker.end()
    (tmp_path / "next").mkdir()
    other = Worker(tmp_path / "next")
    other.path.replace(worker.path)
    assert sighting.life() == "alive"
    other.end()
    os.kill(other.child, signal.SIGKILL)
    assert sighting.life() == "gone"


def test_looking_at_many_workers_leaves_half_of_the_descriptors_free(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that runs out of them could start nothing any more."""
    before = psutil.Process().num_fds()
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8, 8))
    sightings = [Sighting(worker.path) for _ in range(20)]
    assert [sighting.life() for sighting in sightings * 2] == ["alive"] * 40
    assert psutil.Process().num_fds() <= before + 4
    sightings.clear()
    assert psutil.Process().num_fds() == before, "what nobody looks at any more is closed"
