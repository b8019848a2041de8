"""The traces of the paper's section IV as recipes, and the clusters they run on.

The base rate λ is the rate at which one GPU completes jobs, high arrivals are κ·λ, low ones a quarter of that
(section IV-A). Its words for λ, "expected completion rate (i.e., reciprocal of expected completion time)",
are two things for the mixed runs: 2.29 an hour, the reciprocal of the mean length, and 2.57, the mean of the
rates. The axis of figure 9 ends at 5,000 jobs, where the former brings 4,571 and the latter 5,146: all runs
take the former, and "rates" is table III's trace with the latter. Jobs of single categories take half an
hour: 2 an hour.

The paper calls κ "k_max", the most GPUs of a job, which is 10. The mixed runs would have 171 and 114 jobs
then, where the axes of figures 7 and 9 end at 800 and 5,000: they take the cluster's GPUs. The axes of
figures 5 and 6 end at 100 and 80 jobs, where κ = 10 brings 80: single categories take 10, and beside it,
called "full", the cluster's GPUs. A third reading, called "sixteen", takes the axes by their word: the same
20 jobs an hour for every pattern, and a cluster of 16 GPUs, which such arrivals fill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.elastic_scaling.model import (
    CATEGORIES,
    GPUS_PER_NODE,
    MOST_GPUS,
    Category,
    fitted,
    profile_of,
)
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster, write_profile

SMALL, LARGE = 40, 400
"""GPUs of the two clusters."""
FEW: Final = 16
"""GPUs that the arrivals of figures 5 and 6 fill."""
_SINGLE_MINUTES: Final = 30.0
"""Section IV-A: jobs of a single category take half an hour on one GPU."""
_SINGLE_HOURS: Final = 4.0
_BURSTS_MEAN: Final = (1 + 1 / 4) / 2
"""Mean rate of a bursty trace by its high one."""
_SMOKE: Final = 8
"""Smoke runs are this many times shorter, on clusters as much smaller."""
SENSITIVITY: Final[Mapping[str, Mapping[str, Any]]] = {
    "eighth": {"shares": 8},
    "light": {"second_step": 0.5},
    "heavy": {"second_step": 2.0},
    "first": {"balance": 0.0},
    "second": {"balance": 1.0},
}
"""Other assumptions about categories 2 and 3 (arguments of ``model.fitted``), by what traces call them."""


def prepare(folder: Path, smoke: bool) -> None:
    """Write profiles, clusters and trace recipes into ``folder``."""
    parts = _SMOKE if smoke else 1
    write_profile(profile_of(fitted()), folder / "profile.parquet")
    for name, assumptions in SENSITIVITY.items():
        write_profile(profile_of(fitted(**assumptions)), folder / f"profile-{name}.parquet")
    for gpus in (FEW, SMALL, LARGE):
        write_cluster(cluster_of(max(GPUS_PER_NODE, gpus // parts)), folder / f"cluster-{gpus}.json")
    for name, recipe in recipes(parts):
        (folder / f"{name}.json").write_text(json.dumps(recipe, indent=1))


def cluster_of(gpus: int) -> Cluster:
    """Nodes of two P100s."""
    node = {"name": "n{}", "gpus": GPUS_PER_NODE, "gpu_type": "p100", "count": gpus // GPUS_PER_NODE}
    return Cluster.model_validate({"nodes": (node,)})


def recipes(parts: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, recipe) of every trace; ``parts`` times smaller ones for tests."""
    small, large = SMALL // parts, LARGE // parts
    yield from _single_recipes(_SINGLE_HOURS / parts, small)
    mixed = [_model(category, category.minutes) for category in CATEGORIES]
    rate = base_rate_per_hour()
    yield "mixed-40", _recipe(mixed, 12 / parts, small * rate, phase_minutes=120)
    yield "mixed-400", _recipe(mixed, 8 / parts, large * rate, phase_minutes=120)
    yield "mixed-literal", _recipe(mixed, 12 / parts, MOST_GPUS * rate, phase_minutes=120)
    eighth = [_model(job.category, job.category.minutes) for job in fitted(**SENSITIVITY["eighth"]).jobs]
    yield "mixed-eighth", _recipe(eighth, 12 / parts, small * rate, phase_minutes=120)
    yield "mixed-rates", _recipe(mixed, 12 / parts, small * mean_rate_per_hour(), phase_minutes=120)


def _single_recipes(hours: float, gpus: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of single categories, and of the two pairs that the caption of figure 8 names."""
    models = {str(each.number): [_model(each, _SINGLE_MINUTES)] for each in CATEGORIES}
    pairs = {"12": models["1"] + models["2"], "34": models["3"] + models["4"]}
    rate = 60 / _SINGLE_MINUTES
    for prefix, kappa in (("", MOST_GPUS), ("full-", gpus)):
        for numbers, chosen in (models | pairs).items():
            yield f"{prefix}cat{numbers}-high", _recipe(chosen, hours, kappa * rate)
        yield f"{prefix}cat1-low", _recipe(models["1"], hours, kappa * rate / 4)
        yield f"{prefix}cat1-bursty", _recipe(models["1"], hours, kappa * rate, phase_minutes=60)
    high = MOST_GPUS * rate / _BURSTS_MEAN
    yield "sixteen-cat1-bursty", _recipe(models["1"], hours, high, phase_minutes=60)


def base_rate_per_hour() -> float:
    """λ: the reciprocal of the mean length of the jobs of the mixed runs."""
    return 60 * len(CATEGORIES) / sum(category.minutes for category in CATEGORIES)


def mean_rate_per_hour() -> float:
    """The other reading of λ: the mean over the categories of the rate at which one GPU completes jobs."""
    return sum(60 / category.minutes for category in CATEGORIES) / len(CATEGORIES)


def _recipe(
    models: Sequence[dict[str, Any]], hours: float, rate: float, phase_minutes: float | None = None
) -> dict[str, Any]:
    """Poisson arrivals, in bursts (a high and a low rate in turn) where phases have a length."""
    kind = (
        {"kind": "poisson"} if phase_minutes is None else {"kind": "bursty", "phase_minutes": phase_minutes}
    )
    return {**kind, "hours": hours, "rate_per_hour": rate, "gpus": {"1": 1.0}, "models": tuple(models)}


def _model(category: Category, minutes: float) -> dict[str, Any]:
    rigid = category.batch_min == category.batch_max
    return {
        "name": category.model,
        "batch": category.batch_max,
        "batch_min": category.batch_min,
        "batch_max": category.batch_max,
        "per_gpu_max": category.share_max,
        "gpu_seconds": 60 * minutes,
        **({"elastic": "none"} if rigid else {"elastic": "size+batch", "gpus_max": MOST_GPUS}),
    }
