"""Clusters, costs and rounds of the comparison, its sweeps, and what the paper leaves open, varied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from experiments.ares.speeds import RTX, T4, speeds_of
from experiments.ares.traces import FAMILIES, Requests, Sources
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import read_profile, write_cluster, write_jobs, write_profile
from pliant.schemas.job import Job

SAMPLES: Final = 8
"""Of each family, as in the paper."""
TESTBED: Final = "testbed"
"""40 jobs within 4 hours on 16 GPUs, drawn from Philly."""
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

``las`` is not among them: its jobs take turns every minute, and of newTrace one in five never gets done.
"""
ALPHAS: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
COSTS: Final = "imagenet=4,cifar10=8,yolov3=4,bert=73,deepspeech2=1"
"""Seconds that a stop and a relaunch cost, section 5.2; a first start costs nothing."""
ROW_POLICIES: Final = ("ares", "fair-share", "optimus", "pollux", "srtf", "themis", "tiresias")
ROW_SAMPLES: Final = {"philly": (1, 2, 3), "newtrace": (1,)}
"""Samples that the rows are replayed on: drawn ones, whose jobs and arrivals all rows share."""
_SMOKE_JOBS: Final = 6
_SMOKE_SAMPLES: Final = 2


@dataclass(frozen=True, slots=True)
class World:
    """What the paper leaves open, or leaves out, as one row has it."""

    name: str
    words: str
    requests: Requests = "sia"
    gpu_type: str = RTX
    costs: str = COSTS
    start_cost: str = "0"
    fixed_batch: bool = False
    interval_s: float | None = None
    """Of all policies; None: each as the paper asks it."""
    learning: bool = False
    """Whether Pollux knows of a job's speed no more than the job has measured; then it and Ares are all."""

    def jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs of a sample as this row has them."""
        update = {"elastic": "size"} if self.fixed_batch else {}
        return [job.model_copy(update=update) for job in jobs]


BASE: Final = World("", "as above")
RECORDS: Final = World("records", "jobs ask for the GPUs of Philly's records", requests="records")
FIXED: Final = World("fixed", "no policy changes a batch", fixed_batch=True)
PAPER: Final = replace(
    RECORDS, name="both", words="both: GPUs of Philly's records, no batch changed", fixed_batch=True
)
WORLDS: Final = (
    RECORDS,
    FIXED,
    PAPER,
    World("powers", "requests rounded down to powers of two", requests="powers"),
    World("t4", "T4 instead of RTX 2080 Ti", gpu_type=T4),
    World("free", "stops and relaunches cost nothing", costs="0"),
    World("dear", "30 s for each start, stop and relaunch", costs="30", start_cost="30"),
    World("slow", "all policies are asked every 360 s", interval_s=360.0),
    World("learning", "Pollux learns each job's speed while it runs", learning=True),
    replace(
        RECORDS, name="letter", words="both: GPUs of Philly's records, Pollux learns speeds", learning=True
    ),
)
"""Rows, replayed on :data:`ROW_SAMPLES`; the first on more."""
_ROUNDS: Final = {60.0: MINUTE, 360.0: SIX_MINUTES}
EVERY: Final = tuple(range(SAMPLES))
RECORDED: Final = {"philly": EVERY, "saturn": EVERY, "newtrace": (0, 1)}
"""Samples in which jobs ask for the GPUs of Philly's records."""


def prepare(folder: Path, smoke: bool) -> None:
    """Write profiles, convergence, clusters, traces and sweeps into ``folder``.

    :raises BadInputError: the published data are not there.
    """
    found = Sources(folder)
    most = _SMOKE_SAMPLES if smoke else SAMPLES
    measured = read_profile(found.profile)
    for gpu_type in (RTX, T4):
        write_profile(speeds_of(measured, gpu_type), folder / f"{gpu_type}.parquet")
        for gpus in (16, 64):
            node = {"name": "n{}", "gpus": 4, "count": gpus // 4, "gpu_type": gpu_type}
            write_cluster(Cluster.model_validate({"nodes": (node,)}), folder / f"{gpu_type}-{gpus}.json")
    for world, family, samples in _sets():
        for number in samples[:most]:
            jobs = world.jobs(found.sample(family, number, world.requests))
            wanted = jobs[:_SMOKE_JOBS] if smoke else jobs
            write_jobs(wanted, folder / f"{_trace(world, family, number)}.jsonl")
    count = _SMOKE_JOBS if smoke else 40
    testbed = found.drawn(found.published["philly"], 0, count=count, hours=4.0)
    write_jobs(testbed, folder / f"{TESTBED}-0.jsonl")
    found.convergence.replace(folder / "convergence.parquet")
    for name, recipe in sweeps():
        wanted = recipe | {"traces": recipe["traces"][:most]}
        (folder / name).write_text(json.dumps(wanted, indent=1))


def sweeps() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file, recipe) of each sweep: those of the main tables, of alpha, and of the rows."""
    for name in (*FAMILIES, TESTBED):
        yield from _asked(BASE, name, _ROUNDS, (0,) if name == TESTBED else EVERY)
    others = [alpha for alpha in ALPHAS if alpha != 0.75]
    for world, family, samples in _sets()[: 2 * len(FAMILIES)]:
        recipe = _sweep(world, family, ("ares",), 60.0, samples)
        yield f"{stem(world, family)}-alpha.json", recipe | {"parameters": {"ares": {"alpha": others}}}
    for world, family, samples in _sets()[len(FAMILIES) :]:
        yield from _asked(world, family, _ROUNDS if world == RECORDS else _row(world, family), samples)


def _row(world: World, family: str) -> dict[float, tuple[str, ...]]:
    """Policies of a row by round; on newTrace, the long search of Pollux has the rows about itself alone."""
    if world.learning:
        return {60.0: ("ares", "pollux")}
    wanted = ROW_POLICIES if world.fixed_batch or family != "newtrace" else set(ROW_POLICIES) - {"pollux"}
    return {every: tuple(name for name in names if name in wanted) for every, names in _ROUNDS.items()}


def _sets() -> list[tuple[World, str, Sequence[int]]]:
    """(world, family, samples) of all traces on 64 GPUs, the main ones first."""
    main = [(BASE, family, EVERY) for family in FAMILIES]
    recorded = [(RECORDS, family, samples) for family, samples in RECORDED.items()]
    rows = [(world, family, some) for world in WORLDS[1:] for family, some in ROW_SAMPLES.items()]
    return [*main, *recorded, *rows]


def _asked(
    world: World, family: str, policies: Mapping[float, Sequence[str]], samples: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sweep for each round."""
    for interval_s, names in policies.items():
        recipe = _sweep(world, family, names, world.interval_s or interval_s, samples)
        yield f"{stem(world, family)}-{interval_s:g}.json", recipe


def stem(world: World, family: str) -> str:
    """What the traces of a family are called in one row: ``philly``, ``philly-records``."""
    return "-".join(part for part in (family, world.name) if part)


def _trace(world: World, family: str, number: int) -> str:
    return f"{stem(world, family)}-{number}"


def _sweep(
    world: World, family: str, policies: Sequence[str], interval_s: float, samples: Sequence[int]
) -> dict[str, Any]:
    names = [_trace(world, family, number) for number in samples]
    files = {"profile": f"{world.gpu_type}.parquet", "convergence": "convergence.parquet"}
    gpus = 16 if family == TESTBED else 64
    return {
        "traces": [{"name": name, "jobs": f"{name}.jsonl", **files} for name in names],
        "clusters": [{"name": f"c{gpus}", "path": f"{world.gpu_type}-{gpus}.json"}],
        "policies": list(policies),
        "interval": interval_s,
        "progress": "goodput",
        "rescale_cost": world.costs,
        "start_cost": world.start_cost,
        "parameters": {"pollux": {"knowledge": ["measured"]}} if world.learning else {},
    }


def replay_name(world: World, family: str, number: int, policy: str) -> str:
    """What the replay of a policy on one sample of a row is called."""
    learning = "-knowledgemeasured" if world.learning and policy == "pollux" else ""
    return f"{_trace(world, family, number)}-{policy}{learning}"
