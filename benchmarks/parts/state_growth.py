"""A state directory after three years: what a start of the loop takes there, and ``pliant status``.

The log is written as a run writes it, job after job, by a process that lives all that time and once a month
moves what ended long ago to an archive. Each measurement is a process of its own, its processor time and
memory are the least of a few; beside them is the memory of the process that wrote. Everything is divided by
what it was once the log held as much as it ever does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts.chaos.world import MEMORY
from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.io import write_cluster, write_schedule
from pliant.schemas.job import Gpus, Job, SampleWork
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.run.backends.simulated.clock import SimulatedClock
from pliant.tools.run.backends.simulated.nodes import SimulatedNodes
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.retention import DAY_S, Retained
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import decision_event, finish_event, run_event, submit_event
from pliant.tools.run.statedir.log.snapshot import Rebuilding
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.from_log import session_for_run
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.saved import Basis

MONTHS: Final = 36
JOBS: Final = 3000
"""In a month."""
LIMIT: Final = 1.1
_FULL: Final = 3
"""Month after which the log holds as much as it ever does."""
_DAYS: Final = 30
"""Days in a month, and for which jobs stay in the log."""
_TIMES: Final = 5
_BATCH: Final = 25
_BEGAN_S: Final = 1_700_000_000.0
_NODES: Final = Cluster.model_validate(
    {"nodes": ({"name": "n", "count": 8, "gpus": 8},), "retention": {"jobs": _DAYS}}
)


def figures(months: int = MONTHS, jobs: int = JOBS, times: int = _TIMES) -> list[Figure]:
    """The largest ratio of memory, start-up and status, and each of them."""
    with tempfile.TemporaryDirectory(prefix="pliant-growth-", dir=MEMORY) as folder:
        early, late = _measured(Path(folder).resolve(), months, jobs, times)
    ratios = {name: late[name] / early[name] for name in late}
    own = [Figure(f"state_growth_{name}", ratio, "times", LIMIT) for name, ratio in ratios.items()]
    return [Figure("state_growth_3_years", max(ratios.values()), "times", LIMIT), *own]


def _measured(folder: Path, months: int, jobs: int, times: int) -> list[dict[str, float]]:
    dirs, own, measured = StateDir(folder / "state"), psutil.Process(), list[dict[str, float]]()
    schedule = Schedule(time=_BEGAN_S, policy=PolicyUse(name="fifo"), cluster=_NODES)
    new = partial(session_for_run, make_policy("fifo"), _NODES, throughput_for(None, _NODES))
    with State(dirs.path) as state:
        write_cluster(_NODES, dirs.cluster)
        write_schedule(schedule, dirs.schedule)
        state.rebuilding = Rebuilding(Basis.of(_NODES, None), new)
        state.record([run_event(schedule, "hash", _BEGAN_S)])
    for month in range(months):
        with State(dirs.path) as state:
            state.rebuilding = Rebuilding(Basis.of(_NODES, None), new)
            retained = Retained(state, _NODES.retention)
            for events in _month(month, jobs):
                state.record(events)
            retained.tidy(state.log, state.log.last_s)
            memory = float(own.memory_info().rss)
        if month + 1 in (min(_FULL, months), months):
            measured.append({"writer": memory, **_of_process(dirs.path, times)})
    return [measured[0], measured[-1]]


def _month(month: int, jobs: int) -> Iterator[list[Event]]:
    """What the log has of the jobs of a month, a few at a time."""
    apart_s = _DAYS * DAY_S / jobs
    batch: list[Event] = []
    for number in range(month * jobs, (month + 1) * jobs):
        job_id, at_s = f"train-{number}", _BEGAN_S + apart_s * number
        spec = Job(
            id=job_id,
            submit_time=0.0,
            model="m",
            gpus=Gpus(requested=2),
            user=f"u{number % 40}",
            command=("train.py", "--seed", str(number)),
            workdir="/home/u/project",
            work=SampleWork(samples=1000.0),
        )
        place = ((f"n{number % 8}", 2),)
        batch += [
            submit_event(spec, at_s),
            decision_event(at_s, 0.0, "fifo", 0.001),
            Event(at_s, "start", job_id, 2, place, 64, detail={"accum": 1}),
            Event(at_s + 1.0, "progress", job_id, samples_done=64.0, overhead_seconds=1.5),
            Event(at_s + 2.0, "checkpoint", job_id, samples_done=500.0),
            finish_event(job_id, at_s + 0.7 * apart_s, 1, 1000.0),
            decision_event(at_s + 0.7 * apart_s, 0.0, "fifo", 0.001),
        ]
        if (number + 1) % _BATCH == 0:
            yield batch
            batch = []
    yield batch


def _of_process(state: Path, times: int) -> dict[str, float]:
    """The least processor time and memory of a start of the loop, and of ``pliant status``."""
    copy = state.with_name("measured")  # a start writes to it, at the present time
    shutil.copytree(state, copy)
    code = "from benchmarks.parts.state_growth import {}; {}({!r})"
    least: dict[str, float] = {}
    for name in ("start", "status") * times:
        words = [sys.executable, "-c", code.format(name, name, str(copy))]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        for what, value in json.loads(done.stdout.splitlines()[-1]).items():
            least[what] = min(value, least.get(what, value))
    shutil.rmtree(copy)
    return least


def start(state: str) -> None:
    """Take the run up, and turn the loop a few times; prints what that took."""
    clock, dirs = SimulatedClock(), StateDir(Path(state))
    nodes = SimulatedNodes(_NODES, clock, dirs.jobs)
    began_s = time.process_time()
    prepared = PreparedRun.read(RunOptions(dirs.path), lambda *_: nodes, resume=True)
    with prepared.open(past=False) as opened:
        loop = prepared.loop(opened, follow=True)
        for _ in range(3):
            loop.step()
    _say("loop", time.process_time() - began_s)


def status(state: str) -> None:
    """``pliant status``; prints what that took."""
    from pliant.cli.main import app

    began_s = time.process_time()
    app(["status", "--state", state, "-o", f"{state}/../shown.txt"], standalone_mode=False)
    _say("status", time.process_time() - began_s)


def _say(name: str, seconds: float) -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    memory = next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(json.dumps({f"{name}_s": seconds, f"{name}_memory": memory}))
