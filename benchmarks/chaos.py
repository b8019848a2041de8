"""Ten minutes in which whatever can break breaks: no job is lost (also ``make chaos``).

Six jobs at a time on four CPU slots of this machine, one in six of them trained by the elastic library. Jobs
are cancelled, killed and wrong in themselves, folders are removed, the log is damaged, launchers stand still
and the disk is full: a small one in memory, where this user may mount one. Calls as from cron take the place
of the live loop and are killed. The end is checked, not measured: the figures say how much it has done.

``python -m benchmarks.chaos --slurm`` rages over the steps of a real Slurm, whose daemons are killed, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from benchmarks.parts.chaos.blows import BLOWS, ON_SLURM
from benchmarks.parts.chaos.storm import Storm
from benchmarks.parts.figure import Figure
from tests.slurm_cluster import SlurmCluster, slurm_cluster

MEASURES: Final = ("tools/run",)

SEED = 1
MINUTES = 10.0
PAUSE_S = 0.5
DISK = "size=256m"
GPUS = (2, 2)
"""Of the nodes of the Slurm."""


def figures(minutes: float = MINUTES, seed: int = SEED, slurm: SlurmCluster | None = None) -> list[Figure]:
    """Rage, check, and count; an end that is not right is an error.

    :param slurm: what to rage over; None: this machine.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-chaos-") as folder, small_disk(folder):
        storm = Storm(Path(folder), seed, slurm=slurm)
        until_s = time.monotonic() + 60 * minutes
        try:
            storm.rage(
                BLOWS if slurm is None else ON_SLURM, lambda _blows: time.monotonic() < until_s, PAUSE_S
            )
            storm.check()
        finally:
            storm.stop()
        phases = list(storm.ended().values())
    counts = [Figure(name, float(count), "times") for name, count in sorted(storm.done.items())]
    lost = len(storm.wanted) - len(phases)
    by_phase = [Figure(f"jobs {name}", float(phases.count(name)), "jobs") for name in sorted(set(phases))]
    return [*counts, *by_phase, Figure("jobs lost", float(max(0, lost)), "jobs", 0.0)]


def smallest() -> list[Figure]:
    """A second of it."""
    return figures(minutes=0.02)


@contextmanager
def small_disk(folder: str) -> Iterator[None]:
    """A file system of its own on the folder, where this user may mount one."""
    mount = ("mount", "-t", "tmpfs", "-o", DISK, "pliant-chaos", folder)
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(("umount", folder), check=True)


def main() -> int:
    """Run it from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=MINUTES)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--slurm", action="store_true", help="on a real Slurm of this host")
    wanted = options.parse_args()
    with slurm_cluster(GPUS) if wanted.slurm else nullcontext() as slurm:
        found = figures(wanted.minutes, wanted.seed, slurm)
    for row in found:
        print(f"{row.name:25s} {row.value:8g} {row.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
