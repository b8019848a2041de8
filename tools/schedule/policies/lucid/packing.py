"""Which running job a waiting one may join: pairs in which both keep most of their speed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.speeds import JobKind, Speeds


class _Kind(NamedTuple):
    """Jobs of one kind do the same to a job beside them."""

    speeds: JobKind
    batch: int
    gpu_type: str
    gpus: int


class Hosts:
    """Running jobs that another job may join, each once: alone on their GPUs, which are on one node.

    Asking for one costs O(kinds of jobs), however many run.
    """

    def __init__(self, snapshot: Snapshot, least_speed: float) -> None:
        """:param least_speed: part of its speed alone that either job keeps at least."""
        self._speeds: Speeds = snapshot.speeds
        self._least = least_speed
        self._free: dict[int, dict[_Kind, deque[JobState]]] = {}
        self._scores: dict[tuple[_Kind, _Kind], float] = {}
        alone = (job for job in snapshot.jobs.values() if job.gpus and job.beside is None)
        for job in sorted(alone, key=lambda job: job.arrival):
            if job.spec.shares_gpus and len(job.placement) == 1:
                kinds = self._free.setdefault(job.gpus, {})
                kinds.setdefault(_kind(job, job.gpu_type or "", job.gpus), deque()).append(job)

    def __bool__(self) -> bool:
        return bool(self._free)

    def join(self, job: JobState) -> JobState | None:
        """The job that it is to share GPUs with, which no other job can join then; None: it may join none.

        It is one of as many GPUs, and of the kind with which both keep most; of equal ones the first.
        """
        kinds = self._free.get(job.spec.gpus.requested)
        if not kinds or not job.spec.shares_gpus:
            return None
        scored = ((self._score(job, hosts[0], kind), hosts[0].arrival, kind) for kind, hosts in kinds.items())
        best = min(((-score, arrival, kind) for score, arrival, kind in scored if score), default=None)
        if best is None:
            return None
        kind = best[-1]
        host = kinds[kind].popleft()
        _drop_empty(kinds, kind)
        if not kinds:
            del self._free[host.gpus]
        return host

    def _score(self, job: JobState, host: JobState, kind: _Kind) -> float:
        """The sharing score: what both keep together, up to 2; 0: they do not share."""
        key = (_kind(job, kind.gpu_type, kind.gpus), kind)
        if key not in self._scores:
            self._scores[key] = sharing_score(job, host, self._speeds, self._least)
        return self._scores[key]


def sharing_score(job: JobState, host: JobState, speeds: Speeds, least_speed: float) -> float:
    """What two jobs keep together of their speeds, on the GPUs of the second; 0: one keeps too little."""
    place: NodeGpus = host.placement
    if speeds.rate(job, host.gpus, host.gpu_type) <= 0:
        return 0.0
    parts = speeds.parts(job, host, host.gpu_type or "", place)
    return sum(parts) if parts is not None and min(parts) >= least_speed else 0.0


def _kind(job: JobState, gpu_type: str, gpus: int) -> _Kind:
    return _Kind(JobKind.of(job), job.global_batch, gpu_type, gpus)


def _drop_empty(kinds: dict[_Kind, deque[JobState]], kind: _Kind) -> None:
    if not kinds[kind]:
        del kinds[kind]
