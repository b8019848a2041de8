"""Ares and all other policies on the workloads of its paper, as docs/experiments/ares.md has them.

The workloads are in ``$PLIANT_DATA/sia``; without them, figures are null. The decision times are means over
all decisions of a replay, on this machine.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import Figure
from experiments.ares.experiment import EXPERIMENT, FIXED_BATCH, POLICIES, gain_over, mean_of
from experiments.ares.workloads import DATA, FAMILIES
from experiments.harness.replays import carry_out
from experiments.harness.spec import Replays

WALL_S: Final = 1800.0
"""All policies on all workloads, on two cores."""
_FIELDS: Final = {
    "avg_jct_s": ("mean_jct_s", "s"),
    "p99_jct_s": ("p99_jct_s", "s"),
    "unfair_fraction": ("unfair_fraction", "ratio"),
    "worst_ftf": ("worst_ftf", "ratio"),
    "preemptions_per_job": ("preemptions_per_job", "1/job"),
    "resizes_per_job": ("rescales_per_job", "1/job"),
}


def figures(*, smoke: bool = False) -> list[Figure]:
    """All figures; ``smoke``: of traces of a few jobs."""
    replays, wall_s = _replayed(smoke=smoke) if (DATA / "sia").is_dir() else (None, None)
    found = [each for family in FAMILIES for each in _of_family(replays, family)]
    return [*found, Figure("all_policies_wall_s", wall_s, "s", WALL_S)]


def _of_family(replays: Replays | None, family: str) -> Iterator[Figure]:
    for policy in POLICIES:
        prefix = f"{family}_{policy.replace('-', '_')}"
        for name, (field, unit) in _FIELDS.items():
            value = None if replays is None else mean_of(replays, family, policy, field)
            yield Figure(f"{prefix}_{name}", value, unit)
        decision_ms = None if replays is None else mean_of(replays, family, policy, "decision_ms")
        yield Figure(f"{prefix}_decision_ms", decision_ms, "ms")
    gains = {name: None if replays is None else gain_over(replays, family, name) for name in POLICIES}
    known = [gain for name in FIXED_BATCH if (gain := gains[name]) is not None]
    yield Figure(f"{family}_ares_gain_over_best_fixed_batch", min(known, default=None), "ratio")
    for other in ("pollux", "fair-share"):
        yield Figure(f"{family}_ares_gain_over_{other.replace('-', '_')}", gains[other], "ratio")


def _replayed(*, smoke: bool) -> tuple[Replays, float]:
    """Figures by name of the replay, and the seconds that all of them took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        started = time.perf_counter()
        outcomes = carry_out(EXPERIMENT, folder, smoke=smoke, workers=len(os.sched_getaffinity(0)))
        wall_s = time.perf_counter() - started
        summaries = {
            path.name.removesuffix(".summary.json"): _decision_ms(path) for path in _summaries(folder)
        }
        found: dict[str, Mapping[str, Any]] = {
            key: {**each.metrics, "decision_ms": summaries[key]} for key, each in outcomes.items()
        }
    return found, wall_s


def _summaries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.summary.json"))


def _decision_ms(path: Path) -> float:
    return 1000 * float(json.loads(path.read_bytes())["mean_decision_seconds"])
