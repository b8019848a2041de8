"""What finishing in time is worth: which jobs can be saved, and the GPUs that each of them needs now.

The prices of this policy are those of completion times. Where a job states what ending by a time is worth,
the fluid problem is another: the largest sum of utilities. Its optimum is a set of jobs to save and a plan
over time that saves them; a job in the plan gains nothing by ending sooner, and one outside of it nothing at
all. So a decision takes two steps.

1. :func:`planned`: jobs are filled in over the time to come, in order of deadline, each with the smallest
   size at which it ends in time on what those before it leave. Where one does not fit, the job that earns
   least for its GPU time, of it and those before it, goes to a later deadline of its utility, or is given
   up. For one machine and equal utilities this is the rule of Moore and Hodgson (1968), which is optimal.
2. :func:`with_deadlines`: each job in the plan may not get less than it has there now. All other GPUs go by
   prices, and jobs that are given up are priced least: they are served last. They keep their bound.

Nothing is decided otherwise where no job has a utility that depends on time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from pliant.schemas.text import in_gpus, span_text
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints
from pliant.tools.schedule.policies.shadow_price.job_estimates import PoolColumns

_PARTS: Final = (0.97, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.05)
"""Parts of what a job would earn if it ended at once: the utilities that a soft deadline means."""
_LAST: Final = 1e-5
"""The weight of a job that is given up."""
_NOTHING: Final = 0.01
"""Part of the utility of a job below which it is given up."""
_LEAST_UTILITY: Final = 1e-100
_LEAST_DECAY_PER_S: Final = 1e-12
"""A utility that falls more slowly does not fall while a job trains."""
_ROUNDING: Final = 1e-9


@dataclass(slots=True)
class TimedJob:
    """One job that earns by ending in time."""

    row: int
    levels: Sequence[DeadlineLevel]
    """The first to come first; utilities fall."""
    at: int = 0
    """Its level."""
    most: int = 0
    """The smallest size that ends it in time, by position."""
    now: int = 0
    """Its size in the plan from now on, by position; 0: it waits for others, or is not planned yet."""

    @property
    def deadline_s(self) -> float:
        return self.levels[self.at].deadline_s

    @property
    def turn(self) -> tuple[float, int]:
        return self.deadline_s, self.row

    @property
    def earns(self) -> float:
        """Utility that is lost for each GPU-second if it goes to its next level, or is given up."""
        level = self.levels[self.at]
        later = self.levels[self.at + 1].utility if self.at + 1 < len(self.levels) else 0.0
        return (level.utility - later) / level.gpu_s


class DeadlineLevel(NamedTuple):
    """What a job earns if it ends by a time."""

    deadline_s: float
    utility: float
    gpu_s: float
    """GPU-seconds of the job alone, at the smallest size that ends it in time."""


@dataclass(slots=True)
class DeadlinePlan:
    """The jobs that are saved, in order of deadline, and those that are given up."""

    saved: list[TimedJob] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    """Rows of jobs that earn nothing any more, or too little for the GPUs that they would take."""

    def reasons(self, members: PoolColumns, time_s: float) -> dict[str, str]:
        """A clause for each job."""
        jobs = members.jobs
        sentences = {
            jobs[row].id: "would not earn enough by ending in time: comes last" for row in self.given_up
        }
        for need in self.saved:
            gpus = in_gpus(int(members.sizes[need.most]))
            within = span_text(need.deadline_s - time_s)
            sentences[jobs[need.row].id] = f"is to end within {within}, with {gpus} or fewer at a time"
        return sentences


def earns_by_time(job: JobState) -> bool:
    """Whether it matters to a job when it ends, and its work is known."""
    utility = job.spec.utility
    depends = utility.shape == "step" or (utility.shape == "sigmoid" and utility.decay > _LEAST_DECAY_PER_S)
    return depends and job.known_samples is not None


def with_deadlines(
    members: PoolColumns, guard: Guard, time_s: float, waits_s: float
) -> tuple[PoolColumns, Guard, DeadlinePlan]:
    """The members and the sizes that they may get, deadlines counted in.

    :param waits_s: how long a change that is planned for later may have to wait for a decision.
    """
    plan = planned(members, time_s, waits_s)
    floors = _floors(members, guard)
    others = sorted({*range(len(floors))} - {each.row for each in plan.saved})
    if held := float((floors[others] * members.footprints()[others]).sum()):
        plan = planned(members, time_s, waits_s, held)
    weights = members.weights.copy()
    weights[plan.given_up] *= _LAST
    return replace(members, weights=weights), _narrowed(members, guard, floors, plan), plan


def planned(members: PoolColumns, time_s: float, waits_s: float, held: float = 0.0) -> DeadlinePlan:
    """The jobs that are saved on the GPUs of the pool.

    :param held: GPUs that are not for them.
    """
    footprints = members.footprints().tolist()
    outlines = {
        row: _Outline.of(members, row, footprints[row], waits_s)
        for row, job in enumerate(members.jobs)
        if earns_by_time(job)
    }
    plan, before = DeadlinePlan(), [_Free(np.array([time_s]), np.array([members.pool.gpus - held]))]
    for row, outline in outlines.items():
        levels = _levels(members, row, outline, before[0])
        if levels:
            insort(plan.saved, TimedJob(row, levels), key=lambda each: each.turn)
        else:
            plan.given_up.append(row)
    saved = plan.saved
    while (at := len(before) - 1) < len(saved):
        need = saved[at]
        left = before[at].without(need, outlines[need.row])
        if left is not None:
            before.append(left)
            continue
        least = min(range(at + 1), key=lambda index: saved[index].earns)
        worst = saved.pop(least)
        del before[least + 1 :]
        worst.at += 1
        if worst.at < len(worst.levels):
            insort(saved, worst, key=lambda each: each.turn)
        else:
            plan.given_up.append(worst.row)
    return plan


def _levels(members: PoolColumns, row: int, outline: _Outline, empty: _Free) -> list[DeadlineLevel]:
    """What a job can reach alone."""
    levels: list[DeadlineLevel] = []
    for deadline_s, utility in _deadlines(members.jobs[row], empty.now_s + outline.soonest_s):
        size = empty.smallest(outline, deadline_s)
        if size:
            levels.append(
                DeadlineLevel(deadline_s, utility * float(members.weights[row]), outline.gpu_s(size))
            )
    return levels


def _deadlines(job: JobState, soonest_s: float) -> list[tuple[float, float]]:
    """Times by which a job that ends at ``soonest_s`` at best is to end, and the utility of each."""
    utility, submitted_s = job.spec.utility, job.spec.submit_time
    if soonest_s == math.inf:
        return []
    best = utility.worth(soonest_s - submitted_s)
    if best < max(_NOTHING * utility.value, _LEAST_UTILITY):
        return []
    if utility.shape == "step":
        return [(job.deadline_s, best)]
    target_s = submitted_s + (utility.target or 0.0)
    return [
        (target_s + math.log(utility.value / (part * best) - 1.0) / utility.decay, part * best)
        for part in _PARTS
    ]


# What a decision makes of it.


def _floors(members: PoolColumns, guard: Guard) -> Ints:
    """The least GPUs by row that the bound allows."""
    able = guard.safe & (members.whole > 0)
    able[:, 0] = guard.safe[:, 0]
    floors: Ints = np.where(able.any(axis=1), members.sizes[able.argmax(axis=1)], 0)
    return floors


def _narrowed(members: PoolColumns, guard: Guard, floors: Ints, plan: DeadlinePlan) -> Guard:
    """Jobs of the plan get what they need now, in order of deadline, as far as the bound leaves GPUs."""
    footprints = members.footprints()
    safe = guard.safe.copy()
    spare = members.pool.gpus - float((floors * footprints).sum())
    for need in plan.saved:
        row, rates = need.row, members.whole[need.row]
        enough = guard.safe[row] & (rates >= rates[need.now])
        if need.now and enough.any():
            more = float(members.sizes[enough.argmax()] - floors[row]) * footprints[row]
            if more <= spare:
                spare -= more
                safe[row] = enough
    return replace(guard, safe=safe)


# The plan: jobs filled in over the time to come.


@dataclass(frozen=True, slots=True)
class _Outline:
    """One job as the plan sees it; sizes are positions."""

    sizes: Ints
    usual: Ints
    """[size] the fastest size that is not larger."""
    rates: Floats
    """[size] samples per second on it."""
    left: float
    held: int
    lost_s: float
    """Cost of a change now."""
    later_s: float
    """And one that is planned for later, with the wait for a decision."""
    footprint: float

    @classmethod
    def of(cls, members: PoolColumns, row: int, footprint: float, waits_s: float) -> _Outline:
        whole, held, cost_s = members.whole[row].copy(), int(members.held[row]), float(members.rescale_s[row])
        if members.scattered[row] > 0:
            whole[held] *= members.scattered[row]
        else:  # it does nothing where it is
            held = 0
        rates = np.maximum.accumulate(whole)
        return cls(
            members.sizes,
            np.searchsorted(rates, rates),
            rates,
            float(members.left[row]),
            held,
            cost_s,
            cost_s + waits_s,
            footprint,
        )

    @property
    def soonest_s(self) -> float:
        """How long it takes at least, on its fastest size after a change or where it is; may be infinite."""
        fastest, here = float(self.rates[-1]), float(self.rates[self.held]) if self.held else 0.0
        changed_s = self.lost_s + self.left / fastest if fastest > 0 else math.inf
        return min(changed_s, self.left / here if here > 0 else math.inf)

    def gpu_s(self, size: int) -> float:
        return float(self.sizes[size]) * self.footprint * self.left / float(self.rates[size])


@dataclass(frozen=True, slots=True)
class _Free:
    """GPUs that are free from now on, in steps."""

    times_s: Floats
    gpus: Floats

    @property
    def now_s(self) -> float:
        return float(self.times_s[0])

    def smallest(self, outline: _Outline, deadline_s: float) -> int:
        """The smallest size that ends the job in time, on fewer GPUs where not as many are free; 0: none.

        First among few: a larger size does no less, but for its changes.
        """
        largest = int(outline.usual[-1])
        step = math.isqrt(largest)
        coarse = np.arange(largest, 0, -step)[::-1]
        place = self._first(outline, deadline_s, coarse)
        if place is None or step == 1:
            return 0 if place is None else int(coarse[place])
        between = np.arange(1 if place == 0 else coarse[place - 1] + 1, coarse[place] + 1)
        at = self._first(outline, deadline_s, between)
        return int(coarse[place] if at is None else between[at])

    def _first(self, outline: _Outline, deadline_s: float, sizes: Ints) -> int | None:
        """Which of some sizes ends the job in time."""
        able = self._done(outline, deadline_s, sizes)[2].sum(axis=1) >= outline.left * (1 - _ROUNDING)
        return int(able.argmax()) if able.any() else None

    def without(self, need: TimedJob, outline: _Outline) -> _Free | None:
        """What the job leaves free; None if it cannot end in time."""
        for spare_s in (outline.later_s, 0.0):  # time for one change more than planned, if there is
            until_s = need.deadline_s - spare_s
            if size := self.smallest(outline, until_s):
                break
        else:
            return None
        taken, rates, done = (each[0] for each in self._done(outline, until_s, np.array([size])))
        need.most, need.now = size, int(taken[0])
        sums = done.cumsum()
        last = int((sums >= outline.left * (1 - _ROUNDING)).argmax())
        ends_s = min(until_s, self.times_s[last + 1] if last + 1 < len(self.times_s) else math.inf)
        ends_s -= max(0.0, float(sums[last]) - outline.left) / float(rates[last])
        at = last + 1
        times_s, gpus = self.times_s, self.gpus.copy()
        if at == len(times_s) or ends_s < times_s[at]:
            times_s = np.concatenate((times_s[:at], [ends_s], times_s[at:]))
            gpus = np.concatenate((gpus[:at], gpus[last:]))
        gpus[:at] -= outline.sizes[taken[:at]] * outline.footprint
        return _Free(times_s, gpus)

    def _done(self, outline: _Outline, until_s: float, most: Ints) -> tuple[Ints, Floats, Floats]:
        """[most, step] the size of a job that may have so much, its rate, and the samples that it does."""
        steps = int(self.times_s.searchsorted(until_s))
        ends_s = np.empty(steps)
        ends_s[:-1], ends_s[-1:] = self.times_s[1:steps], until_s
        workers = self.gpus[:steps] / outline.footprint + _ROUNDING
        room = np.maximum(outline.sizes.searchsorted(workers, side="right") - 1, 0)
        taken = outline.usual[np.minimum(most[:, None], room)]
        rates = outline.rates[taken]
        cost_s = np.empty(taken.shape)
        cost_s[:, 1:] = (taken[:, 1:] != taken[:, :-1]) * outline.later_s
        cost_s[:, :1] = (taken[:, :1] != outline.held) * outline.lost_s
        return taken, rates, rates * np.maximum(0.0, ends_s - self.times_s[:steps] - cost_s)
