"""Whether a live loop that is never at rest needs more memory or handles as time goes by.

A loop of ``pliant run --follow`` runs for half an hour on four CPU slots, with training scripts that need no
torch. Jobs come and end all the time, so that gangs start, are resized and end.

The first half of the time is its warm-up: modules that are imported late, pools of the allocator, and the
interpreter's table of names, in which names of files come and go: it doubles once, by 2 MiB, after some 150
jobs. (With a warm-up of five minutes a soak grew by 3.3 MiB, 2.2 of them between minutes 10 and 15.) What the
loop needs then, in the median of two minutes, is held against the last two minutes. Flat means: not more than
2 MiB of resident memory, and no handle; a loop keeps 1 KiB of each job that has ended, as text. Besides there
is the slope of the second half in KiB a job, by least squares, of at most 8 KiB, and the curve.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts.figure import Figure
from benchmarks.parts.first_step import PATIENCE_S, until
from pliant.schemas.io import write_cluster
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.snapshot import LogView
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
WARM_UP_S: Final = 900.0
WARM_UP_JOBS: Final = 50
WINDOW_S: Final = 120.0
MEMORY_LIMIT_MIB: Final = 2.0
SLOPE_LIMIT_KIB: Final = 8.0
CURVE_MINUTES: Final = (1, 2, 5, 10, 15, 20, 25, 30)


@dataclass(frozen=True, slots=True)
class Sample:
    """The loop at one moment."""

    time_s: float
    """Since it began."""
    memory_mib: float
    handles: int
    jobs: int
    """That have ended so far."""


def figures(minutes: float = MINUTES) -> list[Figure]:
    """By how much memory and open files have grown, the memory's slope and curve, and how long it took."""
    found = measure(60 * minutes)
    memory, handles = growth(found)
    return [
        Figure("soak_memory_growth_mb", memory, "MiB", MEMORY_LIMIT_MIB),
        Figure("soak_memory_per_job_kib", slope(found), "KiB", SLOPE_LIMIT_KIB),
        Figure("soak_handles_growth", handles, "handles", 0.0),
        Figure("soak_minutes", minutes, "minutes"),
        Figure("soak_jobs", float(found[-1].jobs), "jobs"),
        *(
            Figure(f"soak_memory_after_{minute}_minutes_mb", memory_after(found, 60 * minute), "MiB")
            for minute in CURVE_MINUTES
        ),
    ]


def measure(seconds: float) -> list[Sample]:
    """A soak."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="pliant-soak-") as name:
        folder = Path(name).resolve()
        with following(folder) as (loop, dirs):
            view, next_s, count, began_s = LogView(dirs), 0.0, 0, time.monotonic()
            while (now_s := time.monotonic() - began_s) < seconds:
                if now_s >= next_s:
                    _submit(dirs, folder, count)
                    count, next_s = count + 1, now_s + EVERY_S
                ended = sum(view.refresh().ends.values())
                samples.append(Sample(now_s, loop.memory_info().rss / MIB, loop.num_fds(), ended))
                time.sleep(SAMPLE_S)
    return samples


def growth(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Of memory in MiB and of handles, from the end of the warm-up on; None: it was too short for that."""
    warm = [one for one in samples if one.time_s >= WARM_UP_S and one.jobs >= WARM_UP_JOBS]
    if not warm or warm[-1].time_s - warm[0].time_s < 2 * WINDOW_S:
        return None, None
    first = [one for one in warm if one.time_s < warm[0].time_s + WINDOW_S]
    last = [one for one in warm if one.time_s > warm[-1].time_s - WINDOW_S]
    return _memory(last) - _memory(first), _handles(last) - _handles(first)


def slope(samples: Sequence[Sample]) -> float | None:
    """KiB a job that has ended, by least squares over the second half; None: none has ended there."""
    half = [one for one in samples if 2 * one.time_s >= samples[-1].time_s]
    if half[0].jobs == half[-1].jobs:
        return None
    memory = [one.memory_mib for one in half]
    return 1024 * statistics.linear_regression([one.jobs for one in half], memory).slope


def memory_after(samples: Sequence[Sample], time_s: float) -> float | None:
    """MiB in the minute before; None: there is no such time."""
    minute = [one for one in samples if time_s - 60.0 <= one.time_s < time_s]
    return _memory(minute) if minute and samples[-1].time_s >= time_s - 2 * SAMPLE_S else None


def _memory(samples: Sequence[Sample]) -> float:
    return statistics.median(one.memory_mib for one in samples)


def _handles(samples: Sequence[Sample]) -> float:
    return statistics.median(one.handles for one in samples)


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
            with suppress(psutil.NoSuchProcess):  # it ended since the list was made
                job_process.kill()
        loop.terminate()
        loop.wait(PATIENCE_S)
