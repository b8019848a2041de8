"""shadow-price where what it knows is wrong, beside others that know the same: mean JCT over the best other.

The jobs of Pollux's sixth workload and of the Philly sample of Sia on 16 nodes of 4 T4, in goodput. One thing
at a time is wrong, drawn for each job: its speed is off by 0.5 to 2, the same on all sizes or on each size;
the noise scale that it reports by 0.25 to 4; the work that it states by 1 to 100, so that of two jobs either
may seem the longer (no job of a replay trains past what it states); one job in ten trains at a fiftieth of
its speed from half of its work on; a change costs 300 s where policies reckon with 30. Means are over the
jobs that do not stall. ``python -m benchmarks.parts.robust`` renews these rows of the benchmark
shadow_price alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from unittest.mock import patch

import numpy as np

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.pollux_workloads import inputs
from pliant.schemas.job import EpochWork, Job
from pliant.tools.replay import run as replays
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.progress import GoodputProgress, Pieces, Segment, Validation, goodput_pieces
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.jobs import JobState

OURS: Final = "shadow-price"
OTHERS: Final = ("pollux", "ares-goodput", "srtf", "tiresias")
WORKLOADS: Final = ("w6", "philly1")
WITHIN: Final = 1.1
ERRORS: Final = ("nothing", "speed", "speed_by_size", "noise", "work", "stalls", "costs")
_COST_S: Final = 30.0
_STALLED: Final = 0.02
_SEED: Final = 20261127


@dataclass(frozen=True)
class Truth:
    """What is true of one job, over what policies are given."""

    speed: float = 1.0
    by_size: Mapping[int, float] | None = None
    noise: float = 1.0
    """Of the noise scale that it reports, over the true one."""
    work: float = 1.0
    """Of what it states."""
    stalls: bool = False


def truths(trace: Inputs, error: str) -> dict[str, Truth]:
    """By job; the same jobs err by the same factors whatever is wrong."""
    return {job.id: _truth(at, error, trace.cluster.total_gpus) for at, job in enumerate(trace.jobs)}


def _truth(at: int, error: str, gpus: int) -> Truth:
    rng = np.random.default_rng((_SEED, at))
    exponent = float(rng.uniform(-1.0, 1.0))
    match error:
        case "speed":
            return Truth(speed=2.0**exponent)
        case "speed_by_size":
            return Truth(by_size=dict(enumerate(2.0 ** rng.uniform(-1.0, 1.0, size=gpus + 1))))
        case "noise":
            return Truth(noise=4.0**exponent)
        case "work":
            return Truth(work=10.0 ** (exponent - 1.0))
        case "stalls":
            return Truth(stalls=bool(rng.random() < 0.1))
    return Truth()


class TrueProgress(GoodputProgress):
    """Goodput as it really is, of jobs about which policies know something else."""

    def __init__(
        self,
        tables: Mapping[str, Validation],
        constant: Mapping[str, float] | None = None,
        *,
        stepwise: bool = False,
        truth: Mapping[str, Truth],
    ) -> None:
        super().__init__(tables, constant, stepwise=stepwise)
        self._truth = truth

    def all_samples(self, job: JobState) -> float | None:
        return None if job.work_samples is None else job.work_samples * self._truth[job.id].work

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        truth, table, total = (
            self._truth[job.id],
            self._tables[job.spec.convergence or ""],
            self.all_samples(job),
        )
        speed = job.samples_per_second * speed_factor * truth.speed * (truth.by_size or {}).get(job.gpus, 1.0)
        if speed <= 0 or total is None:
            return Segment(0.0)
        key = (job.id, job.global_batch, speed)
        if key not in self._pieces:
            pieces = goodput_pieces(table, job, speed, total)
            self._pieces[key] = _stalling(pieces) if truth.stalls else pieces
        pieces = self._pieces[key]
        if not self._stepwise:
            return pieces.to_the_end(samples_done)
        epoch = pieces.piece_at(samples_done)
        told = table.noise_scale(job.global_batch, epoch) * truth.noise
        return pieces.segment(epoch)._replace(noise_scale=told)


def _stalling(pieces: Pieces) -> Pieces:
    """The same at a crawl from half of the work on."""
    half = pieces.bounds[-1] / 2
    slow = [
        rate * (_STALLED if begins >= half else 1.0)
        for begins, rate in zip(pieces.bounds, pieces.rates, strict=False)
    ]
    return Pieces(pieces.bounds, slow)


def stated(trace: Inputs, error: str) -> Inputs:
    """The jobs as they state their work."""
    truth = truths(trace, error)
    return replace(trace, jobs=tuple(_stating(job, 1.0 / truth[job.id].work) for job in trace.jobs))


def _stating(job: Job, factor: float) -> Job:
    assert isinstance(job.work, EpochWork)
    return job.model_copy(update={"work": job.work.model_copy(update={"epochs": job.work.epochs * factor})})


def jcts_s(trace: Inputs, policy: str, error: str) -> dict[str, float]:
    """By job that does not stall; infinite where it does not end."""
    truth = truths(trace, error)
    charged = Cost(_COST_S * (10.0 if error == "costs" else 1.0))
    world = SimulatedCluster(start_cost=Cost(_COST_S), rescale_cost=charged, resume_cost=charged)
    conditions = Conditions(progress="goodput", interval=60.0)
    with patch.object(replays, "GoodputProgress", partial(TrueProgress, truth=truth)):
        done = replay(stated(trace, error), Run(policy, {}, conditions=conditions, simulated=world))
    ends_s = {event.job: event.time for event in done.log.events() if event.event == "finish"}
    return {
        job.id: ends_s.get(job.id, math.inf) - job.submit_time
        for job in trace.jobs
        if not truth[job.id].stalls
    }


def figures(
    workloads: Sequence[str] = WORKLOADS,
    jobs_limit: int | None = None,
    *,
    errors: Sequence[str] = ERRORS,
    others: Sequence[str] = OTHERS,
) -> list[Figure]:
    """By error the worst of the workloads; healthy jobs of ours that never end."""
    need_data("pollux", "sia")
    found, unfinished = [], 0
    for error in errors:
        each = []
        for name in workloads:
            trace = inputs(name, jobs_limit)
            trace = replace(trace, jobs=tuple(job for job in trace.jobs if job.convergence in trace.tables))
            ours = jcts_s(trace, OURS, error)
            unfinished += sum(map(math.isinf, ours.values()))
            best = min(statistics.fmean(jcts_s(trace, other, error).values()) for other in others)
            each.append(Figure(f"sp_robust_{error}_{name}", statistics.fmean(ours.values()) / best, "ratio"))
        worst = max(one.value or 0.0 for one in each)
        found += [Figure(f"sp_robust_{error}_over_best", worst, "ratio", WITHIN), *each]
    return [*found, Figure("sp_robust_unfinished", unfinished, "jobs", 0)]


if __name__ == "__main__":
    rows = figures()
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.4g}")
