"""shadow-price where jobs state what ending in time is worth: beside elasticflow, and beside oasis.

Deadlines are those of ElasticFlow's testbed (:mod:`elasticflow`), also on half its nodes. Utilities are those
of OASiS's worlds (:mod:`oasis_cluster`), small ones; shadow-price decides once a slot there, as oasis does.
``python -m benchmarks.parts.sp_deadlines`` renews these rows of the benchmark shadow_price alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.parts import figure
from benchmarks.parts.elasticflow import deadlines_met, trace
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.oasis_cluster import jobs_of, nodes_of
from experiments.oasis.worlds import SLOT_S, cluster
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run

OURS: Final = "shadow-price"
GROUNDS: Final = {"testbed": ("195job", None), "half_testbed": ("195job", 8)}
"""Trace, and nodes of eight GPUs; None: as many as the authors had."""
SEEDS: Final = range(10)
JOBS: Final = 20
SLOTS: Final = 40
SERVERS: Final = 12
"""For workers, and as many for parameter servers."""


def figures(
    grounds: Sequence[str] = tuple(GROUNDS), seeds: Sequence[int] = SEEDS, jobs_limit: int | None = None
) -> list[Figure]:
    """Deadlines met over those under elasticflow, and total utility over that under oasis."""
    need_data("elasticflow")
    return [*_deadlines(grounds, jobs_limit), *_utilities(seeds)]


def _deadlines(grounds: Sequence[str], jobs_limit: int | None) -> Iterator[Figure]:
    for name in grounds:
        found = trace(GROUNDS[name][0], nodes=GROUNDS[name][1])
        some = replace(found, jobs=found.jobs[:jobs_limit])
        ours, theirs = (deadlines_met(some, Run(policy)) for policy in (OURS, "elasticflow"))
        whole = name == "testbed"
        over = "sp_deadlines_met_over_elasticflow" + ("" if whole else f"_{name}")
        yield Figure(over, ours / theirs, "ratio", 1.05 if whole else None, at_least=whole)
        yield Figure(f"sp_deadlines_met_{name}", ours, f"of {len(some.jobs)} jobs")


def _utilities(seeds: Sequence[int]) -> Iterator[Figure]:
    """Totals over all worlds."""
    pairs = [(total_utility(made, OURS), total_utility(made, "oasis")) for made in map(world, seeds)]
    ours, theirs = (sum(each) for each in zip(*pairs, strict=True))
    yield Figure("sp_utility_over_oasis", ours / theirs, "ratio", 1.0, at_least=True)
    ahead = sum(mine >= other for mine, other in pairs)
    yield Figure("sp_utility_worlds_not_behind_oasis", ahead, f"of {len(pairs)} worlds")


def world(seed: int) -> Inputs:
    """Jobs of a world of OASiS on a cluster that they fill."""
    servers = cluster(np.random.default_rng([29, seed]), SERVERS, SERVERS)
    return inputs(jobs_of(seed, JOBS, SLOTS), nodes_of(servers))


def total_utility(found: Inputs, policy: str) -> float:
    """Of all jobs that end."""
    once_a_slot = Conditions(interval=SLOT_S) if policy == OURS else Conditions()
    done = replay(found, Run(policy, conditions=once_a_slot))
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name) / "events.parquet")
        write(done.log, done.summary, path)
        return run_metrics(read_run(path)).total_utility or 0.0


if __name__ == "__main__":
    rows = figures()
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.4g}")
