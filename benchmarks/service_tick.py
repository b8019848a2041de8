"""What a turn of the loop costs for each gang of four workers that trains.

Gangs are real: a keeper for each worker, locked presence files that are touched every second, progress that
is reported every second. Only the training is not: one small process stands for the workers of a gang, so
that many gangs fit on one machine. The loop is that of ``pliant run --follow``, polled as often; its
processor time is taken over several seconds with few gangs and with many. The difference is the cost of a
gang, the rest is the loop's own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Batch, Gpus, Job, SampleWork
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Backend, Handle, Unit
from pliant.tools.run.layout import StateDir
from pliant.tools.run.live import LiveRun
from pliant.tools.run.options import Options
from pliant.tools.run.prepare import Prepared
from pliant.tools.run.runner import POLL_S
from pliant.tools.run.spool import Spool
from pliant.tools.schedule.decide import Question

WORKERS: Final = 4
FEW: Final = 10
MANY: Final = 50
SECONDS: Final = 10.0
PATIENCE_S: Final = 120.0
HALF_A_CORE_S: Final = POLL_S / 2
TICK_LIMIT_MS: Final = 0.2
GANGS_LIMIT: Final = 200

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
report = open(attempt / "progress.jsonl", "w")
report.write(json.dumps({"schema": "pliant.event/1"}) + "\\n")
batch, step = plan["global_batch"], 0


def say(**detail):
    event = {"time": time.time(), "event": "progress", "job": plan["job"], "gpus": len(held),
             "global_batch": batch, "samples_done": float(batch * step), "loss": 0.5, "detail": detail}
    report.write(json.dumps(event) + "\\n")
    report.flush()


say(first_step=True, generation=plan["generation"])
while True:
    time.sleep(1.0)
    step += 1
    for one in held:
        os.utime(one.fileno())
    say(step_seconds=1.0)
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
    """The cost of a gang and turn, and how many gangs use half a core."""
    less, more = measure(few, seconds), measure(many, seconds)
    gang_s = (more.turn_s - less.turn_s) / (more.gangs - less.gangs)
    own_s = max(0.0, less.turn_s - gang_s * less.gangs)
    return [
        Figure("tick_cpu_ms_per_gang", 1e3 * gang_s, "ms", TICK_LIMIT_MS),
        Figure("tick_cpu_ms_own", 1e3 * own_s, "ms"),
        Figure("gangs_at_half_a_core", (HALF_A_CORE_S - own_s) / gang_s, "gangs", GANGS_LIMIT, at_least=True),
    ]


def measure(gangs: int, seconds: float) -> Load:
    """The processor time of a turn while so many gangs train."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), gangs) as live:
        began_s, turns = time.process_time(), int(seconds / POLL_S)
        for _ in range(turns):
            live.step()
            time.sleep(POLL_S)
        return Load(gangs, (time.process_time() - began_s) / turns)


@contextmanager
def running(folder: Path, gangs: int) -> Iterator[LiveRun]:
    """A loop whose gangs train, all of them."""
    nodes = tuple({"name": f"n{number}", "gpus": WORKERS} for number in range(gangs))
    write_cluster(Cluster.model_validate({"nodes": nodes, "slots": "cpu"}), folder / "cluster.json")
    question = Question("fair-share")
    options = Options(folder / "state", question=question, cluster=str(folder / "cluster.json"))
    prepared = Prepared.read(options, _backend, resume=True)
    with prepared.open() as state:
        spool = Spool(state.dirs)
        with spool.locked():
            spool.ask_to_run(_job(number) for number in range(gangs))
        live = prepared.live(state, follow=True)
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


def _settle(live: LiveRun, gangs: int) -> None:
    """Until every gang has trained a step, and what starts cost is over."""
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(job.samples_done > 0 for job in live.state.log.jobs.values()) < gangs:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{gangs} gangs do not train after {PATIENCE_S:g} s")
        live.step()
        time.sleep(POLL_S)


def _end(live: LiveRun) -> None:
    """Kill what runs; what is written down meanwhile goes with the folder."""
    live.drain("measured")
    while live.executor.gangs:
        live.executor.kill_all()
        live.executor.look()
        time.sleep(POLL_S)


def _backend(_name: str, cluster: Cluster, dirs: StateDir) -> Backend:
    return Standing(cluster, dirs.jobs)
