"""Ares, from the order of jobs to their sizes: the allocation pass, scaling control, consolidation.

**The allocation pass** (:class:`Queue`) serves the jobs in order of F, but only where something changed.
Every job remembers the GPUs that were free before its turn. A change makes the pass start there, and it ends
as soon as a job finds the same GPUs free as last time. The result is that of a pass over all jobs.

**Scaling control** (:func:`allowed_sizes`; Ares, section 3.3). Efficiency of ``k`` GPUs relative to the
requested number ``d``, at the job's own global batch: ``eff(k) = (T(k)/k) / (T(d)/d)``. From ``d`` on the
size doubles while ``eff(2k) >= alpha``; where that ends is the job's ceiling. Below ``d`` the sizes are the
powers of two down to the job's minimum. Departures from the paper: a limit other than alpha is itself the
largest size, if efficient; the minimum is a size; infeasible sizes are left out, and the largest feasible one
below ``d`` is the base if ``d`` is not feasible; an elastic job gets no size slower than a smaller one.

**Consolidation** (:func:`consolidations`; section 4, step 5) gathers scattered jobs on fewer nodes, where a
job ends sooner although the move costs time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from pliant.schemas.text import in_gpus
from pliant.tools.schedule.demand import sizes_below
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policies.common import JobRecord
from pliant.tools.schedule.policy import Explanation, Target
from pliant.tools.schedule.snapshot import Snapshot

T = TypeVar("T")
_ROUNDING: Final = 1e-9
"""Relative difference of speeds that counts as none."""
Key = tuple[float, float, str]
"""(F, submit time, id): whose turn comes first."""
Free = tuple[int, ...]
"""Free GPUs by type, in the order of ``SizesByJob.gpu_types``."""
_key = attrgetter("key")


class Queue:
    """The jobs of known demand in order of F, and the sizes they are to have."""

    def __init__(self, sizes: SizesByJob, jobs: Iterable[tuple[float, JobState]] = ()) -> None:
        self.sizes = sizes
        self.entries = sorted((self._entry(finish, job) for finish, job in jobs), key=_key)
        self.by_id = {entry.job.id: entry for entry in self.entries}
        # Of the entries, to find their places by.
        self._keys = [entry.key for entry in self.entries]
        self._kinds: dict[str | None, int] = {kind: number for number, kind in enumerate(sizes.gpu_types)}
        self._stale = {self.entries[0].key} if self.entries else set()
        # Running jobs below their ceiling: few, as each left less than its own size free.
        self._held_back: dict[Key, QueuedJob] = {}
        # Jobs that no size is left for.
        self._waiting: set[Key] = set()
        self._extended: list[QueuedJob] = []

    def add(self, finish: float, job: JobState) -> QueuedJob:
        entry = self.by_id[job.id] = self._entry(finish, job)
        index = bisect_left(self._keys, entry.key)
        self._keys.insert(index, entry.key)
        self.entries.insert(index, entry)
        self._stale.add(entry.key)
        return entry

    def remove(self, job_id: str) -> None:
        """A job leaves (if it is here); the job behind it is looked at again."""
        if job_id not in self.by_id:
            return
        key = self.by_id.pop(job_id).key
        index = bisect_left(self._keys, key)
        del self.entries[index], self._keys[index]
        self._stale.discard(key)
        self._held_back.pop(key, None)
        self._waiting.discard(key)
        if self._extended:
            self._extended = [entry for entry in self._extended if entry.key != key]
        if index < len(self.entries):
            self._stale.add(self._keys[index])

    def mark_stale(self, entry: QueuedJob) -> None:
        """The next pass serves a job again, which does not hold what the last one gave it."""
        entry.before = None
        self._stale.add(entry.key)

    def resize(self, job_id: str, allowed_by_type: tuple[AllowedSizes, ...]) -> None:
        """Take up other allowed sizes of a job (if it is here)."""
        entry = self.by_id.get(job_id)
        if entry and entry.allowed_by_type != allowed_by_type:
            entry.allowed_by_type, entry.before = allowed_by_type, None
            self._stale.add(entry.key)

    def allocate(self, capacity: Free) -> list[QueuedJob]:
        """Serve all jobs in order with ``capacity`` GPUs; returns those that may have changed."""
        if self.entries and self.entries[0].before != capacity:
            self._stale.add(self._keys[0])
        changed: list[QueuedJob] = []
        for key in sorted(self._stale):
            changed += self._allocate_from(bisect_left(self._keys, key), capacity)
        self._stale.clear()
        if self._extended or self._held_back:
            changed += self._share_leftover(self.entries[-1].after if self.entries else capacity)
        return changed

    def explain(self) -> dict[str, Explanation]:
        count = len(self.entries)
        return {
            entry.job.id: _explain(entry, f"F = {entry.key[0]:.6g} ({_ordinal(rank)} of {count})")
            for rank, entry in enumerate(self.entries, start=1)
        }

    def _entry(self, finish: float, job: JobState) -> QueuedJob:
        return QueuedJob((finish, *job.arrival), job, self.sizes.of(job))

    def _allocate_from(self, first: int, capacity: Free) -> list[QueuedJob]:
        """Serve jobs from ``first`` on until nothing differs any more; returns those that changed."""
        entries, kinds, changed = self.entries, self._kinds, []
        free = entries[first - 1].after if first else capacity
        for index in range(first, len(entries)):
            entry = entries[index]
            before, kind, size = entry.before, entry.kind, entry.size
            if before == free:
                break
            free = entry.serve(free, kinds)
            if size != entry.size or before is None or kind != entry.kind:
                changed.append(entry)
                self._watch(entry)
        return changed

    @property
    def has_enough(self) -> bool:
        """Whether every job is at its ceiling, so that more GPUs would change nothing."""
        return not (self._waiting or self._held_back)

    def _watch(self, entry: QueuedJob) -> None:
        key, size = entry.key, entry.size
        self._held_back.pop(key, None)
        self._waiting.discard(key)
        if not size:
            self._waiting.add(key)
        elif size < entry.allowed_by_type[entry.kind].sizes[-1]:
            self._held_back[key] = entry

    def _share_leftover(self, free: Free) -> list[QueuedJob]:
        """Give what no job can use as its next size to the first jobs that gain from it (section 3.1).

        With 6 GPUs a job of the sizes 1, 2, 4 runs on 6. Returns the entries that had or got such GPUs.
        """
        touched = self._extended
        for entry in touched:
            entry.extra = 0
        self._extended = []
        left = list(free)
        for key in sorted(self._held_back) if any(left) else ():
            entry = self._held_back[key]
            entry.extra = self._useful_extra(entry, left[entry.kind])
            left[entry.kind] -= entry.extra
            if entry.extra:
                self._extended.append(entry)
        return touched + self._extended

    def _useful_extra(self, entry: QueuedJob, free: int) -> int:
        """The most of ``free`` GPUs that make a job faster and pay off by alpha; 0 if none do."""
        sizes, job, allowed = self.sizes, entry.job, entry.allowed
        kind = sizes.gpu_types[entry.kind]
        rate = sizes.speeds.rate(job, entry.size, kind)
        most = min(entry.size + free, allowed.ceiling)
        for size in reversed(job.spec.gpus.between(entry.size + 1, most)):
            pays = efficiency(job, size, allowed.base, kind, sizes.speeds) >= sizes.alpha
            if pays and sizes.speeds.rate(job, size, kind) > rate:
                return size - entry.size
        return 0


@dataclass(slots=True, eq=False)
class QueuedJob(JobRecord):
    """One job in the queue and what the last pass gave it."""

    key: Key
    job: JobState
    allowed_by_type: tuple[AllowedSizes, ...]
    before: Free | None = None
    """GPUs free before its turn; None: the next pass looks at it."""
    after: Free = ()
    kind: int = 0
    """Index of its GPU type."""
    size: int = 0
    """One of its allowed sizes."""
    extra: int = 0
    """GPUs on top, between two steps, that no other job can use."""

    @property
    def gpus(self) -> int:
        return self.size + self.extra

    @property
    def allowed(self) -> AllowedSizes:
        return self.allowed_by_type[self.kind]

    @property
    def can_run(self) -> bool:
        return bool([allowed for allowed in self.allowed_by_type if allowed.sizes])

    def serve(self, free: Free, kinds: Mapping[str | None, int]) -> Free:
        """Take the largest step that is free; returns what is left.

        A running job stays on its type while that offers at least its step. Others take the type that is
        fastest for them, of equally fast ones the one they hold, then the first.

        :param kinds: the index of each type in ``free``.
        """
        self.before = free
        if len(free) == 1:
            (left,), sizes = free, self.allowed_by_type[0].sizes
            index = bisect_right(sizes, left)
            self.size = size = sizes[index - 1] if index else 0
            self.after = after = (left - size,) if size else free
            return after
        stays, held_kind = 0, kinds.get(self.job.gpu_type)
        if held_kind is not None:
            allowed = self.allowed_by_type[held_kind]
            # GPUs between two steps are on top: a job that lost only those may stay
            if 0 < allowed.largest_within(self.job.gpus) <= free[held_kind]:
                stays = allowed.largest_within(free[held_kind])
        self.kind, self.size = (held_kind or 0, stays) if stays else self._fastest(free, held_kind)
        self.after = free
        if self.size:
            parts = list(free)
            parts[self.kind] -= self.size
            self.after = tuple(parts)
        return self.after

    def _fastest(self, free: Free, held_kind: int | None) -> tuple[int, int]:
        """The type and the step on it that make the job fastest; (0, 0) where none is free."""
        best = (0.0, False, 0, 0)
        for kind, allowed in enumerate(self.allowed_by_type):
            index = bisect_right(allowed.sizes, free[kind]) - 1
            if index >= 0:
                best = max(best, (allowed.rates[index], kind == held_kind, -kind, allowed.sizes[index]))
        return -best[2], best[3]


def _explain(entry: QueuedJob, rank: str) -> Explanation:
    if not entry.can_run:
        reason = "; ".join(allowed.reason for allowed in entry.allowed_by_type)
        return Explanation(reason or "the cluster has no GPUs")
    free = max(entry.before or (0,))
    if entry.gpus:
        allowed = entry.allowed
        short = f", {free} free after the jobs before it" if entry.gpus < allowed.ceiling else ""
        return Explanation(f"{rank}, ceiling {allowed.ceiling} by {allowed.reason}{short}")
    least = min(allowed.sizes[0] for allowed in entry.allowed_by_type if allowed.sizes)
    reason = f"{rank}, needs {in_gpus(least)}, {free} free after the jobs before it"
    return Explanation(reason, least)


def _ordinal(rank: int) -> str:
    if rank % 100 in (11, 12, 13):
        return f"{rank}th"
    return f"{rank}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(rank % 10, 'th') }"


# Scaling control: which sizes a job may have.


class SizesByJob:
    """Allowed sizes of all jobs by GPU type, each kind of job computed once."""

    def __init__(self, speeds: Rates, alpha: float) -> None:
        self.speeds = speeds
        self.alpha = alpha
        self.gpu_types = tuple(speeds.gpu_types)

    def of(self, job: JobState) -> tuple[AllowedSizes, ...]:
        limits = (job.requested, job.min_gpus, job.spec.gpus.max, job.most, job.is_elastic)
        return self.speeds.of_kind(job, ("ares", self.alpha, *limits), lambda: self._made(job))

    def _made(self, job: JobState) -> tuple[AllowedSizes, ...]:
        return tuple(allowed_sizes(job, kind, self.speeds, self.alpha) for kind in self.gpu_types)


class Rates(Protocol):
    """How fast jobs train, by size and GPU type: :class:`~pliant.tools.schedule.rates.Speeds` knows."""

    @property
    def gpu_types(self) -> Mapping[str, int]: ...

    def rate(self, job: JobState, gpus: int, gpu_type: str, /) -> float:
        """Samples per second; 0.0 where that is infeasible."""
        ...

    def of_kind(self, job: JobState, what: Hashable, make: Callable[[], T]) -> T:
        """What is made of the speeds of a job, once for all of its kind."""
        ...


@dataclass(frozen=True, slots=True)
class AllowedSizes:
    """The sizes of one job on one GPU type, ascending, with the speed of each."""

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    """Samples per second at each size."""
    base: int
    """The size that efficiency is relative to; 0 if no size is feasible."""
    reason: str
    """Limit that makes its ceiling."""

    @property
    def ceiling(self) -> int:
        """The largest size; 0 if no size is feasible."""
        return self.sizes[-1] if self.sizes else 0

    def largest_within(self, gpus: int) -> int:
        index = bisect_right(self.sizes, gpus)
        return self.sizes[index - 1] if index else 0


def allowed_sizes(job: JobState, gpu_type: str, speeds: Rates, alpha: float) -> AllowedSizes:
    most = speeds.gpu_types[gpu_type]
    requested = job.requested
    low = [k for k in sizes_below(job) if k <= most and speeds.rate(job, k, gpu_type)]
    if requested <= most and speeds.rate(job, requested, gpu_type):
        low.insert(0, requested)
    if not low:
        return AllowedSizes((), (), 0, _why_empty(job, gpu_type, most))
    high, reason = _above(job, low[0], gpu_type, speeds, alpha)
    allowed: list[tuple[int, float]] = []
    candidates = (*reversed(low), *high)
    for size in candidates:
        rate = speeds.rate(job, size, gpu_type)
        if not allowed or rate >= allowed[-1][1] * (1 - _ROUNDING):
            allowed.append((size, rate))
    sizes, rates = zip(*allowed, strict=True)
    slower = sizes[-1] < candidates[-1]
    return AllowedSizes(sizes, rates, low[0], "its speed, which falls beyond" if slower else reason)


def _why_empty(job: JobState, gpu_type: str, most: int) -> str:
    if job.min_gpus > most:
        return f"needs {in_gpus(job.min_gpus)}, {gpu_type} has {most}"
    return f"no size of it is feasible on {gpu_type}"


def _above(job: JobState, base: int, gpu_type: str, speeds: Rates, alpha: float) -> tuple[list[int], str]:
    limit, reason = _limit(job, speeds.gpu_types[gpu_type])
    sizes: list[int] = []
    reached = base
    own = job.spec.gpus
    while 0 < own.above(reached) <= limit:
        size = max(own.whole(min(2 * reached, limit)), own.above(reached))
        share = efficiency(job, size, base, gpu_type, speeds)
        if share < alpha:
            return sizes, f"alpha {alpha:g} (eff({size}) = {share:.2f})"
        sizes.append(size)
        reached = size
    return sizes, reason


def _limit(job: JobState, most: int) -> tuple[int, str]:
    """The largest size, alpha aside, and what sets it."""
    if job.spec.elastic == "none":
        return job.requested, "its fixed size"
    limits = [
        (
            job.max_gpus(most),
            "its maximum" if (job.spec.gpus.max or most + 1) <= most else "the cluster",
        ),
    ]
    if job.spec.batch.size is not None:  # a batch that is not stated limits nothing
        limits.append((job.spec.gpus.whole(job.spec.batch.size * job.per_replica), "its batch"))
    return min(limits, key=lambda item: item[0])


def efficiency(job: JobState, gpus: int, base: int, gpu_type: str, speeds: Rates) -> float:
    """Speed per GPU of ``gpus`` GPUs relative to ``base`` GPUs; 0.0 where ``gpus`` is infeasible."""
    return speeds.rate(job, gpus, gpu_type) / gpus / (speeds.rate(job, base, gpu_type) / base)


# Consolidation after fragmentation.


def consolidations(snapshot: Snapshot, jobs: Iterable[JobState], cost_s: float) -> dict[str, Target]:
    """Moves of running jobs, the first ones choosing first, each of which pays for its ``cost_s`` seconds."""
    scattered = [job for job in jobs if _could_use_fewer_nodes(job, snapshot)]
    if not scattered:
        return {}
    free = snapshot.free.after(())
    targets: dict[str, Target] = {}
    for job in scattered:
        free.give(job.placement)
        place = free.choose(job.gpus, (job.gpu_type or "",), per_replica=job.per_replica)
        if place is None or not _pays(job, place, snapshot, cost_s):
            place = job.placement
        else:
            targets[job.id] = Target(job.gpus, job.gpu_type, job.reference_batch, place)
        free.take(place)
    return targets


def _could_use_fewer_nodes(job: JobState, snapshot: Snapshot) -> bool:
    if len(job.placement) < 2 or job.gpu_type is None:
        return False
    fewest = snapshot.speeds.consolidated(job.gpus, job.gpu_type, job.per_replica)
    return len(fewest) < len(job.placement)


def _pays(job: JobState, place: NodeGpus, snapshot: Snapshot, cost_s: float) -> bool:
    remaining = job.remaining_samples(snapshot.time_s)
    rate = snapshot.speeds.rate_at(job, place, job.reference_batch)
    if remaining is None or len(place) >= len(job.placement) or not 0 < job.samples_per_second < rate:
        return False
    return cost_s + remaining / rate < remaining / job.samples_per_second
