"""``python -m benchmarks.chaos --minutes 10``: jobs come, are cancelled and killed, and none is lost.

Six jobs at a time on four CPU slots of this machine, one in six of them trained by the elastic library. The
end is checked, not measured: the figures say how much the storm has done.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure
from tests.tools.run.chaos import Storm

SEED = 1
MINUTES = 10.0
PAUSE_S = 0.5


def figures(minutes: float = MINUTES, seed: int = SEED) -> list[Figure]:
    """Rage, check, and count; an end that is not right is an error."""
    with tempfile.TemporaryDirectory(prefix="pliant-chaos-") as folder:
        storm = Storm(Path(folder), seed)
        until_s = time.monotonic() + 60 * minutes
        try:
            storm.rage(lambda _blows: time.monotonic() < until_s, PAUSE_S)
            storm.check()
        finally:
            storm.stop()
        phases = list(storm.ended().values())
    counts = [Figure(f"{name}s", float(count), "times") for name, count in sorted(storm.done.items())]
    lost = len(storm.wanted) - phases.count("finished") - phases.count("cancelled")
    return [
        *counts,
        Figure("jobs finished", float(phases.count("finished")), "jobs"),
        Figure("jobs cancelled", float(phases.count("cancelled")), "jobs"),
        Figure("jobs lost or failed", float(lost), "jobs", 0.0),
    ]


def main() -> int:
    """Run it from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=MINUTES)
    options.add_argument("--seed", type=int, default=SEED)
    wanted = options.parse_args()
    for row in figures(wanted.minutes, wanted.seed):
        print(f"{row.name:25s} {row.value:8g} {row.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
