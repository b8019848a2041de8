"""The traces of the comparison: published samples, and samples drawn by the rule of the paper.

Of each family one sample is published, by Sia for its own experiments. The paper draws its own, section 5.1:
each record of a trace becomes a job of the size that its GPU time has, with one of table 2's models of that
size at one of its two batches. Here the arrivals and sizes of a sample are drawn from the published one. How
many GPUs a job asks for, the paper leaves open: see :data:`Requests`.
"""

from __future__ import annotations

import csv
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np

from experiments.harness.data import data_folder
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_jobs
from pliant.schemas.job import Job
from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE, import_trace

DATA: Final = data_folder()
FAMILIES: Final = {"philly": "Philly", "saturn": "Helios (Saturn)", "newtrace": "newTrace"}
"""Workloads by folder, and what the paper calls them."""
TABLE_2: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "S": {"cifar10": (2048, 4096), "ncf": (16384, 32768)},
    "M": {"bert": (192, 384), "deepspeech2": (320, 640)},
    "L": {"yolov3": (256, 512)},
    "XL": {"imagenet": (6400, 12800)},
}
"""Batches by size and model; the names are those of the applications that Sia measured."""
SIZES: Final = {model: size for size, models in TABLE_2.items() for model in models}
Requests = Literal["sia", "records", "powers"]
"""How many GPUs a job asks for: as many as a job of its model in Sia's sample, which Sia's authors tuned for
T4 (6 to 16 for most); as many as a record of its size in the Philly trace (1 for nine of ten); or Sia's,
rounded down to a power of two. NeuMF, which is not in Sia's samples, has 1, as in the workloads of Pollux."""
_MOST_REQUESTED: Final = 16
_JITTER_S: Final = 600.0
_HOURS: Final = {"S": 1.0, "M": 10.0, "L": 100.0, "XL": float("inf")}


class Sources:
    """The published samples, a job of each model, and the sizes of requests in the Philly trace."""

    def __init__(self, folder: Path) -> None:
        """Import into ``folder``.

        :raises BadInputError: the published data are not there.
        """
        files = {family: _sample_file(family) for family in FAMILIES}
        measured = folder / "measured"
        import_trace("sia", [str(DATA / "sia")], str(measured))
        self.profile, self.convergence = measured / PROFILE, measured / CONVERGENCE
        runs = _validation_runs(folder / "runs")
        self.published = {family: _imported(runs, path, folder / family) for family, path in files.items()}
        path = folder / "models.csv"
        kinds = [kind for models in TABLE_2.values() for kind in models.items()]
        rows = [f"{model},0,{model},1,{max(batches)}" for model, batches in kinds]
        path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]) + "\n")
        self.models = {job.model: job for job in _imported(runs, path, folder / "models")}
        self.requests = _recorded_requests()

    def sample(self, family: str, number: int, requests: Requests = "sia") -> list[Job]:
        """Sample 0 of a family is the published one, unless jobs ask for other sizes than there."""
        jobs = self.published[family]
        return jobs if (number, requests) == (0, "sia") else self.drawn(jobs, number, requests)

    def drawn(
        self,
        jobs: Sequence[Job],
        seed: int,
        requests: Requests = "sia",
        *,
        count: int | None = None,
        hours: float | None = None,
    ) -> list[Job]:
        """A sample like the given one: its arrivals, moved by up to ten minutes, and its sizes of jobs.

        :param hours: the length that times are scaled to; None: they stay as they are.
        """
        rng = np.random.default_rng(seed)
        number = len(jobs) if count is None else count
        times = np.array([job.submit_time for job in jobs])
        scale = 1.0 if hours is None else 3600.0 * hours / float(times.max())
        asked = defaultdict[str | None, list[int]](list)
        for job in jobs:
            asked[job.model].append(job.gpus.requested)
        at = scale * rng.choice(times, number) + rng.uniform(-_JITTER_S, _JITTER_S, number)
        return [
            self._job(f"j{index:03}", round(max(0.0, time_s), 3), jobs, asked, requests, rng=rng)
            for index, time_s in enumerate(np.sort(at).tolist())
        ]

    def _job(
        self,
        name: str,
        time_s: float,
        jobs: Sequence[Job],
        asked: Mapping[str | None, Sequence[int]],
        requests: Requests,
        *,
        rng: np.random.Generator,
    ) -> Job:
        size = SIZES[jobs[int(rng.integers(len(jobs)))].model]
        kinds = [(model, batch) for model, batches in TABLE_2[size].items() for batch in batches]
        model, batch = kinds[int(rng.integers(len(kinds)))]
        like = self.models[model]
        assert like.batch.max is not None  # noqa: S101
        return like.model_copy(
            update={
                "id": name,
                "submit_time": time_s,
                "gpus": like.gpus.model_copy(update={"requested": self._gpus(model, asked, requests, rng)}),
                "batch": like.batch.model_copy(update={"size": batch, "max": max(like.batch.max, batch)}),
            }
        )

    def _gpus(
        self,
        model: str,
        asked: Mapping[str | None, Sequence[int]],
        requests: Requests,
        rng: np.random.Generator,
    ) -> int:
        """Whatever the rule, ``rng`` is left alike: the same jobs ask for other sizes."""
        known = asked.get(model) or [1]
        found = int(known[int(rng.integers(len(known)))])
        if requests == "powers":
            return 1 << (found.bit_length() - 1)
        recorded = self.requests[SIZES[model]]
        own = rng.spawn(1)[0]
        return recorded[int(own.integers(len(recorded)))] if requests == "records" else found


def _sample_file(family: str) -> Path:
    path = DATA / "sia" / "workloads" / family / "workload-1.csv"
    if not path.is_file():
        raise BadInputError.one(str(path), "is not there; PLIANT_DATA names the folder of published data")
    return path


def _validation_runs(folder: Path) -> Path:
    """A copy of the validation runs: jobs are made from them alone, and they are read in no time."""
    for path in (DATA / "sia" / "traces").glob("*/validation-*.csv"):
        application = folder / path.parent.name
        application.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, application)
        (application / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n")
    return folder


def _imported(runs: Path, workload: Path, folder: Path) -> list[Job]:
    import_trace("sia", [str(runs)], str(folder), workload=str(workload))
    return list(read_jobs(folder / JOBS))


def _recorded_requests() -> dict[str, list[int]]:
    """GPUs of the records of the Philly trace by size, those of up to 16."""
    found: dict[str, list[int]] = defaultdict(list)
    with (DATA / "pollux" / "traces" / "philly.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            hours, gpus = float(row["gpu_time"]) / 3600.0, int(row["num_gpus"])
            if gpus <= _MOST_REQUESTED:
                found[next(size for size, most in _HOURS.items() if hours < most)].append(gpus)
    return dict(found)
