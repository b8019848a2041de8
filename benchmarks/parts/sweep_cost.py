"""What a sweep costs beside the replays that it is made of, and what each of its workers holds.

``sweep_overhead``: CPU time of ``pliant replay --recipe`` with :data:`TASKS` replays of :data:`SMALL` jobs
under fifo on :data:`WORKERS` workers, over that of as many engines (``engine`` of
:mod:`benchmarks.replay_speed`) and one start, which is a replay of one job. What is above 1 are the files of
each replay, its share of reading and the processes. Each is the least of several that take turns.

The memory is that of a sweep whose trace has :data:`LARGE` jobs, looked at every :data:`LOOK_S`:
``sweep_worker_mb`` is what each further worker adds to the most that all processes hold together, in
proportional sizes (PSS), which count what they share once. ``sweep_table_mb`` is what the trace adds to the
process that reads it for all, over a trace of :data:`SMALL` jobs.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.used_cpu import PLIANT, cpu_s
from benchmarks.replay_speed import in_a_process, write_load

TASKS: Final = 50
WORKERS: Final = 2
MORE_WORKERS: Final = 4
SMALL: Final = 1_000
LARGE: Final = 100_000
SMALL_GPUS: Final = 64
LARGE_GPUS: Final = 2_048
VISITS: Final = 5
LOOK_S: Final = 0.25
_MIB: Final = 1 << 20


class Held(NamedTuple):
    """MB of a sweep: the most PSS of all its processes together, and the RSS of its first process then."""

    all_mb: float = 0.0
    first_mb: float = 0.0


def figures(tasks: int = TASKS, small: int = SMALL, large: int = LARGE, visits: int = VISITS) -> list[Figure]:
    """The overhead and the memory."""
    with tempfile.TemporaryDirectory() as name:
        few, many = Path(name) / "few", Path(name) / "many"
        _write(few, small, SMALL_GPUS, tasks)
        _write(many, large, LARGE_GPUS, MORE_WORKERS)
        fewer, more = (held(many, workers) for workers in (WORKERS, MORE_WORKERS))
        table_mb = fewer.first_mb - held(few, WORKERS).first_mb
        return [
            Figure("sweep_overhead", overhead(few, tasks, visits), "ratio"),
            Figure("sweep_worker_mb", round((more.all_mb - fewer.all_mb) / (MORE_WORKERS - WORKERS)), "MB"),
            Figure("sweep_table_mb", round(table_mb), "MB"),
        ]


def overhead(folder: Path, tasks: int, visits: int = VISITS) -> float:
    """CPU time of a sweep over that of its engines and one start."""
    env = as_installed()
    files = (str(folder / "jobs.jsonl"), "--cluster", str(folder / "cluster.json"), "--policy", "fifo")
    start = (*PLIANT, "replay", *files, "--jobs-limit", "1", "-o", str(folder / "one.parquet"))
    wholes, engines, starts = [], [], []
    for _ in range(visits):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            wholes.append(cpu_s(*_sweep(folder, WORKERS, out), env=env))
        engines.append(in_a_process("engine", folder, "fifo")["cpu_s"])
        starts.append(cpu_s(*start, env=env))
    return round(min(wholes) / (tasks * min(engines) + min(starts)), 2)


def held(folder: Path, workers: int) -> Held:
    """The memory of a sweep when it holds most."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        process = subprocess.Popen(
            _sweep(folder, workers, out),
            env=as_installed(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        most = Held()
        try:
            while process.poll() is None:
                most = max(most, _held_now(process.pid))
                time.sleep(LOOK_S)
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        raise RuntimeError(f"the sweep in {folder.name} ended with {process.returncode}")
    return most


def _held_now(pid: int) -> Held:
    """Without the processes that are gone."""
    pss, rss = 0, 0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        rss = first.memory_info().rss
        for process in (first, *first.children()):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                pss += process.memory_full_info().pss
    return Held(pss / _MIB, rss / _MIB)


def _sweep(folder: Path, workers: int, out: str) -> tuple[str, ...]:
    return (*PLIANT, "replay", "--recipe", str(folder / "sweep.json"), "--workers", str(workers), "-o", out)


def _write(folder: Path, jobs: int, gpus: int, tasks: int) -> None:
    """Jobs, cluster and the recipe; its replays differ in the seed, of which fifo makes no use."""
    folder.mkdir()
    write_load(folder, jobs, gpus, elastic=False)
    recipe = {
        "traces": [{"name": "trace", "jobs": "jobs.jsonl"}],
        "clusters": [{"name": "cluster", "path": "cluster.json"}],
        "policies": ["fifo"],
        "seeds": [*range(tasks)],
        "start_cost": "0",
        "rescale_cost": "0",
    }
    (folder / "sweep.json").write_text(json.dumps(recipe))
