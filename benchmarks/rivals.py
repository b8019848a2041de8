"""The rest of the field on its home grounds: what others published, and what the same policies do here.

``python -m benchmarks.rivals PART…`` measures some of the parts alone and renews their rows of
results/rivals.json. ``slurm`` needs Slurm's daemons, and takes some minutes of sleep; the others replay
published data, which are not part of the project.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from benchmarks.parts import elasticflow, figure, parted, shockwave, sia_artifact, slurm_order
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


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return parted.measured(NAME, PARTS)


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


record = figure.renew
"""Rows of parts that could not be measured stay as they are."""


if __name__ == "__main__":
    sys.exit(parted.main(NAME, PARTS, __doc__, sys.argv[1:]))
