"""ElasticFlow: jobs are admitted if their deadlines can be met, and get at least what that takes."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    decision_from_grants,
    minimum_alone,
    reject_impossible,
    rising_sizes,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot

_ROUNDING: Final = 1e-9
Unadmitted = Literal["drop", "best-effort"]


class ElasticFlow(Policy):
    """Deadlines met: a job is admitted if its minimum satisfactory share fits beside those of the others.

    ElasticFlow (ASPLOS '23). A deadline is the target of a utility of shape "step", counted from the
    submission. The minimum satisfactory share of a job is the smallest size with which it ends by then,
    if at times it may have to do with the GPUs that jobs of earlier deadlines leave: shares are filled
    in progressively, in order of deadline (algorithm 1). A job is admitted if it and all jobs admitted
    before keep their deadlines. Each admitted job gets its share of now. GPUs that are left start jobs
    that have none, in order of deadline, then go, size by size, to the job of which a GPU-second more
    now saves the most GPU-seconds of its share later (algorithm 2). Jobs without a deadline or of
    unknown work are best-effort: they get what is left. Sizes are powers of two of replicas and a job's
    smallest, or those that it lists, as far as they make it faster. Jobs are placed in blocks of their
    size, as a buddy allocator would.

    Departures from the paper: time is not divided into slots. What a change costs counts in the plan of
    a job. A job that was admitted and can no longer end in time, alone at its fastest, becomes
    best-effort. On several GPU types, a job stays on the one on which it was admitted, the fastest for
    it that could.

    unadmitted: what becomes of a job that is not admitted: it is rejected ("drop"), or runs
    "best-effort".
    rescale_s: seconds that a change of its GPUs costs a job, where the profile has not measured them.
    late_blocks: whether no job is admitted while one that was can no longer end in time, as in the
    authors' scheduler. By default only what a new job itself would do to others counts.
    """

    name: ClassVar[str] = "elasticflow"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size",
        uses_deadlines=True,
        priority_means="",
        when_rigid="admits jobs by their deadlines at the sizes that they requested",
        rebuilds_state=False,
    )

    def __init__(
        self, unadmitted: Unadmitted = "drop", rescale_s: float = 30.0, late_blocks: bool = False
    ) -> None:
        if rescale_s < 0:
            raise ValueError("parameter rescale_s: expected a number of seconds, 0 or more")
        self.unadmitted = unadmitted
        self.rescale_s = rescale_s
        self.late_blocks = late_blocks
        # GPU type by job.
        self._admitted: dict[str, str] = {}
        # Shares of admitted jobs when the last one was admitted: a smaller share now would last longer, and
        # might cost another job its deadline.
        self._promised: dict[str, int] = {}
        # Jobs that were not admitted and run best-effort.
        self._declined: set[str] = set()
        self._reasons: dict[str, str] = {}
        # Whether an admitted job can no longer end in time, even alone.
        self._is_late = False

    def chooses_nodes(self) -> bool:
        return True

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        self._forget(snapshot)
        self._is_late = False
        plans = {kind: Plans(kind, gpus, self, snapshot) for kind, gpus in snapshot.gpus_by_type().items()}
        others = []
        jobs = (job for job in snapshot.jobs.values() if job.id not in rejected)
        for job in sorted(jobs, key=lambda job: (self._is_new(job), job.arrival)):
            if not self._is_planned(job, plans, snapshot):
                if self.unadmitted == "drop" and self._is_new(job):
                    left_s = job.deadline_s - snapshot.time_s
                    rejected[job.id] = f"no share that is left ends it in the {left_s:.0f} s to its deadline"
                else:
                    others.append(job)
        budget = GpuBudget(snapshot.gpus_by_type())
        shares = [share for plan in plans.values() for share in plan.shares(budget)]
        shares += _smallest(others, budget, snapshot)
        _grow(shares, budget)
        self._reasons = {share.job.id: share.reason for share in shares}
        grants = {share.job.id: Grant(share.gpus, share.kind) for share in shares if share.gpus}
        decision = decision_from_grants(snapshot, grants, rejected)
        for kind in plans:
            _place(kind, [share for share in shares if share.kind == kind and share.gpus], snapshot, decision)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {
            job.id: Explanation(
                self._reasons.get(job.id, "best-effort: the shares of others leave too few GPUs"),
                None if job.gpus else job.min_gpus,
            )
            for job in snapshot.jobs.values()
        }

    def dump_state(self) -> dict[str, Any]:
        return {
            "admitted": self._admitted,
            "promised": self._promised,
            "declined": sorted(self._declined),
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._admitted, self._promised = dict(state["admitted"]), dict(state["promised"])
        self._declined = set(state["declined"])

    def promised(self, job: JobState) -> int:
        """The share that an admitted job was promised; 0: none yet."""
        return self._promised.get(job.id, 0)

    def lost_s(self, job: JobState, speeds: Speeds) -> float:
        """Seconds that a change of its GPUs costs a job."""
        measured = speeds.rescale_seconds(job.spec.model)
        return self.rescale_s if measured is None else measured

    def _forget(self, snapshot: Snapshot) -> None:
        for change in snapshot.changes:
            if change.ended_job is not None:
                self._admitted.pop(change.ended_job.id, None)
                self._promised.pop(change.ended_job.id, None)
                self._declined.discard(change.ended_job.id)

    def _is_new(self, job: JobState) -> bool:
        """Whether it has a deadline, and is neither admitted nor declined; one that has run was admitted."""
        if job.deadline_s == math.inf or job.known_samples is None or job.first_start_s is not None:
            return False
        return job.id not in self._admitted and job.id not in self._declined

    def _is_planned(self, job: JobState, plans: Mapping[str, Plans], snapshot: Snapshot) -> bool:
        """Whether it ends by its deadline as planned; a new one is admitted where it can be."""
        if job.deadline_s == math.inf or job.known_samples is None or job.id in self._declined:
            return False
        if not self._is_new(job):
            plan = plans.get(self._admitted.get(job.id, job.gpu_type) or "")
            in_time = plan is not None and plan.add(job)
            self._is_late |= not in_time
            return in_time
        rates = {kind: snapshot.speeds.best_rate(job, plan.gpus) for kind, plan in plans.items()}
        open_to_new = () if self.late_blocks and self._is_late else plans
        for kind in sorted(open_to_new, key=lambda kind: (-rates[kind], kind)):
            if (shares := plans[kind].admit(job)) is not None:
                self._admitted[job.id] = kind
                self._promised |= shares
                return True
        if self.unadmitted == "best-effort":
            self._declined.add(job.id)
        return False


# Minimum satisfactory shares: jobs filled in over the time to come, in order of deadline.


class _Stretch(NamedTuple):
    """A job on a number of GPUs from one time to another."""

    from_s: float
    until_s: float
    gpus: int


class _Plan(NamedTuple):
    """The time to come of one job."""

    share: int
    """The minimum satisfactory share; 0: none suffices."""
    stretches: Sequence[_Stretch]

    @property
    def now(self) -> int:
        """GPUs from now on."""
        return self.stretches[0].gpus if self.stretches else 0


class _Planned:
    """A job to plan, with all that its plans depend on as it is now."""

    __slots__ = (
        *("_alone", "_deadline_s", "_held", "_left", "_lost_s", "_numbers", "_too_small"),
        *("job", "promised", "sizes", "turn"),
    )

    def __init__(self, job: JobState, plans: Plans, policy: ElasticFlow, snapshot: Snapshot) -> None:
        self.job = job
        self.turn = (job.deadline_s, job.arrival)
        # With samples per second, both ascending.
        self.sizes = _sizes(job, plans.kind, plans.gpus, snapshot.speeds)
        self._numbers = [size for size, _ in self.sizes]
        # The least that its share is to be.
        self.promised = policy.promised(job)
        self._deadline_s = job.deadline_s
        self._left = job.remaining_samples(snapshot.time_s) or 0.0
        self._lost_s = policy.lost_s(job, snapshot.speeds)
        self._held = job.gpus if job.gpu_type == plans.kind else 0
        least_s = (snapshot.time_s + self._left / rate for _, rate in self.sizes)
        late_s = self._deadline_s * (1 + 2 * _ROUNDING)
        # Sizes that do not end it in time, whatever else is free: it has more to do than that.
        self._too_small = sum(1 for _ in takewhile(lambda end_s: end_s > late_s, least_s))
        self._alone: dict[int, _Plan] = {}

    def ends_in_time(self, free: FreeLater) -> bool:
        """Whether its largest size suffices."""
        return bool(self.sizes) and self._filled(free, len(self.sizes)).share > 0

    def alone(self, everything: FreeLater, promised: int) -> _Plan:
        """Its plan if all GPUs are free."""
        if promised not in self._alone:
            self._alone[promised] = self.plan(everything, promised)
        return self._alone[promised]

    def plan(self, free: FreeLater, promised: int) -> _Plan:
        """On the smallest size, none below the promised one, that ends it in time; else as fast as it can."""
        plan = _Plan(0, ())
        last = len(self.sizes)
        for index, size in enumerate(self._numbers, 1):
            if (size >= promised and index > self._too_small) or index == last:
                plan = self._filled(free, index)
                if plan.share:
                    break
        return plan

    def _filled(self, free: FreeLater, count: int) -> _Plan:
        """On the largest of its first ``count`` sizes that is free at each time, to its end or deadline."""
        times, counts, sizes, until_s = free.times, free.counts, self._numbers, self._deadline_s
        left, held = self._left, self._held
        steps, at = bisect_left(times, until_s), 0
        stretches: list[_Stretch] = []
        while at < steps:
            from_s = start_s = times[at]
            index = min(count, bisect_right(sizes, counts.item(at)))
            gpus, rate = self.sizes[index - 1] if index else (0, 0.0)
            if gpus and gpus != held:
                start_s += self._lost_s
            held = gpus
            end_s = start_s + left / rate if rate else math.inf
            at += 1
            # Steps that begin before it ends: dividing may be off by a rounding, comparing is exact.
            ends = bisect_left(times, end_s / (1 + _ROUNDING), at, steps)
            while ends < steps and end_s > times[ends] * (1 + _ROUNDING):
                ends += 1
            while ends > at and end_s <= times[ends - 1] * (1 + _ROUNDING):
                ends -= 1
            if at < ends:
                free_then = counts[at:ends]
                changes = free_then < gpus
                if index < count:
                    changes |= free_then >= sizes[index]
                first = int(changes.argmax())
                at = at + first if changes.item(first) else ends
            next_s = times[at] if at < steps else until_s
            if end_s <= next_s * (1 + _ROUNDING):
                # Some time at least: a job that trains past its stated work holds its GPUs, too.
                end_s = max(end_s, math.nextafter(from_s, math.inf))
                return _Plan(sizes[count - 1], [*stretches, _Stretch(from_s, end_s, gpus)])
            left -= rate * max(0.0, next_s - start_s)
            stretches.append(_Stretch(from_s, next_s, gpus))
        return _Plan(0, stretches)


class _Filled:
    """Plans of jobs, in order of deadline, and the GPUs that are free before each."""

    def __init__(self, everything: FreeLater) -> None:
        self._everything = everything
        self.plans: list[_Plan] = []
        # The first jobs that all have from now on, beside each other, what they would have alone.
        self._beside = 0
        # Before each job after those, and after the last one; none where there are no others.
        self._free: list[FreeLater] = []

    def until(self, count: int) -> _Filled:
        """The first ``count`` plans, as far as they are to be kept while another job comes after them."""
        earlier = _Filled(self._everything)
        if count > self._beside:
            earlier.plans, earlier._beside = self.plans[:count], self._beside
            earlier._free = self._free[: count - self._beside + 1]
        return earlier

    def fill(self, jobs: Sequence[_Planned], expected: Sequence[bool] = (), *, promises: bool = True) -> bool:
        """Plan those that have no plan yet.

        :param expected: by job, whether a share is to suffice. Default: whatever it is.
        :return: False, and no more is planned, once a plan is not as expected.
        """
        if not self.plans:
            self._fill_beside(jobs, promises=promises)
        if expected and [plan.share > 0 for plan in self.plans] != expected[: len(self.plans)]:
            return False
        for each in jobs[len(self.plans) :]:
            each_plan = each.plan(self._free[-1], each.promised if promises else 0)
            if expected and (each_plan.share > 0) != expected[len(self.plans)]:
                return False
            self.plans.append(each_plan)
            self._free.append(self._free[-1].without(each_plan.stretches))
        return True

    def _fill_beside(self, jobs: Sequence[_Planned], *, promises: bool) -> None:
        """Jobs that fit beside each other on what they would have alone change nothing for each other."""
        left = self._everything.counts.item()
        for each in jobs:
            plan = each.alone(self._everything, each.promised if promises else 0)
            if plan.now > left:
                self._free.append(self._everything.without_all(self.plans))
                return
            left -= plan.now
            self.plans.append(plan)
            self._beside += 1


class Plans:
    """The admitted jobs of one GPU type."""

    def __init__(self, kind: str, gpus: int, policy: ElasticFlow, snapshot: Snapshot) -> None:
        self.kind, self.gpus = kind, gpus
        self._policy, self._snapshot = policy, snapshot
        self._everything = FreeLater([snapshot.time_s], np.array([gpus]))
        # In order of deadline. Each would end in time alone.
        self.jobs: list[_Planned] = []
        # Their plans, made when asked for.
        self._filled: _Filled | None = None
        # Their plans if no share were promised.
        self._anew: _Filled | None = None

    def add(self, job: JobState) -> bool:
        """Plan a job that was admitted before; False if it can no longer end in time."""
        planned = _Planned(job, self, self._policy, self._snapshot)
        if not planned.ends_in_time(self._everything):
            return False
        insort(self.jobs, planned, key=lambda each: each.turn)
        self._filled = self._anew = None
        return True

    def admit(self, job: JobState) -> dict[str, int] | None:
        """Plan a new job if all that ends in time without it does so with it, and it ends in time itself.

        Returns the shares of all, the smallest that do. None if it is not admitted.
        """
        planned = _Planned(job, self, self._policy, self._snapshot)
        if not planned.ends_in_time(self._everything):
            return None
        at = bisect_left(self.jobs, planned.turn, key=lambda each: each.turn)
        expected = [bool(plan.share) or self._policy.late_blocks for plan in self.plans()]
        if self._anew is None:
            self._anew = _Filled(self._everything)
            self._anew.fill(self.jobs, promises=False)
        jobs = [*self.jobs[:at], planned, *self.jobs[at:]]
        filled = self._anew.until(at)
        if not filled.fill(jobs, [*expected[:at], True, *expected[at:]], promises=False):
            return None
        self.jobs, self._filled, self._anew = jobs, filled, filled
        for each, plan in zip(jobs, filled.plans, strict=True):
            each.promised = plan.share
        return {each.job.id: each.promised for each in jobs}

    def shares(self, budget: GpuBudget) -> list[_Share]:
        """What each job gets now at least, taken from the budget: none, if jobs before it need all."""
        result = []
        for each, plan in zip(self.jobs, self.plans(), strict=True):
            budget.left[self.kind] -= plan.now
            least = plan.share or each.sizes[-1][0]
            left_s = each.job.deadline_s - self._snapshot.time_s
            reason = f"ends by its deadline in {left_s:.0f} s with {least} GPUs or fewer"
            if not plan.share:
                reason = f"its deadline in {left_s:.0f} s is at risk"
            result.append(_Share(each.job, self.kind, each.sizes, plan.now, least, reason))
        for share in result:
            _start(share, budget)
        return result

    def plans(self) -> Sequence[_Plan]:
        if self._filled is None:
            self._filled = _Filled(self._everything)
            self._filled.fill(self.jobs)
        return self._filled.plans


def _sizes(job: JobState, kind: str, gpus: int, speeds: Speeds) -> Sequence[tuple[int, float]]:
    """Powers of two of replicas and the smallest size, or those that the job lists, that make it faster."""
    rising = [each for each in rising_sizes(job, kind, speeds) if each[0] <= gpus]
    if job.spec.gpus.sizes is not None or job.spec.elastic == "none":
        return rising
    return [
        each for each in rising if (each[0] // job.per_replica).bit_count() == 1 or each[0] == job.min_gpus
    ]


class FreeLater(NamedTuple):
    """GPUs that are free from now on, as steps over time."""

    times: list[float]
    """Begin of each, ascending."""
    counts: npt.NDArray[np.int64]
    """[step]"""

    def without(self, stretches: Iterable[_Stretch]) -> FreeLater:
        """What these leave."""
        times, counts = [*self.times], self.counts.copy()
        for stretch in stretches:
            if stretch.gpus:
                first, counts = _step(times, counts, stretch.from_s)
                last, counts = _step(times, counts, stretch.until_s)
                counts[first:last] -= stretch.gpus
        return FreeLater(times, counts)

    def without_all(self, plans: Sequence[_Plan]) -> FreeLater:
        """What plans of one stretch each leave that all begin now, where everything is free."""
        (now_s,), count = self.times, self.counts.item()
        ends: dict[float, int] = {}
        for plan in plans:
            (stretch,) = plan.stretches
            ends[stretch.until_s] = ends.get(stretch.until_s, 0) + stretch.gpus
        times = [now_s, *sorted(ends)]
        freed = [count - sum(ends.values()), *(ends[each] for each in times[1:])]
        return FreeLater(times, np.array(freed).cumsum())


def _step(
    times: list[float], counts: npt.NDArray[np.int64], time_s: float
) -> tuple[int, npt.NDArray[np.int64]]:
    """The position of the step that begins then, made if it is not there, and the counts with it."""
    at = bisect_left(times, time_s)
    if at < len(times) and times[at] == time_s:
        return at, counts
    times.insert(at, time_s)
    return at, np.concatenate((counts[:at], counts[at - 1 : at], counts[at:]))


# GPUs beyond the shares of now.


@dataclass(slots=True)
class _Share:
    """What a job gets now."""

    job: JobState
    kind: str
    sizes: Sequence[tuple[int, float]]
    gpus: int
    least: int
    """The size with which its GPU-seconds are compared: its minimum satisfactory share, or its smallest."""
    reason: str

    def next_size(self) -> tuple[int, float] | None:
        """The next size, and the GPU-seconds later that a GPU-second more of it now saves."""
        rates = dict(self.sizes)
        larger = next((size for size, _ in self.sizes if size > self.gpus), None)
        if larger is None:
            return None
        faster = (rates[larger] - rates[self.gpus]) / (larger - self.gpus)
        return larger, faster * self.least / rates[self.least]


def _smallest(jobs: Iterable[JobState], budget: GpuBudget, snapshot: Snapshot) -> list[_Share]:
    """Best-effort jobs at their smallest sizes, in order of arrival, those that run first."""
    smallest = []
    for job in sorted(jobs, key=lambda job: (not job.gpus, job.arrival)):
        rigid = job.spec.elastic == "none"
        grant = budget.fit(job, job.requested if rigid else job.min_gpus, snapshot.speeds)
        if grant is None:
            continue
        budget.take(grant)
        gpus = snapshot.gpus_by_type()[grant.gpu_type]
        sizes = _sizes(job, grant.gpu_type, gpus, snapshot.speeds)
        if job.is_speed_guessed:
            sizes = sizes[:1]
        smallest.append(_Share(job, grant.gpu_type, sizes, grant.gpus, grant.gpus, "best-effort"))
    return smallest


def _start(share: _Share, budget: GpuBudget) -> None:
    """A job that has nothing now takes its smallest size, if it is left."""
    least = share.sizes[0][0]
    if not share.gpus and budget.left[share.kind] >= least and share.job.fits_now(least, share.kind):
        share.gpus = least
        budget.left[share.kind] -= least


def _grow(shares: Sequence[_Share], budget: GpuBudget) -> None:
    """Give what is left, size by size, where it saves most."""
    gains = [
        (-step[1], turn, step[0])
        for turn, share in enumerate(shares)
        if share.gpus and (step := share.next_size()) is not None
    ]
    heapify(gains)
    while gains:
        _, turn, size = gains[0]
        share = shares[turn]
        more = size - share.gpus
        if more > budget.left[share.kind] or not share.job.fits_now(size, share.kind):
            heappop(gains)
            continue
        budget.left[share.kind] -= more
        share.gpus = size
        step = share.next_size()
        if step is None:
            heappop(gains)
        else:
            heapreplace(gains, (-step[1], turn, step[0]))


# Buddy placement: blocks of the jobs' sizes.


def _place(kind: str, shares: Sequence[_Share], snapshot: Snapshot, decision: Decision) -> None:
    """Name the places of one type, so that jobs are on as few nodes as their sizes allow.

    Large jobs come first, and what stays keeps its place if it can: sizes that are powers of two then leave
    no gaps. Jobs that stay are moved only where that scatters fewer jobs.
    """
    if any(share.job.room is not None for share in shares):
        return  # what else they demand of nodes decides: the placement step knows it
    order = sorted(shares, key=lambda share: (-share.gpus, not _stays(share), share.job.arrival))
    free = snapshot.free.after(job.placement for job in snapshot.jobs.values() if job.gpu_type == kind)
    places = _packed(sorted(order, key=lambda share: not _stays(share)), free, snapshot.speeds)
    if _scattered(places, order, snapshot.speeds):
        again = snapshot.free.after(job.placement for job in snapshot.jobs.values() if job.gpu_type == kind)
        packed = _packed(order, again, snapshot.speeds)
        if _scattered(packed, order, snapshot.speeds) < _scattered(places, order, snapshot.speeds):
            places = packed
    for share in order:
        place = places.get(share.job.id)
        if place and place != share.job.placement:
            decision.targets[share.job.id] = Target(share.gpus, kind, placement=place)


def _stays(share: _Share) -> bool:
    return share.job.gpus == share.gpus and share.job.gpu_type == share.kind


def _packed(shares: Iterable[_Share], free: FreeGpus, speeds: Speeds) -> dict[str, NodeGpus]:
    places = {}
    for share in shares:
        held = share.job.placement
        fits = _stays(share) and all(free.free_on(name) >= count for name, count in held)
        if fits and len(held) <= _fewest(share, speeds):
            place = held
        else:
            place = free.tightest(share.gpus, share.kind)
            if fits and len(place) >= len(held):
                place = held
        free.take(place)
        places[share.job.id] = place
    return places


def _scattered(places: Mapping[str, NodeGpus], shares: Iterable[_Share], speeds: Speeds) -> int:
    """Jobs on more nodes than their size needs."""
    return sum(len(places[share.job.id]) > _fewest(share, speeds) for share in shares)


def _fewest(share: _Share, speeds: Speeds) -> int:
    return len(speeds.consolidated(share.gpus, share.kind, share.job.per_replica))
