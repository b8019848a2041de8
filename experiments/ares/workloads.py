"""Workloads of Ares's three families, the clusters they run on, and the sweeps over both.

Of each family one sample is published (by Sia, for its own experiments): 160 jobs over 8 hours of Philly and
of Helios (Saturn), 960 jobs over 48 hours of newTrace. Further samples are drawn from it: as many jobs, each
a job of the published sample at the time of another, moved by up to ten minutes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_jobs, read_profile, write_cluster, write_jobs, write_profile
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.replay.importers.run import import_trace

DATA: Final = Path(os.environ.get("PLIANT_DATA", Path(__file__).parents[3] / "shared" / "data"))
FAMILIES: Final = {"philly": "Philly", "saturn": "Helios (Saturn)", "newtrace": "newTrace"}
"""Workloads by folder, and what the paper calls them."""
SAMPLES: Final = 1
"""Of each family; the paper has eight."""
TESTBED: Final = "testbed"
"""40 jobs within 4 hours on 16 GPUs, drawn from Philly."""
GPU_TYPE: Final = "aws"
"""The only GPU type of the data that is measured with up to 64 GPUs: T4 on nodes of 4."""
MINUTE: Final = (
    "ares",
    "ares-goodput",
    "fair-share",
    "fifo",
    "lucid",
    "optimus",
    "pollux",
    "srtf",
    "tiresias",
)
SIX_MINUTES: Final = ("allox", "gavel", "gavel-ftf", "gavel-makespan", "themis")
"""Policies by how often the paper asks them; those that it does not have are asked every minute.

``las`` is not among them: its jobs take turns every minute, half a million times on newTrace.
"""
ALPHAS: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
COSTS: Final = "imagenet=4,cifar10=8,yolov3=4,bert=73,deepspeech2=1"
"""Seconds that a stop and a relaunch cost, section 5.2; a first start costs nothing."""
_JITTER_S: Final = 600.0
_SMOKE_JOBS: Final = 6


def prepare(folder: Path, smoke: bool) -> None:
    """Write profile, convergence, clusters, traces and sweeps into ``folder``.

    :raises BadInputError: the published data are not there.
    """
    for family in FAMILIES:
        jobs = _published(family, folder)
        for sample in range(SAMPLES):
            found = jobs if sample == 0 else drawn(jobs, sample)
            write_jobs(found[:_SMOKE_JOBS] if smoke else found, folder / f"{family}-{sample}.jsonl")
        if family == "philly":
            few = _SMOKE_JOBS if smoke else 40
            write_jobs(drawn(jobs, seed=0, count=few, hours=4.0), folder / f"{TESTBED}-0.jsonl")
    for gpus in (16, 64):
        node = {"name": "n{}", "gpus": 4, "count": gpus // 4, "gpu_type": GPU_TYPE}
        write_cluster(Cluster.model_validate({"nodes": (node,)}), folder / f"cluster-{gpus}.json")
    for name, recipe in sweeps():
        (folder / name).write_text(json.dumps(recipe, indent=1))


def sweeps() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file, recipe) of each sweep."""
    for family in (*FAMILIES, TESTBED):
        yield f"{family}-60.json", _sweep(family, MINUTE, 60.0)
        yield f"{family}-360.json", _sweep(family, SIX_MINUTES, 360.0)
    others = [alpha for alpha in ALPHAS if alpha != 0.75]
    for family in FAMILIES:
        swept = _sweep(family, ("ares",), 60.0) | {"parameters": {"ares": {"alpha": others}}}
        yield f"{family}-alpha.json", swept


def drawn(jobs: Sequence[Job], seed: int, count: int | None = None, hours: float | None = None) -> list[Job]:
    """A trace like the given one.

    :param hours: times are scaled to so many; None: as they are.
    """
    rng = np.random.default_rng(seed)
    number = len(jobs) if count is None else count
    times = np.array([job.submit_time for job in jobs])
    scale = 1.0 if hours is None else 3600.0 * hours / float(times.max())
    at = scale * rng.choice(times, number) + rng.uniform(-_JITTER_S, _JITTER_S, number)
    chosen = rng.integers(len(jobs), size=number)
    return [
        jobs[int(which)].model_copy(update={"id": f"j{index:03}", "submit_time": round(max(0.0, time_s), 3)})
        for index, (which, time_s) in enumerate(zip(chosen, np.sort(at).tolist(), strict=True))
    ]


def _published(family: str, folder: Path) -> list[Job]:
    """The published sample; profile and convergence are written beside it."""
    path = DATA / "sia" / "workloads" / family / "workload-1.csv"
    if not path.is_file():
        raise BadInputError.one(str(path), "is not there; PLIANT_DATA names the folder of published data")
    made = folder / family
    import_trace("sia", [str(DATA / "sia")], str(made), workload=str(path))
    rows = read_profile(made / "profile.parquet").rows
    write_profile(Profile(tuple(row for row in rows if row.gpu_type == GPU_TYPE)), folder / "profile.parquet")
    (made / "convergence.parquet").replace(folder / "convergence.parquet")
    return list(read_jobs(made / "jobs.jsonl"))


def _sweep(family: str, policies: Sequence[str], interval_s: float) -> dict[str, Any]:
    traces = [
        {
            "name": f"{family}-{sample}",
            "jobs": f"{family}-{sample}.jsonl",
            "profile": "profile.parquet",
            "convergence": "convergence.parquet",
        }
        for sample in range(1 if family == TESTBED else SAMPLES)
    ]
    gpus = 16 if family == TESTBED else 64
    return {
        "traces": traces,
        "clusters": [{"name": f"c{gpus}", "path": f"cluster-{gpus}.json"}],
        "policies": list(policies),
        "interval": interval_s,
        "progress": "goodput",
        "rescale_cost": COSTS,
        "start_cost": "0",
    }
