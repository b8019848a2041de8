"""A storm over one state directory: jobs come and are cancelled, and whatever can break breaks.

The order of the blows comes from the seed, whom they hit depends on the machine, too: two storms of a seed
differ in their course and must not in their end. Every job that was acknowledged has ended, with all its
samples or with a reason; nothing is left. The blows themselves are in ``blows.py``.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.io import read_events, write_cluster
from pliant.tools.run.service.submit import cancel
from pliant.tools.run.statedir.directory import StateDir, holder_of
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import read_log
from tests.builders import cluster
from tests.leftovers import PATIENCE_S
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.accounts import check_story
from tests.tools.run.conftest import left_running
from tests.tools.run.scripts import ALWAYS_BY_TORCHRUN, script
from tests.tools.run.site import with_tests

SLOTS = 4
MOST_ALIVE = 6

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


class FullDisk:
    """The disk under one folder, full for a while for the loop and for all that it starts.

    Where the folder is a file system of its own (``make chaos`` mounts a small one if it may), a file takes
    all its room. Elsewhere the processes may not make files any longer: writes fail likewise, with EFBIG.
    """

    def __init__(self, folder: Path) -> None:
        self._own = folder.is_mount()
        self._ballast = folder / "ballast"

    def fill(self, pids: Iterable[int]) -> None:
        """No room from now on, for these processes and those that they start."""
        if not self._own:
            _limit(pids, 0)
            return
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(1 << 16))

    def free(self, pids: Iterable[int]) -> None:
        if not self._own:
            _limit(pids, resource.RLIM_INFINITY)
        self._ballast.unlink(missing_ok=True)


def _limit(pids: Iterable[int], most_bytes: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            soft = hard if most_bytes == resource.RLIM_INFINITY else most_bytes
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Storm:
    """What was done to a state directory, and what must have become of it."""

    folder: Path
    seed: int
    elastic_every: int = 6
    """Every n-th job trains for real; the others are stand-ins that need no torch."""
    slurm: SlurmCluster | None = None
    """What they run on; None for this machine."""
    wanted: dict[str, float | None] = field(default_factory=dict)
    """Samples of every job that was acknowledged; None if it may also fail, for a reason."""
    cancelled: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    disk_was_full: bool = False
    """During the life of the current or last loop."""

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.dirs = StateDir(self.folder / "state")
        self.disk = FullDisk(self.folder)
        self.chance = random.Random(self.seed + 1)  # noqa: S311
        self._blows = random.Random(self.seed)  # noqa: S311
        self.script = script(self.folder)
        self.elastic = script(self.folder, ELASTIC, ALWAYS_BY_TORCHRUN)
        self._ids = 0
        self._loop: subprocess.Popen[bytes] | None = None
        write_cluster(self._cluster(), self.folder / "cluster.json")

    def _cluster(self) -> Cluster:
        if self.slurm is None:
            return cluster(SLOTS, slots="cpu")
        names = tuple(self.slurm.gpus)
        nodes = tuple({"name": name, "gpus": SLOTS // len(names)} for name in names)
        return Cluster.model_validate({"nodes": nodes, "slots": "cpu", "backend": "slurm"})

    def rage(
        self, blows: Mapping[Callable[[Storm], None], int], goes_on: Callable[[int], bool], pause_s: float
    ) -> None:
        """One blow after the other while ``goes_on(blows so far)``; then let everything come to its end.

        :param blows: what happens, each once first, and how often compared with the others.
        """
        count = 0
        self.start_loop()
        self.until(self.dirs.cluster.exists)  # before the first run a cancelled job leaves no trace
        once = self._blows.sample(tuple(blows), len(blows))
        while goes_on(count):
            blow = once.pop() if once else self._blows.choices(tuple(blows), tuple(blows.values()))[0]
            blow(self)
            count += 1
            time.sleep(self.chance.uniform(0, 2 * pause_s))
        self.settle()

    def settle(self) -> None:
        """Wait until every job has ended; those that need not finish are cancelled."""
        self.start_loop()
        without_end = [job_id for job_id, samples in self.wanted.items() if samples is None]
        cancel(self.dirs.path, without_end)
        self.until(lambda: self.wanted.keys() <= self.ended().keys())
        self.until(lambda: left_running(self.folder) == [] and Spool(self.dirs).requests() == [])
        self.end_loop()

    def new_id(self) -> str:
        self._ids += 1
        return f"j{self._ids}"

    def alive(self) -> int:
        return len(self.wanted.keys() - self.ended().keys() - self.cancelled)

    def kill_loop(self) -> None:
        if self._loop is not None:
            self._loop.kill()
            self._loop.wait()
            self._loop = None

    def end_loop(self) -> None:
        if self._loop is None:
            return
        pid = self._loop.pid
        self.until(lambda: holder_of(self.dirs.lock) == pid or self._loop_is_over())
        self._loop.terminate()
        code = self._loop.wait(PATIENCE_S)
        if self._left_for_the_disk():
            return
        assert code in (143, -signal.SIGTERM), (code, self.words())
        self._loop = None
        self.done["leave of the loop"] += 1

    def start_loop(self) -> None:
        if not self._loop_is_over():
            return
        self._left_for_the_disk()
        assert self._loop is None, f"the loop ended by itself: {self.words()}"
        begun = self.dirs.events.exists() and read_log(self.dirs.path).info is not None
        begin = () if begun else ("--policy", "fair-share", "--cluster", str(self.folder / "cluster.json"))
        words = ("run", "--follow", "--state", str(self.dirs.path), "--wait", "60", "--retries", "100000")
        self.disk_was_full = False
        with (self.folder / "loop.log").open("ab") as log:
            silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": log}
            about = {"cwd": self.folder, "env": self.environment()}
            self._loop = subprocess.Popen(self.command(*words, *begin), **about, **silent)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        about = {"cwd": self.folder, "env": self.environment(), "stdin": subprocess.DEVNULL}
        caught = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
        return subprocess.run(self.command(*words), check=False, **about, **caught)

    def pids(self) -> list[int]:
        own = [] if self._loop is None else [self._loop.pid]
        return [*own, *(one.pid for one in left_running(self.folder))]

    def stop(self) -> None:
        self.disk.free(())
        self.kill_loop()
        for process in left_running(self.folder):
            process.kill()

    def environment(self) -> dict[str, str]:
        return with_tests(os.environ if self.slurm is None else self.slurm.env)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tests.tools.run.runner_process", *words]

    def _loop_is_over(self) -> bool:
        return self._loop is None or self._loop.poll() is not None

    def _left_for_the_disk(self) -> bool:
        """Whether the loop ended because the disk was full, as it says it does; it is gone then."""
        code = None if self._loop is None else self._loop.poll()
        if not self.disk_was_full or code != ServiceMissingError.exit_code:
            return False
        self._loop = None
        self.done["leave for a full disk"] += 1
        return True

    def words(self) -> str:
        return (self.folder / "loop.log").read_text(errors="replace")[-2000:]

    def ended(self) -> dict[str, str]:
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
        assert self.wanted.keys() <= log.jobs.keys()
        for job_id, found in log.jobs.items():
            assert found.ended, found
            wanted = self.wanted.get(job_id)
            if wanted is not None:
                phases = ("finished", "cancelled") if job_id in self.cancelled else ("finished",)
                assert found.phase in phases, found
                assert found.phase == "cancelled" or found.samples_done == wanted, found
        check_story(events, SLOTS)
        assert left_running(self.folder) == []
        assert Spool(self.dirs).requests() == []
        assert [path.name for path in self.dirs.path.glob(".pliant-*.tmp")] == []
        assert [path.name for path in self.dirs.spool.glob(".pliant-*.tmp")] == []
