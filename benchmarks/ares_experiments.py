"""Ares and all other policies on the workloads of its paper, as docs/experiments/ares.md has them.

The replays are those of ``make experiment NAME=ares``, in the same folder: what that has done is not done
again as long as inputs and code are the same, and the other way round. Times are of this
machine: CPU seconds of each replay's engine, and means of all its decisions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure, need_data
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.facts import FIXED_BATCH, POLICIES, cpu_seconds, gain_over, mean_of
from experiments.ares.traces import FAMILIES
from experiments.harness.main import BUILD
from experiments.harness.replays import carry_out
from experiments.harness.spec import Replays

MEASURES: Final = ("tools/schedule", "tools/replay", "experiments/ares")

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


def figures(families: Sequence[str] = tuple(FAMILIES), *, smoke: bool = False) -> list[Figure]:
    """All figures; ``smoke``: of traces of a few jobs."""
    need_data("sia", "pollux")
    replays = _replayed(families, smoke=smoke)
    found = [each for family in families for each in _of_family(replays, family)]
    cpu_s = sum(cpu_seconds(replays, family) for family in families)
    return [
        *found,
        Figure("all_policies_cpu_s", cpu_s, "s of one core"),
        Figure("all_policies_wall_s", cpu_s / _CORES, "s (CPU of all replays over two cores)", WALL_S),
    ]


def smallest() -> list[Figure]:
    """One family, of traces of a few jobs."""
    return figures(tuple(FAMILIES)[:1], smoke=True)


def _of_family(replays: Replays, family: str) -> Iterator[Figure]:
    for policy in POLICIES:
        prefix = f"{family}_{policy.replace('-', '_')}"
        for name, (field, unit) in _FIELDS.items():
            yield Figure(f"{prefix}_{name}", mean_of(replays, family, policy, field), unit)
    gains = {name: gain_over(replays, family, name) for name in POLICIES}
    known = [gain for name in FIXED_BATCH if (gain := gains[name]) is not None]
    yield Figure(f"{family}_ares_gain_over_best_fixed_batch", min(known, default=None), "ratio")
    for other in ("pollux", "fair-share"):
        yield Figure(f"{family}_ares_gain_over_{other.replace('-', '_')}", gains[other], "ratio")


def _replayed(families: Sequence[str], *, smoke: bool) -> Replays:
    """Figures by name of the replay; a smoke run has a folder of its own."""
    sweeps = [f"{family}-{every}.json" for family in families for every in (60, 360)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out" if smoke else BUILD / EXPERIMENT.name
        workers = 1 if smoke else len(os.sched_getaffinity(0))
        outcomes = carry_out(EXPERIMENT, folder, sweeps=sweeps, smoke=smoke, workers=workers)
    return {name: each.metrics for name, each in outcomes.items()}
