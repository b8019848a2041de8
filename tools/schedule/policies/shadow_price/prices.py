"""Prices: what a unit of progress of each job is worth, in the order in which the jobs are to end.

Job m has remaining work R_m, weight w_m and makes g_m(k) progress per second on k GPUs. The least flow time
∫ Σ w dt under Σ k ≤ K has, by Pontryagin's principle, a costate λ_m for each job, constant while it lives;
every decision maximises Σ λ_m g_m(k_m), and the Hamiltonian is 0 at the end. Numbered backwards by completion
(m = 1 ends last), with S_m(c) the most that the first m make of c GPUs,

    λ_m = min over k of [w_m + S_{m-1}(K) - S_{m-1}(K - k)] / g_m(k)
    S_m(c) = max over k ≤ c, 0 included, of S_{m-1}(c - k) + λ_m g_m(k),    S_0 = 0.

V = Σ λ_m R_m is then the least flow time of the fluid system in that order. Curves may be of any shape.
:func:`priced` is the recursion, :mod:`completion_order` chooses the order, :func:`ends_s` says when jobs
would end if none came and changes were free. At given prices a knapsack gives out the GPUs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints

_FLAT: Final = 1e-13
"""Part of the largest rate below which a curve does not count as convex."""
_HALVINGS: Final = 50
_FILLS: Final = 8
"""Jobs that grow one after the other into what is left."""
STAGES: Final = 64
"""Ends that are computed; later ones count as infinite."""
_MOST_NUMBERS: Final = 4_000_000
"""Maximum numbers of 8 bytes kept from one decision to the next."""
_ENTRY: Final = 100
"""Bytes of an entry without its numbers."""
_DONE: Final = 1e-9
"""Part of a job's work that is rounding."""
_FEW_PAIRS: Final = 4
"""Fewer are computed one by one."""
_BLOCK: Final = 16
"""Sizes that are tried at once: the sums of many jobs stay in the processor's cache."""


@dataclass(slots=True, eq=False)
class PricedJob:
    """One job as the prices see it."""

    rates: Floats
    """[size] progress per second, up to the size at which it is fastest."""
    weight: float
    least: int
    """The smallest size that is feasible."""
    slowness: Floats
    """1 / rates of the sizes from there on, infinite where infeasible."""
    _grid: Floats | None = None
    _slopes: Floats | None = None

    @property
    def is_concave(self) -> bool:
        """Whether no GPU adds more than the one before it, so that its hull is its curve."""
        return self.least == 1 and bool((np.diff(self.rates, 2) <= _FLAT * self.rates[-1]).all())

    def slopes(self, gpus: int) -> Floats:
        """[gpus] what each GPU adds, 0 for those that it cannot use."""
        if self._slopes is None:
            self._slopes = np.zeros(gpus)
            self._slopes[: len(self.rates) - 1] = np.diff(self.rates)
        return self._slopes

    def grid(self, gpus: int) -> Floats:
        """[3, size] of all sizes up to ``gpus``: rates, 0 or -inf where not to be tried, and slowness."""
        if self._grid is None:
            made = np.zeros((3, gpus + 1))
            able = slice(self.least, len(self.rates))
            made[0, able], made[2, able] = self.rates[able], self.slowness
            made[1:, : self.least] = made[1:, len(self.rates) :] = [[-np.inf], [np.inf]]
            self._grid = made
        return self._grid

    @classmethod
    def of(cls, rates: Floats, weight: float = 1.0) -> PricedJob:
        """A job with these rates, of which the first is 0 and another is not."""
        short = rates[: int(rates.argmax()) + 1]
        least = int((short > 0).argmax())
        with np.errstate(divide="ignore"):
            return cls(short, weight, least, 1.0 / short[least:])


def priced(order: Sequence[JobT], worth: Prices[JobT, Made], future: float = 0.0) -> list[float]:
    """λ of jobs that end in the reverse of this order."""
    made = worth.start(future)
    *others, last = order
    prices = []
    for job in others:
        prices.append(worth.price(job, made))
        made = worth.with_job(job, prices[-1], made)
    return [*prices, worth.price(last, made)]


JobT = TypeVar("JobT", bound=Hashable)
SomeJob_contra = TypeVar("SomeJob_contra", contravariant=True)
Made = TypeVar("Made")


class Prices(Protocol[SomeJob_contra, Made]):
    """What the order of jobs of any kind is improved by: :data:`Worth` of one pool, or of several."""

    def start(self, future: float, /) -> Made: ...
    def price(self, job: SomeJob_contra, made: Made, /) -> float: ...
    def with_job(self, job: SomeJob_contra, price: float, made: Made, /) -> Made: ...

    def prices(self, pairs: Sequence[tuple[SomeJob_contra, Made]], /) -> list[float]:
        """:meth:`price` of many."""
        return [self.price(job, made) for job, made in pairs]

    def with_jobs(self, triples: Sequence[tuple[SomeJob_contra, float, Made]], /) -> list[Made]:
        """:meth:`with_job` of many."""
        return [self.with_job(*each) for each in triples]


class ExactWorth(Prices[PricedJob, Floats]):
    """S(c) for every c, by dynamic programming over curves of any shape: O(K · sizes) a job."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._padded = np.full(2 * gpus + 1, -np.inf)
        step = self._padded.strides[0]
        # [k, c] S(c - k), a view.
        self._left = np.lib.stride_tricks.as_strided(
            self._padded[gpus:], (gpus + 1, gpus + 1), (-step, step), writeable=False
        )
        self._sums = np.empty((gpus + 1, gpus + 1))
        # [pair, …] as `_padded`.
        self._many = np.full((0, 2 * gpus + 1), -np.inf)
        self._blocks = np.empty(0)

    def start(self, future: float) -> Floats:
        """S_0: a GPU that no job uses is worth ``future``."""
        return np.arange(self._gpus + 1, dtype=np.float64) * future

    def price(self, job: PricedJob, worth: Floats) -> float:
        """λ of a job that ends just before those of ``worth``."""
        gpus = self._gpus
        left = worth[gpus - len(job.rates) + 1 : gpus - job.least + 1][::-1]
        return _least((job.weight + worth[-1] - left) * job.slowness)

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        self._padded[self._gpus :] = worth
        count = len(job.rates)  # sizes that are infeasible have rate 0: they are no better than none
        sums = np.add(self._left[:count], (price * job.rates)[:, None], out=self._sums[:count])
        made: Floats = np.maximum.reduce(sums)
        return made

    def prices(self, pairs: Sequence[tuple[PricedJob, Floats]]) -> list[float]:
        if len(pairs) < _FEW_PAIRS:
            return super().prices(pairs)
        size, count = self._gpus + 1, len(pairs)
        worths = np.concatenate([worth for _, worth in pairs]).reshape(count, size)
        slowness = np.concatenate([job.grid(self._gpus)[2] for job, _ in pairs]).reshape(count, size)
        asked = np.array([job.weight for job, _ in pairs]) + worths[:, -1]
        prices: list[float] = np.fmin.reduce((asked[:, None] - worths[:, ::-1]) * slowness, axis=1).tolist()
        return prices

    def with_jobs(self, triples: Sequence[tuple[PricedJob, float, Floats]]) -> list[Floats]:
        if len(triples) < _FEW_PAIRS:
            return super().with_jobs(triples)
        turn = sorted(range(len(triples)), key=lambda number: -len(triples[number][0].rates))
        size, count, some = self._gpus + 1, len(triples), [triples[number] for number in turn]
        made = np.concatenate([worth for _, _, worth in some]).reshape(count, size)
        grid = np.concatenate([job.grid(self._gpus)[:2] for job, _, _ in some]).reshape(count, 2, size)
        values = np.array([price for _, price, _ in some])[:, None] * grid[:, 0] + grid[:, 1]
        left = self._shifted(made)
        first, lengths = min(job.least for job, _, _ in some), [len(job.rates) for job, _, _ in some]
        for low in range(first, lengths[0], _BLOCK):
            high, jobs = min(low + _BLOCK, lengths[0]), bisect_left(lengths, -low, key=lambda length: -length)
            sums = self._blocks[: jobs * (high - low) * (size - low)].reshape(jobs, high - low, size - low)
            np.add(left[:jobs, low:high, low:], values[:jobs, low:high, None], out=sums)
            np.maximum(made[:jobs, low:], np.maximum.reduce(sums, axis=1), out=made[:jobs, low:])
        made_by_number = dict(zip(turn, made, strict=True))
        return [made_by_number[number] for number in range(count)]

    def _shifted(self, worths: Floats) -> Floats:
        """[pair, k, c] S(c - k), a view."""
        gpus, count = self._gpus, len(worths)
        if len(self._many) < count:
            self._many = np.full((count, 2 * gpus + 1), -np.inf)
            self._blocks = np.empty(count * _BLOCK * (gpus + 1))
        self._many[:count, gpus:] = worths
        row, step = self._many.strides
        return np.lib.stride_tricks.as_strided(
            self._many[:, gpus:], (count, gpus + 1, gpus + 1), (row, -step, step), writeable=False
        )


class ConcaveWorth(Prices[PricedJob, Floats]):
    """The same for concave curves, up to rounding, as the worth of its GPUs one by one, ascending: O(K)."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def start(self, future: float) -> Floats:
        return np.full(self._gpus, future)

    def price(self, job: PricedJob, worth: Floats) -> float:
        taken = worth[: len(job.rates) - 1].cumsum()
        return _least((job.weight + taken) * job.slowness)

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        made = np.concatenate((worth, price * job.slopes(self._gpus)))
        made.sort()
        return made[self._gpus :]

    def prices(self, pairs: Sequence[tuple[PricedJob, Floats]]) -> list[float]:
        if len(pairs) < _FEW_PAIRS:
            return super().prices(pairs)
        shape = (len(pairs), self._gpus)
        taken = np.concatenate([worth for _, worth in pairs]).reshape(shape).cumsum(axis=1)
        slowness = np.concatenate([job.grid(self._gpus)[2, 1:] for job, _ in pairs]).reshape(shape)
        taken += np.array([job.weight for job, _ in pairs])[:, None]
        prices: list[float] = np.minimum.reduce(taken * slowness, axis=1).tolist()
        return prices

    def with_jobs(self, triples: Sequence[tuple[PricedJob, float, Floats]]) -> list[Floats]:
        if len(triples) < _FEW_PAIRS:
            return super().with_jobs(triples)
        shape = (len(triples), self._gpus)
        made = np.empty((shape[0], 2 * self._gpus))
        made[:, : self._gpus] = np.concatenate([worth for _, _, worth in triples]).reshape(shape)
        slopes = np.concatenate([job.slopes(self._gpus) for job, _, _ in triples]).reshape(shape)
        np.multiply(slopes, np.array([price for _, price, _ in triples])[:, None], out=made[:, self._gpus :])
        made.sort(axis=1)
        return [*made[:, self._gpus :].copy()]


class SlopeWorth(Prices[PricedJob, Floats]):
    """S of concave hulls, as the worth of its GPUs one by one, ascending: O(K) a job, for large pools.

    What k GPUs are worth to the others is then the sum of the k least.
    """

    def __init__(self, gpus: int, sizes: Ints) -> None:
        self._gpus = gpus
        self._sizes = sizes
        self._hulls: dict[bytes, tuple[Floats, bool]] = {}

    def start(self, future: float) -> Floats:
        return np.full(self._gpus, future)

    def price(self, job: PricedJob, worth: Floats) -> float:
        sizes = self._sizes[job.least : len(job.rates)]
        taken = worth[: sizes[-1]].cumsum()[sizes - 1]
        return _least((job.weight + taken) * job.slowness)

    def with_job(self, job: PricedJob, price: float, worth: Floats) -> Floats:
        slopes, are_equal = self._slopes(job.rates)
        if are_equal:
            return _with_equal(worth, price * slopes[0], len(slopes))
        made = np.concatenate((worth, price * slopes))
        made.sort(kind="stable")
        return made[len(made) - self._gpus :]

    def _slopes(self, rates: Floats) -> tuple[Floats, bool]:
        """Progress of each GPU more, ascending, along the concave hull, and whether all add the same; jobs
        that are alike share it.
        """
        key = rates.tobytes()
        known = self._hulls.get(key)
        if known is None:
            slopes = hull_slopes(self._sizes[: len(rates)], rates)
            known = self._hulls[key] = slopes, bool((slopes == slopes[0]).all())
        return known


def _with_equal(ascending: Floats, value: float, count: int) -> Floats:
    """The ``len(ascending)`` largest of these and of ``count`` times ``value``, ascending."""
    below = int(ascending.searchsorted(value))
    first = below - min(count, below)
    made = ascending.copy()
    made[:first] = ascending[below - first : below]
    made[first:below] = value
    return made


def _least(values: Floats) -> float:
    """Half the time of ``min``."""
    return values.item(values.argmin())


Worth = ExactWorth | ConcaveWorth | SlopeWorth
"""A way to compute S, in a form of its own that it calls ``worth``."""

# What was priced before: the jobs that are to end last wait, and their prices stay.


class Priced(Generic[JobT, Made]):
    """What GPUs are worth to some jobs, and what was asked with one more."""

    __slots__ = ("made", "prices", "then")

    def __init__(self, made: Made) -> None:
        self.made = made
        self.prices: dict[JobT, float] = {}
        self.then: dict[JobT, Priced[JobT, Made]] = {}


class Remembered(Generic[JobT, Made]):
    """Prices, each computed once: jobs that are equal have the same."""

    def __init__(self, worth: Prices[JobT, Made], gpus: int) -> None:
        # Computes them.
        self.worth = worth
        self._gpus = gpus
        self._starts: dict[float, Priced[JobT, Made]] = {}
        # That are kept.
        self.numbers = 0

    def start(self, future: float) -> Priced[JobT, Made]:
        priced = self._starts.get(future)
        if priced is None:
            priced = self._starts[future] = Priced(self.worth.start(future))
        return priced

    def price(self, job: JobT, made: Priced[JobT, Made]) -> float:
        price = made.prices.get(job)
        if price is None:
            price = made.prices[job] = self.worth.price(job, made.made)
        return price

    def with_job(self, job: JobT, price: float, made: Priced[JobT, Made]) -> Priced[JobT, Made]:
        priced = made.then.get(job)
        if priced is None:
            priced = made.then[job] = Priced(self.worth.with_job(job, price, made.made))
            self.numbers += 2 * self._gpus + _ENTRY  # and the slopes of the job, where it has some
        return priced

    def prices(self, pairs: Sequence[tuple[JobT, Priced[JobT, Made]]]) -> list[float]:
        if len(pairs) < _FEW_PAIRS:
            return [self.price(*pair) for pair in pairs]
        if new := [pair for pair in pairs if pair[0] not in pair[1].prices]:
            prices = self.worth.prices([(job, made.made) for job, made in new])
            for (job, made), price in zip(new, prices, strict=True):
                made.prices[job] = price
        return [made.prices[job] for job, made in pairs]

    def with_jobs(
        self, triples: Sequence[tuple[JobT, float, Priced[JobT, Made]]]
    ) -> list[Priced[JobT, Made]]:
        if len(triples) < _FEW_PAIRS:
            return [self.with_job(*each) for each in triples]
        if new := [each for each in triples if each[0] not in each[2].then]:
            worths_then = self.worth.with_jobs([(job, price, made.made) for job, price, made in new])
            for (job, _, made), then in zip(new, worths_then, strict=True):
                made.then[job] = Priced(then)
            self.numbers += (2 * self._gpus + _ENTRY) * len(new)
        return [made.then[job] for job, _, made in triples]


class PriceMemory:
    """What decisions leave to the next: jobs, those that are alike as one, and what was priced."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[bytes, float], PricedJob] = {}
        self._worths: dict[Hashable, Remembered[Any, Any]] = {}
        # Of the last decision, by type, for pools that were shared out together.
        self.gpu_prices: dict[Hashable, Floats] = {}
        # Of jobs, that are kept.
        self._numbers = 0

    def __deepcopy__(self, memo: object) -> PriceMemory:
        """Nothing depends on it."""
        return PriceMemory()

    def jobs(self, rates: Floats, weights: Sequence[float]) -> list[PricedJob]:
        """Jobs by their rates [job, size], as :meth:`PricedJob.of`."""
        lasts, leasts = rates.argmax(axis=1).tolist(), (rates > 0).argmax(axis=1).tolist()
        with np.errstate(divide="ignore"):
            slowness = 1.0 / rates
        jobs = []
        for row, (weight, last, least) in enumerate(zip(weights, lasts, leasts, strict=True)):
            key = rates[row].tobytes(), weight
            job = self._jobs.get(key)
            if job is None:
                short, slow = rates[row, : last + 1].copy(), slowness[row, least : last + 1].copy()
                job = self._jobs[key] = PricedJob(short, weight, least, slow)
                self._numbers += 6 * rates.shape[1] + _ENTRY
            jobs.append(job)
        return jobs

    def worth(
        self, pools: Hashable, gpus: int, make: Callable[[], Prices[JobT, Made]]
    ) -> Remembered[JobT, Made]:
        """That of pools with ``gpus`` GPUs in all, which ``make`` computes."""
        worth = self._worths.get(pools)
        if worth is None:
            worth = self._worths[pools] = Remembered(make(), gpus)
        return worth

    def tidy(self) -> None:
        """Forget all before it becomes too much."""
        if self._numbers + sum(each.numbers for each in self._worths.values()) > _MOST_NUMBERS:
            self._jobs.clear()
            self._worths.clear()
            self._numbers = 0


def hull_slopes(sizes: Ints, rates: Floats) -> Floats:
    """Slopes of the concave hull over (size, rate), one for each GPU, ascending."""
    corners = [(0, 0.0)]
    for size, rate in zip(sizes.tolist(), rates.tolist(), strict=True):
        if rate <= 0:
            continue
        while len(corners) > 1 and _is_under(corners[-2], corners[-1], (size, rate)):
            corners.pop()
        corners.append((size, rate))
    points = np.array(corners)
    widths = np.diff(points[:, 0])
    return np.repeat(np.diff(points[:, 1]) / widths, widths.astype(np.int64))[::-1]


def _is_under(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    width, rise = right[0] - left[0], right[1] - left[1]
    return (middle[1] - left[1]) * width <= rise * (middle[0] - left[0])


# The fluid schedule that prices stand for.


def ends_s(prices: Floats, rates: Floats, work: Floats, sizes: Ints) -> Floats:
    """Seconds from now by job; infinite where the job is not among the first :data:`STAGES` to end.

    :param rates: [job, size] progress per second.
    :param work: what is left, in the unit of the rates.
    :param sizes: of which the last is all GPUs.
    """
    left, done, now_s = work.tolist(), (_DONE * work).tolist(), 0.0
    ends = [math.inf] * len(left)
    alive = [*range(len(left))]  # few of them, most often: numbers one by one are faster
    worth = np.where(rates > 0, prices[:, None] * rates, -np.inf)
    worth[:, 0] = 0.0
    values, rate = [*worth], rates.item
    for _ in range(STAGES):
        going, lasts_s = [], math.inf
        for row, size in zip(alive, _sizes(alive, worth, values, sizes), strict=True):
            if speed := rate(row, size):
                going.append((row, speed))
                lasts_s = min(lasts_s, left[row] / speed)
        if not going:
            break
        now_s += lasts_s
        for row, speed in going:
            left[row] -= speed * lasts_s
        before, alive = alive, []
        for row in before:
            if left[row] <= done[row]:
                ends[row] = now_s
            else:
                alive.append(row)
        if not alive:
            break
    return np.array(ends)


def _sizes(rows: Sequence[int], worth: Floats, values: Sequence[Floats], sizes: Ints) -> Sequence[int]:
    """The sizes of some jobs, by position.

    :param values: the rows of ``worth``.
    """
    gpus = int(sizes[-1])
    if gpus > EXACT_GPUS:
        return knapsack_by_price(worth[rows], sizes, gpus).tolist()  # type: ignore[no-any-return]
    return exact_knapsack([values[row] for row in rows], gpus)


# The knapsack: one size a job, the largest sum of values within the GPUs there are.


def exact_knapsack(values: Sequence[Floats], gpus: int) -> list[int]:
    """Sizes by job, ``values[job][k]`` that of k GPUs, -inf where infeasible; the first of equal ones.

    The least feasible sizes must fit together. O(jobs · K · sizes).
    """
    if not values:
        return []
    if len(values) == 1:
        return [int(values[0][: gpus + 1].argmax())]
    if len(values) == 2:
        return _pair(values[0], values[1], gpus)
    padded = np.empty(2 * gpus + 1)
    padded[:gpus], padded[gpus:] = -np.inf, _most(values[0], gpus)
    step, shape = padded.strides[0], (gpus + 1, gpus + 1)
    left = np.ndarray(shape, buffer=padded, offset=gpus * step, strides=(step, -step))
    rows = np.arange(gpus + 1)
    chosen: list[Ints] = []
    for value in values[1:-1]:
        if size := _only_size(value):
            none, some = padded[gpus:] + value[0], padded[gpus - size : 2 * gpus + 1 - size] + value[size]
            pick = size * (some > none)
            padded[gpus:] = np.maximum(none, some)
        else:
            made = left[:, : len(value)] + value
            pick = made.argmax(axis=1)
            padded[gpus:] = made[rows, pick]
        chosen.append(pick)
    sizes, spare = [0] * len(values), gpus
    last, before = values[-1], padded[gpus:]  # of the first and the last job one row is enough
    sizes[-1] = int((before[gpus + 1 - len(last) :][::-1] + last).argmax())
    spare -= sizes[-1]
    for index in range(len(values) - 2, 0, -1):
        sizes[index] = int(chosen[index - 1][spare])
        spare -= sizes[index]
    sizes[0] = int(values[0][: spare + 1].argmax())
    return sizes


def _pair(first: Floats, last: Floats, gpus: int) -> list[int]:
    """The same for two jobs."""
    before = _most(first, gpus)
    size = int((before[gpus + 1 - len(last) :][::-1] + last).argmax())
    return [int(first[: gpus - size + 1].argmax()), size]


def _most(value: Floats, gpus: int) -> Floats:
    """[c] the most that one job makes of up to c GPUs."""
    most = np.empty(gpus + 1)
    most[: len(value)], most[len(value) :] = value, value[-1]
    return np.maximum.accumulate(most, out=most)


def _only_size(value: Floats) -> int:
    """The one size that a job may get if it need not run; 0 if there are others."""
    if value[0] == -np.inf or len(value) < 2:
        return 0
    if len(value) == 2:
        return 1
    if value[1] > -np.inf:
        return 0
    able = np.flatnonzero(value > -np.inf)
    return int(able[1]) if len(able) == 2 else 0


def knapsack_by_price(values: Floats, sizes: Ints | Floats, gpus: int) -> Ints:
    """Positions of sizes by job: the largest values at one price of a GPU, the rest filled up.

    At the least price at which all sizes fit, no other sizes of as many GPUs are worth more. Close to the
    best for many jobs.

    :param values: [job, size].
    :param sizes: [size], or [job, size] where jobs take up more than their GPUs.
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    rows, taken = np.arange(len(values)), np.broadcast_to(sizes.astype(np.float64), values.shape)

    def at(price: float) -> Ints:
        sizes: Ints = (values - price * taken).argmax(axis=1)
        return sizes

    finite = values[np.isfinite(values)]
    low, high = 0.0, float(finite.max() - finite.min()) + 1.0
    chosen = at(low)
    if taken[rows, chosen].sum() <= gpus:
        return chosen
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if taken[rows, at(middle)].sum() <= gpus else (middle, high)
    return _filled(values, taken, at(high), at(low), gpus)


def filled(values: Floats, sizes: Ints, gpus: int) -> Ints:
    """Positions of sizes by job, what gains most for each GPU first."""
    none = np.zeros(len(values), dtype=np.int64)
    return _filled(values, np.broadcast_to(sizes.astype(np.float64), values.shape), none, none, gpus)


def _filled(values: Floats, sizes: Floats, chosen: Ints, wished: Ints, gpus: int) -> Ints:
    """Jobs get what they would have at a price just below, in turn, while it fits; then what gains most."""
    rows = np.arange(len(values))
    spare = gpus - sizes[rows, chosen].sum()
    for row in np.flatnonzero(sizes[rows, wished] > sizes[rows, chosen]).tolist():
        step = sizes[row, wished[row]] - sizes[row, chosen[row]]
        if step <= spare:
            chosen[row], spare = wished[row], spare - step
    for _ in range(_FILLS):
        more = sizes - sizes[rows, chosen][:, None]
        gains = values - values[rows, chosen][:, None]
        gains = np.where((more > 0) & (more <= spare) & (gains > 0), gains / np.maximum(more, 1), 0.0)
        row, size = divmod(int(gains.argmax()), sizes.shape[1])
        if not gains[row, size] > 0:
            break
        spare -= more[row, size]
        chosen[row] = size
    return chosen
