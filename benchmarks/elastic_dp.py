"""Time and exactness of the optimizer of elastic-dp, on random scaling curves.

Times are CPU seconds of this process, the least of several: from curves as arrays to the sizes of all jobs.
The increments of a concave curve are random, largest first. An arbitrary curve is made of random increments
in any order, or of random values; the small instances, with infeasible sizes and quotas of users among them,
are compared with all possible allocations. Tables III and IV of the paper are replayed as the page
docs/experiments/elastic-scaling.md tells. How far a run of real jobs is from its replay is read from what
``python -m experiments.elastic_scaling.live --record`` has recorded, null without a recorded run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from benchmarks.parts.published import published
from experiments.elastic_scaling.live import LIMITS, RECORD
from pliant.tools.schedule.policies.elastic_dp.curves import Floats, Gains
from pliant.tools.schedule.policies.elastic_dp.optimizer import Optimizer

MEASURES: Final = ("tools/schedule/policies/elastic_dp", "tools/replay", "experiments/elastic_scaling")

SEED: Final = 20201124
INSTANCES: Final = 5000
"""Small instances compared with all possible allocations."""
TABLES: Final = ("Table III", "Table IV")
SWEEPS: Final = ("mixed-40.toml", "queue-40.toml", "mixed-400.toml", "queue-400.toml")
"""What the tables are made from: 32 replays."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A few jobs that share GPUs."""

    gpus: int
    quota: int | None
    curves: Sequence[Floats]
    """By job; [GPUs] what each number of GPUs is worth, -inf where infeasible."""
    users: Sequence[str]


def figures(
    instances: int = INSTANCES,
    repeats: int = 7,
    scale: int = 1,
    *,
    tables: bool = True,
    record: Path = RECORD,
) -> list[Figure]:
    """Time by instance, and how many of the small instances were solved wrongly; then the paper's tables.

    :param scale: divides the sizes of the two large instances.
    :param tables: replay tables III and IV of Saxena et al., 2020, which takes minutes.
    :param record: the comparison of a run of real jobs with its replay.
    """
    rng = np.random.default_rng(SEED)
    middle = [rng.uniform(0.1, 10.0, 11) if job % 2 else _jumping(rng, 10) for job in range(151)]
    gpus, jobs = 10_000 // scale, 3000 // scale
    concave = [_concave(rng, 64) for _ in range(jobs)]
    jumping = [_jumping(rng, 64) for _ in range(jobs)]
    wrong = sum(not is_right(_small(rng)) for _ in range(instances))
    return [
        Figure("dp_400_ms", 1000 * _least_s(lambda: solved(middle[:150], 400), 8 * repeats), "ms", 5.0),
        Figure("dp_10000_concave_s", _least_s(lambda: solved(concave, gpus), repeats), "s", 0.5),
        Figure("dp_10000_arbitrary_s", _least_s(lambda: solved(jumping, gpus), min(repeats, 3)), "s", 10.0),
        Figure("dp_add_job_ms", 1000 * _adding_s(middle, 400, 8 * repeats), "ms", 0.2),
        Figure("dp_wrong_of_n", wrong, "instances", 0.0),
        Figure("dp_n", instances, "instances"),
        *_live(record),
        *(published("elastic-scaling", SWEEPS, TABLES) if tables else ()),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(instances=5, repeats=1, scale=100, tables=False)


def _live(record: Path) -> Iterator[Figure]:
    """Relative differences of the replay from the recorded run, section IV-H of the paper."""
    rows = json.loads(record.read_bytes())["figures"] if record.exists() else []
    differences = {row["name"]: row["difference"] for row in rows}
    for name, limit in LIMITS.items():
        full = f"live_vs_replay_{name}"
        yield Figure(full, differences.get(full), "ratio", limit)


def solved(curves: Sequence[Floats], gpus: int) -> Optimizer:
    """An optimizer that has found the sizes of these jobs."""
    found = Optimizer(gpus)
    for curve in curves:
        gains = Gains.of(curve)
        assert gains is not None
        assert found.add(gains)
    found.sizes()
    return found


def is_right(instance: Instance) -> bool:
    """Whether the optimizer finds as much as the best of all allocations, or that there is none."""
    optimizer = Optimizer(instance.gpus, instance.quota)
    for curve, user in zip(instance.curves, instance.users, strict=True):
        gains = Gains.of(curve)
        if gains is None or not optimizer.add(gains, user):
            return _best(instance) == -inf
    sizes = optimizer.sizes()
    return _is_allowed(instance, sizes) and _worth(instance, sizes) == _best(instance)


def _best(instance: Instance) -> float:
    every = product(*(range(1, len(curve)) for curve in instance.curves))
    return max((_worth(instance, sizes) for sizes in every if _is_allowed(instance, sizes)), default=-inf)


def _worth(instance: Instance, sizes: Sequence[int]) -> float:
    return float(sum(curve[size] for curve, size in zip(instance.curves, sizes, strict=True)))


def _is_allowed(instance: Instance, sizes: Sequence[int]) -> bool:
    held = {user: 0 for user in instance.users if user}
    for user, size in zip(instance.users, sizes, strict=True):
        if user:
            held[user] += size
    quota = instance.gpus if instance.quota is None else instance.quota
    return sum(sizes) <= instance.gpus and all(gpus <= quota for gpus in held.values())


def _small(rng: np.random.Generator) -> Instance:
    jobs = int(rng.integers(1, 5))
    return Instance(
        gpus=int(rng.integers(1, 15)),
        quota=int(rng.integers(1, 9)) if rng.random() < 0.5 else None,
        curves=[_any(rng, int(rng.integers(1, 7))) for _ in range(jobs)],
        users=[str(rng.choice(["", "u", "v"])) for _ in range(jobs)],
    )


def _any(rng: np.random.Generator, most: int) -> Floats:
    """A curve in eighths, in which sums are exact: ties are frequent and compared exactly."""
    increments = rng.integers(-2, 8, most) / 8
    kind = rng.integers(3)
    if kind == 0:
        increments = np.sort(increments)[::-1]
    curve = np.concatenate(([0.0], 1 + np.cumsum(increments)))
    if kind == 1:
        curve[rng.random(most + 1) < 0.3] = -inf
    return curve


def _concave(rng: np.random.Generator, most: int) -> Floats:
    return np.concatenate(([0.0], np.cumsum(np.sort(rng.random(most))[::-1])))


def _jumping(rng: np.random.Generator, most: int) -> Floats:
    return np.concatenate(([0.0], np.cumsum(rng.random(most))))


def _least_s(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        started = process_time()
        work()
        taken.append(process_time() - started)
    return min(taken)


def _adding_s(curves: Sequence[Floats], gpus: int, repeats: int) -> float:
    """CPU seconds to add the last job to the others, solved before, and to find all sizes again."""
    taken = []
    for _ in range(repeats):
        optimizer, gains = solved(curves[:-1], gpus), Gains.of(curves[-1])
        assert gains is not None
        started = process_time()
        optimizer.add(gains)
        optimizer.sizes()
        taken.append(process_time() - started)
    return min(taken)
