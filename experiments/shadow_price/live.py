"""shadow-price on real processes: ``pliant run --follow`` with jobs that come, held against its own replay.

``python -m experiments.shadow_price.live`` profiles the jobs with their costs, starts the service, submits
them, waits until they have ended, and replays them with the profile and with what starts and changes really
cost: once the demo's jobs, once twenty short ones whose sizes and batches may change. Slots whose cores have
other work train slower than they were profiled: it wants a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from experiments.elastic_scaling.live import ROOT, compare, live_jobs
from experiments.harness.live import pliant
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError, PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.io import read_jobs, write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord

POLICY: Final = "shadow-price"
RECORD: Final = Path(__file__).with_name("live.json")
"""The comparison that the page shows."""
SHORTER: Final = 3
"""The twenty jobs are this many times shorter than those of elastic-scaling's comparison."""
_STEPS: Final = "30"
_POLL_S: Final = 1.0
_LONGEST_S: Final = 1800.0
_STOPS_S: Final = 90.0


def workload(name: str, slots: int) -> list[Job]:
    """The jobs of a run: those of the demo, or twenty."""
    if name == "demo":
        return list(read_jobs(ROOT / "examples" / "jobs.jsonl"))
    return list(live_jobs(20, slots, shorter=SHORTER))


def run_live(name: str, jobs: Iterable[Job], folder: Path, slots: int) -> dict[str, Any]:
    """Profile, run, replay and compare; everything is left in ``folder``, which is emptied first.

    :raises JobsFailedError: a command failed, or the jobs did not end.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jobs_file, cluster, profile, state = (
        str(folder / each) for each in ("jobs.jsonl", "cluster.json", "profile.parquet", "state")
    )
    jobs = [_with_workdir(job) for job in jobs]
    write_jobs(jobs, jobs_file)
    node = {"name": "local", "gpus": slots, "gpu_type": "cpu"}
    write_cluster(Cluster.model_validate({"slots": "cpu", "backend": "local", "nodes": (node,)}), cluster)
    pliant("profile", jobs_file, "--cluster", cluster, "--iterations", _STEPS, "--costs", "-o", profile)
    world = ("--policy", POLICY, "--cluster", cluster, "--profile", profile)
    events = Path(state) / "events.jsonl"
    with _service("run", "--follow", "--state", state, *world) as service:
        pliant("submit", jobs_file, "--state", state)
        _until_ended(service, events, len(jobs))
    costs = ("--start-cost", str(events), "--rescale-cost", str(events))
    replayed = str(folder / "replay.parquet")
    pliant("replay", "--jobs", jobs_file, *world, "--interval", "0", *costs, "-o", replayed)
    return compared(name, read_run(events), read_run(replayed), slots)


def compared(name: str, live: RunRecord, simulated: RunRecord, slots: int) -> dict[str, Any]:
    """What the record holds of a run: its figures, and those of its replay."""
    figures = [
        {"name": each.name.removeprefix("live_vs_replay_"), "live": each.live, "simulated": each.simulated}
        for each in compare(live, simulated)
    ]
    for field in ("makespan_s", "rescales_per_job"):
        one, other = (getattr(run_metrics(run), field) for run in (live, simulated))
        figures.append({"name": field, "live": one, "simulated": other})
    return {"run": name, "jobs": len(live.jobs), "slots": slots, "figures": figures}


def _with_workdir(job: Job) -> Job:
    return job if job.workdir else job.model_copy(update={"workdir": str(ROOT)})


@contextmanager
def _service(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The service, ended at the end."""
    print("$ pliant", *arguments, file=sys.stderr, flush=True)
    command = (sys.executable, "-m", "pliant.cli", *arguments)
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield service
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=_STOPS_S)


def _until_ended(service: subprocess.Popen[bytes], events: Path, count: int) -> None:
    """Wait until so many jobs have ended."""
    until_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < until_s:
        if service.poll() is not None:
            raise JobsFailedError(f"the service ended with exit code {service.returncode}")
        if events.exists() and len(read_run(events).with_outcome("finished")) == count:
            return
        time.sleep(_POLL_S)
    raise JobsFailedError(f"not all jobs ended within {_LONGEST_S:g} s")


def main(arguments: Sequence[str]) -> int:
    """Run and compare; exit code 5 where a step failed."""
    parser = argparse.ArgumentParser("python -m experiments.shadow_price.live", description=__doc__)
    parser.add_argument("runs", nargs="*", choices=("demo", "twenty"), default=("demo", "twenty"))
    parser.add_argument("--slots", type=int, default=max(2, min(4, len(os.sched_getaffinity(0)))))
    parser.add_argument("--out", type=Path, default=Path("build/experiments/shadow-price-live"))
    parser.add_argument("--record", action="store_true", help=f"keep it in {RECORD.name}, for the page")
    wanted = parser.parse_args(arguments)
    kept = {row["run"]: row for row in json.loads(RECORD.read_bytes())} if RECORD.exists() else {}
    try:
        for name in wanted.runs:
            kept[name] = run_live(name, workload(name, wanted.slots), wanted.out / name, wanted.slots)
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
