"""Decisions that change with the hour, and deadlines that oasis meets: figures of what was mended.

:func:`decisions_changed_by_translation` replays drawn traces under every policy, at time 0 and hours later.
:func:`oasis_deadlines_met` replays the 195 jobs of ElasticFlow's testbed, which have deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.parts.elasticflow import deadlines_met, trace
from pliant.schemas.cluster import Cluster
from pliant.schemas.event import EVENT_NAMES
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.registry import BUILT_IN

SHIFTS_S: Final = (36_000.0, 1_763_856_000.0)
"""Ten hours, and the time since 1970: multiples of every policy's interval and slot."""
TOLERANCE_S: Final = 1e-4
"""Between the times of two events that are one: a time since 1970 is a multiple of 2e-7 s."""
FEW: Final[Mapping[str, int]] = {"oasis-offline": 3}
"""Jobs of a trace, for policies that are made for some ten."""
COSTS_S: Final = (20.0, 10.0)
"""Of a start and of a change."""
_CURVES: Final = {"steep": {1: 1, 2: 1.9, 4: 3.6, 8: 6.5}, "flat": {1: 1, 2: 1.5, 4: 2.1, 8: 2.5}}
_CLUSTER: Final = {"nodes": ({"name": "n{}", "gpus": 4, "count": 3},)}


class Moment(NamedTuple):
    """One event of a replay."""

    time_s: float
    event: str
    job: str
    gpus: int
    placement: str
    batch: int


def decisions_changed_by_translation(
    traces: int,
    *,
    policies: Sequence[str] = tuple(BUILT_IN),
    shifts_s: Sequence[float] = SHIFTS_S,
    jobs: int = 20,
    first: int = 0,
) -> int:
    """How many pairs of a trace and a policy decide otherwise where all times are later by a shift.

    :param jobs: of each trace.
    :param first: the seed of the first trace.
    """
    changed = 0
    for seed in range(first, first + traces):
        for policy in policies:
            drawn = drawn_jobs(seed, FEW.get(policy, jobs))
            here = story(drawn, policy)
            shift_s = shifts_s[seed % len(shifts_s)]
            moved = [job.model_copy(update={"submit_time": job.submit_time + shift_s}) for job in drawn]
            changed += not are_alike(here, (back(each, shift_s) for each in story(moved, policy)))
    return changed


def oasis_deadlines_met(folder: Path, jobs_limit: int | None = None) -> dict[str, int]:
    """Jobs of ElasticFlow's testbed that end by their deadlines, under oasis and fifo, all at their defaults.

    :param folder: of the published data; its ``elasticflow`` is read.
    :param jobs_limit: only the first of them to arrive.
    """
    found = trace("195job", folder / "elasticflow")
    some = replace(found, jobs=found.jobs[:jobs_limit])
    return {policy: deadlines_met(some, Run(policy)) for policy in ("oasis", "fifo")}


def drawn_jobs(seed: int, count: int) -> list[Job]:
    """Jobs of all kinds, at times that are no round numbers; some state what they are worth."""
    rng = np.random.default_rng([23, seed])
    time_s, found = 0.0, []
    for number in range(count):
        time_s += float(rng.exponential(150.0))
        gpus, kind = int(rng.integers(1, 5)), ("none", "size", "size+batch")[int(rng.integers(3))]
        record: dict[str, Any] = {
            "id": f"j{number:03}",
            "submit_time": time_s,
            "model": ("steep", "flat")[int(rng.integers(2))],
            "gpus": {"requested": gpus} | ({} if kind == "none" else {"min": 1, "max": 8}),
            "batch": {"size": 64} | ({"min": 32, "max": 512} if kind == "size+batch" else {}),
            "elastic": kind,
            "work": {"gpu_seconds": gpus * float(rng.exponential(900.0))},
        }
        if rng.random() < 0.5:
            record["utility"] = {"shape": "sigmoid", "value": 9.0, "decay": 0.001, "target": 3600.0}
        found.append(Job.model_validate(record))
    return found


def story(
    jobs: Sequence[Job],
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    samples_per_second: float = 1.0,
    costs_s: tuple[float, float] = COSTS_S,
    **conditions: Any,
) -> list[Moment]:
    """All that happens to some jobs under a policy, on three nodes of four GPUs.

    :param samples_per_second: of one GPU.
    :param costs_s: of a start and of a change.
    """
    curves = {
        model: {gpus: speed * samples_per_second for gpus, speed in curve.items()}
        for model, curve in _CURVES.items()
    }
    world = replace(inputs(jobs, Cluster.model_validate(_CLUSTER)), throughput=CurveThroughput(curves))
    simulated = SimulatedCluster(*(Cost(cost_s) for cost_s in costs_s))
    run = Run(policy, parameters or {}, conditions=Conditions(**conditions), simulated=simulated)
    log = replay(world, run).log
    names = ("time", "event", "job", "gpus", "placement", "global_batch")
    return [
        Moment(
            time_s,
            EVENT_NAMES[event],
            log.jobs[job] if job >= 0 else "",
            gpus,
            log.places[place] if place >= 0 else "",
            batch,
        )
        for time_s, event, job, gpus, place, batch in zip(*map(log.column, names), strict=True)
    ]


def back(moment: Moment, shift_s: float) -> Moment:
    """The same so much earlier."""
    return moment._replace(time_s=moment.time_s - shift_s)


def are_alike(one: Sequence[Moment], other: Iterator[Moment], same: Callable[[float], float] = float) -> bool:
    """Whether the same happens at the same times, but for rounding."""
    found = list(other)
    if len(one) != len(found):
        return False
    return all(
        abs(first.time_s - same(second.time_s)) <= TOLERANCE_S and first[1:] == second[1:]
        for first, second in zip(one, found, strict=True)
    )
