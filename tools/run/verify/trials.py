"""The runs of one script: alone, and as a job under the executor that ``pliant run`` uses.

Changes come at appointed steps: there the workers wait until the plan of the change is written and the new
worker is ready, so that a change is at the same place whatever the machine does.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any, Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.events import Trained, typed
from pliant.schemas.job import Gpus, Job
from pliant.tools.profile.torchrun.start import ALONE, child_environment, last_words, one_worker
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.commands import environment
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.service.reports import AttemptEnded, WorkerEvents
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.liveness import life
from pliant.tools.run.statedir.contract.recording import ENV_RECORDING, RecordingOrder, RunFolder
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import allocation_of
from pliant.tools.run.statedir.state import Clock

Slots = Literal["cpu", "gpu"]
Places = tuple[int, int]
EARLY: Final = 0
LATE: Final = 1
_JOB: Final = "verify"
_NODE: Final = "here"
_SLOTS: Final = 2
_LOOK_S: Final = 0.05
PAUSE_S: Final = 0.12
"""Seconds of pause after each step of a run with changes."""


def places_of(steps: int) -> Places:
    """Steps after which something happens: in the first epoch, and in the second one.

    :param steps: of the whole training, which has three epochs, or none.
    """
    return max(1, steps // 6), max(2, steps // 2)


class TrialError(Exception):
    """A run did not end as it should; the message is one line."""


def prepared(folder: Path, order: RecordingOrder) -> RunFolder:
    folder.mkdir()
    files = RunFolder(folder)
    files.order.write_text(order.model_dump_json())
    return files


def run_alone(job: Job, files: RunFolder, slots: Slots, limit_s: float) -> None:
    """Run the script as one plain process.

    :raises TrialError: it fails, or does not end in time.
    """
    nodes = {node.name: node for node in _backend(files.path, slots).nodes()}
    logs = AttemptDir(files.path).logs
    env = {**environment(job, [Slot(_NODE, 0)], nodes), **ALONE, ENV_RECORDING: str(files.path)}
    try:
        done = subprocess.run(
            one_worker(job.script, logs, job.own_python),
            cwd=job.workdir,
            env=child_environment(environ, env),
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TrialError(f"did not end within {limit_s:.0f} s") from None
    if done.returncode:
        errors = logs / "worker" / "attempt_0" / "0" / "stderr.log"
        raise TrialError(last_words([errors]) or f"exit code {done.returncode}")


def _backend(folder: Path, slots: Slots) -> LocalBackend:
    shape: dict[str, Any] = {"slots": slots, "nodes": ({"name": _NODE, "gpus": _SLOTS},)}
    return LocalBackend(Cluster.model_validate(shape), folder)


@dataclass
class Trial:
    """One run under an executor."""

    executor: Executor
    job: Job
    files: RunFolder
    slots: Slots
    accum: int
    deadline_s: float
    limit_s: float
    warnings: list[str] = field(default_factory=list)
    """Warnings of the library about the script."""
    stopped: bool = False
    """An attempt has saved and left."""
    loses: bool = False
    """True if a worker is killed, which on GPUs ends the attempt."""

    @property
    def gang(self) -> Gang:
        return self.executor.gangs[_JOB]

    @property
    def workers(self) -> tuple[int, ...]:
        """Those of the newest plan."""
        return self.gang.plan.workers if self.executor.gangs else ()

    def give(self, workers: int) -> None:
        """Give the job that number of workers; a change takes effect once they go on."""
        cut = (self.job.batch.size, self.accum, 1.0)
        allocations = {_JOB: allocation_of(_JOB, ((_NODE, workers),), cut)}
        executor, targets = self.executor, self.executor.targets
        targets.apply(targets.changes_to(allocations, {_JOB: self.job}, executor.nodes))

    def change(self, step: int, workers: int) -> None:
        """Go on with another number of workers after a step."""
        self.wait_at(step)
        self.give(workers)
        self._until(lambda: len(self.workers) == workers and self._are_ready())
        self.files.go(step).touch()

    def stop(self, step: int) -> None:
        """Stop after a step, and start again."""
        self.wait_at(step)
        self.executor.stop(self.gang)
        self.files.go(step).touch()
        self._until(lambda: self.stopped)

    def kill_second(self, step: int) -> None:
        """Kill the second of two workers after a step; the job keeps one slot."""
        self.wait_at(step)
        self.loses = True
        self.give(1)
        self.executor.backend.stop(self.gang.handle, "kill", [1])
        self.files.go(step).touch()

    def wait_at(self, step: int) -> None:
        """Wait until all workers wait after a step."""
        held = self.files.held
        self._until(lambda: bool(self.workers) and all(held(step, one).exists() for one in self.workers))

    def end(self) -> None:
        """Wait for the end of the training."""
        self._until(lambda: not self.executor.gangs and not self.executor.targets)

    def _are_ready(self) -> bool:
        files = self.gang.handle.files
        return all(life(files.presence(worker)) == "alive" for worker in self.workers)

    def _until(self, reached: Callable[[], bool]) -> None:
        """:raises TrialError: the job failed, or takes too long."""
        while True:
            for report in self.executor.tick():
                if isinstance(report, WorkerEvents):
                    events = (typed(row) for row in report.events)
                    warnings = (event.warning for event in events if isinstance(event, Trained))
                    self.warnings += filter(None, warnings)
                elif isinstance(report, AttemptEnded):
                    self._ended(report)
            if reached():
                return
            if not self.executor.gangs and not self.executor.targets:
                raise TrialError("the training ended before its workers were changed: give it more samples")
            if time.monotonic() > self.deadline_s:
                raise TrialError(f"did not end within {self.limit_s:.0f} s")
            time.sleep(_LOOK_S)

    def _ended(self, report: AttemptEnded) -> None:
        if report.verdict.end == "failed" and self.loses and self.slots == "gpu":
            self.loses = False
            self.give(1)
        elif report.verdict.end == "failed":
            raise TrialError(report.verdict.message)
        self.stopped |= report.verdict.end == "stopped"


@contextlib.contextmanager
def trial(job: Job, files: RunFolder, slots: Slots, *, accum: int, limit_s: float) -> Iterator[Trial]:
    """The job under an executor, which holds nothing yet; nothing is left of it afterwards."""
    dirs = StateDir(files.path.resolve() / "state")
    executor = Executor(_backend(dirs.jobs, slots), dirs, Clock())
    own = {"id": _JOB, "elastic": "size", "gpus": Gpus(requested=1, min=1, max=_SLOTS)}
    env = {**job.env, ENV_RECORDING: str(files.path)}
    elastic = job.model_copy(update={**own, "env": env})
    made = Trial(executor, elastic, files, slots, accum, time.monotonic() + limit_s, limit_s)
    try:
        yield made
    finally:
        while executor.gangs:
            executor.targets.clear()
            executor.kill_all()
            executor.look()
            time.sleep(_LOOK_S)
