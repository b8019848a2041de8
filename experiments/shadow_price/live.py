"""shadow-price on real processes: ``pliant run --follow`` with jobs that come, held against its own replay.

``python -m experiments.shadow_price.live`` profiles the jobs with their costs, starts the service, submits
them, waits until they have ended, and replays them with the profile and with what starts and changes really
cost: once the demo's jobs, once twenty short ones whose sizes and batches may change. Slots whose cores have
other work train slower than they were profiled: it wants a quiet machine.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments.elastic_scaling.live import ROOT, compare, live_jobs
from experiments.harness.live import options, pliant, prepared
from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.io import read_jobs
from pliant.schemas.job import Job
from pliant.tools.report.comparisons import compare_runs
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord

POLICY: Final = "shadow-price"
RUNS: Final = ("demo", "twenty")
REPLAYED: Final = "replay.parquet"
RECORD: Final = Path(__file__).with_name("live.json")
"""The comparison that the page shows."""
SHORTER: Final = 3
"""The twenty jobs are this many times shorter than those of elastic-scaling's comparison."""
_STEPS: Final = 30
_LONGEST: Final = "30m"
_STOPS_S: Final = 90.0


def workload(name: str, slots: int) -> list[Job]:
    """The jobs of a run: those of the demo, or twenty."""
    if name == "demo":
        return list(read_jobs(ROOT / "examples" / "jobs.jsonl"))
    return list(live_jobs(20, slots, shorter=SHORTER))


def run_live(
    name: str, jobs: Iterable[Job], folder: Path, slots: int, *, steps: int = _STEPS
) -> dict[str, Any]:
    """Profile, run, replay and compare; everything is left in ``folder``, which is emptied first.

    :param steps: measured for each point of the profile.
    :raises JobsFailedError: a command failed, or the jobs did not end.
    """
    jobs = [_with_workdir(job) for job in jobs]
    jobs_file, cluster, profile, state = prepared(folder, jobs, slots)
    pliant("profile", jobs_file, "--cluster", cluster, "--iterations", str(steps), "--costs", "-o", profile)
    world = ("--policy", POLICY, "--cluster", cluster, "--profile", profile)
    events = f"{state}/events.jsonl"
    with _service("run", "--follow", "--state", state, *world):
        pliant("submit", jobs_file, "--state", state)
        pliant("wait", *(job.id for job in jobs), "--state", state, "--timeout", _LONGEST)
    costs = ("--start-cost", events, "--rescale-cost", events)
    pliant(
        *("replay", jobs_file, *world, "--interval", "0", *costs),
        *("-o", str(folder / REPLAYED)),
    )
    return compared(name, folder, slots)


def compared(name: str, folder: Path, slots: int) -> dict[str, Any]:
    """What the record holds of a run in ``folder``: its figures, and those of its replay."""
    return both(name, read_run(folder / "state" / "events.jsonl"), read_run(folder / REPLAYED), slots)


def both(name: str, live: RunRecord, simulated: RunRecord, slots: int) -> dict[str, Any]:
    """The same of two runs; ``speed`` is the median over the jobs of how fast they trained over predicted."""
    figures = [
        {"name": each.name.removeprefix("live_vs_replay_"), "live": each.live, "simulated": each.simulated}
        for each in compare(live, simulated)
    ]
    for field in ("makespan_s", "rescales_per_job"):
        one, other = (getattr(run_metrics(run), field) for run in (live, simulated))
        figures.append({"name": field, "live": one, "simulated": other})
    speeds = [job.speed for job in compare_runs(live, simulated) if job.speed is not None]
    speed = round(median(speeds), 3) if speeds else None
    return {"run": name, "jobs": len(live.jobs), "slots": slots, "speed": speed, "figures": figures}


def _with_workdir(job: Job) -> Job:
    return job if job.workdir else job.model_copy(update={"workdir": str(ROOT)})


@contextmanager
def _service(*arguments: str) -> Iterator[None]:
    """The service, ended at the end."""
    print("$ pliant", *arguments, file=sys.stderr, flush=True)
    command = (sys.executable, "-m", "pliant.cli", *arguments)
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=_STOPS_S)


def main(arguments: Sequence[str]) -> int:
    """Run and compare; exit code 5 where a step failed."""
    parser = options(__doc__, RECORD)
    parser.add_argument("run", nargs="?", choices=RUNS, help="one of both alone")
    parser.add_argument("--again", action="store_true", help="compare once more what an earlier run left")
    wanted = parser.parse_args(arguments)
    kept = {row["run"]: row for row in json.loads(RECORD.read_bytes())} if RECORD.exists() else {}
    try:
        for name in [wanted.run] if wanted.run else RUNS:
            folder = wanted.out / name
            if wanted.again:
                kept[name] = compared(name, folder, wanted.slots)
            else:
                kept[name] = run_live(name, workload(name, wanted.slots), folder, wanted.slots)
    except PliantError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.exit_code
    text = json.dumps([kept[name] for name in sorted(kept)], indent=1) + "\n"
    if wanted.record:
        atomic_write(RECORD, text.encode())
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
