"""Several GPU types shared out at once: which type, how many GPUs and with them which batch each job gets.

Jobs are priced from the last to end to the first, as in one pool (:mod:`prices`), with a worth of the GPUs
of each type. A job's price is the least over the types and sizes that it may have,

    λ_m = min over types t, k of [w_m + S_t(K_t) - S_t(K_t - k)] / g_mt(k),

and it joins the type where that is least: there it makes GPUs dearer for those that end before it. At these
prices a linear program gives the GPUs of all types out; it divides few jobs, about one a type. Each job is
then of the type of which it has most, and every type is solved by itself. While one is worth more on GPUs of
another type that are left over, it goes there. A move to another type costs what every change does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.knowledge import PoolColumns
from pliant.tools.schedule.policies.shadow_price.prices import PricedJob, improved
from pliant.tools.schedule.policies.shadow_price.sizes import (
    Rules,
    Shares,
    chosen_sizes,
    sooner,
    values,
    worth_of,
)

_PART: Final = 1e-6
"""Of a job, below which it gets nothing."""


_MORE: Final = 1e-6
"""Relative gain below which a move is rounding."""


class _Options(NamedTuple):
    """What jobs may get, a row each."""

    jobs: Ints
    types: Ints
    gpus: Ints
    gains: Floats
    """Values over those of no GPUs."""


def shared_over_types(types: Sequence[PoolColumns], rules: Rules) -> list[Shares]:
    """Share all types out; each job is a member of the type that it gets, or else would join."""
    places: dict[str, dict[int, int]] = {}
    """By job, its row in each type that it may have."""
    for kind, members in enumerate(types):
        for row, job in enumerate(members.jobs):
            places.setdefault(job.id, {})[kind] = row
    order, prices, home = _priced(types, places, rules)
    worth = [values(each, own, rules.dwell_s) for each, own in zip(types, prices, strict=True)]
    value = [each + sooner(members, rules.dwell_s) for each, members in zip(worth, types, strict=True)]
    for own in places.values():
        without = min(float(value[kind][row, 0]) for kind, row in own.items())
        for kind, row in own.items():
            value[kind][row, 0] = without  # what a running job loses without GPUs, it loses on every type
    home |= _assigned(types, places, value)
    sizes = _solved(types, value, home)
    while moved := _moves(types, {job_id: places[job_id] for job_id in reversed(order)}, value, home, sizes):
        home |= moved
        sizes = _solved(types, value, home)
    found = []
    for kind, members in enumerate(types):
        rows = [row for row, job in enumerate(members.jobs) if home[job.id] == kind]
        if not rows:
            continue
        few = members.of_rows(rows)
        at = {job.id: row for row, job in enumerate(few.jobs)}
        turn = [at[job_id] for job_id in order if job_id in at]
        chosen = np.array([sizes[job.id] for job in few.jobs], dtype=np.int64)
        found.append(Shares(few, turn, prices[kind][rows], worth[kind][rows], chosen, Guard.none(few)))
    return found


Made = tuple[Floats, ...]
"""The worth of GPUs by type, each in the form of its pool."""


class TypesWorth:
    """The worth of the GPUs of several types; jobs have rates by type, in parts of their work per second."""

    def __init__(self, types: Sequence[PoolColumns]) -> None:
        self._worths = [worth_of(members) for members in types]

    def start(self, future: float) -> Made:
        return tuple(worth.start(future) for worth in self._worths)

    def offers(self, job: Mapping[int, PricedJob], made: Made) -> dict[int, float]:
        """Prices by type."""
        return {kind: self._worths[kind].price(rates, made[kind]) for kind, rates in job.items()}

    def price(self, job: Mapping[int, PricedJob], made: Made) -> float:
        return min(self.offers(job, made).values())

    def with_job(self, job: Mapping[int, PricedJob], price: float, made: Made) -> Made:
        """It joins the type of its price, of equal ones the first."""
        offers = self.offers(job, made)
        kind = min(offers, key=lambda each: offers[each])
        return (*made[:kind], self._worths[kind].with_job(job[kind], price, made[kind]), *made[kind + 1 :])


def _priced(
    types: Sequence[PoolColumns], places: Mapping[str, Mapping[int, int]], rules: Rules
) -> tuple[list[str], list[Floats], dict[str, int]]:
    """Jobs from the last to end to the first, λ by type and row, and the type that each job joins."""
    jobs = [
        {
            kind: PricedJob.of(
                types[kind].whole[row] / types[kind].left[row], float(types[kind].weights[row])
            )
            for kind, row in own.items()
        }
        for own in places.values()
    ]
    worth = TypesWorth(types)
    whole = sum(next(iter(job.values())).weight for job in jobs)
    future = rules.future * whole / sum(members.pool.gpus for members in types)
    order = _shortest_last(types, places)
    if all(members.pool.gpus <= EXACT_GPUS for members in types):
        order = improved(order, jobs, [1.0] * len(jobs), worth, future=future, sweeps=rules.sweeps)
    ids, prices, joined = list(places), [np.zeros(len(members.jobs)) for members in types], {}
    made = worth.start(future)
    for number in order:
        offers = worth.offers(jobs[number], made)
        joined[ids[number]] = kind = min(offers, key=lambda each: offers[each])
        for each, row in places[ids[number]].items():
            prices[each][row] = offers[kind] / types[each].left[row]
        made = worth.with_job(jobs[number], offers[kind], made)
    return [ids[number] for number in order], prices, joined


def _shortest_last(types: Sequence[PoolColumns], places: Mapping[str, Mapping[int, int]]) -> list[int]:
    """Jobs by weighted GPU-seconds of the type where they are fewest, those with most first."""
    keys = [
        min(types[kind].seconds[row] / types[kind].weights[row] for kind, row in own.items())
        for own in places.values()
    ]
    arrivals = {job.id: job.arrival for members in types for job in members.jobs}
    turns = [arrivals[job_id] for job_id in places]
    return sorted(range(len(keys)), key=lambda number: (keys[number], turns[number]), reverse=True)


def _solved(types: Sequence[PoolColumns], value: Sequence[Floats], home: Mapping[str, int]) -> dict[str, int]:
    """By job the position of its size, each type for itself."""
    found: dict[str, int] = {}
    for kind, members in enumerate(types):
        rows = [row for row, job in enumerate(members.jobs) if home[job.id] == kind]
        if rows:
            few = members.of_rows(rows)
            sizes = chosen_sizes(few, value[kind][rows]).tolist()
            found |= {job.id: size for job, size in zip(few.jobs, sizes, strict=True)}
    return found


def _moves(
    types: Sequence[PoolColumns],
    places: Mapping[str, Mapping[int, int]],
    value: Sequence[Floats],
    home: Mapping[str, int],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Jobs that are worth more on GPUs of another type that are left over, in order of their places."""
    left = [members.pool.gpus for members in types]
    for job_id, size in sizes.items():
        left[home[job_id]] -= int(types[home[job_id]].sizes[size])
    found = {}
    for job_id, own in places.items():
        held = float(value[home[job_id]][own[home[job_id]], sizes[job_id]])
        best, there = held + _MORE * abs(held), None
        for kind, row in own.items():
            some = value[kind][row, : np.searchsorted(types[kind].sizes, left[kind], side="right")]
            if kind != home[job_id] and some.max() > best:
                best, there = float(some.max()), (kind, int(types[kind].sizes[some.argmax()]))
        if there is not None:
            found[job_id] = there[0]
            left[there[0]] -= there[1]
    return found


def _assigned(
    types: Sequence[PoolColumns], places: Mapping[str, Mapping[int, int]], value: Sequence[Floats]
) -> dict[str, int]:
    """The type of which each job has most in the best assignment of parts; none for jobs that get nothing."""
    options = _options(types, places, value)
    if not len(options.jobs):
        return {}
    parts = np.zeros((len(places), len(types)))
    np.add.at(parts, (options.jobs, options.types), _divided(options, len(places), types))
    return {job_id: int(row.argmax()) for job_id, row in zip(places, parts, strict=True) if row.max() > _PART}


def _options(
    types: Sequence[PoolColumns], places: Mapping[str, Mapping[int, int]], value: Sequence[Floats]
) -> _Options:
    """Sizes that are worth more than none and than all smaller ones of the type."""
    numbers = {job_id: number for number, job_id in enumerate(places)}
    found = []
    for kind, members in enumerate(types):
        best = np.maximum.accumulate(value[kind], axis=1)[:, :-1]
        rows, sizes = np.nonzero(value[kind][:, 1:] > best)
        jobs = np.array([numbers[job.id] for job in members.jobs], dtype=np.int64)
        gains = value[kind][rows, sizes + 1] - value[kind][rows, 0]
        found.append(_Options(jobs[rows], np.full(len(rows), kind), members.sizes[sizes + 1], gains))
    return _Options(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _divided(options: _Options, jobs: int, types: Sequence[PoolColumns]) -> Floats:
    """[option] the part of it in the best assignment, where a job may be divided among several."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    at = np.arange(len(options.jobs))
    rows, columns = np.concatenate([options.jobs, jobs + options.types]), np.concatenate([at, at])
    entries = np.concatenate([np.ones(len(at)), options.gpus])
    matrix: Any = csr_array((entries, (rows, columns)), shape=(jobs + len(types), len(at)))
    solved = linprog(
        -options.gains / options.gains.max(),  # the solver's tolerances are absolute
        A_ub=matrix,
        b_ub=np.array([1.0] * jobs + [float(members.pool.gpus) for members in types]),
        bounds=(0, None),
        method="highs-ds",
    )
    found: Floats = np.zeros(len(at)) if solved.x is None else solved.x
    return found
