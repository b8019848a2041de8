"""Ares and all other policies on the workloads of its paper, as docs/experiments/ares.md has them.

The replays are those of ``make experiment NAME=ares``, in the same folder: what that has done is not done
again as long as inputs and code are the same, and the other way round. The workloads are in ``$PLIANT_DATA``;
without them, figures are null. Times are of this machine: CPU seconds of each replay's engine, and means of
all its decisions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.facts import FIXED_BATCH, POLICIES, cpu_seconds, gain_over, mean_of
from experiments.ares.traces import DATA, FAMILIES
from experiments.harness.main import BUILD
from experiments.harness.replays import carry_out
from experiments.harness.spec import Replays

WALL_S: Final = 1800.0
"""All policies on all workloads, on two cores."""
_CORES: Final = 2
_FIELDS: Final = {
    "avg_jct_s": ("mean_jct_s", "s"),
    "p99_jct_s": ("p99_jct_s", "s"),
    "unfair_fraction": ("unfair_fraction", "ratio"),
    "worst_ftf": ("worst_ftf", "ratio"),
    "preemptions_per_job": ("preemptions_per_job", "1/job"),
    "resizes_per_job": ("rescales_per_job", "1/job"),
    "decision_ms": ("decision_ms", "ms"),
}
_SWEEPS: Final = tuple(f"{family}-{every}.json" for family in FAMILIES for every in (60, 360))


def figures(*, smoke: bool = False) -> list[Figure]:
    """All figures; ``smoke``: of traces of a few jobs."""
    replays = _replayed(smoke=smoke) if (DATA / "sia").is_dir() else None
    found = [each for family in FAMILIES for each in _of_family(replays, family)]
    cpu_s = None if replays is None else sum(cpu_seconds(replays, family) for family in FAMILIES)
    wall_s = None if cpu_s is None else cpu_s / _CORES
    return [
        *found,
        Figure("all_policies_cpu_s", cpu_s, "s of one core"),
        Figure("all_policies_wall_s", wall_s, "s (CPU of all replays over two cores)", WALL_S),
    ]


def _of_family(replays: Replays | None, family: str) -> Iterator[Figure]:
    for policy in POLICIES:
        prefix = f"{family}_{policy.replace('-', '_')}"
        for name, (field, unit) in _FIELDS.items():
            value = None if replays is None else mean_of(replays, family, policy, field)
            yield Figure(f"{prefix}_{name}", value, unit)
    gains = {name: None if replays is None else gain_over(replays, family, name) for name in POLICIES}
    known = [gain for name in FIXED_BATCH if (gain := gains[name]) is not None]
    yield Figure(f"{family}_ares_gain_over_best_fixed_batch", min(known, default=None), "ratio")
    for other in ("pollux", "fair-share"):
        yield Figure(f"{family}_ares_gain_over_{other.replace('-', '_')}", gains[other], "ratio")


def _replayed(*, smoke: bool) -> Replays:
    """Figures by name of the replay; a smoke run has a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out" if smoke else BUILD / EXPERIMENT.name
        workers = len(os.sched_getaffinity(0))
        outcomes = carry_out(EXPERIMENT, folder, sweeps=_SWEEPS, smoke=smoke, workers=workers)
    return {name: each.metrics for name, each in outcomes.items()}
