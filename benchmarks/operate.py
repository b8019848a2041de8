"""Operating a cluster: Slurm, faults, thousands of jobs, long service, dead nodes.

``python -m benchmarks.operate PART…`` measures some of the parts alone and renews their rows of
results/operate.json; ``--minutes`` is the length of the soak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks import dead_node
from benchmarks.parts import fault_sequences, first_step, parted, reconcile, slurm_day, soak
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/run",)

NAME: Final = "operate"
PARTS: Final[dict[str, Part]] = {
    "first-step": first_step.figures,
    "reconcile": reconcile.figures,
    "faults": fault_sequences.figures,
    "dead-node": dead_node.figures,
    "slurm": slurm_day.figures,
    "soak": soak.figures,
}
"""About 1, 2, 2, 1, 12 and 30 minutes on two cores."""


def smallest() -> list[Figure]:
    """Two of the parts; the others are benchmarks, last long, or have a test that needs Slurm."""
    return [*reconcile.figures(nodes=5, jobs=20, turns=1), *fault_sequences.figures(2)]


def main(arguments: Sequence[str]) -> int:
    """Measure parts by name."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="+", choices=PARTS)
    options.add_argument("--minutes", type=float, default=soak.MINUTES)
    wanted = options.parse_args(arguments)
    parts = {**PARTS, "soak": partial(soak.figures, wanted.minutes)}
    parted.renew(NAME, {name: parts[name] for name in wanted.parts})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
