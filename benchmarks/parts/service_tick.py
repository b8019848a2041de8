"""What a turn of the loop costs for each gang of four workers that trains.

Gangs are real: a supervisor for each worker, locked presence files that are touched every second, progress
that is reported every second. Only the training is not: one small process stands for the workers of a gang,
so that many gangs fit on one machine. The loop is that of ``pliant run --follow``, polled as often; its
processor time is taken over several seconds with few gangs and with many. The difference is the cost of a
gang, the rest is the loop's own.

What an hour of training leaves in the log is counted on a clock that runs ahead: rank 0's reporter trains
steps that take no time, and what it says goes the way into the log that it goes in ``pliant run``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest import mock

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Batch, Gpus, Job, SampleWork
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo, Unit
from pliant.tools.run.elastic import report
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.report import Reporter
from pliant.tools.run.elastic.state.checkpoint import Saved
from pliant.tools.run.elastic.state.training import Mean, TrainingCounters
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import CHECKPOINT_S, make_plan
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import Loop, RunOptions
from pliant.tools.run.service.reports import WorkerEvents, change_event, report_events
from pliant.tools.run.service.run import POLL_S
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.worker_reports import Tail
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question

WORKERS: Final = 4
FEW: Final = 10
MANY: Final = 50
SECONDS: Final = 10.0
PATIENCE_S: Final = 120.0
HALF_A_CORE_S: Final = POLL_S / 2
TICK_LIMIT_MS: Final = 0.2
GANGS_LIMIT: Final = 200
LOG_LIMIT: Final = 20_000
HOUR_S: Final = 3600.0
STEP_S: Final = 0.25
EPOCH_S: Final = 180.0

GANG: Final = """
import fcntl, json, os, pathlib, time

folder = pathlib.Path(os.environ["PLIANT_JOB_DIR"])
plan = json.loads((folder / "plan.json").read_text())
attempt = folder / "attempts" / str(plan["attempt"])
held = []
for member in plan["members"]:
    new = open(attempt / f"worker-{member['worker']}.new", "w")
    fcntl.lockf(new, fcntl.LOCK_EX)
    os.replace(new.name, attempt / f"worker-{member['worker']}.alive")
    held.append(new)
(attempt / "reached").write_text(str(plan["generation"]))
batch, step = plan["global_batch"], 1
detail = {"first_step": True, "generation": plan["generation"]}
first = {"time": time.time(), "event": "progress", "job": plan["job"], "gpus": len(held),
         "global_batch": batch, "samples_done": float(batch), "detail": detail}
with open(attempt / "progress.jsonl", "w") as events:
    events.write(json.dumps({"schema": "pliant.event/1"}) + "\\n" + json.dumps(first) + "\\n")
while True:
    known = {name: plan[name] for name in ("job", "attempt", "generation", "global_batch")}
    measured = {"loss": 0.5, "samples_per_second": 1.0, "step_seconds": 1.0}
    report = {"schema": "pliant.progress/1", **known, "gpus": len(held), "step": step, "epoch": 0,
              "samples_done": float(batch * step), **measured}
    (folder / "progress.json.new").write_text(json.dumps(report))
    os.replace(folder / "progress.json.new", folder / "progress.json")
    time.sleep(1.0)
    step += 1
    for one in held:
        os.utime(one.fileno())
"""


class Standing(LocalBackend):
    """Starts something that sleeps where the real backend starts torchrun."""

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """The first unit does what all workers of the gang would."""
        argvs = [(sys.executable, "-I", "-S", "-c", GANG), *[("sleep", "10000")] * (len(units) - 1)]
        super().start(handle, [replace(unit, argv=argv) for unit, argv in zip(units, argvs, strict=True)])


@dataclass(frozen=True, slots=True)
class Load:
    """What a number of gangs cost."""

    gangs: int
    turn_s: float
    """Processor time of one turn."""


def figures(few: int = FEW, many: int = MANY, seconds: float = SECONDS) -> list[Figure]:
    """The cost of a gang and turn, how many gangs use half a core, and what a job leaves in the log."""
    less, more = measure(few, seconds), measure(many, seconds)
    gang_s = (more.turn_s - less.turn_s) / (more.gangs - less.gangs)
    own_s = max(0.0, less.turn_s - gang_s * less.gangs)
    return [
        Figure("tick_cpu_ms_per_gang", 1e3 * gang_s, "ms", TICK_LIMIT_MS),
        Figure("tick_cpu_ms_own", 1e3 * own_s, "ms"),
        Figure("gangs_at_half_a_core", (HALF_A_CORE_S - own_s) / gang_s, "gangs", GANGS_LIMIT, at_least=True),
        log_bytes(),
    ]


def log_bytes() -> Figure:
    """What an hour of one job's training adds to the log."""
    with tempfile.TemporaryDirectory() as folder, State(folder) as state:
        job = _job(0)
        slots = tuple(Slot("n0", index) for index in range(WORKERS))
        target = Assignment.of(job, slots, (job.batch.size, 1, 1.0))
        state.record([submit_event(job, 0.0), change_event(job.id, None, target, state.log, 1.0)])
        before = state.dirs.events.stat().st_size
        plan = make_plan(target, 1, 1, {"n0": NodeInfo("n0", WORKERS)})
        attempt = state.dirs.job(job.id).attempt(1)
        train_an_hour(state.dirs.job(job.id), plan)
        said = WorkerEvents(job.id, 1, tuple(Tail(attempt.progress).read()), settled=True)
        state.record(report_events(said, state.log, 0.0, 0))
        size = state.dirs.events.stat().st_size - before
    return Figure("log_bytes_per_job_hour", size, "B", LOG_LIMIT)


def train_an_hour(job: JobDir, plan: Plan) -> None:
    """What rank 0 reports in an hour, in a fraction of it."""
    clock = Clock()
    with ExitStack() as changed:
        changed.enter_context(mock.patch.object(report, "time", clock))
        reporter = Reporter(WorkerContext(job, plan, 0))
        reporter.begin_generation(plan.global_batch or 1)
        counters = TrainingCounters()
        for step in range(1, int(HOUR_S / STEP_S) + 1):
            clock.now_s += STEP_S
            counters.advance(plan.global_batch or 1)
            losses = Mean()
            losses.add(1 / (1 + step), 1)
            reporter.step_done(counters, losses, STEP_S)
            if step % int(CHECKPOINT_S / STEP_S) == 0:
                reporter.checkpoint_ended(Saved(counters, 0.1, 1.25, ""))
            if step % int(EPOCH_S / STEP_S) == 0:
                counters.next_epoch()
                reporter.epoch_done(counters, 1 / (1 + step), 1 - 1 / (1 + step))
        reporter.close()


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Seconds of training."""
        return self.now_s

    def time(self) -> float:
        """The time of day: as long as one of today, in digits."""
        return 1.7e9 + self.now_s + 1 / 3


def measure(gangs: int, seconds: float) -> Load:
    """The processor time of a turn while that number of gangs trains."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), gangs) as live:
        began_s, turns = time.process_time(), int(seconds / POLL_S)
        for _ in range(turns):
            live.step()
            time.sleep(POLL_S)
        return Load(gangs, (time.process_time() - began_s) / turns)


@contextmanager
def running(folder: Path, gangs: int) -> Iterator[Loop]:
    """A loop whose gangs train, all of them."""
    nodes = tuple({"name": f"n{number}", "gpus": WORKERS} for number in range(gangs))
    write_cluster(Cluster.model_validate({"nodes": nodes, "slots": "cpu"}), folder / "cluster.json")
    question = Question("fair-share")
    options = RunOptions(folder / "state", question=question, cluster=str(folder / "cluster.json"))
    prepared = PreparedRun.read(options, _backend, resume=True)
    with prepared.open() as state:
        spool = Spool(state.dirs)
        with spool.locked():
            spool.request_run(_job(number) for number in range(gangs))
        live = prepared.loop(state, follow=True)
        try:
            _settle(live, gangs)
            yield live
        finally:
            _end(live)


def _job(number: int) -> Job:
    return Job(
        id=f"job-{number}",
        submit_time=time.time(),
        model="none",
        gpus=Gpus(requested=WORKERS, min=WORKERS, max=WORKERS),
        command=("train.py",),
        workdir="/",
        batch=Batch(size=64),
        elastic="size",
        work=SampleWork(samples=1e12),
    )


def _settle(live: Loop, gangs: int) -> None:
    """Until every gang has trained a step, and what starts cost is over."""
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(job.samples_done > 0 for job in live.state.log.jobs.values()) < gangs:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{gangs} gangs do not train after {PATIENCE_S:g} s")
        live.step()
        time.sleep(POLL_S)


def _end(live: Loop) -> None:
    """Kill what runs; what is written down meanwhile goes with the folder."""
    live.drain("measured")
    while live.executor.gangs:
        live.executor.kill_all()
        live.executor.look()
        time.sleep(POLL_S)


def _backend(_name: str, cluster: Cluster, dirs: StateDir) -> Backend:
    return Standing(cluster, dirs.jobs)
