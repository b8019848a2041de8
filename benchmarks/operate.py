"""Operating a cluster: Slurm, faults, thousands of jobs, long service, dead nodes, predicted starts.

``python -m benchmarks.operate PART…`` measures some of the parts alone and renews their rows of
results/operate.json; ``--minutes`` is the length of the soak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from benchmarks import dead_node, predicted_start
from benchmarks.parts import fault_sequences, figure, first_step, reconcile, slurm_day, soak
from benchmarks.parts.figure import Figure

NAME: Final = "operate"
Part = Callable[[], Sequence[Figure]]
PARTS: Final[dict[str, Part]] = {
    "first-step": first_step.figures,
    "reconcile": reconcile.figures,
    "faults": fault_sequences.figures,
    "dead-node": dead_node.figures,
    "predicted-start": predicted_start.figures,
    "slurm": slurm_day.figures,
    "soak": soak.figures,
}
"""About 1, 2, 2, 1, 5, 12 and 30 minutes on two cores."""


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return [row for part in PARTS.values() for row in part()]


def main(arguments: Sequence[str]) -> int:
    """Measure parts by name."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="+", choices=PARTS)
    options.add_argument("--minutes", type=float, default=soak.MINUTES)
    wanted = options.parse_args(arguments)
    parts = {**PARTS, "soak": partial(soak.figures, wanted.minutes)}
    for name in wanted.parts:
        rows = parts[name]()
        figure.renew(NAME, rows)
        for row in rows:
            print(f"{row.name:32s} {'-' if row.value is None else f'{row.value:.6g}':>10s} {row.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
