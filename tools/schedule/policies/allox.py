"""AlloX: which job on which GPU type, by a matching of least total completion time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    decision_from_grants,
    explain_gang,
    reject_impossible,
    samples_to_go,
)
from pliant.tools.schedule.policies.gavel import Gavel, TimeFractions, capacity_of, speeds_of
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

_ROUND_S = 360.0
Matching = Literal["work", "arrival"]


class _Match(NamedTuple):
    """The GPU type for one job, and its turn there: the least work first."""

    gpu_seconds: float
    turn: tuple[float, str]
    job: JobState
    gpu_type: str | None
    """None if it was left out of the matching and takes what remains on any type."""


class Allox(Policy):
    """Least total completion time on GPU types that differ, by a matching of jobs to places in queues.

    AlloX (EuroSys '20), section 4.1. A job that runs k-th from the end of a machine's queue costs k
    times its processing time there. The matching of jobs to (machine, place from the end) of least total
    cost gives each job its GPU type. On each type those with least work to go run; a job may wait beside
    idle GPUs of a type on which it would end later. Every 360 s all jobs are matched again. On one GPU
    type it is shortest remaining service first.

    Departures from the paper: a machine is a GPU, and a job of several GPUs counts with its GPU-time. A
    job of unknown work is expected to be half done. All users are one.

    most: jobs that are matched, those with least work first. The others take what remains.
    preempt: whether a running job may lose its GPUs to one with less work. If not, it keeps them to its
    end, as in the paper.
    matching: "work", as above. "arrival", as Shockwave's artifact runs AlloX in Gavel's rounds: every
    job is matched to one GPU, in order of arrival and until it ends; matched jobs share all GPUs in
    rounds, where a job of n GPUs trains in one of n.
    round_s: as for ``gavel``, with "arrival".
    renew_s: likewise.
    """

    name: ClassVar[str] = "allox"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means="",
        default_interval_s=_ROUND_S,
    )

    def __init__(
        self,
        most: int = 512,
        preempt: bool = True,
        matching: Matching = "work",
        round_s: float = _ROUND_S,
        renew_s: float = 0.0,
    ) -> None:
        if most < 1:
            raise ValueError("parameter most: expected 1 or more")
        self._by_arrival = _ByArrival(round_s, renew_s)
        self.most = most
        self.preempt = preempt
        self.matching: Matching = matching
        self.round_s = round_s
        self.renew_s = renew_s

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self.matching == "arrival":
            return self._by_arrival.decide(snapshot, rng)
        rejected = reject_impossible(snapshot)
        matches = self._matches(snapshot, rejected)
        if not self.preempt:
            matches = _running_first(matches)
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for match in matches:
            gpus = match.job.requested
            grant: Grant | None
            if match.gpu_type is None:
                grant = budget.fit(match.job, gpus, snapshot.speeds)
            else:
                grant = Grant(gpus, match.gpu_type) if budget.left[match.gpu_type] >= gpus else None
            if grant is not None:
                budget.take(grant)
                grants[match.job.id] = grant
        decision = decision_from_grants(snapshot, grants, rejected)
        if len(grants) == len(matches) and len(budget.left) == 1:
            decision.quiet_until_s = math.inf
        return decision

    def dump_state(self) -> Any:
        return self._by_arrival.dump_state()

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._by_arrival.load_state(state, jobs)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        if self.matching == "arrival":
            return self._by_arrival.explain(snapshot)
        reasons = {}
        turns: dict[str | None, int] = {}
        for match in self._matches(snapshot, ()):
            turn = turns[match.gpu_type] = turns.get(match.gpu_type, 0) + 1
            where = f"matched to {match.gpu_type}" if match.gpu_type else "beyond those that are matched"
            left = (
                "; no profile says how long it takes"
                if match.job.is_speed_guessed
                else f" with {match.gpu_seconds:.0f} GPU-seconds to go"
            )
            reason = f"{where}, turn {turn}{left}"
            reasons[match.job.id] = explain_gang(match.job, reason)
        return reasons

    def _matches(self, snapshot: Snapshot, without: Collection[str]) -> list[_Match]:
        """Every job that some GPU type can run now, in the order in which they are served."""
        types = snapshot.gpus_by_type()
        costs = [
            (work, job)
            for job in snapshot.jobs.values()
            if job.id not in without
            and min(work := _gpu_seconds(job, types, snapshot), default=math.inf) < math.inf
        ]
        costs.sort(key=lambda cost: (min(cost[0]), *cost[1].arrival))
        first, rest = costs[: self.most], costs[self.most :]
        chosen = match(np.array([work for work, _ in first]), list(types.values())) if first else []
        names = list(types)
        served = sorted(
            _Match(work[kind], job.arrival, job, names[kind])
            for (work, job), kind in zip(first, chosen, strict=True)
        )
        return served + [_Match(min(work), job.arrival, job, None) for work, job in rest]


class _ByArrival(Gavel):
    """Matches are fractions: all of one GPU's time, which is one n-th of the time on n GPUs."""

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> TimeFractions:
        types, free = list(snapshot.speeds.gpu_types), capacity_of(snapshot)
        fractions: dict[str, Sequence[float]] = {}
        if (kept := self._accounts) is not None:
            fractions = {
                job.id: kept.fractions[kept.rows[job.id]].tolist() for job in jobs if job.id in kept.rows
            }
        for parts in fractions.values():
            free[next(index for index, part in enumerate(parts) if part)] -= 1
        for job, kind in zip(jobs, speeds_of(jobs, snapshot), strict=True):
            able = [
                (gain, -index)
                for index, gain in enumerate(kind.gains)
                if gain > 0 and free[index] > 0 and kind.gpus <= snapshot.speeds.gpu_types[types[index]]
            ]
            if job.id not in fractions and able:
                best = -max(able)[1]
                free[best] -= 1
                fractions[job.id] = [float(index == best) / kind.gpus for index in range(len(types))]
        members = [job for job in jobs if job.id in fractions]
        return TimeFractions.of(members, fractions)


def _running_first(matches: Sequence[_Match]) -> list[_Match]:
    """Those that hold GPUs, on the type that they are on, before all others in their order."""
    held = [each._replace(gpu_type=each.job.gpu_type) for each in matches if each.job.gpus]
    return [*held, *(each for each in matches if not each.job.gpus)]


def match(seconds: npt.NDArray[np.float64], machines: Sequence[int]) -> list[int]:
    """The type for each job that makes the sum of completion times least.

    :param seconds: [job, type] processing time, infinite where it cannot run; every job runs on some type.
    :param machines: by type; with none, ``seconds`` are infinite.
    """
    jobs = len(seconds)
    places = [1 + np.arange(jobs) // max(1, count) for count in machines]
    costs = np.hstack([np.outer(seconds[:, kind], place) for kind, place in enumerate(places)])
    _, columns = linear_sum_assignment(costs)
    return [int(column) // jobs for column in columns]


def _gpu_seconds(job: JobState, types: dict[str, int], snapshot: Snapshot) -> list[float]:
    """GPU-seconds to go on each type; infinite where it cannot run."""
    gpus = job.requested
    left = samples_to_go(job, snapshot)
    gpu_seconds = []
    for gpu_type, total in types.items():
        able = gpus <= total and job.fits_now(gpus, gpu_type)
        rate = snapshot.speeds.rate(job, gpus, gpu_type) if able else 0.0
        gpu_seconds.append(gpus * left / rate if rate > 0 else math.inf)
    return gpu_seconds
