"""CPU time and memory of replays, each in a fresh process that reads its trace and writes its events.

The synthetic load is Poisson at 0.85 of the GPUs on nodes of 8: sizes of 1 to 8 GPUs, lognormal GPU time
with a mean of 2.7 h, 640 jobs an hour on 2048 GPUs. ``cost_per_event_growth`` is the CPU time of the engine
per event with 100,000 jobs over that with 1,000, both on 64 GPUs in steady state;
``easy_backfill_1m_growth`` the same with a million jobs over 1,000 under fifo with EASY backfilling.
``event_us_fifo`` is the CPU time of the engine per event, ``write_us_per_event`` that of making the file of
events in memory. ``calibration_s`` is the CPU time of a fixed loop, the unit in which replays of other
simulators are measured.

The figures of ``w6`` replay the Pollux artifact's workload-6 as its simulator does (``--compat pollux``); its
data are published ones. ``engine``: from inputs in memory to events in memory; ``process``: all.
Each is the least of several processes, in units of the least of as many calibrations around them. Byte code
is cached, as after installing. What that simulator takes was recorded once, in the same units, and is printed
beside.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.parts.installed import as_installed
from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.limits import spared_by_garbage_collection
from pliant.schemas.io import write_cluster, write_jobs
from pliant.tools.replay.batch import Task, replay_all
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import parquet_bytes
from pliant.tools.replay.run import Run, replay

MEASURES: Final = ("tools/replay", "tools/schedule", "schemas")

if TYPE_CHECKING:
    from benchmarks.parts.figure import Figure

SEED: Final = 20250117
PROFILE: Final = "profile.parquet"
CONVERGENCE: Final = "convergence.parquet"
W6_LIMITS: Final = {
    ("tiresias", "engine"): 0.23,
    ("optimus", "engine"): 0.88,
    ("tiresias", "process"): 3.5,
    ("optimus", "process"): 8.8,
    ("pollux", "process"): 25.0,
    ("shadow-price", "engine"): 4.0,
}
"""Units: a fiftieth of the engine, a fifth of the process of what the Pollux simulator takes; of tiresias a
third (1.5 of it loads scipy, for the triangulation between measured placements), of pollux a sixtieth.
"""
PEERS: Final = {"tiresias": 11.6, "optimus": 44.0, "pollux": 1640.0}
"""Units of the Pollux artifact's ``simulator.py --policy NAME workload-6.csv``, whole process; pollux with
its search rewritten for current libraries. It takes no seed."""
FIFO_LIMIT: Final = 250.0
"""Units of a million jobs under fifo, whole process."""
ARES_LIMIT: Final = 45.0
"""Units of 100,000 jobs under ares, whole process."""
PROCESSES: Final = {"tiresias": 7, "optimus": 7, "pollux": 5, "shadow-price": 5}
_ROUNDS: Final = 5
"""Of the large replays: another program on the machine may slow the calibration, or the replay."""
_EASY: Final = "fifo-easy"
"""Stands for fifo with EASY backfilling."""
_JOBS_PER_GPU_HOUR: Final = 640 / 2048
_LOAD: Final = 0.85
_SIGMA: Final = 1.5
_MEDIAN_S: Final = 3600 * _LOAD / _JOBS_PER_GPU_HOUR / 3.0802
"""The mean of a lognormal is exp(sigma^2 / 2) = 3.0802 times its median."""


def figures(
    large: int = 1_000_000,
    medium: int = 100_000,
    small: int = 1_000,
    rows: int | None = None,
    processes: Mapping[str, int] = PROCESSES,
) -> list[Figure]:
    """All figures.

    :param large: jobs of the largest trace, as ``medium`` and ``small`` of the others.
    :param rows: of each file to import; None: as many as the benchmark of the importers has.
    :param processes: by policy that replays workload-6, how many the least is taken of.
    """
    from benchmarks import import_rows
    from benchmarks.parts.figure import Figure, need_data

    need_data("pollux")

    ares, fifo, unit_s = _large(medium, large)
    per_event = [_measured("engine", "ares", jobs, 64)["s_per_event"] for jobs in (small, medium)]
    easy = [_measured("engine", _EASY, jobs, 64)["s_per_event"] for jobs in (small, large)]
    fifo_engine, fifo_written = (_measured(what, "fifo", medium, 2048) for what in ("engine", "write"))
    return [
        Figure("calibration_s", round(unit_s, 3), "s"),
        Figure("ares_100k_jobs_cpu_s", round(ares["cpu_s"], 1), "s", 60),
        Figure("ares_100k_jobs_peak_mb", round(ares["peak_mb"]), "MB", 2048),
        Figure("ares_100k_units", round(ares["cpu_s"] / unit_s, 1), "units", ARES_LIMIT),
        Figure("fifo_1m_jobs_units", round(fifo["cpu_s"] / unit_s, 1), "units", FIFO_LIMIT),
        Figure("peak_mb_fifo_1m", round(fifo["peak_mb"]), "MB", 800),
        Figure("event_us_fifo", round(1e6 * fifo_engine["s_per_event"], 1), "us", 30),
        Figure("write_us_per_event", round(1e6 * fifo_written["s_per_event"], 1), "us", 10),
        Figure("easy_backfill_1m_growth", round(easy[1] / easy[0], 2), "ratio", 2),
        Figure("cost_per_event_growth", round(per_event[1] / per_event[0], 2), "ratio", 3),
        *_workload_6(processes),
        *(import_rows.figures() if rows is None else import_rows.figures(rows, visits=1)),
    ]


def _large(medium: int, large: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Under ares, under fifo, and the unit in CPU seconds: the least of several in turn, and most memory."""
    sizes = {"ares": medium, "fifo": large}
    found: dict[str, list[dict[str, float]]] = {policy: [] for policy in sizes}
    units_s = []
    for _ in range(_ROUNDS):
        for policy, jobs in sizes.items():
            units_s.append(calibration_s())
            found[policy].append(_measured("process", policy, jobs, 2048))
    ares, fifo = (
        {"cpu_s": min(one["cpu_s"] for one in each), "peak_mb": max(one["peak_mb"] for one in each)}
        for each in found.values()
    )
    return ares, fifo, min(units_s)


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(large=60, medium=40, small=20, rows=50, processes={"tiresias": 1})


def _workload_6(processes: Mapping[str, int]) -> list[Figure]:
    """Costs in calibration units."""
    import tempfile

    from benchmarks.parts.figure import Figure
    from experiments.harness.data import data_folder  # it imports the importers, which no replay needs
    from pliant.tools.replay.importers.run import import_trace

    source = data_folder() / "pollux"
    limits = {key: limit for key, limit in W6_LIMITS.items() if key[0] in processes}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_trace("pollux", [str(source)], name, workload=str(source / "workloads" / "workload-6.csv"))
        write_cluster(_cluster(16, 4, "t4"), folder / "cluster.json")
        found = [
            Figure(_w6_name(policy, what), _units(what, folder, policy, processes[policy]), "units", limit)
            for (policy, what), limit in limits.items()
        ]
    for (policy, what), figure in zip(limits, found, strict=True):
        command = f"python -m benchmarks.replay_speed {what} FOLDER {policy}"
        theirs = f"; simulator.py {PEERS[policy]:g}" if policy in PEERS else ""
        print(f"{figure.name} {figure.value:g} ({command}, seed 0){theirs}")
    return found


def _w6_name(policy: str, what: str) -> str:
    return "shadow_price_w6_units" if policy == "shadow-price" else f"{policy}_w6_{what}_units"


def _units(what: str, folder: Path, policy: str, processes: int) -> float:
    """The least of several processes over the least of the calibrations between them."""
    measured = [(in_a_process(what, folder, policy)["cpu_s"], calibration_s()) for _ in range(processes)]
    return round(min(spent_s for spent_s, _ in measured) / min(unit_s for _, unit_s in measured), 3)


def calibration_s() -> float:
    """CPU seconds of the calibration loop, the least of three."""
    return min(_loop_s() for _ in range(3))


def _loop_s() -> float:
    before = time.process_time()
    sum(i * i % 7 for i in range(5_000_000))
    return time.process_time() - before


def _measured(what: str, policy: str, jobs: int, gpus: int) -> dict[str, float]:
    """What a fresh process says that replays a trace of ``jobs`` jobs on ``gpus`` GPUs."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        in_a_process("make", Path(folder), policy, str(jobs), str(gpus))
        return in_a_process(what, Path(folder), policy)


def in_a_process(step: str, folder: Path, policy: str, *size: str) -> dict[str, float]:
    """What one step says in a process of its own, which loads only what a replay needs."""
    import subprocess

    command = [sys.executable, "-m", "benchmarks.replay_speed", step, str(folder), policy, *size]
    environment = as_installed()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout or "{}")
    return found


def write_load(folder: Path, jobs: int, gpus: int, *, elastic: bool) -> None:
    """The synthetic load as ``jobs.jsonl``, and its ``cluster.json``."""
    from pliant.tools.replay.synthetic import synthesize
    from pliant.tools.replay.synthetic_recipe import Lognormal, Recipe

    recipe = Recipe(
        jobs=jobs,
        rate_per_hour=_JOBS_PER_GPU_HOUR * gpus,
        gpu_time=Lognormal(median_s=_MEDIAN_S, sigma=_SIGMA),
        elastic="size" if elastic else "none",
        seed=SEED,
    )
    write_jobs(synthesize(recipe), folder / "jobs.jsonl")
    write_cluster(_cluster(gpus // 8, 8, "gpu"), folder / "cluster.json")


def _cluster(nodes: int, gpus: int, gpu_type: str) -> Cluster:
    node = {"name": "n{}", "gpus": gpus, "count": nodes, "gpu_type": gpu_type}
    return Cluster.model_validate({"nodes": (node,)})


def _process(folder: Path, policy: str) -> dict[str, float]:
    """CPU seconds and peak memory of this process after one replay, from files to files."""
    (summary,) = replay_all(_sources(folder), [Task(_run(folder, policy), str(folder / "out.parquet"))])
    assert summary.finished == summary.jobs
    status = Path("/proc/self/status").read_text().split()
    peak_mb = int(status[status.index("VmHWM:") + 1]) / 1024
    return {"cpu_s": time.process_time(), "peak_mb": peak_mb}


def _engine(folder: Path, policy: str) -> dict[str, float]:
    """CPU seconds of a replay, after a short one that imports what it needs."""
    replay(_sources(folder, jobs_limit=1).read(), _run(folder, policy))
    inputs = _sources(folder).read()
    with spared_by_garbage_collection():  # as in every replay that is written to a file
        before = time.process_time()
        done = replay(inputs, _run(folder, policy))
        spent_s = time.process_time() - before
    return {"cpu_s": spent_s, "s_per_event": spent_s / done.summary.events}


def _write(folder: Path, policy: str) -> dict[str, float]:
    """CPU seconds of making the file of a replay's events, the text of its jobs included."""
    parquet_bytes(replay(_sources(folder, jobs_limit=1).read(), _run(folder, policy)).log)
    done = replay(_sources(folder).read(), _run(folder, policy))
    with spared_by_garbage_collection():
        before = time.process_time()
        parquet_bytes(done.log)
        spent_s = time.process_time() - before
    return {"cpu_s": spent_s, "s_per_event": spent_s / done.summary.events}


def _sources(folder: Path, jobs_limit: int | None = None) -> Sources:
    """The files of a folder; only imported traces come with measurements."""
    measured = [str(path) if path.exists() else None for path in (folder / PROFILE, folder / CONVERGENCE)]
    return Sources(
        str(folder / "jobs.jsonl"), str(folder / "cluster.json"), measured[0], jobs_limit, measured[1]
    )


def _run(folder: Path, policy: str) -> Run:
    """Imported traces are replayed as the simulator of Pollux does; of the others, changes cost nothing."""
    if policy == _EASY:
        backfill = {"backfill": "easy"}
        return Run("fifo", backfill, simulated=SimulatedCluster(start_cost=FREE, rescale_cost=FREE))
    if (folder / CONVERGENCE).exists():
        return Run(policy, conditions=Conditions(compat="pollux"))
    return Run(policy, simulated=SimulatedCluster(start_cost=FREE, rescale_cost=FREE))


def main(step: str, folder: str, policy: str, *size: str) -> None:
    """One step in a process of its own."""
    if step == "make":
        jobs, gpus = map(int, size)
        write_load(Path(folder), jobs, gpus, elastic=policy not in ("fifo", _EASY))
    else:
        measure = {"engine": _engine, "write": _write, "process": _process}[step]
        print(json.dumps(measure(Path(folder), policy)))


if __name__ == "__main__":
    main(*sys.argv[1:])
