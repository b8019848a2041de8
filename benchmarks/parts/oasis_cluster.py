"""The clusters and jobs of the OASiS experiment as files of pliant have them, for the policy itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from experiments.oasis.worlds import RECIPE, RESOURCES, SLOT_S, UNITS
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import read_recipe
from pliant.tools.schedule.policies.multi_resource.fleet import Floats, Servers

_SLOTS: Final = 64
"""Workers of a node, which its GPUs, CPUs and memory limit further."""


def nodes_of(servers: Servers) -> Cluster:
    """A node for each server."""
    return Cluster.model_validate(
        {"nodes": (*_nodes("w", servers.workers, _SLOTS), *_nodes("p", servers.ps, 0))}
    )


def _nodes(prefix: str, capacities: Floats, slots: int) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(capacities):
        has = {name: float(amount) * UNITS[name] for name, amount in zip(RESOURCES, row, strict=True)}
        yield {
            "name": f"{prefix}{number}",
            "gpus": slots,
            "cpus": has["cpu"],
            "memory": round(has["memory"]),
            "bandwidth": has["bandwidth"],
            "resources": {"disk": has["disk"]} | ({"gpu": has["gpu"]} if slots else {}),
        }


def jobs_of(seed: int, jobs: int, slots: int) -> list[Job]:
    """Those of a world of the experiment."""
    recipe = read_recipe(str(RECIPE), {"jobs": jobs, "hours": slots * SLOT_S / 3600, "seed": seed})
    return list(synthesize(recipe))
