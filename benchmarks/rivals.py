"""Policies of other systems, held against what their own simulators and papers say.

``python -m benchmarks.rivals PART…`` measures some of the parts alone and renews their rows of
results/rivals.json.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from benchmarks.parts import figure, parted, sia_artifact
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/replay", "tools/schedule/policies")
NAME: Final = "rivals"
PARTS: Final[dict[str, Part]] = {
    "sia": sia_artifact.figures,
}


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return parted.measured(NAME, PARTS)


def smallest() -> list[Figure]:
    """All of them, small."""
    sia = partial(sia_artifact.figures, traces=("philly",), jobs_limit=3, active=4, scale=1)
    return parted.measured(NAME, {"sia": sia})


record = figure.renew
"""Rows of parts that could not be measured stay as they are."""


if __name__ == "__main__":
    sys.exit(parted.main(NAME, PARTS, __doc__, sys.argv[1:]))
