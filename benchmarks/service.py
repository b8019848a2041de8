"""What the service costs: its commands on a log of 100,000 events, and a turn of its loop.

The log is what a service of some months leaves: jobs come, are started, resized, preempted and requeued,
report epochs and checkpoints, and end. It is drawn from a seed and written through the log's own writer.
Whole processes are measured, interpreter and imports included: ``pliant status``, ``pliant schedule --state``
and a restart, which is ``pliant run --follow`` until its first decision is in the log. Usually a snapshot of
the log is there, here as far behind the log as it ever is; ``cold`` are the same without one. At the end all
nodes are down, so that a restart starts no training.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.parts import service_tick
from benchmarks.parts.figure import Figure
from pliant.schemas.event import Event
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import interruption_event
from pliant.tools.run.statedir.log.snapshot import Rebuilding
from pliant.tools.run.statedir.state import TAIL_BYTES, State
from pliant.tools.schedule.from_log import session_for_run
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.saved import Basis
from tests.builders import cluster
from tests.tools.run.stories import Story

MEASURES: Final = ("tools/run", "cli")

EVENTS: Final = 100_000
SEED: Final = 1
POLICY: Final = "fair-share"
NODES: Final = cluster(4, 4, slots="cpu")
MIX: Final = (*["submit"] * 6, *["train"] * 40, *["finish"] * 5, "fail", "requeue", "cancel", "wait")
REPORTS: Final = ("epoch", "epoch", "checkpoint")
LIMITS_S: Final = {"status": 1.0, "schedule": 1.0, "restart": 1.5}
PATIENCE_S: Final = 120.0
CLOSED_STDOUT: Final = ("sh", "-c", 'exec "$@" >&-', "sh")
"""As a service runs: to any other stdout that is not a terminal, a run repeats its whole log."""
PLIANT: Final = (sys.executable, "-m", "pliant.cli")


def figures(
    events: int = EVENTS,
    gangs: tuple[int, int] = (service_tick.FEW, service_tick.MANY),
    seconds: float = service_tick.SECONDS,
) -> list[Figure]:
    """CPU seconds of the commands with a snapshot and without, then the figures of the loop.

    :param gangs: numbers of gangs whose turns are compared.
    :param seconds: how long each of them is measured.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-service-") as folder:
        dirs = StateDir(Path(folder) / "state")
        past = story(events)
        write(past, dirs)
        kept, log = dirs.snapshot.read_bytes(), dirs.events.read_bytes()
        warm, cold = {}, {}
        for name, command in COMMANDS.items():
            dirs.snapshot.write_bytes(kept)
            warm[name] = command(dirs)
            dirs.events.write_bytes(log)
            dirs.snapshot.unlink()
            cold[name] = command(dirs)
            dirs.events.write_bytes(log)
    return [
        *(Figure(f"{name}_100k_events_cpu_s", warm[name], "s", LIMITS_S[name]) for name in COMMANDS),
        *(Figure(f"{name}_100k_events_cold_cpu_s", cold[name], "s") for name in COMMANDS),
        Figure("events", float(len(past.events)), "events"),
        Figure("jobs_ended", float(len(past.session.book.ended)), "jobs"),
        Figure("log_bytes", float(len(log)), "bytes"),
        Figure("snapshot_bytes", float(len(kept)), "bytes"),
        *service_tick.figures(*gangs, seconds),
    ]


def smallest() -> list[Figure]:
    """The commands on a short log, and the loop with few gangs."""
    return figures(events=3000, gangs=(1, 2), seconds=0.2)


def story(events: int) -> Story:
    """A run with that number of events, or a few more."""
    past = Story(SEED, POLICY, nodes=NODES, most_jobs=events, most_active=12, happenings=MIX, reports=REPORTS)
    while len(past.events) < events:
        past.go_on(100, last=False)
    for job in [job for job in past.session.jobs.values() if job.gpus]:
        past.events.append(interruption_event(job.id, past.now_s, "the nodes are down"))
        past.session.maintenance.lose(job.id, past.now_s)
    for node in past.session.cluster.nodes:
        past.events.append(Event(past.now_s, "node_down", detail={"node": node.name}))
        past.session.maintenance.node_down(node.name, past.now_s)
    past.decide()
    return past


def write(past: Story, dirs: StateDir) -> None:
    """The state directory of a run, with a snapshot that the next event would make due."""
    rebuilding = Rebuilding(
        Basis.of(NODES, None),
        lambda: session_for_run(make_policy(POLICY), NODES, throughput_for(None, NODES)),
    )
    behind = 0
    for attempt in range(2):  # the snapshot's size says how far the log may be ahead of it
        for path in (dirs.events, dirs.snapshot):
            path.unlink(missing_ok=True)
        with State(dirs.path) as state:
            state.rebuilding = rebuilding
            state.record(past.events[: len(past.events) - behind])
        with State(dirs.path) as state:
            state.record(past.events[len(past.events) - behind :])
        if attempt == 0:
            each = dirs.events.stat().st_size / len(past.events)
            behind = int(max(TAIL_BYTES, dirs.snapshot.stat().st_size / 8) / each)
    for job_id in (*past.session.book.ended, *past.session.jobs):
        dirs.job(job_id).attempt(1).logs.mkdir(parents=True)
    past.write_inputs(dirs)


def status(dirs: StateDir) -> float:
    """CPU seconds of ``pliant status``."""
    return spent("status", "--state", str(dirs.path))


def schedule(dirs: StateDir) -> float:
    """CPU seconds of ``pliant schedule --state``, under another policy, which gets the whole history."""
    return spent("schedule", "--state", str(dirs.path), "--policy", "fifo")


def restart(dirs: StateDir) -> float:
    """CPU seconds of ``pliant run --follow`` until its first decision is in the log."""
    before = dirs.events.stat().st_size
    return spent(
        "run", "--follow", "--state", str(dirs.path), until=lambda: dirs.events.stat().st_size > before
    )


COMMANDS: Final[dict[str, Callable[[StateDir], float]]] = {
    "status": status,
    "schedule": schedule,
    "restart": restart,
}


def spent(*words: str, until: Callable[[], bool] | None = None) -> float:
    """User and system time of a command; with ``until`` it is ended by SIGTERM once that holds.

    :raises RuntimeError: it failed.
    """
    wrapper = () if until is None else CLOSED_STDOUT
    process = subprocess.Popen(
        [*wrapper, *PLIANT, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while until is not None and not until() and time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(f"pliant {' '.join(words)} ended at once")
        time.sleep(0.01)
    if until is not None:
        process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    with process.stderr as errors:
        said = errors.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    expected = 0 if until is None else 128 + signal.SIGTERM
    if process.returncode != expected:
        raise RuntimeError(f"pliant {' '.join(words)} failed: {said.decode()}")
    return usage.ru_utime + usage.ru_stime
