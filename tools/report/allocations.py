"""From the changes that a log names to what each job held, for all jobs at once.

The changes of a job count in the order of the log. They are sorted by job, and what holds after each of them
follows from the last change before it that says so: its GPUs, its batch, whether it shares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pliant.schemas.event import ALLOCATION_EVENTS, ENDS, EVENT_NAMES, RESCALES
from pliant.schemas.file_io.events import UNSTATED
from pliant.tools.report.job_arrays import (
    OUTCOMES,
    STEP_COLUMNS,
    Booleans,
    Floats,
    Integers,
    Steps,
    differ_from_last,
    smallest_index,
    smallest_type,
    totals,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEEP_ON: Final = len(EVENT_NAMES)
"""Number in the place of an event: another job began or stopped to train on the same GPUs."""


def is_one_of(names: Iterable[str]) -> Booleans:
    """By event, and at last for :data:`KEEP_ON`, whether it has one of these names."""
    names = frozenset(names)
    return np.array([*(name in names for name in EVENT_NAMES), False])


_ALLOCATION_EVENTS: Final = is_one_of(ALLOCATION_EVENTS)
_ENDS: Final = is_one_of(ENDS)
_REQUEUE: Final = is_one_of(["requeue"])
_PREEMPT: Final = is_one_of(["preempt"])
_MOVE: Final = is_one_of(["move"])
_STARTS: Final = is_one_of(["start", "resume"])
_RESCALES: Final = is_one_of(RESCALES)
STOPS: Final = _PREEMPT | _RESCALES
"""Stops and changes by a policy."""
_CHECKPOINT: Final = is_one_of(["checkpoint"])
_FAIL: Final = EVENT_NAMES.index("fail")
CHANGES: Final = _ALLOCATION_EVENTS | _ENDS | _REQUEUE
"""By event, whether it may change what a job holds."""
_OUTCOME_OF: Final = np.array(
    [*(OUTCOMES.index(ENDS[name]) if name in ENDS else 0 for name in EVENT_NAMES), 0], np.uint8
)


class AllocationChanges(NamedTuple):
    """Events that change jobs, or that are looked at with what the job held then; arrays of shape (changes,).

    In the order of the log.
    """

    job: NDArray[np.int32]
    time_s: Floats
    event: NDArray[np.uint8]
    """Place in ``EVENT_NAMES``, or :data:`KEEP_ON`."""
    gpus: Integers
    """``UNSTATED`` where the event does not say them, as of batches."""
    global_batch: Integers
    overhead_s: Floats
    shared: Booleans
    """Whether another job trains on the GPUs of the change."""


class ChangeLog:
    """Changes block by block, in the order of the log."""

    def __init__(self) -> None:
        kinds = (np.int32, np.float64, np.uint8, np.int8, np.int8, np.float64, np.bool_)
        self._columns: list[list[NDArray[Any]]] = [[np.zeros(0, kind)] for kind in kinds]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, changes: AllocationChanges) -> None:
        columns: Iterator[NDArray[Any]] = iter(changes)
        for blocks, column in zip(self._columns, columns, strict=True):
            blocks.append(column)
        self._count += len(changes.job)

    def by_job(self, place: NDArray[np.int32]) -> SortedChanges:
        """All, sorted by the place of their job. Only once: none stay here.

        :param place: place of each job.
        """
        job = place[self._taken()]
        order = np.argsort(job, kind="stable").astype(smallest_index(len(job)), copy=False)
        columns = (self._taken() for _ in AllocationChanges._fields[1:])
        return SortedChanges(AllocationChanges(job, *columns), order)

    def _taken(self) -> NDArray[Any]:
        return np.concatenate(self._columns.pop(0))


class SortedChanges(NamedTuple):
    """Changes and their order by job. A sorted copy of all would double what they take."""

    changes: AllocationChanges
    """In the order of the log."""
    order: Integers
    """Places of the changes, sorted by job, those of a job in the order of the log."""

    def part(self, among: slice, first_job: int) -> AllocationChanges:
        """Some of them in that order, with jobs numbered from the first one."""
        chosen = self.order[among]
        changes = self.changes
        return AllocationChanges(
            changes.job[chosen] - np.int32(first_job),
            changes.time_s[chosen],
            changes.event[chosen],
            changes.gpus[chosen],
            changes.global_batch[chosen],
            changes.overhead_s[chosen],
            changes.shared[chosen],
        )

    def all(self) -> AllocationChanges:
        return self.part(slice(None), 0)


@dataclass(frozen=True, slots=True)
class Allocations:
    """What jobs held, and how they ended; arrays of shape (jobs,) unless something else is said."""

    steps: Steps
    outcome: NDArray[np.uint8]
    end_s: Floats
    preemptions: Integers
    moves: Integers
    restarts: Integers
    step_before: Integers
    """The last step of the job before each change, -1 where there is none; shape (changes,), as the next two.
    Empty unless asked for."""
    batch_before: NDArray[Any]
    """Its global batch then."""
    shared_before: Integers
    """How many changes of the job before it were on shared GPUs."""


def allocations(changes: SortedChanges, submit_s: Floats, *, tell_before: bool = False) -> Allocations:
    """Some jobs at a time, since what holds around each change takes ten times what the changes take.

    :param submit_s: submission time of each job.
    :param tell_before: whether what held before each change is wanted.
    """
    job = changes.changes.job
    begins = np.concatenate([[0], np.cumsum(np.bincount(job, minlength=len(submit_s)))])
    cut_jobs = {int(job[changes.order[at]]) for at in range(_AT_A_TIME, len(job), _AT_A_TIME)}
    jobs = [0, *sorted(cut_jobs - {0}), len(submit_s)]
    firsts = [int(begins[each]) for each in jobs[:-1]]
    del begins
    parts = []
    for first, until, first_job, until_job in zip(
        firsts, [*firsts[1:], len(job)], jobs[:-1], jobs[1:], strict=True
    ):
        part = changes.part(slice(first, until), first_job)
        parts.append(_Fold(part, submit_s[first_job:until_job]).allocations(tell_before=tell_before))
    return _joined(parts, jobs)


def _joined(parts: list[Allocations], jobs: Sequence[int]) -> Allocations:
    """Column by column, so that no more than one is there twice. Empties ``parts``.

    :param jobs: the first job of each part.
    """
    begins = np.cumsum([0, *(len(part.steps.job) for part in parts)]).tolist()
    steps = {name: [getattr(part.steps, name) for part in parts] for name in STEP_COLUMNS}
    others = {name: [getattr(part, name) for part in parts] for name in _COLUMNS}
    parts.clear()
    steps["job"] = [job + np.int32(first) for job, first in zip(steps["job"], jobs, strict=False)]
    others["step_before"] = [
        np.where(step < 0, -1, step + begin)
        for step, begin in zip(others["step_before"], begins, strict=False)
    ]
    joined: list[Any] = [_concatenated(steps.pop(name)) for name in STEP_COLUMNS]
    return Allocations(Steps(*joined), **{name: np.concatenate(others.pop(name)) for name in _COLUMNS})


def _concatenated(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """A column that is 0 throughout, as times of checkpoints mostly are, takes no memory."""
    if any(block.any() for block in blocks):
        return np.concatenate(blocks)
    return np.broadcast_to(np.zeros((), blocks[0].dtype), sum(map(len, blocks)))


_COLUMNS: Final = (
    *("outcome", "end_s", "preemptions", "moves", "restarts"),
    *("step_before", "batch_before", "shared_before"),
)
_AT_A_TIME: Final = 1 << 18
"""Changes."""


class _Fold:
    """Changes sorted by job, and what holds around each of them."""

    def __init__(self, changes: AllocationChanges, submit_s: Floats) -> None:
        self.changes = changes
        self.submit_s = submit_s
        job, event = changes.job, changes.event
        self.places = np.arange(len(job), dtype=np.int32)
        self.is_first = differ_from_last(job)
        # The first change of the same job.
        self.begin = np.maximum.accumulate(np.where(self.is_first, self.places, 0))
        self.holds, self.ends = _ALLOCATION_EVENTS[event], _ENDS[event]
        self.requeues = _REQUEUE[event]
        # After each change.
        self.gpus = self._gpus()
        # After each change; `UNSTATED` as long as the log says none.
        self.batch = self._latest(self.holds & (changes.global_batch != UNSTATED), changes.global_batch)
        self.makes_step = self._makes_step()
        # The last step at each change, if it is of the same job.
        self.step = np.cumsum(self.makes_step) - 1

    def allocations(self, *, tell_before: bool) -> Allocations:
        jobs, job = len(self.submit_s), self.changes.job
        moves = self._moves()
        at = np.flatnonzero(self.makes_step)
        since_s = self._never_backwards(at)
        overheads_s = self._overheads_s(len(at))
        outcome, end_s = self._ends(at, since_s)
        steps = Steps(
            job[at],
            since_s,
            smallest_type(self.gpus[at]),
            self._names(at),
            *overheads_s,
            self.changes.shared[at],
            smallest_type(self.batch[at]),
            (_RESCALES[self.changes.event] & ~moves)[at],
        )
        counted = (_PREEMPT[self.changes.event], moves, self.requeues)
        preemptions, moved, restarts = (
            smallest_type(np.bincount(job[each], minlength=jobs)) for each in counted
        )
        none = np.zeros(0, np.int32)
        return Allocations(
            steps,
            outcome,
            end_s,
            preemptions,
            moved,
            restarts,
            *(self._state_before() if tell_before else (none, none, none)),
        )

    def _state_before(self) -> tuple[Integers, Integers, Integers]:
        """Step and batch, and the number of changes on shared GPUs."""
        shared: Integers = np.cumsum(self.changes.shared) - self.changes.shared
        is_own = self.step >= self.step[self.begin] + ~self.makes_step[self.begin]
        return (
            self._before(np.where(is_own, self.step, -1), -1),
            self._before(self.batch, UNSTATED),
            shared - shared[self.begin],
        )

    def _last(self, holds: Booleans) -> Integers:
        """At each change the last one of the same job, itself included, of which this holds; else -1."""
        places = np.maximum.accumulate(np.where(holds, self.places, -1))
        places[places < self.begin] = -1
        return places

    def _latest(self, said: Booleans, values: NDArray[Any], otherwise: int = UNSTATED) -> NDArray[Any]:
        """The value of the last change that says it."""
        last = self._last(said)
        return np.where(last >= 0, values[last], otherwise)

    def _before(self, values: NDArray[Any], otherwise: int) -> NDArray[Any]:
        """What was so after the change before, of the same job."""
        before = np.empty_like(values)
        before[1:] = values[:-1]
        before[self.is_first] = otherwise
        return before

    def _gpus(self) -> NDArray[Any]:
        """A start that does not say its GPUs leaves as many as before; an end or a preemption leaves none."""
        stated = self.changes.gpus
        frees = self.ends | ((_PREEMPT[self.changes.event] | self.requeues) & (stated == UNSTATED))
        said = frees | self.requeues | (self.holds & (stated != UNSTATED))
        return self._latest(said, np.where(frees, 0, stated), 0)

    def _makes_step(self) -> Booleans:
        """Steps begin with the first GPUs of a job, or where it starts without any; an end of what held
        none is no step.
        """
        before = self._before(self.gpus, 0)
        started = self._before(self._last(self.gpus > 0) >= 0, 0)
        changes = (self.holds | self.requeues) & (started | (self.gpus > 0))
        steps: Booleans = (
            changes | (self.ends & (before > 0)) | (_STARTS[self.changes.event] & (self.changes.gpus == 0))
        )
        keeps = self.changes.event == KEEP_ON
        if keeps.any():
            changed = self.holds | self.requeues | self.ends | keeps
            shared = self._before(self._latest(changed, self.changes.shared, 0), 0)
            steps |= keeps & (before > 0) & (shared != self.changes.shared)
        return steps

    def _moves(self) -> Booleans:
        """Those with the same batch; others count as changes of the batch."""
        stated, before = self.changes.global_batch, self._before(self.batch, UNSTATED)
        same_batch = (stated == UNSTATED) | (stated == before) | (before == UNSTATED)
        moves: Booleans = _MOVE[self.changes.event] & same_batch
        return moves

    def _names(self, at: Integers) -> NDArray[np.uint8]:
        """Events that made the steps."""
        named = self._latest(self.makes_step & (self.changes.event != KEEP_ON), self.changes.event)
        names: NDArray[np.uint8] = named[at].astype(np.uint8)
        return names

    def _never_backwards(self, at: Integers) -> Floats:
        """Times of steps. Clocks of machines may disagree a little; events of a job never run backwards."""
        job, time_s = self.changes.job[at], self.changes.time_s[at]
        before_s = self.submit_s[job]
        goes_on = job[1:] == job[:-1]
        before_s[1:][goes_on] = np.maximum(time_s[:-1], before_s[1:])[goes_on]
        if (time_s >= before_s).all():
            return time_s
        time_s = np.maximum(time_s, self.submit_s[job])
        ranked = np.sort(time_s)
        ranks = np.searchsorted(ranked, time_s)  # exact, where an offset for each job would round
        rows = job.astype(np.int64) * len(at)
        latest: Floats = ranked[np.maximum.accumulate(rows + ranks) - rows]
        return latest

    def _overheads_s(self, steps: int) -> tuple[Floats, Floats]:
        """Of each step: without training, and for checkpoints. In a live run the overhead of a change is
        known some events later.
        """
        last = self._last(self.makes_step & (self.gpus > 0))
        costs = (self.changes.overhead_s != 0) & (last >= 0)
        checkpoints = _CHECKPOINT[self.changes.event]

        def summed(chosen: Booleans) -> Floats:
            return totals(self.step[last[chosen]], self.changes.overhead_s[chosen], steps)

        return summed(costs & ~checkpoints), summed(costs & checkpoints)

    def _ends(self, at: Integers, since_s: Floats) -> tuple[NDArray[np.uint8], Floats]:
        """How each job ended and when. One that starts again after a failure has not ended."""
        jobs, job, event = len(self.submit_s), self.changes.job, self.changes.event
        outcome, end_s = np.zeros(jobs, np.uint8), np.full(jobs, np.nan)
        last_end, last_hold = np.full(jobs, -1), np.full(jobs, -1)
        for last_place, chosen in ((last_end, self.ends | self.requeues), (last_hold, self.holds)):
            places = np.flatnonzero(chosen)
            last_place[job[places]] = places
        again = (event[last_end] == _FAIL) & (last_hold > last_end) if len(event) else np.zeros(jobs, bool)
        over = np.flatnonzero((last_end >= 0) & ~again)
        over = over[self.ends[last_end[over]]]
        places = last_end[over]
        outcome[over] = _OUTCOME_OF[event[places]]
        step = self.step[places]
        is_own = (step >= 0) & (job[at[step]] == over) if len(at) else np.zeros(len(over), bool)
        before_s = self.submit_s[over]
        before_s[is_own] = since_s[step[is_own]]
        end_s[over] = np.maximum(self.changes.time_s[places], before_s)
        return outcome, end_s
