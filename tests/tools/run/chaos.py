"""A storm over one state directory: jobs come and are cancelled, workers and the live loop are killed.

The order of the blows comes from the seed, whom they hit depends on the machine, too: two storms of a seed
differ in their course and must not in their end: every job accounted for, every sample counted, nothing left.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_cluster
from pliant.schemas.job import Job
from pliant.tools.run.fold import RunLog, fold
from pliant.tools.run.layout import StateDir
from pliant.tools.run.spool import Spool
from pliant.tools.run.state import holder_of, read_log
from pliant.tools.run.submit import cancel, submit
from tests.builders import cluster, job
from tests.tools.run.conftest import left_running
from tests.tools.run.scripts import script

ROOT = Path(__file__).parents[3]
SLOTS = 4
MOST_ALIVE = 6
PATIENCE_S = 120.0
"""A condition that must come true is given so long; a loaded machine is no failure."""

ELASTIC = """
import sys, time, torch
from pliant.tools.run import elastic

job = elastic.init(batch_size=8)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), data)
for epoch in job.epochs(int(sys.argv[1])):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        time.sleep(0.01)
"""


@dataclass
class Storm:
    """What was done to a state directory, and what must have become of it."""

    folder: Path
    seed: int
    elastic_every: int = 6
    """Each so many-th job trains for real; the others are stand-ins that need no torch."""
    wanted: dict[str, float] = field(default_factory=dict)
    """Samples of every job that was acknowledged."""
    cancelled: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    """How often each thing was done."""

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.dirs = StateDir(self.folder / "state")
        self._blows, self._chance = random.Random(self.seed), random.Random(self.seed + 1)
        self._script = script(self.folder)
        self._elastic = script(self.folder, ELASTIC, "elastic.py")
        self._loop: subprocess.Popen[bytes] | None = None
        write_cluster(cluster(SLOTS, slots="cpu"), self.folder / "cluster.json")

    def rage(self, goes_on: Callable[[int], bool], pause_s: float) -> None:
        """One blow after the other while ``goes_on(blows so far)``; then let everything come to its end."""
        blows = 0
        self.start_loop()
        self.until(self.dirs.cluster.exists)  # before the first run a cancelled job leaves no trace
        while goes_on(blows):
            name = self._blows.choices(
                ("submit", "cancel", "kill_worker", "kill_loop", "end_loop"), (8, 3, 4, 2, 1)
            )[0]
            getattr(self, name)()
            blows += 1
            time.sleep(self._chance.uniform(0, 2 * pause_s))
        self.start_loop()
        self.until(lambda: self.wanted.keys() == self.ended().keys())
        self.until(lambda: left_running(self.folder) == [] and Spool(self.dirs).requests() == [])
        self.end_loop()

    def submit(self) -> None:
        """A new job, unless enough of them are alive."""
        if len(self.wanted.keys() - self.ended().keys() - self.cancelled) >= MOST_ALIVE:
            return
        job_id = f"j{len(self.wanted)}"
        spec, samples = self._job(job_id)
        submit(self.dirs.path, [spec], "storm", folder=self.folder, now_s=time.time())
        self.wanted[job_id] = samples
        self.done["submit"] += 1

    def _job(self, job_id: str) -> tuple[Job, float]:
        high = self._chance.choice((1, 2, 3))
        if len(self.wanted) % self.elastic_every == self.elastic_every - 1:
            epochs = self._chance.randint(2, 6)
            command, samples = (self._elastic, str(epochs)), 64.0 * epochs
        else:
            samples = float(self._chance.randrange(100, 3000, 10))
            command = (self._script, "--samples", str(samples))
        more = {"checkpoint_seconds": 0.5, "command": command, "work": {"samples": samples}}
        return job(job_id, batch=8, high=high, **more), samples  # type: ignore[arg-type]

    def cancel(self) -> None:
        """End some job that may be waiting, running or over."""
        if self.wanted:
            victim = self._chance.choice(sorted(self.wanted))
            cancel(self.dirs.path, [victim])
            self.cancelled.add(victim)
            self.done["cancel"] += 1

    def kill_worker(self) -> None:
        """``kill -9`` for some process of some job."""
        living = sorted(left_running(self.folder), key=lambda process: process.pid)
        if living:
            try:
                self._chance.choice(living).kill()
                self.done["kill of a worker"] += 1
            except psutil.NoSuchProcess:
                pass

    def kill_loop(self) -> None:
        """``kill -9`` for the live loop, wherever it is; another one starts, maybe to be killed at once."""
        self.start_loop()
        if self._loop is not None:
            self._loop.kill()
            self._loop.wait()
            self._loop = None
            self.done["kill of the loop"] += 1
        if self._chance.random() < 0.7:
            self.start_loop()

    def end_loop(self) -> None:
        """The live loop is told to leave."""
        if self._loop is None:
            return
        self.until(lambda: holder_of(self.dirs.lock) == self._loop_pid() or self._loop_is_over())
        self._loop.terminate()
        code = self._loop.wait(PATIENCE_S)
        assert code in (143, -signal.SIGTERM), (code, self.words())
        self._loop = None
        self.done["leave of the loop"] += 1

    def start_loop(self) -> None:
        """Make sure that a live loop lives."""
        if self._loop is not None and self._loop.poll() is None:
            return
        assert self._loop is None, f"the loop ended by itself: {self.words()}"
        begun = self.dirs.events.exists() and read_log(self.dirs.path).info is not None
        begin = () if begun else ("--policy", "fair-share", "--cluster", str(self.folder / "cluster.json"))
        words = ("run", "--follow", "--state", str(self.dirs.path), "--wait", "60", "--retries", "100000")
        with (self.folder / "loop.log").open("ab") as log:
            self._loop = subprocess.Popen(
                [sys.executable, "-m", "tests.tools.run.runner_process", *words, *begin],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def stop(self) -> None:
        """Leave nothing behind, however it went."""
        if self._loop is not None:
            self._loop.kill()
            self._loop.wait()
        for process in left_running(self.folder):
            process.kill()

    def _loop_pid(self) -> int:
        return -1 if self._loop is None else self._loop.pid

    def _loop_is_over(self) -> bool:
        return self._loop is None or self._loop.poll() is not None

    def words(self) -> str:
        """What the loops said, the end of it."""
        return (self.folder / "loop.log").read_text(errors="replace")[-2000:]

    def ended(self) -> dict[str, str]:
        """Phases of the jobs that have ended."""
        logging.disable(logging.WARNING)  # a line that is being written looks torn
        try:
            log = read_log(self.dirs.path) if self.dirs.events.exists() else RunLog()
        finally:
            logging.disable(logging.NOTSET)
        return {job_id: found.phase for job_id, found in log.jobs.items() if found.ended}

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that must happen, while the loop lives."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{self.ended()}, not {self.wanted}; {self.words()}"
            time.sleep(0.1)

    def check(self) -> None:
        """Every job accounted for, every sample counted, no slot given twice, nothing left over."""
        events = read_events(self.dirs.events)
        log = fold(events)
        assert log.jobs.keys() == self.wanted.keys()
        for job_id, found in log.jobs.items():
            assert found.phase in (
                ("finished", "cancelled") if job_id in self.cancelled else ("finished",)
            ), found
            if found.phase == "finished":
                assert found.samples_done == self.wanted[job_id], found
        _check_story(events)
        assert left_running(self.folder) == []
        assert Spool(self.dirs).requests() == []
        assert [path.name for path in self.dirs.path.glob(".pliant-*.tmp")] == []
        assert [path.name for path in self.dirs.spool.glob(".pliant-*.tmp")] == []


def _check_story(events: tuple[Event, ...]) -> None:
    """Each job is submitted once and ends once, and no more slots are held than there are."""
    told = Counter((event.event, event.job) for event in events)
    ends = ("finish", "fail", "cancel", "reject")
    for job_id in {event.job for event in events if event.job}:
        assert told["submit", job_id] == 1, job_id
        assert sum(told[end, job_id] for end in ends) == 1, job_id
    held: dict[str | None, int] = {}
    for number, event in enumerate(events):
        if event.gpus is not None and event.event not in ("progress", "epoch", "checkpoint"):
            held[event.job] = event.gpus
        last = number + 1 == len(events) or events[number + 1].time != event.time
        assert not last or sum(held.values()) <= SLOTS, event
