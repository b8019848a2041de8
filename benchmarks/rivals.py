"""The rest of the field on its home grounds: what others published, and what the same policies do here.

``slurm`` needs Slurm's daemons, and takes some minutes of sleep; the others replay published data, which are
not part of the project.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.parts import elasticflow, parted, shockwave, sia_artifact, slurm_order
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/replay", "tools/schedule/policies", "benchmarks/parts/elasticflow.py")
NAME: Final = "rivals"
PARTS: Final[dict[str, Part]] = {
    "elasticflow": elasticflow.figures,
    "shockwave": shockwave.figures,
    "sia": sia_artifact.figures,
    "slurm": slurm_order.figures,
}


def smallest() -> list[Figure]:
    """One trace or plan of each, small where that can be."""
    sia = partial(sia_artifact.figures, traces=("philly",), jobs_limit=3, active=4, scale=1)
    return parted.measured(
        NAME,
        {
            "elasticflow": lambda: elasticflow.figures(("195job",)),
            "shockwave": partial(shockwave.figures, jobs=4),
            "sia": sia,
            "slurm": partial(slurm_order.figures, plans=1, jobs=3),
        },
    )
