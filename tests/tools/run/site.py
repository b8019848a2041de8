"""A state directory, a schedule and scripts in a temporary folder, and what the log says afterwards."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_schedule
from pliant.schemas.job import Job
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import read_log
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.leftovers import PATIENCE_S
from tests.tools.run.scripts import script

ROOT = Path(__file__).parents[3]
PLIANT = (sys.executable, "-m", "tests.tools.run.runner_process")
"""Commands that start jobs by Python where a user's would start torchrun."""
QUICK = Timeouts(abort_s=5.0, term_s=5.0, kill_s=1.0, broken_s=1.0)


class Site:
    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(exist_ok=True)
        self.state = self.folder / "state"
        self.cluster: Cluster = cluster(slots, slots="cpu")
        self.script = script(self.folder)
        self.gate = self.folder / "gate"
        """Made by a test that lets jobs which wait for it come to their end."""
        self.jobs: list[Job] = []

    def job(self, job_id: str, *words: object, samples: float = 200.0, text: str = "", **more: Any) -> Job:
        """Add a job that trains ``samples`` (by default at 1000 a second); ``words`` go to its script."""
        path = script(self.folder, text, f"{job_id}.py") if text else self.script
        own = () if text else ("--samples", str(samples))
        command = (path, *own, *map(str, words))
        spec = job(job_id, command=command, **{"batch": 8, "work": {"samples": samples}, **more})
        self.jobs.append(spec)
        return spec

    def schedule(self, policy: str = "fair-share", **asked: Any) -> str:
        path = self.folder / "schedule.json"
        write_schedule(decide(self.jobs, self.cluster, None, Question(policy, **asked)), path)
        return str(path)

    def options(self, policy: str | None = "fair-share", **more: Any) -> RunOptions:
        """RunOptions for a run; without a policy for one that goes on."""
        schedule = None if policy is None else self.schedule(policy)
        return RunOptions(self.state, schedule, timeouts=QUICK, **more)

    def events(self) -> tuple[Event, ...]:
        return read_events(self.state / "events.jsonl")

    def log(self) -> RunLog:
        try:
            return read_log(self.state)
        except PliantError:
            return RunLog()

    def story(self, *leave_out: str) -> list[str]:
        """The log in short, reports of the workers and decisions left out: ``start a 2``."""
        silent = {"progress", "epoch", "checkpoint", "decision", "release", *leave_out}
        return [
            f"{event.event} {event.job}" + ("" if event.gpus is None else f" {event.gpus}")
            for event in self.events()
            if event.event not in silent
        ]

    def of(self, job_id: str) -> list[str]:
        return [line for line in self.story() if line.split()[1] == job_id]


def environment() -> dict[str, str]:
    return with_tests(os.environ)


def with_tests(environ: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which Python finds the package ``tests``, too."""
    paths = (str(ROOT), environ.get("PYTHONPATH"))
    return {**environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def python_path() -> dict[str, str]:
    """For the environment of a job of another account, so that its Pythons begin as those of all tests."""
    return {"PYTHONPATH": environment()["PYTHONPATH"]}


def call(site: Site, *argv: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    about = {"cwd": site.folder, "env": environment(), "capture_output": True, "text": True, **given}
    return subprocess.run([*map(str, argv)], check=False, **about)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def in_order(wanted: Sequence[str], found: Sequence[str]) -> bool:
    """Whether ``wanted`` is a part of ``found`` in the same order."""
    rest = iter(found)
    return all(line in rest for line in wanted)
