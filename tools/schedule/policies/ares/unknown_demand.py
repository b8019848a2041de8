"""The pool of Ares for jobs of unknown demand: shared equally, beside the queue.

Ares, section 3.5. Such jobs have no virtual finish time; they are neither prioritised nor delayed by the
others. GPUs are reserved only while such jobs are there, and only as many as they can use. Two rules keep
them and the cluster alive: the pool is never smaller than the minimum of the job that came first, and while
no job of known demand is there, it is the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from pliant.schemas.job import Gpus
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.max_min import equal_shares
from pliant.tools.schedule.policy import Explanation
from pliant.tools.schedule.rates import Speeds

Share = tuple[int, int]
"""(index of the GPU type, GPUs)."""


def reserved_gpus(pool: float, gpus: int) -> int:
    """GPUs reserved out of ``gpus``: a fraction below one is rounded up, from one on it is their number."""
    return min(gpus, int(pool) if pool >= 1 else ceil(round(pool * gpus, 9)))


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Cut ``total`` in proportion to ``weights``, whole, by largest remainder (ties: the first)."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def equal_split(total: int, limits: Sequence[tuple[int, int]], sizes: Sequence[Gpus] = ()) -> list[int]:
    """Share ``total`` GPUs equally among jobs of (minimum, maximum), in order of arrival.

    A job gets nothing where the minima of those before it leave less than its own.

    :param sizes: by job, the sizes that it may have. Default: every number.
    """
    left, admitted = total, []
    for index, (low, _) in enumerate(limits):
        if low <= left:
            admitted.append(index)
            left -= low
    own = [sizes[index] for index in admitted] if sizes else ()
    shares = equal_shares(total, [limits[index] for index in admitted], own)
    share_by_index = dict(zip(admitted, shares, strict=True))
    return [share_by_index.get(index, 0) for index in range(len(limits))]


class UnknownDemand:
    """Jobs of unknown demand and what they get."""

    def __init__(self, pool: float, speeds: Speeds) -> None:
        self.pool = pool
        self.speeds = speeds
        self.gpu_types = tuple(speeds.gpu_types)

    def share(self, jobs: Sequence[JobState], up: Sequence[int], *, alone: bool) -> dict[str, Share]:
        """Shares by id for all ``jobs`` (in order of arrival), with ``up`` GPUs of each type.

        On mixed types each type gives its part of the pool and shares it among the jobs on it; a job stays on
        its type, a new one joins where most is left per job.

        :param alone: no job of known demand is there.
        """
        if not jobs:
            return {}
        parts = list(up) if alone else self._parts(jobs, up)
        teams = self._teams(jobs, parts)
        shares: dict[str, Share] = {job.id: (0, 0) for job in jobs}
        for kind, team in enumerate(teams):
            for job, gpus in zip(team, self._sizes(team, parts[kind], kind), strict=True):
                shares[job.id] = (kind, gpus)
        return shares

    def _parts(self, jobs: Sequence[JobState], up: Sequence[int]) -> list[int]:
        parts = apportion(reserved_gpus(self.pool, sum(up)), up)
        first = next((job for job in jobs if self._kinds(job, up)), None)
        if first and not self._kinds(first, parts):
            kind = max(self._kinds(first, up), key=lambda k: (up[k], -k))
            parts[kind] = self._least(first, up[kind], kind)
        return parts

    def _kinds(self, job: JobState, parts: Sequence[int]) -> list[int]:
        return [kind for kind, part in enumerate(parts) if self._least(job, part, kind) <= part]

    def _teams(self, jobs: Sequence[JobState], parts: Sequence[int]) -> list[list[JobState]]:
        """Jobs that hold GPUs of a type stay there, the others then join."""
        teams: list[list[JobState]] = [[] for _ in parts]
        joining = []
        for job in jobs:
            kinds = self._kinds(job, parts)
            held = self.gpu_types.index(job.gpu_type) if job.gpu_type else None
            if held in kinds:
                teams[held].append(job)
            elif kinds:
                joining.append((job, kinds))
        for job, kinds in joining:
            teams[max(kinds, key=lambda k: (parts[k] / (len(teams[k]) + 1), -k))].append(job)
        return [sorted(team, key=lambda job: job.arrival) for team in teams]

    def _sizes(self, team: Sequence[JobState], part: int, kind: int) -> list[int]:
        limits = [(self._least(job, part, kind), job.max_gpus(part)) for job in team]
        shares = equal_split(part, limits, [job.spec.gpus for job in team])
        return [
            next((k for k in range(share, low - 1, -1) if share and self._runs(job, k, kind)), 0)
            for job, share, (low, _) in zip(team, shares, limits, strict=True)
        ]

    def _least(self, job: JobState, part: int, kind: int) -> int:
        """The smallest size at which the job runs on a part of a type; ``part + 1`` if there is none."""
        return next((k for k in job.sizes(part) if self._runs(job, k, kind)), part + 1)

    def _runs(self, job: JobState, gpus: int, kind: int) -> bool:
        return self.speeds.rate(job, gpus, self.gpu_types[kind]) > 0


def explain_unknown(jobs: Iterable[JobState]) -> dict[str, Explanation]:
    return {
        job.id: Explanation("unknown demand: an equal share of the pool")
        if job.gpus
        else Explanation(
            f"unknown demand: needs {in_gpus(job.min_gpus)}, the pool has too few left",
            job.min_gpus,
        )
        for job in jobs
    }
