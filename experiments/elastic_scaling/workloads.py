"""The traces of the paper's section IV as recipes, and the clusters they run on.

The base rate λ is the rate at which one GPU completes jobs of all categories; high arrivals are κ·λ, low ones
a quarter of that (section IV-A). The paper calls κ "k_max", the most GPUs of a job, which is 10. The axes of
its figures 7 and 9 end at 800 and 5,000 jobs: κ = 10 would bring 193 and 129, κ = the cluster's GPUs brings
772 and 5,146. So the mixed runs take the cluster's GPUs. The axes of figure 5 end at 100 jobs, where κ = 10
brings 103 and the cluster's GPUs 412: single categories take 10, and beside it, called "full", the cluster's.

Section IV-A calls λ the expected completion rate, "i.e., reciprocal of expected completion time": two things.
The mean rate of the mixed runs' jobs is 2.57 an hour, the reciprocal of their mean length 2.29, which would
bring 686 and 4,571 jobs. All runs take the first, those of single categories too, whose jobs of half an hour
would have 2 by themselves; "mixed-mean" is table III's trace with the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
_SINGLE_MINUTES: Final = 30.0
"""Section IV-A: jobs of a single category take half an hour on one GPU."""
_SINGLE_HOURS: Final = 4.0
_SMOKE: Final = 8
"""Smoke runs are this many times shorter, on clusters as much smaller."""
SENSITIVITY: Final = {"light": (0.5, 0.5), "heavy": (2.0, 0.5), "first": (1.0, 0.0), "second": (1.0, 1.0)}
"""Other assumptions about categories 2 and 3 (arguments of ``model.fitted``), by what traces call them."""


def prepare(folder: Path, smoke: bool) -> None:
    """Write profiles, clusters and trace recipes into ``folder``."""
    parts = _SMOKE if smoke else 1
    write_profile(profile_of(fitted()), folder / "profile.parquet")
    for name, assumptions in SENSITIVITY.items():
        write_profile(profile_of(fitted(*assumptions)), folder / f"profile-{name}.parquet")
    for gpus in (SMALL, LARGE):
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
    for category in CATEGORIES:
        single = [_model(category, _SINGLE_MINUTES)]
        hours = _SINGLE_HOURS / parts
        for prefix, kappa in (("", MOST_GPUS), ("full-", small)):
            high = kappa * base_rate_per_hour()
            yield f"{prefix}cat{category.number}-high", _recipe(single, hours, high)
            if category.number == 1:
                yield f"{prefix}cat1-low", _recipe(single, hours, high / 4)
                yield f"{prefix}cat1-bursty", _recipe(single, hours, high, phase_minutes=60)
    mixed = [_model(category, category.minutes) for category in CATEGORIES]
    rate = base_rate_per_hour()
    yield "mixed-40", _recipe(mixed, 12 / parts, small * rate, phase_minutes=120)
    yield "mixed-400", _recipe(mixed, 8 / parts, large * rate, phase_minutes=120)
    yield "mixed-literal", _recipe(mixed, 12 / parts, MOST_GPUS * rate, phase_minutes=120)
    yield "mixed-mean", _recipe(mixed, 12 / parts, small * rate_of_mean_per_hour(), phase_minutes=120)


def base_rate_per_hour() -> float:
    """λ: the mean over the categories of the rate at which one GPU completes jobs of the mixed runs."""
    return sum(60 / category.minutes for category in CATEGORIES) / len(CATEGORIES)


def rate_of_mean_per_hour() -> float:
    """The other reading of λ: the reciprocal of the mean length of the jobs of the mixed runs."""
    return 60 * len(CATEGORIES) / sum(category.minutes for category in CATEGORIES)


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
