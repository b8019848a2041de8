"""References in which jobs share the cluster equally: fluid along measured curves, in GPS, and in whole GPUs.

Fluid fair sharing is the fair-sharing JCT of Ares (ACM TACO 2025), section 5; generalized processor sharing
with linear scaling is section 3.2 there. Equal shares in whole GPUs are dealt out deal by deal; behind them a
policy may promise that no job falls, and docs/delay-bound.md defines them. Reports share no code with the
policy that they check; a benchmark compares the two on random instances with a third, which was written from
that page alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heappop, heappush
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pliant.schemas.checks import Amounts, capacities, fitting, most_on_a_node, replica_on_a_node
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.schemas.runinfo import EqualDeals
from pliant.tools.report.isolated import (
    Point,
    ReferenceJobs,
    at_most_linear,
    boundaries,
    distinct_pairs,
    rate_at,
)
from pliant.tools.report.job_arrays import BLOCK, OUTCOMES, Floats, Jobs, distinct
from pliant.tools.report.job_record import Curve, JobRecord, Outcome
from pliant.tools.report.records import RunRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CACHED_RATES: Final = 2_000_000
"""Most rates kept in memory."""
_DIGITS: Final = 12
"""Significant digits of a rate by GPU: jobs that differ by less share one curve."""
_FEW: Final = 8
"""Groups up to which plain numbers are faster than vectors."""


def fluid_finishes(jobs: ReferenceJobs, capacity: Sequence[tuple[float, int]]) -> Floats:
    """Finish time of each job under fluid fair sharing, seconds; NaN of a job that never finishes.

    With N(t) active jobs and M(t) GPUs each job holds M/N GPUs, also fractions, and runs at the speed of its
    own curve, without rescale cost. Jobs with equal curves advance together: each such group has one clock of
    samples per job and one heap of the readings at which its members end, so that an event costs one vector
    operation over the groups.
    """
    there = distinct(jobs.curve)[0].tolist()
    order = sorted(there, key=jobs.curves.__getitem__)
    curves = [jobs.curves[number] for number in order]
    group_of = np.zeros(len(jobs.curves), np.int64)
    group_of[order] = np.arange(len(order))
    of_job, samples = group_of[jobs.curve], jobs.samples
    groups = _FewGroups(curves) if len(curves) <= _FEW else _Groups(curves)
    finishes = np.full(len(jobs), nan)
    for now, arrivals, gpus, until in boundaries(jobs, capacity):
        for job in arrivals:
            groups.add(job, of_job.item(job), samples.item(job))
        time = now
        while groups.active and gpus:
            speeds = groups.speeds(gpus / groups.active)
            seconds, group = groups.next_end(speeds)
            if time + seconds > until:
                break
            time += seconds
            finishes[groups.end(group, speeds, seconds)] = time
        if groups.active and until < inf:
            groups.advance(groups.speeds(gpus / groups.active), until - time)
    return finishes


class _Groups:
    """Jobs by curve. ``clock[g]``: samples that a member of group g trained since it was last empty."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        self.active = 0
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in curves]
        self._clock: Any = np.zeros(len(curves))
        self._next: Any = np.full(len(curves), inf)
        self._curves = _Curves(curves)
        self._gaps = np.empty(len(curves))
        self._by_share: dict[float, Any] = {}

    def add(self, job: int, group: int, samples: float) -> None:
        heap = self._heaps[group]
        if not heap:
            self._clock[group] = 0.0
        heappush(heap, (float(self._clock[group]) + samples, job))
        self._next[group] = heap[0][0]
        self.active += 1

    def next_end(self, speeds: Any) -> tuple[float, int]:
        """Seconds until the next job ends at these speeds, and its group."""
        gaps = self._gaps
        gaps[:] = self._next
        gaps -= self._clock
        gaps /= speeds
        group = int(gaps.argmin())
        return max(0.0, gaps.item(group)), group

    def end(self, group: int, speeds: Any, seconds: float) -> int:
        """Let ``seconds`` pass and remove the next job of the group, which is returned."""
        self.advance(speeds, seconds)
        heap = self._heaps[group]
        self._clock[group], job = heappop(heap)
        self._next[group] = heap[0][0] if heap else inf
        self.active -= 1
        return job

    def advance(self, speeds: Any, seconds: float) -> None:
        self._clock += speeds * seconds

    def speeds(self, share: float) -> Any:
        """Samples per second of every group when each job holds ``share`` GPUs."""
        speeds = self._by_share.get(share)
        if speeds is None:
            if len(self._by_share) * len(self._clock) > _CACHED_RATES:
                self._by_share.clear()
            speeds = self._by_share[share] = self._curves.at(share)
        return speeds


class _FewGroups(_Groups):
    """The same with lists in the place of vectors."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        super().__init__(curves)
        self._clock, self._next = [0.0] * len(curves), [inf] * len(curves)

    def next_end(self, speeds: Any) -> tuple[float, int]:
        gaps = [(end - now) / speed for end, now, speed in zip(self._next, self._clock, speeds, strict=True)]
        least = min(gaps)
        return max(0.0, least), gaps.index(least)

    def advance(self, speeds: Any, seconds: float) -> None:
        self._clock = [now + speed * seconds for now, speed in zip(self._clock, speeds, strict=True)]

    def speeds(self, share: float) -> Any:
        speeds = self._by_share.get(share)
        if speeds is None:
            speeds = self._by_share[share] = super().speeds(share).tolist()
        return speeds


class _Curves:
    """Curves from (0, 0) to their last rate, a row each, padded with segments of infinite length."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        width = 1 + max((len(curve) for curve in curves), default=0)
        self._sizes = np.full((len(curves), width), inf)
        self._rates = np.zeros((len(curves), width))
        for row, curve in enumerate(curves):
            self._sizes[row, : len(curve) + 1] = [0.0, *(size for size, _ in curve)]
            self._rates[row, : len(curve) + 1] = [0.0, *(rate for _, rate in curve)]
            self._rates[row, len(curve) + 1 :] = curve[-1][1]
        with np.errstate(invalid="ignore"):  # between two paddings, where no share falls
            self._lengths = np.diff(self._sizes, append=inf)
        self._rises = np.diff(self._rates, append=self._rates[:, -1:])
        self._before = np.arange(len(curves)) * width - 1

    def at(self, share: float) -> NDArray[np.float64]:
        segment = (self._sizes <= share).sum(axis=1) + self._before
        part = (share - self._sizes.take(segment)) / self._lengths.take(segment)
        speeds: NDArray[np.float64] = self._rates.take(segment) + part * self._rises.take(segment)
        return speeds


def gps_jobs(jobs: ReferenceJobs) -> ReferenceJobs:
    """The jobs with curves that are at most linear, so that fluid fair sharing is GPS.

    With N(t) active jobs and M(t) GPUs each job receives M/N GPU-seconds per second until it has received its
    demand. Departure from the paper: it receives no more than it can use, the best of its speeds at up to M/N
    GPUs over its speed for each GPU that it requests.
    """
    exact, of_job = distinct(jobs.samples / jobs.demand_gpu_s)
    speeds = [float(f"{per_gpu:.{_DIGITS}g}") for per_gpu in exact.tolist()]
    linear = cache(at_most_linear)
    pairs, place = distinct_pairs(jobs.curve, of_job)
    numbers: dict[tuple[Point, ...], int] = {}
    curve = [
        numbers.setdefault(linear(jobs.curves[curve], speeds[speed]), len(numbers)) for curve, speed in pairs
    ]
    return replace(jobs, curves=[*numbers], curve=np.array(curve, np.int64)[place])


_ROUNDING: Final = 1e-9
_SAME_S: Final = 1e-6
"""Times this close are equal: seconds since 1970 are known to 0.24 µs."""
_MOST_DEALS: Final = 1_000_000
"""19 years of ten minutes each; a job that takes longer never ends."""
_STOPPED: Final[tuple[Outcome, ...]] = ("failed", "cancelled", "rejected")


@dataclass(frozen=True, slots=True)
class DealtJob:
    """A job in the reference."""

    id: str
    enters_s: float
    samples: float
    """Infinite: it leaves when it is stopped."""
    rates: Curve
    """Samples per second of each size that it may have, ascending; jobs alike share one."""
    replica: int = 1
    demand: Amounts = field(default_factory=dict)
    """Amounts for a worker, beside its GPU."""
    together: int = 1
    """GPUs that have to be on one node."""
    stopped_s: float = inf
    row: int = 0
    """Row among the jobs of the run."""

    @property
    def is_bound(self) -> bool:
        """Whether it matters to it on which nodes its GPUs are."""
        return bool(self.demand) or self.replica > 1


def dealt_jobs(run: RunRecord, terms: EqualDeals) -> Iterator[DealtJob]:
    """All jobs on GPUs that entered, in the order of entering; each is made when its turn comes."""
    jobs, cluster = run.jobs, run.info.cluster
    node_gpus = max(most_on_a_node(cluster.expanded()).values(), default=0)
    enters_s = entry_times_s(run)
    hides_work = run.info.simulated and run.info.demand == "predicted"
    alone_s = np.zeros(len(jobs)) if hides_work else _alone_s(jobs)
    enters_s = enters_s + np.fromiter(map(terms.grace_of, alone_s.tolist()), np.float64, len(jobs))
    del alone_s
    samples = np.nan_to_num(jobs.samples)
    done = jobs.have_outcome("finished") & (samples == 0)
    samples[done] = np.nan_to_num(jobs.samples_done[done])
    stops = np.isin(jobs.outcome, [OUTCOMES.index(outcome) for outcome in _STOPPED])
    samples[stops | (samples == 0)] = inf
    stopped_s = np.where(stops & ~np.isnan(jobs.end_s), jobs.end_s, inf)
    alike: dict[tuple[int, int, int], DealtJob] = {}
    on_gpus = ~jobs.counts(lambda job: job.on_cpus).astype(bool)
    order = np.argsort(enters_s, kind="stable")[: len(jobs) - int(np.isnan(enters_s).sum())].astype(np.int32)
    order = order[on_gpus[order]]
    for first in range(0, len(order), BLOCK):
        for row in order[first : first + BLOCK].tolist():
            key = int(jobs.form[row]), int(jobs.curve[row]), int(jobs.rates[row])
            like = alike.get(key)
            if like is None:
                like = alike[key] = _like(jobs[row], cluster, node_gpus)
            yield DealtJob(
                jobs.id(row),
                enters_s.item(row),
                samples.item(row),
                like.rates,
                like.replica,
                like.demand,
                like.together,
                stopped_s.item(row),
                row,
            )


def _like(record: JobRecord, cluster: Cluster, node_gpus: int) -> DealtJob:
    """The job with what others of its form and its curves have, too."""
    job = record.job
    replica, together = job.gpus.per_replica, replica_on_a_node(job, node_gpus)
    return DealtJob(record.id, 0.0, inf, _rates(record, cluster), replica, job.resources.worker, together)


def _alone_s(jobs: Jobs) -> Floats:
    """Seconds that the stated work of each job takes on the GPUs that it requests; 0 if it states none."""
    seconds = jobs.demand_gpu_s / jobs.counts(lambda job: job.gpus.requested)
    has_work = np.nan_to_num(jobs.samples) != 0
    for row in np.flatnonzero(np.isnan(seconds) & has_work).tolist():
        record = jobs[row]
        requested = record.job.gpus.requested
        rates = record.rates or record.curve
        able = [rate for size, rate in rates if size <= requested] if record.job.elastic != "none" else []
        speed = max(able, default=0.0) or rate_at(rates, requested)
        seconds[row] = jobs.samples.item(row) / speed if speed else 0.0
    return np.where(has_work, seconds, 0.0)


def _rates(record: JobRecord, cluster: Cluster) -> Curve:
    """Files of earlier versions have few sizes; between them speeds are taken to be on a line."""
    job, limit = record.job, cluster.limit_of(record.job.user)
    most = job.max_gpus(cluster.total_gpus)
    if limit is not None and limit.gpus is not None:
        most = min(most, job.gpus.requested)
    rates = record.rates
    if not rates and record.curve:
        least = max(job.min_gpus, record.curve[0][0])
        sizes = [job.gpus.requested] if job.elastic == "none" else job.gpus.between(least, most)
        rates = tuple((size, rate_at(record.curve, size)) for size in sizes)
    least = job.gpus.requested if job.elastic == "none" else job.min_gpus
    return tuple((size, rate) for size, rate in rates if least <= size <= most and rate > 0)


# When jobs entered.


def entry_times_s(run: RunRecord) -> Floats:
    """When each job was submitted, those that it waits for had ended, and the limits of array and user had
    room; NaN: never.
    """
    limits = run.info.cluster.user_limits
    if not limits and not run.jobs.any_form(lambda job: job.after or job.array):
        return run.jobs.submit_s
    jobs = {record.id: record for record in run.jobs}
    entrance = _Entrance(run.info.cluster)
    ends = [(record.end_s, 0, record.id) for record in jobs.values() if record.end_s is not None]
    for time_s, is_new, job_id in sorted([*ends, *((each.submit_s, 1, each.id) for each in jobs.values())]):
        record = jobs[job_id]
        if is_new:
            entrance.arrive(record, time_s)
        else:
            entrance.end(record, time_s)
    return np.array([entrance.entered_s.get(job_id, nan) for job_id in jobs], np.float64)


class _Entrance:
    """Lets jobs enter: no job overtakes another of its array or its user."""

    def __init__(self, cluster: Cluster) -> None:
        self.entered_s: dict[str, float] = {}
        self._cluster = cluster
        self._ended: dict[str, Outcome] = {}
        self._waiting: list[tuple[tuple[float, float, str], JobRecord]] = []
        self._in_array: Counter[str] = Counter()
        # Jobs that the limit of their array has let pass.
        self._passed: set[str] = set()
        self._inside: dict[str, list[Job]] = {}

    def arrive(self, record: JobRecord, time_s: float) -> None:
        insort(self._waiting, ((-record.job.priority, record.submit_s, record.id), record))
        self._admit(time_s)

    def end(self, record: JobRecord, time_s: float) -> None:
        self._ended[record.id] = record.outcome
        self._waiting = [each for each in self._waiting if each[1].id != record.id]
        if record.id in self._passed and record.job.array is not None:
            self._in_array[record.job.array.name] -= 1
        inside = self._inside.get(record.job.user, [])
        self._inside[record.job.user] = [job for job in inside if job.id != record.id]
        self._admit(time_s)

    def _admit(self, time_s: float) -> None:
        full_arrays: set[str] = set()
        full_users: set[str] = set()
        still = []
        for turn, record in self._waiting:
            job = record.job
            if not self._may_pass(job, full_arrays) or not self._has_room(job, full_users):
                still.append((turn, record))
                continue
            self.entered_s[job.id] = max(time_s, record.submit_s)
            self._inside.setdefault(job.user, []).append(job)
        self._waiting = still

    def _may_pass(self, job: Job, full: set[str]) -> bool:
        if job.id in self._passed:
            return True
        for other, awaited in job.after.items():
            how = self._ended.get(other)
            if how is None or (awaited != "any" and (how == "finished") != (awaited == "ok")):
                return False
        if job.array is not None:
            name, limit = job.array.name, job.array.limit
            if name in full or (limit is not None and self._in_array[name] >= limit):
                full.add(name)
                return False
            self._in_array[name] += 1
        self._passed.add(job.id)
        return True

    def _has_room(self, job: Job, full: set[str]) -> bool:
        limit = self._cluster.limit_of(job.user)
        if limit is None:
            return True
        both = [*self._inside.get(job.user, ()), job]
        gpus = sum(each.gpus.requested for each in both)
        if (
            job.user in full
            or (limit.jobs is not None and len(both) > limit.jobs)
            or (limit.gpus is not None and gpus > limit.gpus)
        ):
            full.add(job.user)
            return False
        return True


# The deals.


@dataclass(slots=True)
class _Sharer:
    job: DealtJob
    least: int
    most: int
    sizes: list[int]
    best: list[tuple[float, int]]
    """Highest speed up to each of the sizes, and the size that has it."""
    done: float = 0.0
    service_gpu_s: float = 0.0
    sat_out: int = 0
    gpus: int = 0
    rate: float = 0.0

    def takes(self, part: int) -> None:
        """Take the size on which it is fastest, of what it was dealt."""
        at = bisect_right(self.sizes, part) - 1
        self.rate, self.gpus = self.best[at] if at >= 0 else (0.0, 0)


class _Sharers:
    """Jobs that enter; those with one curve share what follows from it."""

    def __init__(self, jobs: Iterable[DealtJob]) -> None:
        self._jobs = iter(jobs)
        # By curve, which is kept as its address is the key.
        self._known: dict[int, tuple[Curve, list[int], list[tuple[float, int]]]] = {}
        self.next = self._following()

    def pop(self) -> _Sharer:
        """The next one, which there must be."""
        sharer = self.next
        if sharer is None:
            raise IndexError("no job is left to enter")
        self.next = self._following()
        return sharer

    def _following(self) -> _Sharer | None:
        job = next(self._jobs, None)
        if job is None:
            return None
        known = self._known.get(id(job.rates))
        if known is None:
            best: list[tuple[float, int]] = []
            for size, rate in job.rates:
                best.append((rate, size) if not best or rate > best[-1][0] else best[-1])
            known = self._known[id(job.rates)] = job.rates, [size for size, _ in job.rates], best
        _, sizes, best = known
        return _Sharer(job, sizes[0] if sizes else 0, best[-1][1] if best else 0, sizes, best)


def equal_deal_ends(
    jobs: Iterable[DealtJob],
    capacity: Sequence[tuple[float, int]],
    terms: EqualDeals,
    nodes: Sequence[Node] = (),
) -> Iterator[tuple[DealtJob, float]]:
    """Each job with the end of the deal in which it ends, seconds; without those that never end.

    :param jobs: in the order of entering.
    :param nodes: those of the cluster, for jobs to which they matter.
    """
    coming = _Sharers(jobs)
    changes = [(time_s, gpus) for time_s, gpus in capacity[1:]]
    there: list[_Sharer] = []
    now, gpus = -inf, capacity[0][1]
    for _ in range(_MOST_DEALS):
        if coming.next is None and not there:
            break
        if not there and coming.next is not None:
            now = max(now, coming.next.job.enters_s)
        while coming.next is not None and coming.next.job.enters_s <= now + _SAME_S:
            there.append(coming.pop())
        while changes and changes[0][0] <= now:
            gpus = changes.pop(0)[1]
        until, lasts_s = now + terms.deal_s, terms.deal_s
        if changes and changes[0][0] < until:
            until, lasts_s = changes[0][0], changes[0][0] - now
        there = [each for each in there if each.job.stopped_s > now + _SAME_S]
        trains = terms.lost_s < terms.deal_s and any(
            0 < each.least <= gpus and each.job.samples < inf for each in there
        )
        stops = any(each.job.stopped_s < inf for each in there)
        if not changes and coming.next is None and not trains and not stops:
            break
        _deal(there, gpus, nodes)
        for each in there:
            each.sat_out = 0 if each.gpus else each.sat_out + 1
            each.done += each.rate * max(0.0, lasts_s - terms.lost_s)
            each.service_gpu_s += each.gpus * lasts_s
        going_on = []
        for each in there:
            if each.done >= each.job.samples * (1 - _ROUNDING):
                yield each.job, until
            else:
                going_on.append(each)
        there, now = going_on, until


def _deal(there: Sequence[_Sharer], gpus: int, nodes: Sequence[Node]) -> None:
    def turn(each: _Sharer) -> tuple[float, float, float, str]:
        overdue = each.sat_out if each.sat_out >= len(there) else 0
        return -overdue, each.service_gpu_s, round(each.job.enters_s / _SAME_S), each.job.id

    order = sorted(there, key=turn)
    parts = (
        _on_nodes(order, gpus, nodes) if any(each.job.is_bound for each in order) else _numbers(order, gpus)
    )
    for each in there:
        each.takes(parts.get(each.job.id, 0))


def _numbers(order: Sequence[_Sharer], gpus: int) -> dict[str, int]:
    """Equal numbers within the limits; the surplus goes to the first. Nodes do not matter."""
    admitted, left = [], gpus
    for each in order:
        if 0 < each.least <= left:
            left -= each.least
            admitted.append(each)

    def at(level: int) -> list[int]:
        return [min(max(level, each.least), each.most) for each in admitted]

    level = bisect_right(range(gpus + 1), gpus, key=lambda level: sum(at(level))) - 1
    parts = at(level)
    over = gpus - sum(parts)
    for index, each in enumerate(admitted):
        if over and each.least <= level < each.most:
            parts[index], over = parts[index] + 1, over - 1
    return {each.job.id: part for each, part in zip(admitted, parts, strict=True)}


def _on_nodes(order: Sequence[_Sharer], gpus: int, nodes: Sequence[Node]) -> dict[str, int]:
    """The same replica by replica, each on the first node with all that its workers demand."""
    left = [dict(capacities(node)) for node in nodes]
    free = [node.gpus for node in nodes]
    parts: dict[str, int] = {}

    def gets(job: DealtJob, more: int) -> bool:
        nonlocal gpus
        if more > gpus:
            return False
        taken: list[_Taken] = []
        for _ in range(more // job.together if job.is_bound else 0):
            at = next((at for at in range(len(free)) if has_room(job, at)), None)
            if at is None:
                for each in taken:
                    book(each, -1)
                return False
            taken.append(_Taken(job, at))
            book(taken[-1], 1)
        parts[job.id] = parts.get(job.id, 0) + more
        gpus -= more
        return True

    def has_room(job: DealtJob, at: int) -> bool:
        return free[at] >= job.together and fitting(left[at], job.demand, job.together) == job.together

    def book(one: _Taken, sign: int) -> None:
        free[one.node] -= sign * one.job.together
        for resource, amount in one.job.demand.items():
            if resource in left[one.node]:
                left[one.node][resource] -= sign * amount * one.job.together

    able = [each for each in order if each.least and gets(each.job, each.least)]
    # those with fewest GPUs first, of equal ones in their order: a queue by (GPUs, place in the order)
    queue = sorted((parts[each.job.id], at) for at, each in enumerate(able))
    while queue and gpus:
        part, at = queue.pop(0)
        one = able[at]
        if part + one.job.replica <= one.most and gets(one.job, one.job.replica):
            queue.insert(bisect_left(queue, (part + one.job.replica, at)), (part + one.job.replica, at))
    return parts


class _Taken(NamedTuple):
    """GPUs of one replica."""

    job: DealtJob
    node: int


def kept_from_promise(run: RunRecord, terms: EqualDeals) -> str | None:
    """Why no time can be named by which jobs of this run end. Returns None if there is no such reason."""
    return next(iter(_reasons(run, terms)), None)


def _reasons(run: RunRecord, terms: EqualDeals) -> Collection[str]:
    info, reasons = run.info, []
    if len({node.gpu_type for node in info.cluster.nodes if node.gpus}) > 1:
        reasons.append("GPU types differ")
    if info.cluster.shares is not None:
        reasons.append("teams share the cluster")
    if info.cluster.min_run_seconds or info.cluster.cooldown_seconds:
        reasons.append("the cluster keeps jobs where they are for a time")
    if run.jobs.any_form(lambda job: job.resources.ps):
        reasons.append("jobs have parameter servers")
    if run.jobs.any_form(lambda job: job.batch.regimes):
        reasons.append("jobs change their batches by themselves")
    costs = (info.start_cost_s, info.rescale_cost_s, info.resume_cost_s)
    cost_s = max((_largest(cost) for cost in costs if cost is not None), default=0.0)
    needed_s = cost_s + (info.interval_s or 0.0)
    if needed_s > terms.lost_s * (1 + _ROUNDING):
        reasons.append(f"a change and the wait for it take {needed_s:g} s, and lost_s is {terms.lost_s:g}")
    charged_s = max((cost for cost in costs if isinstance(cost, int | float)), default=0.0)
    if terms.rescale_s is not None and charged_s > terms.rescale_s * (1 + _ROUNDING):
        reasons.append(f"a change takes {charged_s:g} s, and rescale_s is {terms.rescale_s:g}")
    return reasons


def _largest(cost: Mapping[str, float] | float) -> float:
    return cost if isinstance(cost, int | float) else max(cost.values(), default=0.0)
