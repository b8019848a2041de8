"""A job's workers as real processes, directed by plan files, without a launcher."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.run.service.commands import write_plan
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, ENV_WORKER, Plan, WorkerOutcome
from tests.leftovers import PATIENCE_S
from tests.tools.run.elastic.nursery import Worker

SCRIPT = Path(__file__).with_name("script.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ENDLESS = {"schedule": True, "clip": True, "epochs": 100_000}
"""Options of a job that trains until it is asked to stop."""
OURS = ("PLIANT_", "RANK", "WORLD_SIZE")
BASE = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}


def plan(generation: int = 1, workers: Sequence[int] = (0, 1), *, apart: bool = False, **fields: Any) -> Plan:
    """A plan of job a; its members are on one node, or each on its own."""
    places = [(f"n{worker}", 0) if apart else ("n0", worker) for worker in workers]
    members = tuple(
        {"slot": f"{node}/{slot}", "node": node, "address": f"10.0.0.{worker}", "worker": worker}
        for worker, (node, slot) in zip(workers, places, strict=True)
    )
    record = {"job": "a", "generation": generation, "attempt": 1, "members": members, **fields}
    return Plan.model_validate(record)


def put(folder: Path, content: Plan) -> JobDir:
    """The job's files, with this plan as the newest."""
    job = JobDir(folder)
    job.attempt(content.attempt).path.mkdir(parents=True, exist_ok=True)
    write_plan(job, content)
    return job


class Gang:
    """One job: write plans, start workers, wait for what they leave behind."""

    def __init__(self, folder: Path, *, script: Path = SCRIPT, **options: Any) -> None:
        self.script = script
        self.dir = JobDir(folder / "job")
        self.dir.path.mkdir(parents=True)
        self.out = folder
        self.options = {"out": str(folder), **options}
        self.generation = 0
        self.attempt = 0
        self.patience_s = 60.0
        """How long workers wait for a plan without one that died."""
        self.plan: Plan | None = None
        self.workers: list[Worker] = []

    def publish(self, workers: int | Sequence[int], **fields: Any) -> None:
        """A newer plan of the attempt; ``workers``: how many, or their numbers in order of rank."""
        self.generation += 1
        numbers = range(workers) if isinstance(workers, int) else workers
        usual = {"global_batch": 10, "seed": 5, "progress_s": 0.05, "history_s": 0.05, "timeout_s": 60}
        own = {"attempt": self.attempt, "patience_s": self.patience_s}
        self.plan = plan(self.generation, numbers, **{**usual, **own, **fields})
        put(self.dir.path, self.plan)

    def start(self, workers: int, *, only: tuple[int, ...] | None = None, **fields: Any) -> AttemptDir:
        self.attempt += 1
        (self.out / "go").unlink(missing_ok=True)
        self.publish(workers, **fields)
        ranks = range(workers) if only is None else only
        self.workers = [self._worker(rank) for rank in ranks]
        return self.here

    def go(self) -> None:
        """Let workers go on that the option ``hold_at`` holds after that number of steps."""
        (self.out / "go").touch()

    def end(self) -> list[int]:
        return [worker.wait(PATIENCE_S) for worker in self.workers]

    def run(self, workers: int, **fields: Any) -> list[str]:
        self.start(workers, **fields)
        self.end()
        return self.outcomes()

    def run_and_stop(self, workers: int, **fields: Any) -> list[str]:
        self.start(workers, **fields)
        self.wait_for("progress")
        self.publish(workers, **fields, abort=True)
        self.go()
        self.end()
        return self.outcomes()

    @property
    def here(self) -> AttemptDir:
        return self.dir.attempt(self.attempt)

    def outcome(self, rank: int) -> WorkerOutcome:
        result = WorkerOutcome.read(self.here.outcome(rank))
        assert result is not None, self.errors()
        return result

    def outcomes(self) -> list[str]:
        return [self.outcome(rank).outcome for rank in range(len(self.workers))]

    def outcomes_of(self, *workers: int) -> list[str]:
        return [self.outcome(worker).outcome for worker in workers]

    def warnings(self) -> list[str]:
        details = [event.detail or {} for event in self.events("progress")]
        return [detail["warning"] for detail in details if "warning" in detail]

    def events(self, name: str) -> list[Event]:
        path = self.here.progress
        there = path.exists() and path.stat().st_size > 0  # it is made a moment before it is written to
        return [event for event in read_events(path) if event.event == name] if there else []

    def wait_for(self, name: str, count: int = 1) -> None:
        self.until(lambda: len(self.events(name)) >= count, f"{name} event")

    def add(self, *numbers: int) -> None:
        """Start more workers of the attempt: they are called by number, in order."""
        for number in numbers:
            assert number == len(self.workers)
            self.workers.append(self._worker(number))

    def goes_through(self, *teams: Sequence[int]) -> None:
        """One set of workers after the other, each trained under."""
        for members in teams:
            self.publish(members)
            self.add(*(number for number in members if number >= len(self.workers)))
            self.reaches()

    def reaches(self, generation: int | None = None) -> None:
        """Wait until training goes on under a generation, by default the newest."""
        wanted = self.generation if generation is None else generation

        def reached() -> bool:
            return any((event.detail or {}).get("generation") == wanted for event in self.events("progress"))

        self.until(reached, f"generation {wanted}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that must happen while workers run."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {self.errors()}"
            alive = any(worker.poll() is None for worker in self.workers)
            assert alive or condition(), f"all ended without {what}: {self.errors()}"
            time.sleep(0.02)

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.workers[rank].send_signal(number)

    def errors(self) -> str:
        return "".join(path.read_text() for path in sorted(self.out.glob(f"err-{self.attempt}-*")))

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()

    def _worker(self, rank: int) -> Worker:
        env = {
            **BASE,
            ENV_JOB_DIR: str(self.dir.path),
            ENV_SLOT: f"n0/{rank}",
            ENV_WORKER: str(rank),
            "RANK": "7",
            "WORLD_SIZE": "8",
        }
        errors = self.out / f"err-{self.attempt}-{rank}"
        return Worker(self.script, json.dumps(self.options), env, errors)


def plain(
    folder: Path,
    *command: str,
    env: Mapping[str, str] | None = None,
    script: Path = SCRIPT,
    workers: int = 1,
    **options: Any,
) -> None:
    """The same script without a plan; ``command`` goes before it (torchrun).

    Several workers get the variables that torchrun would give them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    argument = json.dumps({"out": str(folder), **options})
    around = {**BASE, "OMP_NUM_THREADS": "1", **(env or {})}
    if command:
        argv = [*command, str(script), argument]
        done = subprocess.run(argv, env=around, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return
    if workers > 1:
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        around |= here | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(workers))
    errors = [folder / f"errors-{rank}" for rank in range(workers)]
    started = [
        Worker(script, argument, around | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), errors[rank])
        for rank in range(workers)
    ]
    try:
        codes = [worker.wait(PATIENCE_S) for worker in started]
        assert codes == [0] * workers, [path.read_text() for path in errors]
    finally:
        for worker in started:
            worker.kill()


def _free_port() -> int:
    """One below those that the kernel gives to others in the meantime."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def final(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "final.pt")
    return state


def assert_same_weights(result: Path, expected: Path) -> None:
    """The trained weights agree to float rounding (they are 64-bit), as does the learning rate."""
    one, other = final(result), final(expected)
    assert one["lr"] == other["lr"]
    torch.testing.assert_close(one["model"], other["model"], rtol=1e-9, atol=1e-12)


def seen(folder: Path) -> dict[int, list[int]]:
    """Samples by epoch, all attempts together."""
    result: dict[int, list[int]] = {}
    for path in folder.glob("seen-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            result.setdefault(row["epoch"], []).extend(row["index"])
    return result
