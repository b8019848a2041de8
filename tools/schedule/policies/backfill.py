"""Backfilling: which jobs may pass those before them in a queue.

:class:`WaitingJobs` keeps the start of the head of the queue alone, and reads no job that cannot pass it.
:class:`FreeAhead` plans all jobs, one after the other, so that none delays one before it.

EASY (Lifka, JSSPP 1995) reads every waiting job at every event. Here jobs that fit the same GPUs at the same
speeds form one *kind*; of a kind, only the first job that ends early enough matters. Each kind keeps its jobs
in order of turn, in blocks that know their least work.

Conservative backfilling (Mu'alem and Feitelson, IEEE TPDS 2001) gives every waiting job, in order, the
earliest start that its predecessors leave, and books it.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from pliant.tools.schedule.jobs import JobKind, JobState, Phase
from pliant.tools.schedule.policies.common import GpuBudget, Grant
from pliant.tools.schedule.snapshot import Snapshot

_BLOCK: Final = 64
"""Jobs of a block; one of twice this number is split."""
_Turn = tuple[float, float, str]


class _QueueKind(NamedTuple):
    """What says which GPUs fit a job, how fast it is there, and whether its work may change in line."""

    gpus: int
    speeds: JobKind
    demands: tuple[tuple[str | float, ...], ...]
    """Demands of a worker and of a parameter server: all of a kind have the same room."""
    keeps_work: bool

    @classmethod
    def of(cls, job: JobState) -> _QueueKind:
        resources = job.spec.resources
        demands = *sorted(resources.worker.items()), *sorted(("ps", *each) for each in resources.ps.items())
        return cls(job.requested, JobKind.of(job), demands, _keeps_work(job))


@dataclass(slots=True)
class _Block:
    turns: list[_Turn]
    jobs: list[JobState]
    work: list[float]
    """Least samples to go, by job."""
    least: float = field(init=False)

    def __post_init__(self) -> None:
        self.least = min(self.work)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Block:
        return _Block(self.turns.copy(), copy.deepcopy(self.jobs, memo), self.work.copy())


class WaitingLine:
    """Jobs in order of turn. Adding, removing and finding one cost O(block + jobs / block)."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        # The last turn of each block.
        self._lasts: list[_Turn] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, job: JobState, turn: _Turn, work: float = 0.0) -> None:
        """:param work: the job never has fewer samples to go than this while it is in line."""
        index = min(bisect_left(self._lasts, turn), len(self._blocks) - 1)
        if index < 0:
            self._blocks, self._lasts = [_Block([turn], [job], [work])], [turn]
            return
        block = self._blocks[index]
        place = bisect_left(block.turns, turn)
        block.turns.insert(place, turn)
        block.jobs.insert(place, job)
        block.work.insert(place, work)
        block.least = min(block.least, work)
        self._lasts[index] = block.turns[-1]
        if len(block.turns) >= 2 * _BLOCK:
            halves = [
                _Block(block.turns[part], block.jobs[part], block.work[part])
                for part in (slice(_BLOCK), slice(_BLOCK, None))
            ]
            self._blocks[index : index + 1] = halves
            self._lasts[index : index + 1] = [half.turns[-1] for half in halves]

    def remove(self, turn: _Turn) -> None:
        index = bisect_left(self._lasts, turn)
        block = self._blocks[index]
        place = bisect_left(block.turns, turn)
        del block.turns[place], block.jobs[place]
        work = block.work.pop(place)
        if not block.turns:
            del self._blocks[index], self._lasts[index]
            return
        self._lasts[index] = block.turns[-1]
        if work <= block.least:
            block.least = min(block.work)

    def after(
        self, turn: _Turn | None = None, able: Callable[[float], bool] | None = None
    ) -> Iterator[JobState]:
        """The jobs behind a turn, in order; all of them where it is None.

        :param able: whether a job of this work is wanted; if so, one of less work is, too.
        """
        first = 0 if turn is None else bisect_right(self._lasts, turn)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            if able is not None and not able(block.least):
                continue
            start = bisect_right(block.turns, turn) if turn is not None and index == first else 0
            for place in range(start, len(block.jobs)):
                if able is None or able(block.work[place]):
                    yield block.jobs[place]


@dataclass(slots=True)
class HeadStart:
    """The head starts at ``start_s``, and leaves ``spare`` of its ``gpu_type`` then."""

    start_s: float
    gpu_type: str
    spare: int

    def allows(self, job: JobState, grant: Grant, snapshot: Snapshot) -> bool:
        """Whether the job, started now on ``grant``, leaves the head's start as it is; if so, books it."""
        if grant.gpu_type != self.gpu_type:
            return True
        end_s = _predicted_end_s(job, grant, snapshot)
        if end_s is not None and end_s <= self.start_s:
            return True
        if grant.gpus <= self.spare:
            self.spare -= grant.gpus
            return True
        return False


class WaitingJobs:
    """The jobs that wait, in order of turn and, where some may pass others, by kind."""

    def __init__(self, jobs: Iterable[JobState], snapshot: Snapshot, *, by_kind: bool) -> None:
        """:param by_kind: whether :meth:`passing` will be asked."""
        self.line = WaitingLine()
        self._by_kind = by_kind
        self._kinds: dict[_QueueKind, WaitingLine] = {}
        # Where each job is in line: a priority may change before its job is taken out.
        self._of: dict[str, tuple[_QueueKind | None, _Turn]] = {}
        for job in jobs:
            self.add(job, snapshot)

    def add(self, job: JobState, snapshot: Snapshot) -> None:
        """A job waits; one that is in line already goes to the place that it has now."""
        self.discard(job)
        turn = job.turn
        self.line.add(job, turn)
        kind = _QueueKind.of(job) if self._by_kind else None
        self._of[job.id] = kind, turn
        if kind is not None:
            left = job.remaining_samples(snapshot.time_s) if kind.keeps_work else 0.0
            self._kinds.setdefault(kind, WaitingLine()).add(job, turn, math.inf if left is None else left)

    def discard(self, job: JobState) -> None:
        place = self._of.pop(job.id, None)
        if place is None:
            return
        kind, turn = place
        self.line.remove(turn)
        if kind is not None:
            self._kinds[kind].remove(turn)
            if not self._kinds[kind]:
                del self._kinds[kind]

    def passing(
        self,
        head: JobState,
        snapshot: Snapshot,
        budget: GpuBudget,
        reserve: Callable[[], HeadStart | None] | None,
    ) -> dict[str, Grant]:
        """The jobs that start before ``head``, which does not fit, in order of turn.

        :param budget: what is left; it is taken from.
        :param reserve: the predicted start of the head, asked at most once; no job passes if there is none.
            Without ``reserve`` every job that fits passes.
        """
        most = max(budget.left.values())
        lines = [line for kind, line in self._kinds.items() if kind.gpus <= most]
        if not lines:
            return {}
        reservation = None if reserve is None else reserve()
        if reserve is not None and reservation is None:
            return {}
        search = _Search(snapshot, budget, reservation)
        first_jobs = ((search.first_of(line, head.turn), line) for line in lines)
        nearest = [
            (job.turn, index, job, line) for index, (job, line) in enumerate(first_jobs) if job is not None
        ]
        heapify(nearest)
        passed: dict[str, Grant] = {}
        while nearest and budget.total:
            turn, index, job, line = heappop(nearest)
            grant = search.grant(job)
            if grant is not None:
                passed[job.id] = grant
                budget.take(grant)
            # Less is left than when this job was found; what did not fit then does not fit now.
            following = search.first_of(line, turn)
            if following is not None:
                heappush(nearest, (following.turn, index, following, line))
        for job_id in passed:
            self.discard(snapshot.jobs[job_id])
        return passed


@dataclass(frozen=True, slots=True)
class _Search:
    snapshot: Snapshot
    budget: GpuBudget
    reservation: HeadStart | None

    def grant(self, job: JobState) -> Grant | None:
        """What a job gets now: on the type that suits it best, or where the head does not wait."""
        grant = self.budget.fit(job, job.requested, self.snapshot.speeds)
        kept = self.reservation
        if grant is None or kept is None or kept.allows(job, grant, self.snapshot):
            return grant
        return self._elsewhere(job, kept)

    def first_of(self, line: WaitingLine, turn: _Turn) -> JobState | None:
        """The first job of a kind behind a turn that would get GPUs now."""
        first = self._first(line.after(turn))
        kept = self.reservation
        if first is None or kept is None:
            return first if first is not None and self._fits(first) else None
        grant = self.budget.fit(first, first.requested, self.snapshot.speeds)
        if grant is None:
            return None
        if grant.gpu_type != kept.gpu_type or grant.gpus <= kept.spare or self._elsewhere(first, kept):
            return first
        return self._first_to_end(line, turn, first, grant, kept)

    def _first_to_end(
        self, line: WaitingLine, turn: _Turn, first: JobState, grant: Grant, kept: HeadStart
    ) -> JobState | None:
        now_s = self.snapshot.time_s
        rate = self.snapshot.speeds.rate(first, grant.gpus, grant.gpu_type)

        def ends_in_time(samples: float) -> bool:
            return rate > 0 and now_s + samples / rate <= kept.start_s

        for job in line.after(turn, ends_in_time):
            left = job.remaining_samples(now_s) if waits(job, self.snapshot) else None
            if left is not None and ends_in_time(left):
                return job
        return None

    def _first(self, jobs: Iterable[JobState]) -> JobState | None:
        return next((job for job in jobs if waits(job, self.snapshot)), None)

    def _fits(self, job: JobState) -> bool:
        return self.budget.fit(job, job.requested, self.snapshot.speeds) is not None

    def _elsewhere(self, job: JobState, kept: HeadStart) -> Grant | None:
        others = {kind: left for kind, left in self.budget.left.items() if kind != kept.gpu_type}
        return GpuBudget(others).fit(job, job.requested, self.snapshot.speeds) if others else None


def waits(job: JobState, snapshot: Snapshot) -> bool:
    return not job.gpus and snapshot.jobs.get(job.id) is job


def reserve(
    snapshot: Snapshot,
    head: JobState,
    budget: GpuBudget,
    running: Iterable[JobState],
    starting: Mapping[str, Grant],
) -> HeadStart | None:
    """The earliest predicted start of ``head``, which does not fit now; None if nothing predicts one.

    :param budget: what is left after ``starting``, the jobs that this decision starts.
    """
    gpus = head.requested
    ends: dict[str, list[tuple[float, int]]] = {
        kind: []
        for kind in budget.left
        if snapshot.speeds.gpu_types[kind] >= gpus and snapshot.speeds.rate(head, gpus, kind) > 0
    }
    for job in running:
        end_s = job.finish_time_s()
        if job.gpu_type in ends and end_s is not None:
            ends[job.gpu_type].append((max(end_s, snapshot.time_s), job.gpus))
    for job_id, grant in starting.items():
        end_s = _predicted_end_s(snapshot.jobs[job_id], grant, snapshot)
        if grant.gpu_type in ends and end_s is not None:
            ends[grant.gpu_type].append((end_s, grant.gpus))
    reservations = [_first_fit(gpus, kind, budget.left[kind], each) for kind, each in ends.items()]
    able = [reservation for reservation in reservations if reservation is not None]
    return min(able, key=lambda reservation: (reservation.start_s, reservation.gpu_type), default=None)


def _first_fit(gpus: int, gpu_type: str, free: int, ends: list[tuple[float, int]]) -> HeadStart | None:
    """When enough of ``gpu_type`` is free; GPUs freed at that very moment count as spare."""
    heapify(ends)
    while ends:
        end_s, freed = heappop(ends)
        free += freed
        if free >= gpus and (not ends or ends[0][0] > end_s):
            return HeadStart(end_s, gpu_type, free - gpus)
    return None


def _predicted_end_s(job: JobState, grant: Grant, snapshot: Snapshot) -> float | None:
    """When the job would end if it kept ``grant`` from now on; None if its work is unknown."""
    remaining = job.remaining_samples(snapshot.time_s)
    rate = snapshot.speeds.rate(job, grant.gpus, grant.gpu_type)
    return None if remaining is None or rate <= 0 else snapshot.time_s + remaining / rate


def _keeps_work(job: JobState) -> bool:
    """Whether its remaining work cannot change while it waits: not predicted, not reported."""
    return job.phase is Phase.WAITING and not job.predicted and not job.revealed


class FreeAhead:
    """GPUs of one type that are free from now on, in whole slots of time; the first is slot 0."""

    def __init__(self, free: int, frees: Iterable[tuple[int, int]] = ()) -> None:
        """:param frees: (slot after 0 from which on they are free, GPUs), in any order."""
        self._slots, self._free = [0], [free]
        for slot, gpus in sorted(frees):
            if slot > self._slots[-1]:
                self._slots.append(slot)
                self._free.append(self._free[-1])
            self._free[-1] += gpus

    @property
    def now(self) -> int:
        """Those free in slot 0."""
        return self._free[0]

    def earliest(self, gpus: int, slots: int, last: int) -> int | None:
        """The first slot, up to ``last``, from which on that many are free for so long; None if none is."""
        start: int | None = None
        for slot, free in zip(self._slots, self._free, strict=True):
            if start is not None and slot >= start + slots:
                return start
            if free < gpus:
                start = None
            elif start is None:
                if slot > last:
                    return None
                start = slot
        return start

    def book(self, gpus: int, start: int, slots: int) -> None:
        """Take GPUs from ``start`` on for ``slots`` slots, where :meth:`earliest` has found them."""
        first = self._divide_at(start)
        for index in range(first, self._divide_at(start + slots)):
            self._free[index] -= gpus

    def _divide_at(self, slot: int) -> int:
        """The index of the span that begins at a slot, made if there is none."""
        index = bisect_left(self._slots, slot)
        if index == len(self._slots) or self._slots[index] != slot:
            self._slots.insert(index, slot)
            self._free.insert(index, self._free[index - 1])
        return index
