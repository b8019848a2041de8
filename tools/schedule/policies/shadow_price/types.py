"""Several GPU types shared out at once: which type, how many GPUs and with them which batch each job gets.

Jobs are priced from the last to end to the first, as in one pool (:mod:`prices`), with a worth of the GPUs
of each type. A job's price is the least over the types and sizes that it may have,

    λ_m = min over types t, k of [w_m + S_t(K_t) - S_t(K_t - k)] / g_mt(k),

and it joins the type where that is least: there it makes GPUs more expensive for those that end before it.
At these prices a linear program gives the GPUs of all types out; it divides few jobs, about one a type. Each
job is then of the type of which it has most, and every type is solved by itself. While one is worth more on
GPUs of another type that are left over, it goes there. A move to another type costs what every change does.

Values are rates, and what a change costs is spread over the time in which it has to pay. That says too little
where a job of minutes takes GPUs from one that pays for it twice, when it goes and when it comes back. So
the running jobs that are to lose most are held against the assignment in which they keep what they hold: one
makes way only if the others gain more, while they last, than it loses.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.completion_order import improved
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.job_estimates import PoolColumns
from pliant.tools.schedule.policies.shadow_price.prices import (
    Priced,
    PricedJob,
    PriceMemory,
    Prices,
    Remembered,
)
from pliant.tools.schedule.policies.shadow_price.sizes import (
    PoolShares,
    Rules,
    chosen_sizes,
    sooner,
    undisturbed,
    values,
    worth_of,
)

_PART: Final = 1e-6
"""Part of a job below which it gets nothing."""
_FEW_OPTIONS: Final = 1000
"""Fewer are solved as they are."""
_WIDTH: Final = 0.1
"""Relative distance of GPU prices from those of the last decision at most."""
_APPROACHES: Final = 3
"""Number of times that they are taken from the last result."""
_CLEAR: Final = 1e-6
"""Part of the largest gain: ten times what the solver takes for equal."""
_EQUAL: Final = 1e-9
_ATTEMPTS: Final = 60
_OVER: Final = 1.5
"""Multiple of the way to where an option is clearly better: prices go a little beyond."""
_TURNS: Final = 4
"""The most times that each type is priced."""
_HALVINGS: Final = 20


_MORE: Final = 1e-6
"""Relative gain below which a move is rounding."""
_PAYS: Final = 4.0
"""Less than in one pool: with several types more changes offer themselves."""
_LASTS_S: Final = 4000.0
"""The longest that others are taken to gain by what a job gives up."""
_QUESTIONS: Final = 6
"""The most jobs that are asked what they lose, those that lose most first: each is a whole assignment."""


class _Options(NamedTuple):
    """What jobs may get, a row each."""

    jobs: Ints
    types: Ints
    gpus: Ints
    gains: Floats
    """Values over those of no GPUs."""


class _Assignment(NamedTuple):
    """By job the type that it has or would join, and the position of its size there."""

    home: Mapping[str, int]
    sizes: Mapping[str, int]


Places = Mapping[str, Mapping[int, int]]
"""Row of each job in each type that it may have."""


def shared_over_types(
    types: Sequence[PoolColumns], rules: Rules, memory: PriceMemory, time_s: float
) -> list[PoolShares]:
    """Share all types out; each job is a member of the type that it gets, or else would join."""
    places: dict[str, dict[int, int]] = {}
    for kind, members in enumerate(types):
        for row, job in enumerate(members.jobs):
            places.setdefault(job.id, {})[kind] = row
    order, prices, joined = _priced(types, places, rules, memory)
    worth = [
        values_with_starts(each, own, rules.dwell_s, time_s) for each, own in zip(types, prices, strict=True)
    ]
    value = [each + sooner(members, rules.dwell_s) for each, members in zip(worth, types, strict=True)]
    for own in places.values():
        without = min(float(value[kind][row, 0]) for kind, row in own.items())
        for kind, row in own.items():
            value[kind][row, 0] = without  # what a running job loses without GPUs, it loses on every type
    market = _Market(types, places, value, [*reversed(order)], joined, time_s, memory)
    home, sizes = market.without_waste([undisturbed(*each) for each in zip(types, prices, strict=True)])
    shares = []
    for kind, members in enumerate(types):
        rows = [row for row, job in enumerate(members.jobs) if home[job.id] == kind]
        if not rows:
            continue
        few = members.of_rows(rows)
        at = {job.id: row for row, job in enumerate(few.jobs)}
        turn = [at[job_id] for job_id in order if job_id in at]
        chosen = np.array([sizes[job.id] for job in few.jobs], dtype=np.int64)
        shares.append(PoolShares(few, turn, prices[kind][rows], worth[kind][rows], chosen, Guard.none(few)))
    return shares


TypedMade = tuple[Priced[PricedJob, Floats], ...]
"""The worth of GPUs by type."""
TypedJob = tuple[PricedJob | None, ...]
"""A job by type; None where it does not run."""


class TypesWorth(Prices[TypedJob, TypedMade]):
    """The worth of the GPUs of several types; jobs have rates by type, in parts of their work per second."""

    def __init__(self, worths: Sequence[Remembered[PricedJob, Floats]]) -> None:
        self._worths = worths

    def start(self, future: float) -> TypedMade:
        return tuple(worth.start(future) for worth in self._worths)

    def cheapest(self, job: TypedJob, made: TypedMade) -> tuple[float, int]:
        """The least price over the types, and the first type that has it."""
        least, at = math.inf, -1
        for kind, (rates, there) in enumerate(zip(job, made, strict=True)):
            if rates is None:
                continue
            price = there.prices.get(rates)
            if price is None:
                price = self._worths[kind].price(rates, there)
            if price < least or at < 0:
                least, at = price, kind
        return least, at

    def price(self, job: TypedJob, made: TypedMade) -> float:
        return self.cheapest(job, made)[0]

    def with_job(self, job: TypedJob, price: float, made: TypedMade) -> TypedMade:
        """It joins the first type that has this price."""
        worths = [*made]
        for kind, (rates, there) in enumerate(zip(job, made, strict=True)):
            if rates is not None and there.prices.get(rates) == price:
                worths[kind] = self._worths[kind].with_job(rates, price, there)
                break
        return tuple(worths)


def values_with_starts(members: PoolColumns, prices: Floats, dwell_s: float, time_s: float) -> Floats:
    """[job, size] values, of waiting jobs less what a start costs: much to a short job on many GPUs.

    The longer a job has waited, the less its start counts: it is put off for about as long as it takes.
    """
    worth = values(members, prices, dwell_s, _PAYS)
    waited_s = np.array([_waited_s(job, time_s) for job in members.jobs])
    counts_s = members.rescale_s**2 / np.maximum(members.rescale_s + waited_s, 1e-9)
    starts = 1.0 + members.whole * (counts_s / members.left)[:, None]
    return np.where(members.runs[:, None], worth, worth / starts)


def _waited_s(job: JobState, time_s: float) -> float:
    """Since when a job without GPUs has had none."""
    return max(0.0, time_s - max(job.changed_s, job.spec.submit_time))


def _priced(
    types: Sequence[PoolColumns], places: Places, rules: Rules, memory: PriceMemory
) -> tuple[list[str], list[Floats], dict[str, int]]:
    """Jobs from the last to end to the first, λ by type and row, and the type that each job joins."""
    by_row = [
        memory.jobs(members.whole / members.left[:, None], members.weights.tolist()) for members in types
    ]

    def priced_job(own: Mapping[int, int]) -> TypedJob:
        rows = ((kind, own.get(kind)) for kind in range(len(types)))
        return tuple(None if row is None else by_row[kind][row] for kind, row in rows)

    jobs = [priced_job(own) for own in places.values()]
    alone = [worth_of(members, memory) for members in types]
    by_type, gpus = TypesWorth(alone), sum(members.pool.gpus for members in types)
    pools = tuple((members.pool.gpus, members.sizes.tobytes()) for members in types)
    worth = memory.worth(pools, len(types), lambda: by_type)
    whole = sum(next(each.weight for each in job if each is not None) for job in jobs)
    future = rules.future * whole / gpus
    order = _shortest_last(types, places)
    if all(members.pool.gpus <= EXACT_GPUS for members in types):
        order = improved(order, jobs, [1.0] * len(jobs), worth, future=future, sweeps=rules.sweeps)
    ids, prices, joined = list(places), [np.zeros(len(members.jobs)) for members in types], {}
    made = worth.start(future)
    for number in order:
        price, joined[ids[number]] = by_type.cheapest(jobs[number], made.made)
        for each, row in places[ids[number]].items():
            prices[each][row] = price / types[each].left[row]
        made = worth.with_job(jobs[number], price, made)
    return [ids[number] for number in order], prices, joined


def _shortest_last(types: Sequence[PoolColumns], places: Places) -> list[int]:
    """Jobs by weighted GPU-seconds of the type where they are fewest, those with most first."""
    keys = [
        min(types[kind].seconds[row] / types[kind].weights[row] for kind, row in own.items())
        for own in places.values()
    ]
    arrivals = {job.id: job.arrival for members in types for job in members.jobs}
    turns = [arrivals[job_id] for job_id in places]
    return sorted(range(len(keys)), key=lambda number: (keys[number], turns[number]), reverse=True)


@dataclass(frozen=True)
class _Market:
    """What jobs may have, and what it is worth."""

    types: Sequence[PoolColumns]
    places: Places
    value: Sequence[Floats]
    """[job, size] by type, with costs."""
    turns: Sequence[str]
    """Jobs, the first to end first."""
    joined: Mapping[str, int]
    """The types that the prices put them in."""
    time_s: float
    memory: PriceMemory

    def assignment(self, kept: Mapping[str, int]) -> _Assignment:
        """The best that is found where some jobs keep what they hold of these types."""
        value = self._with(kept)
        home = {**self.joined, **self._assigned(value, kept)}
        assignment = _Assignment(home, self._solved(value, home))
        worth = self._sum(value, assignment)
        while moved := self._moves(value, assignment.home, assignment.sizes):
            home = {**assignment.home, **moved}
            other = _Assignment(home, self._solved(value, home))
            other_worth = self._sum(value, other)
            if other_worth <= worth:
                break  # sizes of a large pool come from prices: a job that joins it may cost others more
            assignment, worth = other, other_worth
        return assignment

    def _sum(self, value: Sequence[Floats], assignment: _Assignment) -> float:
        return sum(self._of(value, assignment, job_id) for job_id in self.places)

    def without_waste(self, plain: Sequence[Floats]) -> _Assignment:
        """The same; no job makes way for less than it loses. Not asked in large pools: it takes too long.

        :param plain: [job, size] by type, values without costs.
        """
        kept: dict[str, int] = {}
        assignment = self.assignment(kept)
        if any(members.pool.gpus > EXACT_GPUS for members in self.types):
            return assignment
        paid: set[str] = set()
        for _ in range(_QUESTIONS):
            asked = next(
                (each for each in self._losers(assignment, kept, plain) if each[0] not in paid), None
            )
            if asked is None:
                break
            job_id, kind = asked
            other = self.assignment({**kept, job_id: kind})
            if self._pays(job_id, kind, assignment, other, plain):
                paid.add(job_id)
            else:
                kept[job_id], assignment = kind, other
        return assignment

    def _with(self, kept: Mapping[str, int]) -> Sequence[Floats]:
        if not kept:
            return self.value
        worth = [each.copy() for each in self.value]
        for job_id, held in kept.items():
            for kind, row in self.places[job_id].items():
                size = self.types[kind].held[row]
                worth[kind][row] = -np.inf
                if kind == held:
                    worth[kind][row, size] = self.value[kind][row, size]
        return worth

    def _losers(
        self, assignment: _Assignment, kept: Mapping[str, int], plain: Sequence[Floats]
    ) -> list[tuple[str, int]]:
        """Running jobs that are to be worse off, and the types that they hold, the most costly first."""
        costs = {}
        for kind, members in enumerate(self.types):
            for row in np.flatnonzero((members.held > 0) & (members.cost_s > 0)).tolist():
                job_id, held = members.jobs[row].id, int(members.held[row])
                changes = (kind, held) != (assignment.home[job_id], assignment.sizes[job_id])
                now = float(self.value[kind][row, held])
                if changes and job_id not in kept and self._of(plain, assignment, job_id) < now:
                    costs[job_id, kind] = float(members.cost_s[row]) * now
        return sorted(costs, key=lambda each: -costs[each])

    def _pays(
        self, job_id: str, kind: int, assignment: _Assignment, other: _Assignment, plain: Sequence[Floats]
    ) -> bool:
        """Whether others gain more, while they are there, than a job loses that makes way and comes back.

        A waiting job is taken to wait as long again, so none waits indefinitely.
        """
        gained, rate, rate_s = 0.0, 0.0, 0.0
        for each in self.places:
            more = self._of(self.value, assignment, each) - self._of(self.value, other, each)
            at = assignment if assignment.sizes[each] else other
            if each == job_id or not more or not at.sizes[each]:
                continue
            members, row = self.types[at.home[each]], self.places[each][at.home[each]]
            speed, job = float(members.whole[row, at.sizes[each]]), members.jobs[row]
            lasts_s = min(_LASTS_S, float(members.left[row]) / speed)
            if not job.gpus:  # it may wait on: as long as it has waited
                lasts_s = max(lasts_s, _waited_s(job, self.time_s))
            gained += more * lasts_s
            if more > 0:
                rate, rate_s = rate + more, rate_s + more * lasts_s
        members, row = self.types[kind], self.places[job_id][kind]
        now, then = float(self.value[kind][row, members.held[row]]), self._of(plain, assignment, job_id)
        slower_s = rate_s / rate if rate else 0.0
        return gained > (now - then) * slower_s + float(members.cost_s[row]) * (now + then)

    def _of(self, value: Sequence[Floats], assignment: _Assignment, job_id: str) -> float:
        kind = assignment.home[job_id]
        return float(value[kind][self.places[job_id][kind], assignment.sizes[job_id]])

    def _solved(self, value: Sequence[Floats], home: Mapping[str, int]) -> dict[str, int]:
        """By job the position of its size, each type for itself."""
        size_by_job: dict[str, int] = {}
        for kind, members in enumerate(self.types):
            rows = [row for row, job in enumerate(members.jobs) if home[job.id] == kind]
            if rows:
                few = members.of_rows(rows)
                sizes = chosen_sizes(few, value[kind][rows]).tolist()
                size_by_job |= {job.id: size for job, size in zip(few.jobs, sizes, strict=True)}
        return size_by_job

    def _moves(
        self, value: Sequence[Floats], home: Mapping[str, int], sizes: Mapping[str, int]
    ) -> dict[str, int]:
        """Jobs that are worth more on GPUs of another type that are left over, the first to end first."""
        types, left = self.types, [members.pool.gpus for members in self.types]
        for job_id, size in sizes.items():
            left[home[job_id]] -= int(types[home[job_id]].sizes[size])
        moves = {}
        for job_id in self.turns:
            held = float(value[home[job_id]][self.places[job_id][home[job_id]], sizes[job_id]])
            best, there = held + _MORE * abs(held), None
            for kind, row in self.places[job_id].items():
                some = value[kind][row, : np.searchsorted(types[kind].sizes, left[kind], side="right")]
                if kind != home[job_id] and some.max() > best:
                    best, there = float(some.max()), (kind, int(types[kind].sizes[some.argmax()]))
            if there is not None:
                moves[job_id] = there[0]
                left[there[0]] -= there[1]
        return moves

    def _assigned(self, value: Sequence[Floats], kept: Mapping[str, int]) -> dict[str, int]:
        """The type of which each job has most in the best assignment of parts; none for jobs without any."""
        left = [members.pool.gpus for members in self.types]
        for job_id, kind in kept.items():
            members = self.types[kind]
            left[kind] -= int(members.sizes[members.held[self.places[job_id][kind]]])
        if any(members.pool.gpus > EXACT_GPUS for members in self.types):
            return _by_prices(self.types, value)
        options = _options(self.types, self.places, value, kept)
        if not len(options.jobs):
            return dict(kept)
        parts = np.zeros((len(self.places), len(self.types)))
        pools = tuple((members.pool.gpu_type, members.pool.gpus) for members in self.types)
        divided = _Program(options, len(self.places), left).parts(self.memory, pools)
        np.add.at(parts, (options.jobs, options.types), divided)
        some = zip(self.places, parts, strict=True)
        most = {job_id: self._of_equal(job_id, row) for job_id, row in some if row.max() > _PART}
        return {**most, **kept}

    def _of_equal(self, job_id: str, parts: Floats) -> int:
        """The type of which a job has most; of several the one that the prices put it in, else the first."""
        most, joined = _has_most(parts), self.joined[job_id]
        return joined if most[joined] else int(most.argmax())


def _has_most(parts: Floats, tolerance: float = _PART) -> npt.NDArray[np.bool_]:
    """[…, type] whether a job has most of it; halves are equal, whatever the solver rounds."""
    is_most: npt.NDArray[np.bool_] = parts >= parts.max(axis=-1, keepdims=True) - tolerance
    return is_most


def _by_prices(types: Sequence[PoolColumns], value: Sequence[Floats]) -> dict[str, int]:
    """The type whose best size is worth most to each job at prices of the GPUs, for large pools.

    The prices minimise the dual of the linear program, one type after the other: the least at which what jobs
    would have of it is there.
    """
    jobs = {job.id: None for members in types for job in members.jobs}
    numbers = {job_id: number for number, job_id in enumerate(jobs)}
    rows = [np.array([numbers[job.id] for job in members.jobs], dtype=np.int64) for members in types]
    gains = [each - each[:, :1] for each in value]
    prices = np.zeros(len(types))

    def best(kind: int, price: float) -> tuple[Floats, Ints]:
        """[job] the most of this type at a price, and its size."""
        own = gains[kind] - price * types[kind].sizes
        picks, best = own.argmax(axis=1), np.full(len(jobs), -np.inf)
        best[rows[kind]] = own[np.arange(len(own)), picks]
        return best, types[kind].sizes[picks]

    most = np.stack([best(kind, 0.0)[0] for kind in range(len(types))])
    for _ in range(_TURNS):
        before = prices.copy()
        for kind, members in enumerate(types):
            others = np.delete(most, kind, axis=0).max(axis=0, initial=0.0)[rows[kind]]
            low, high = 0.0, float(gains[kind].max())
            for step in range(_HALVINGS):
                price = (low + high) / 2 if step else low
                worth, sizes = best(kind, price)
                if sizes[worth[rows[kind]] > others].sum() <= members.pool.gpus:
                    high = price
                    if not step:
                        break
                else:
                    low = price
            prices[kind] = high
            most[kind] = best(kind, high)[0]
        if np.allclose(prices, before, rtol=_PART):
            break
    return {job_id: int(own.argmax()) for job_id, own in zip(jobs, most.T, strict=True) if own.max() > 0}


def _options(
    types: Sequence[PoolColumns], places: Places, value: Sequence[Floats], kept: Container[str]
) -> _Options:
    """Sizes that are worth more than none and than all smaller ones of the type, of jobs that are free."""
    numbers = {job_id: number for number, job_id in enumerate(places)}
    options = []
    for kind, members in enumerate(types):
        free = np.array([job.id not in kept for job in members.jobs])[:, None]
        best = np.maximum.accumulate(value[kind], axis=1)[:, :-1]
        rows, sizes = np.nonzero((value[kind][:, 1:] > best) & free)
        jobs = np.array([numbers[job.id] for job in members.jobs], dtype=np.int64)
        gains = value[kind][rows, sizes + 1] - value[kind][rows, 0]
        options.append(_Options(jobs[rows], np.full(len(rows), kind), members.sizes[sizes + 1], gains))
    return _Options(*(np.concatenate(columns) for columns in zip(*options, strict=True)))


# The linear program: which part of each option jobs get.


class _Program:
    """Its columns are options, with gains as parts of the largest: the solver's tolerances are absolute.

    Large programs are first solved with the few options that GPU prices close to those of the last decision
    leave. What comes of it counts where prices prove that nothing else is as good, so that all options would
    come to the same.
    """

    def __init__(self, options: _Options, jobs: int, gpus: Sequence[int]) -> None:
        self._options = options
        self._jobs = jobs
        self._gpus = np.array(gpus, dtype=np.float64)
        self._scale = float(options.gains.max())
        self._gains = options.gains / self._scale

    def parts(self, memory: PriceMemory, pools: Hashable) -> Floats:
        """[option] the part of it in the best assignment.

        :param pools: under which the prices of the last decision are kept.
        """
        if len(self._gains) < _FEW_OPTIONS:
            return self._solved(np.arange(len(self._gains)))[0]
        known = memory.gpu_prices.get(pools)
        parts, prices = (None, None) if known is None else self._near(known / self._scale)
        if parts is None:
            parts, prices = self._solved(np.arange(len(self._gains)))
            proof = None if prices is None else self._proof(parts, prices)
            prices = prices if proof is None else proof
        if prices is not None:
            memory.gpu_prices[pools] = prices * self._scale
        return parts

    def _near(self, prices: Floats) -> tuple[Floats | None, Floats | None]:
        """The best assignment and prices that prove it; None where those close to ``prices`` do not."""
        parts, some = self._bought(prices), np.zeros(0, dtype=np.int64)
        proof = self._proof(parts, prices)
        for _ in range(_APPROACHES):
            if proof is not None:
                break
            some = np.union1d(some, self._within(prices))
            parts, there = self._solved(some) if some.size else (parts, None)
            if there is None or np.allclose(there, prices, rtol=_EQUAL):
                break
            proof, prices = self._proof(parts, there), there
        return (None, None) if proof is None else (parts, proof)

    def _bought(self, prices: Floats) -> Floats:
        """[option] whether it is the best of its job at these prices."""
        left = self._left(prices)
        best = self._best(left)
        parts: Floats = ((left > 0) & (left == best[self._options.jobs])).astype(np.float64)
        return parts

    def _within(self, prices: Floats) -> Ints:
        """Options that are best for their job at prices that differ from these by :data:`_WIDTH` at most."""
        least = self._best(self._left(prices * (1 + _WIDTH)))
        return np.flatnonzero(self._left(prices * (1 - _WIDTH)) >= least[self._options.jobs])

    def _left(self, prices: Floats) -> Floats:
        """[option] the gain less what its GPUs cost."""
        left: Floats = self._gains - prices[self._options.types] * self._options.gpus
        return left

    def _best(self, left: Floats) -> Floats:
        """[job] the most of its options, or of none."""
        best = np.zeros(self._jobs)
        np.maximum.at(best, self._options.jobs, left)
        return best

    def _proof(self, solution: Floats, prices: Floats) -> Floats | None:
        """Prices close to these that prove a basic solution to be the only best one; None if none are found.

        At them each option with a part is clearly better than all others of its job, and than none; those
        among which a job is divided are equal. GPUs that are left over cost nothing, others something.
        """
        options, none = self._options, len(self._gains)
        own = np.flatnonzero(solution > _PART)
        used = np.bincount(options.types[own], options.gpus[own] * solution[own], len(self._gpus))
        parts = np.bincount(options.jobs[own], solution[own], self._jobs)
        if (used > self._gpus + _PART).any() or (parts > 1 + _PART).any():
            return None
        first = np.full(self._jobs, none)
        first[options.jobs[own][::-1]] = own[::-1]
        rival, firsts = first[options.jobs], first[first < none]
        rival[firsts] = none
        some, others = first[(parts > 0) & (parts < 1 - _PART)], own[first[options.jobs[own]] != own]
        equal = [*((each, none) for each in some), *((each, rival[each]) for each in others)]
        tight = used >= self._gpus - _PART
        along = np.diag(tight.astype(np.float64))
        if equal:
            if not self._is_settled(solution, others):
                return None
            ties = np.array([self._slope(one) - self._slope(other) for one, other in equal]) @ along
            along -= np.linalg.pinv(ties) @ ties
        prices = np.where(tight, prices, 0.0)
        for _ in range(_ATTEMPTS):
            left = np.append(self._left(prices), 0.0)
            lead = left[rival] - left[:none]
            lead[firsts] *= -1.0
            lead[[one for one, _ in equal]] = np.inf
            worst = int(lead.argmin())
            if lead[worst] > _CLEAR:
                holds = (prices[tight] > _CLEAR).all() and all(
                    abs(left[one] - left[other]) < _EQUAL for one, other in equal
                )
                return prices if holds else None
            way = along @ (self._slope(rival[worst]) - self._slope(worst))
            way *= -1.0 if first[options.jobs[worst]] == worst else 1.0
            if not (square := float(way @ way)) > _EQUAL:
                return None
            prices = prices + way * (_OVER * (2 * _CLEAR - lead[worst]) / square)
        return None

    def _slope(self, option: int) -> Floats:
        """[type] how what an option leaves changes with the prices of GPUs; of none not at all."""
        slope = np.zeros(len(self._gpus))
        if option < len(self._gains):
            slope[self._options.types[option]] = -self._options.gpus[option]
        return slope

    def _is_settled(self, solution: Floats, others: Ints) -> bool:
        """Whether of each job that is divided it is clear which types have most."""
        if len(self._gpus) < 2 or not len(others):
            return True
        parts = np.zeros((self._jobs, len(self._gpus)))
        np.add.at(parts, (self._options.jobs, self._options.types), solution)
        divided = parts[self._options.jobs[others]]
        return bool((_has_most(divided, _PART / 2) == _has_most(divided, _PART * 2)).all())

    def _solved(self, some: Ints) -> tuple[Floats, Floats | None]:
        """[option] the best assignment of these options, and the prices of GPUs there."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        at, jobs = np.arange(len(some)), self._options.jobs[some]
        rows, columns = (
            np.concatenate([jobs, self._jobs + self._options.types[some]]),
            np.concatenate([at, at]),
        )
        entries = np.concatenate([np.ones(len(at)), self._options.gpus[some]])
        shape = (self._jobs + len(self._gpus), len(at))
        matrix: Any = csr_array((entries, (rows, columns)), shape=shape)
        solved = linprog(
            -self._gains[some],
            A_ub=matrix,
            b_ub=np.concatenate([np.ones(self._jobs), self._gpus]),
            bounds=(0, None),
            method="highs-ds",
            options={"presolve": len(some) == len(self._gains)},  # of few it takes longer than it saves
        )
        solution = np.zeros(len(self._gains))
        if solved.x is None:
            return solution, None
        solution[some] = solved.x
        return solution, -solved.ineqlin.marginals[self._jobs :]
