"""One pool shared out: the prices of its jobs, the worth of their sizes, and the sizes that they get.

What each size of each job is worth: its price times its rate soon, less what a change costs.

Which GPU type each job takes part in: where it would end first, those before it counted in.

Why each job has what it has: its price, when it would end, what one GPU more or less would be worth.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pliant.schemas.text import counted, in_gpus, span_text
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Pool, known_pools
from pliant.tools.schedule.policies.shadow_price import prices as knapsack
from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge, PoolColumns
from pliant.tools.schedule.policies.shadow_price.prices import (
    FEW,
    ExactWorth,
    PricedJob,
    SlopeWorth,
    Worth,
    best_order,
    ends_s,
    improved,
    priced,
)
from pliant.tools.schedule.policy import Explanation
from pliant.tools.schedule.snapshot import Snapshot

_TIE: Final = 1e-6
"""Worth of a job's end, in weighted completion time, where the prices see no difference."""


@dataclass(frozen=True)
class Rules:
    """How GPUs are shared out."""

    dwell_s: float
    sweeps: int
    future: float


@dataclass(frozen=True)
class Shares:
    """What was decided for one pool; rows are those of the members."""

    members: PoolColumns
    order: list[int]
    """Rows, last to end first."""
    prices: Floats
    """λ by job: seconds of weighted completion time for a sample of progress."""
    values: Floats
    """v by [job, size]: the same for each second on a size."""
    chosen: Ints
    """The size, by position."""
    guard: Guard

    @property
    def spare_gpus(self) -> int:
        """GPUs that no job gets."""
        return self.members.pool.gpus - int(self.members.sizes[self.chosen].sum())

    def served(self) -> list[JobState]:
        """The jobs that get GPUs."""
        return [job for row, job in enumerate(self.members.jobs) if self.chosen[row]]

    def gpus(self, row: int) -> int:
        """GPUs that a job gets."""
        return int(self.members.sizes[self.chosen[row]])


def shared(members: PoolColumns, rules: Rules, guard: Guard) -> Shares:
    """Share a pool out among sizes that are safe. Pools of up to :data:`EXACT_GPUS` are solved exactly."""
    order, prices = _prices(members, rules)
    worth = values(members, prices, rules.dwell_s)
    chosen = _chosen(members, _allowed(members, worth + _sooner(members, rules.dwell_s), guard))
    return Shares(members, order, prices, worth, chosen, guard)


def _sooner(members: PoolColumns, dwell_s: float) -> Floats:
    """By [job, size], what breaks ties: of equal sums, that which brings its jobs closest to their ends.

    Prices are equal for jobs that would all fit once those before them have ended, as rigid jobs often do.
    They are made for the order in which the shorter job ends first. If that one runs, fewer jobs are
    left when more arrive.
    """
    with np.errstate(divide="ignore"):
        parts = np.minimum(1.0, dwell_s * members.soon / members.left[:, None])
    found: Floats = _TIE * members.weights[:, None] * parts
    return found


def _chosen(members: PoolColumns, worth: Floats) -> Ints:
    gpus = members.pool.gpus
    if gpus > EXACT_GPUS:
        return knapsack.by_price(worth, members.sizes, gpus)
    last = np.maximum(worth.argmax(axis=1), members.held) + 1
    rows = [row[:count] for row, count in zip(worth, last.tolist(), strict=True)]
    return np.array(knapsack.exact(rows, gpus), dtype=np.int64)


def _allowed(members: PoolColumns, worth: Floats, guard: Guard) -> Floats:
    """The values of safe sizes; -inf elsewhere. Jobs of which none fits beside those before are left free."""
    found, left = worth.copy(), members.pool.gpus
    for row in np.flatnonzero(~guard.safe.all(axis=1)).tolist():
        able = guard.safe[row] & np.isfinite(worth[row])
        if able.any() and (least := int(members.sizes[able.argmax()])) <= left:
            left -= least
            found[row] = np.where(able, worth[row], -np.inf)
    return found


def _prices(members: PoolColumns, rules: Rules) -> tuple[list[int], Floats]:
    """The order, last to end first, and λ by job; with a future, at a part of the mean price of a GPU."""
    gpus = members.pool.gpus
    exact = gpus <= EXACT_GPUS
    worth: Worth = ExactWorth(gpus) if exact else SlopeWorth(gpus, members.sizes)
    jobs = [
        PricedJob.of(rates, weight)
        for rates, weight in zip(members.whole, members.weights.tolist(), strict=True)
    ]
    future = rules.future * float(members.weights.sum()) / gpus
    order, prices = members.shortest_last(), np.zeros(len(jobs))
    if exact and len(jobs) <= FEW and rules.sweeps:
        order = best_order(
            jobs, members.whole, members.left, members.sizes, worth, order=order, future=future
        )
    elif exact:
        order = improved(order, jobs, members.left.tolist(), worth, future=future, sweeps=rules.sweeps)
    prices[order] = priced([jobs[row] for row in order], worth, future)
    return order, prices


_MOST_LOST: Final = 0.95
"""The largest part of the value of a size that a change to it costs."""


def values(members: PoolColumns, prices: Floats, dwell_s: float) -> Floats:
    """By [job, size], -inf where a job does not run; without GPUs 0, and for a job that has some less.

    Without costs v(k) = μ G(k), where μ G(k°) = λ F(k°) at the size k° that makes most of a GPU. λ is
    constant along a job only where its curve does not move with progress; where it does, λ g is. A change
    costs its seconds over those until the next one or the end. What a job holds counts at the speed of its
    place.

    :param dwell_s: seconds after which what a job holds is taken to change.
    """
    rows, normal = np.arange(len(members.jobs)), members.normal
    whole, soon = members.whole, members.soon
    scale = prices * whole[rows, normal] / soon[rows, normal]
    worth = scale[:, None] * soon
    held = members.held
    kept = worth[rows, held] * members.scattered
    with np.errstate(divide="ignore"):
        lasts_s = np.minimum(dwell_s, members.left[:, None] / whole)
    lost = np.minimum(_MOST_LOST, members.rescale_s[:, None] / np.maximum(lasts_s, 1e-9))
    found = np.where(members.runs[:, None], worth * (1.0 - lost), worth)
    found[rows, held] = kept
    found = np.where(whole > 0, found, -np.inf)
    found[:, 0] = np.where(held > 0, -members.rescale_s / dwell_s * kept, 0.0)
    return found


_BETTER: Final = 1.25
"""A running job leaves its type where it would take this many times as long."""


class _Speed(NamedTuple):
    """A job on one type, in samples per second."""

    per_gpu: float
    fastest: float


def pool_members(
    snapshot: Snapshot, without: Container[str], known: Knowledge
) -> list[tuple[Pool, Sequence[JobState]]]:
    """Every GPU type with the jobs that take part there."""
    found = list(known_pools(snapshot).values())
    jobs = [job for job in snapshot.jobs.values() if job.id not in without]
    if len(found) < 2:
        return [(pool, [job for job in jobs if _may_run(job, pool.gpu_type)]) for pool in found]
    members: dict[str, list[JobState]] = {pool.gpu_type: [] for pool in found}
    ahead_s = dict.fromkeys(members, 0.0)
    speeds = {job.id: _speeds(job, found, known) for job in jobs}
    gpus = {pool.gpu_type: pool.gpus for pool in found}
    able = [job for job in jobs if speeds[job.id]]
    most = {job.id: max(speed.per_gpu for speed in speeds[job.id].values()) for job in able}
    work = {job.id: known.work(job, most[job.id], snapshot.time_s) for job in able}
    for job in sorted(able, key=lambda job: (work[job.id] / most[job.id], job.arrival)):
        own, left = speeds[job.id], work[job.id]
        ends_s = {kind: ahead_s[kind] + left / speed.fastest for kind, speed in own.items()}
        kind = min(ends_s, key=lambda each: (ends_s[each], each))
        if job.gpus and job.gpu_type in ends_s and ends_s[job.gpu_type] <= _BETTER * ends_s[kind]:
            kind = job.gpu_type
        members[kind].append(job)
        ahead_s[kind] += left / own[kind].per_gpu / gpus[kind]
    return [(pool, members[pool.gpu_type]) for pool in found]


def second_choices(first: Mapping[Pool, Shares | None]) -> dict[str, list[JobState]]:
    """Jobs that get nothing of the type of their choice, by the type that they are offered to instead.

    Those that run on another stay in it; those that wait go to the first that would stand idle in part.
    """
    found: dict[str, list[JobState]] = {}
    spare = [pool.gpu_type for pool, shares in first.items() if shares is None or shares.spare_gpus > 0]
    for pool, shares in first.items():
        if shares is None:
            continue
        own = pool.gpu_type
        for row, job in enumerate(shares.members.jobs):
            if shares.gpus(row) or job.gpu_type == own:
                continue
            others = [kind for kind in spare if kind != own and job.fits_now(job.spec.min_gpus, kind)]
            kind = job.gpu_type if job.gpus else next(iter(others), None)
            if kind is not None:
                found.setdefault(kind, []).append(job)
    return found


def _speeds(job: JobState, found: Sequence[Pool], known: Knowledge) -> dict[str, _Speed]:
    """Of the types on which the job runs."""
    speeds = {}
    for pool in found:
        curves = known.curves(pool)
        rates = curves.of(job).goodput(job.noise_scale)
        if rates.any() and _may_run(job, pool.gpu_type):
            per_gpu = float((rates[1:] / curves.sizes[1:]).max())
            speeds[pool.gpu_type] = _Speed(per_gpu, float(rates.max()))
    return speeds


def _may_run(job: JobState, gpu_type: str) -> bool:
    """Whether the nodes that are up have what its smallest size demands; they do where it runs."""
    return job.gpus > 0 or job.fits_now(job.spec.min_gpus, gpu_type)


_HOUR_S = 3600.0


def explained(shares: Shares, slack_s: float) -> dict[str, Explanation]:
    """One clause a job. What GPUs are worth is said in completion time, over all jobs, saved in an hour.

    :param slack_s: what a change may cost if the bound is to hold.
    """
    members = shares.members
    all_end_s = ends_s(shares.prices, members.whole, members.left, members.sizes)
    worth = shares.values * _HOUR_S
    least = _least_worth(shares, worth)
    return {
        job.id: Explanation(
            "; ".join(
                (
                    *_outlook(shares, row, float(all_end_s[row])),
                    *_due(shares, row),
                    *_marginal(shares, worth, row, least),
                    *_unbounded(shares, row, slack_s),
                )
            ),
            None if shares.gpus(row) else job.spec.min_gpus,
        )
        for row, job in enumerate(members.jobs)
    }


def _outlook(shares: Shares, row: int, end_s: float) -> list[str]:
    """Its price and its end."""
    left = float(shares.members.left[row])
    whole = span_text(float(shares.prices[row]) * left)
    clauses = [f"price {shares.prices[row]:.3g} s a sample, {whole} for the work left"]
    if np.isfinite(end_s):
        clauses.append(f"would end in {span_text(end_s)} if none came")
    return clauses


def _due(shares: Shares, row: int) -> list[str]:
    """That it is served for the sake of the bound."""
    gpus = int(shares.guard.due_gpus[row])
    return [f"has had its grace: equal shares would give it {in_gpus(gpus)} now"] if gpus else []


def _unbounded(shares: Shares, row: int, slack_s: float) -> list[str]:
    """That its changes cost too much for the bound to hold, and what would mend it."""
    over_s = float(shares.members.rescale_s[row]) - slack_s
    return [f"may end past its bound unless lost_s is {over_s:.3g} s more"] if over_s > 0 else []


def _marginal(shares: Shares, worth: np.ndarray, row: int, least: float) -> list[str]:
    """What one GPU more and one less would change; of a waiting job why it waits."""
    sizes, own, chosen = shares.members.sizes, worth[row], int(shares.chosen[row])
    if not chosen:
        offers = np.flatnonzero(np.isfinite(own[1:])) + 1
        best = int(offers[(own[offers] / sizes[offers]).argmax()])
        before = len(shares.order) - 1 - shares.order.index(row)
        saves = span_text(float(own[best] / sizes[best]))
        return [
            f"waits: {counted(before, 'job')} would end before it",
            f"on {in_gpus(int(sizes[best]))} each would save {saves} an hour, elsewhere {span_text(least)}",
        ]
    clauses = []
    for other, words in ((chosen + 1, "more would save"), (chosen - 1, "less would cost")):
        if other < len(own) and np.isfinite(own[other]):
            gpus = abs(int(sizes[other] - sizes[chosen]))
            change = max(0.0, float((own[other] - own[chosen]) * (other - chosen)))
            clauses.append(f"{in_gpus(gpus)} {words} {span_text(change)} an hour")
    return clauses


def _least_worth(shares: Shares, worth: np.ndarray) -> float:
    """What the GPU saves in an hour that saves least, by job that has any."""
    has = np.flatnonzero(shares.chosen)
    found = worth[has, shares.chosen[has]] / shares.members.sizes[shares.chosen[has]]
    return max(0.0, float(found.min(initial=np.inf))) if has.size else 0.0
