"""Reports: the page of 10,000 jobs, what reports and the help cost, and what a new user has in hand.

The page holds 10,000 jobs that come by Poisson at 0.85 of 512 GPUs, have users, and are replayed under a
rigid and an elastic policy; it is opened in a headless Chromium that has just started. ``profile`` says how
far disturbed profiles are off; the other parts are described where they are measured, in benchmarks/parts.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.parts import (
    base_install,
    help_start,
    parted,
    profile_disturbed,
    readme_commands,
    report_cost,
    status_width,
)
from benchmarks.parts.chromium import Tab, browser
from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.parted import Part
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster, write_jobs
from pliant.tools.replay.batch import Task, replay_all
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.run import Run
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import Lognormal, Recipe
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.report import read_report

MEASURES: Final = ("tools/report", "tools/profile", "tools/run/watch", "cli", "schemas")
NAME: Final = "report"
JOBS: Final = 10_000
POLICIES: Final = ("fifo", "fair-share")
"""The second changes the GPUs of running jobs most often: 140,000 times."""
SEED: Final = 20250117
VISITS: Final = 5
_GPUS: Final = 512
_USERS: Final = 97
_MEGABYTE: Final = 1_000_000
_PER_GPU_HOUR: Final = 0.3125
_MEDIAN_S: Final = 3600 * 0.85 / _PER_GPU_HOUR / 3.0802
"""Of the GPU time; the mean of a lognormal with sigma 1.5 is 3.0802 times its median."""


def html(jobs: int = JOBS, gpus: int = _GPUS, visits: int = VISITS) -> list[Figure]:
    """Size of the page, and the median time until its filter, its table and its chart can be used."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = folder / "report.html"
        text = render(read_report(replayed(folder, jobs, gpus), baseline=POLICIES[0]), "html", Extras())
        page.write_text(text)
        return [
            Figure("html_10k_jobs_mb", round(page.stat().st_size / _MEGABYTE, 2), "MB", 5),
            Figure("html_10k_jobs_interactive_s", _interactive_s(page, visits), "s", 3),
        ]


def replayed(folder: Path, jobs: int, gpus: int) -> Sequence[Path]:
    """Event files of the same jobs under each policy."""
    recipe = Recipe(
        jobs=jobs,
        rate_per_hour=_PER_GPU_HOUR * gpus,
        gpu_time=Lognormal(median_s=_MEDIAN_S, sigma=1.5),
        elastic="size",
        seed=SEED,
    )
    made = [
        job.model_copy(update={"user": f"user-{at % _USERS:02}"}) for at, job in enumerate(synthesize(recipe))
    ]
    write_jobs(made, folder / "jobs.jsonl")
    nodes = ({"name": "n{}", "gpus": 8, "count": gpus // 8},)
    write_cluster(Cluster.model_validate({"nodes": nodes}), folder / "cluster.json")
    sources = Sources(str(folder / "jobs.jsonl"), str(folder / "cluster.json"), None)
    paths = [folder / f"{policy}.parquet" for policy in POLICIES]
    tasks = [Task(Run(policy), str(path)) for policy, path in zip(POLICIES, paths, strict=True)]
    replay_all(sources, tasks)
    return paths


def _interactive_s(page: Path, visits: int) -> float | None:
    """From the start of the navigation. Returns None where there is no Chromium."""
    found: list[float] = []
    for _ in range(visits):
        try:
            with browser() as opened:
                found.append(Tab(opened, 1280).open(page).value("+document.documentElement.dataset.readyMs"))
        except NotMeasurableError:
            return None
    return round(float(statistics.median(found)) / 1000, 2)


PARTS: Final[dict[str, Part]] = {
    "html": html,
    "cost": report_cost.figures,
    "profile": profile_disturbed.figures,
    "status": status_width.figures,
    "install": base_install.figures,
    "readme": readme_commands.figures,
    "help": help_start.figures,
}


def smallest() -> list[Figure]:
    """All but the profile and the README, which have tests of their own that run them small."""
    small: dict[str, Part] = {
        "html": partial(html, jobs=30, gpus=16, visits=1),
        "cost": partial(report_cost.figures, jobs=30, large=40, visits=1),
        "status": partial(status_width.figures, states=2),
        "install": base_install.figures,
        "help": partial(help_start.figures, visits=1),
    }
    return parted.measured(NAME, small)
