"""One job that trains on CPU slots under the executor that ``pliant run`` uses, polled as often."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.service.reports import AttemptEnded, WorkerEvents
from pliant.tools.run.service.run import POLL_S
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import allocation_of
from pliant.tools.run.statedir.state import Clock

PATIENCE_S: Final = 120.0
SLOTS: Final = 3
SETTLE_S: Final = 1.0
"""Training after a change, before the next one may come."""
SCRIPT_NAME: Final = "train.py"


class TrainingJob:
    """One job under an executor."""

    def __init__(self, executor: Executor, job: Job) -> None:
        # Of the epochs so far.
        self.losses: list[float] = []
        self.executor = executor
        self._job = job
        self._events: list[Event] = []

    @property
    def folder(self) -> Path:
        """Where the script runs."""
        return Path(self._job.workdir or "")

    @property
    def gang(self) -> Gang:
        """Its attempt that is under way."""
        return self.executor.gangs["a"]

    def go_to(self, workers: int) -> Event:
        """Give the job that number of slots; the event of its first step there, once it trains well."""
        self.give(workers)
        event = self.until(lambda event: event.gpus == workers and "generation" in (event.detail or {}))
        self.train_for(SETTLE_S)
        return event

    def give(self, workers: int) -> None:
        """Give the job that number of slots, those of the first node first; 0: stop it."""
        placement: list[tuple[str, int]] = []
        for node in self.executor.nodes.values():
            if (taken := min(node.gpus, workers - sum(count for _, count in placement))) > 0:
                placement.append((node.name, taken))
        allocations = {"a": allocation_of("a", tuple(placement), (self._job.batch.size, 1, 1.0))}
        executor, targets = self.executor, self.executor.targets
        targets.apply(targets.changes_to(allocations, {"a": self._job}, executor.nodes))

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """The first such event of the job from now on."""
        self._events.clear()
        found: list[Event] = []

        def seen() -> bool:
            found.extend(event for event in self._events if event.event == "progress" and wanted(event))
            return bool(found)

        self.wait(seen)
        return found[0]

    def wait(self, reached: Callable[[], bool]) -> None:
        """Let it train until something is so.

        :raises TimeoutError: that takes longer than anything that a job does.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.turn()
            if reached():
                return
        raise TimeoutError("the job did not get there")

    def ends(self) -> None:
        """Wait for the end of its attempt, which was asked for or is near."""
        self.wait(lambda: not self.executor.gangs and not self.executor.targets)

    def train_for(self, seconds: float) -> None:
        """Let it train."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()

    def finish(self) -> dict[str, list[float]]:
        """Let it train to its end; what the script has measured."""
        while self.executor.gangs:
            self.turn()
        took: dict[str, list[float]] = json.loads((self.folder / "took.json").read_text())
        return took

    def kill(self, rank: int) -> None:
        """Kill the worker of that rank; other jobs on this machine have workers of the same number."""
        mark, script = {ENV_WORKER: str(self.gang.plan.workers[rank])}, str(self.folder / SCRIPT_NAME)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if script in process.cmdline()[1:3] and mark.items() <= process.environ().items():
                    process.kill()

    def turn(self) -> None:
        """One look of the launcher, and the pause after it."""
        for report in self.executor.tick():
            if isinstance(report, WorkerEvents):
                self._events += report.events
                self.losses += [event.loss or 0.0 for event in report.events if event.event == "epoch"]
            elif isinstance(report, AttemptEnded) and report.verdict.end == "failed":
                raise RuntimeError(report.verdict.message)
        time.sleep(POLL_S)


def one_machine(jobs: Path) -> LocalBackend:
    """A node of :data:`SLOTS` slots."""
    shape: dict[str, Any] = {"slots": "cpu", "nodes": ({"name": "n0", "gpus": SLOTS},)}
    return LocalBackend(Cluster.model_validate(shape), jobs)


@contextlib.contextmanager
def running(
    kind: type[Executor],
    script_text: str,
    words: str,
    batch: int,
    open_backend: Callable[[Path], Backend] = one_machine,
    **fields: object,
) -> Iterator[TrainingJob]:
    """A job that can be given slots; nothing is left of it afterwards.

    :param open_backend: makes the backend; it gets the folder of the jobs.
    :param fields: of the job, where they are others than usual.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        script = root / SCRIPT_NAME
        script.write_text(script_text)
        dirs = StateDir(root / "state")
        executor = kind(open_backend(dirs.jobs), dirs, Clock())
        spec = {
            "id": "a",
            "submit_time": 0.0,
            "model": "cnn",
            "gpus": {"requested": 1, "max": SLOTS},
            "elastic": "size",
            "command": (str(script), words),
            "workdir": str(root),
            "batch": {"size": batch},
            **fields,
        }
        try:
            yield TrainingJob(executor, Job.model_validate(spec))
        finally:
            while executor.gangs:
                executor.targets.clear()
                executor.kill_all()
                executor.look()
                time.sleep(POLL_S)
