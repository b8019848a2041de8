"""A live run on CPU slots held against its own replay: what the experiments have in common."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError, PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.report.expectations import Expectation
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord

SLOTS: Final = max(2, min(4, len(os.sched_getaffinity(0))))
"""CPU slots of a live run on this machine."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of the run and of its replay."""

    name: str
    live: float
    simulated: float
    limit: float

    @property
    def difference(self) -> float:
        """Of the simulated from the live figure, as a part of that."""
        apart = abs(self.simulated - self.live)
        return apart / self.live if self.live else inf if apart else 0.0

    @property
    def holds(self) -> bool:
        """Whether the difference keeps to its limit."""
        return Expectation(high=self.limit).holds(self.difference)

    def row(self) -> dict[str, Any]:
        """What the comparison's file holds."""
        return {**asdict(self), "difference": self.difference, "holds": self.holds}

    def line(self) -> str:
        """As people read it."""
        verdict = "holds" if self.holds else "MISSED"
        return (
            f"{self.name:26} live {self.live:8.3f}  simulated {self.simulated:8.3f}  "
            f"difference {self.difference:6.1%} of at most {self.limit:.0%}: {verdict}"
        )


def prepared(folder: Path, jobs: Iterable[Job], slots: int) -> tuple[str, str, str, str]:
    """Paths of jobs, cluster, profile and state in an emptied folder; jobs and cluster are written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trace, cluster, profile, state = (
        str(folder / name) for name in ("jobs.jsonl", "cluster.json", "profile.parquet", "state")
    )
    write_jobs(jobs, trace)
    node = {"name": "local", "gpus": slots, "gpu_type": "cpu"}
    write_cluster(Cluster.model_validate({"slots": "cpu", "backend": "local", "nodes": (node,)}), cluster)
    return trace, cluster, profile, state


def run_and_replay(
    folder: Path, jobs: Iterable[Job], slots: int, asked: Sequence[str], *, steps: int
) -> tuple[RunRecord, RunRecord]:
    """Profile jobs, run them on CPU slots of this machine, and replay them with what they measured.

    :param folder: is emptied first; everything is left there.
    :param asked: the policy and its parameters, as ``pliant schedule`` takes them.
    :param steps: measured for each point of the profile.
    :raises JobsFailedError: a step failed.
    """
    trace, cluster, profile, state = prepared(folder, jobs, slots)
    world = (trace, "--cluster", cluster, *asked)
    pliant("profile", trace, "--cluster", cluster, "--iterations", str(steps), "-o", profile)
    pliant("schedule", *world, "--profile", profile, "-o", str(folder / "schedule.json"))
    pliant("run", str(folder / "schedule.json"), "--state", state, "--until-done")
    events, replayed = f"{state}/events.jsonl", str(folder / "replay.parquet")
    costs = ("--start-cost", events, "--rescale-cost", events)
    pliant("replay", *world, "--profile", profile, *costs, "-o", replayed)
    return read_run(events), read_run(replayed)


def pliant(*arguments: str) -> None:
    """Carry out a command of pliant, to its end.

    :raises JobsFailedError: it failed.
    """
    print("$ pliant", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pliant.cli", *arguments], stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise JobsFailedError(f"pliant {arguments[0]} ended with exit code {done.returncode}")


def options(about: str | None, record: Path) -> argparse.ArgumentParser:
    """The options of every ``python -m experiments.NAME.live``.

    :param record: file that keeps what the page shows.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--slots", type=int, default=SLOTS)
    name = f"{record.parent.name.replace('_', '-')}-live"
    parser.add_argument("--out", type=Path, default=Path("build/experiments") / name)
    parser.add_argument("--record", action="store_true", help=f"keep it in {record.name}, for the page")
    return parser


def main(
    about: str | None,
    record: Path,
    jobs: int,
    compare: Callable[[Path, int, int], Sequence[Compared]],
    stated: Mapping[str, Any],
) -> int:
    """Compare a run with its replay; exit code 5 where a step failed or a figure is out of its limit.

    :param jobs: number of them, unless the command line says another.
    :param compare: is given a folder, the number of jobs, and that of slots.
    :param stated: what the record says beside them.
    """
    parser = options(about, record)
    parser.add_argument("--jobs", type=int, default=jobs)
    wanted = parser.parse_args()
    try:
        compared = compare(wanted.out, wanted.jobs, wanted.slots)
    except PliantError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.exit_code
    if wanted.record:
        rows = [each.row() for each in compared]
        document = {**stated, "jobs": wanted.jobs, "slots": wanted.slots, "figures": rows}
        atomic_write(record, (json.dumps(document, indent=1) + "\n").encode())
    for each in compared:
        print(each.line())
    return 0 if all(each.holds for each in compared) else JobsFailedError.exit_code
