"""Whether a live loop that is never at rest needs more memory or handles as time goes by.

A loop of ``pliant run --follow`` runs for half an hour on four CPU slots, with training scripts that need no
torch. Jobs come and end all the time, so that gangs start, are resized and end. What counts is the middle of
the last fifth against that of the second one; jobs that have ended stay in the log and in memory, by a few
kB each.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts.figure import Figure
from benchmarks.parts.first_step import PATIENCE_S, until
from pliant.schemas.io import write_cluster
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import read_log
from pliant.tools.run.statedir.layout import StateDir
from tests.builders import cluster, job
from tests.tools.run.scripts import script

MINUTES: Final = 30.0
SLOTS: Final = 4
EVERY_S: Final = 5.0
"""Between two jobs."""
SAMPLES: Final = 3000.0
"""Of each, at 1000 a second on one slot."""
SAMPLE_S: Final = 1.0
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """From the second fifth of the time to the last one."""

    memory_mib: float
    handles: float
    jobs: int
    """That ended in all."""


def figures(minutes: float = MINUTES) -> list[Figure]:
    """By how much memory and open files have grown, and how long it took."""
    found = measure(60 * minutes)
    return [
        Figure("soak_memory_growth_mb", found.memory_mib, "MiB"),
        Figure("soak_handles_growth", found.handles, "handles", 0.0),
        Figure("soak_minutes", minutes, "minutes"),
        Figure("soak_jobs", float(found.jobs), "jobs"),
    ]


def measure(seconds: float) -> Growth:
    """A soak."""
    memory, handles = [], []
    with tempfile.TemporaryDirectory(prefix="pliant-soak-") as name:
        folder = Path(name).resolve()
        with following(folder) as (loop, dirs):
            end_s, next_s, count = time.monotonic() + seconds, 0.0, 0
            while (now_s := time.monotonic()) < end_s:
                if now_s >= next_s:
                    _submit(dirs, folder, count)
                    count, next_s = count + 1, now_s + EVERY_S
                memory.append(loop.memory_info().rss / MIB)
                handles.append(loop.num_fds())
                time.sleep(SAMPLE_S)
            ended = sum(found.ended for found in read_log(dirs.path).jobs.values())
    return Growth(growth(memory), growth(handles), ended)


def growth(samples: list[float] | list[int]) -> float:
    """From the middle of the second fifth to that of the last one."""
    fifth = max(1, len(samples) // 5)
    return statistics.median(samples[-fifth:]) - statistics.median(samples[fifth : 2 * fifth])


def _submit(dirs: StateDir, folder: Path, number: int) -> None:
    spec = job(
        f"j{number}",
        high=SLOTS,
        batch=8,
        command=(script(folder), "--samples", str(SAMPLES)),
        workdir=str(folder),
        work={"samples": SAMPLES},
    )
    submit(dirs.path, [spec], "soak", folder=folder, now_s=time.time())


@contextmanager
def following(folder: Path) -> Iterator[tuple[psutil.Process, StateDir]]:
    """A live loop, without torchrun."""
    dirs = StateDir(folder / "state")
    write_cluster(cluster(SLOTS, slots="cpu"), folder / "cluster.json")
    words = ("run", "--follow", "--state", str(dirs.path), "--policy", "fair-share")
    command = [sys.executable, "-m", "tests.tools.run.runner_process", *words]
    loop = subprocess.Popen(
        [*command, "--cluster", str(folder / "cluster.json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(dirs.cluster.exists)
        yield psutil.Process(loop.pid), dirs
    finally:
        for job_process in psutil.Process(loop.pid).children(recursive=True):
            job_process.kill()
        loop.terminate()
        loop.wait(PATIENCE_S)
