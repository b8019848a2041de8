"""The jobs of a run in columns: an array for each of what is known about them, a row for each job.

A report of millions of jobs computes its figures from these arrays, which take some 200 bytes a job. A
:class:`~pliant.tools.report.job_record.JobRecord` of a single job is made when it is asked for. Missing
numbers are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from math import fsum, isnan
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from pliant.schemas.event import EVENT_NAMES
from pliant.schemas.file_io.events import UNSTATED
from pliant.schemas.job import Job
from pliant.tools.report.job_record import (
    AllocationStep,
    Curve,
    Forecast,
    JobRecord,
    ObservedStep,
    Outcome,
    ReportedProgress,
    Specs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
N = TypeVar("N", bound=np.generic)
Floats: TypeAlias = "NDArray[np.float64]"
Integers: TypeAlias = "NDArray[np.signedinteger[Any]]"
Booleans: TypeAlias = "NDArray[np.bool_]"
OUTCOMES: Final[tuple[Outcome, ...]] = ("unfinished", "finished", "failed", "cancelled", "rejected")
START: Final = EVENT_NAMES.index("start")


class HeldPeriods(NamedTuple):
    """Every time in which a job held GPUs, in order of jobs and time; arrays of shape (times,)."""

    step: Integers
    """In the steps of the jobs."""
    job: Integers
    start_s: Floats
    end_s: Floats
    counted_gpus: NDArray[Any]
    """Shared GPUs count one half, so that two jobs together count them once; else whole numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Changes of allocations, those of a job together and in order of time; arrays of shape (steps,)."""

    job: NDArray[np.int32]
    """Row of the job."""
    time_s: Floats
    gpus: Integers
    """From then on."""
    event: NDArray[np.uint8]
    """Place in ``EVENT_NAMES``."""
    overhead_s: Floats
    checkpoint_s: Floats
    """Time without training because of checkpoints."""
    shared: Booleans
    """Whether another job trains on the same GPUs."""
    batch: Integers
    """Global batch; ``UNSTATED`` where the log does not say it."""
    rescales: Booleans
    """Whether it began with a growth, a shrink or a change of the batch."""
    reported: Mapping[int, tuple[ReportedProgress, ReportedProgress]] = field(default_factory=dict)
    """The first and the last report on these GPUs, by step; of live runs only."""

    @property
    def stalled_s(self) -> Floats:
        """Holding GPUs without training."""
        return self.overhead_s + self.checkpoint_s

    def of(self, rows: Integers, begins: Integers) -> Steps:
        """Those of some jobs, whose rows are numbered anew.

        :param begins: the first step of each job of all.
        """
        counts = begins[rows + 1] - begins[rows]
        firsts = np.cumsum(counts) - counts
        kept = np.repeat(begins[rows] - firsts, counts) + np.arange(counts.sum())
        columns = {name: getattr(self, name)[kept] for name in STEP_COLUMNS}
        columns["job"] = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        reported = {new: self.reported[old] for new, old in enumerate(kept.tolist()) if old in self.reported}
        return Steps(**columns, reported=reported if self.reported else {})

    def made(self, step: int) -> AllocationStep:
        first, last = self.reported.get(step, (None, None))
        batch = int(self.batch[step])
        return AllocationStep(
            float(self.time_s[step]),
            int(self.gpus[step]),
            EVENT_NAMES[self.event[step]],
            float(self.overhead_s[step]),
            float(self.checkpoint_s[step]),
            bool(self.shared[step]),
            None if batch == UNSTATED else batch,
            bool(self.rescales[step]),
            first,
            last,
        )


STEP_COLUMNS: Final = (
    *("job", "time_s", "gpus", "event", "overhead_s", "checkpoint_s", "shared", "batch", "rescales"),
)


@dataclass(slots=True)
class JobExtras:
    """What the log says of few jobs."""

    first_loss: float | None = None
    last_loss: float | None = None
    forecasts: list[Forecast] = field(default_factory=list)
    observed: list[ObservedStep] = field(default_factory=list)
    """Times of steps that its workers reported; of live runs only."""
    admission: Mapping[str, Any] | None = None
    """What the policy said last on admission or rejection."""


@dataclass(frozen=True, eq=False)
class Jobs(Sequence[JobRecord]):
    """Jobs in order of (submission, id); arrays of shape (jobs,)."""

    specs: Specs
    row: NDArray[np.int32]
    """In these."""
    submit_s: Floats
    curves: Sequence[Curve]
    curve: NDArray[np.int32]
    """Place in ``curves`` of that at the reference batch."""
    rates: NDArray[np.int32]
    """Place of the same of every size with which the promise of the policy counts."""
    samples: Floats
    """All the work."""
    demand_gpu_s: Floats
    """GPU-seconds of all the work at the requested size, if the log says."""
    is_measured: bool
    """Whether this run measured curves and work."""
    outcome: NDArray[np.uint8]
    """Place in :data:`OUTCOMES`."""
    end_s: Floats
    preemptions: Integers
    moves: Integers
    """Changes to as many other GPUs with the same batch."""
    restarts: Integers
    """Returns to the queue after a failure."""
    samples_done: Floats
    """Samples trained so far, repetitions counted."""
    steps: Steps
    extras: Mapping[int, JobExtras]
    """By row."""

    def __len__(self) -> int:
        return len(self.row)

    @overload
    def __getitem__(self, at: int) -> JobRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Jobs: ...
    def __getitem__(self, at: int | slice) -> JobRecord | Jobs:
        if isinstance(at, slice):
            return self.of(np.arange(len(self))[at])
        return self._made(range(len(self))[at])

    def __iter__(self) -> Iterator[JobRecord]:
        return map(self._made, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Whether all are alike; those of another run are in other columns."""
        if not isinstance(other, Jobs):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def of(self, rows: Integers) -> Jobs:
        """Some of them, in the order of ``rows``."""
        columns = {name: getattr(self, name)[rows] for name in _JOB_COLUMNS}
        extras = {new: self.extras[old] for new, old in enumerate(rows.tolist()) if old in self.extras}
        return replace(
            self, **columns, steps=self.steps.of(rows, self.begins), extras=extras if self.extras else {}
        )

    def ids(self) -> list[str]:
        """Ids of all jobs, in order."""
        of_rows = [*self.specs.table.ids()]
        return [of_rows[row] for row in self.row.tolist()]

    def id(self, job: int) -> str:
        return self.specs.table.job_id(int(self.row[job]))

    def has_ids_of(self, other: Jobs) -> bool:
        """Whether both are jobs of the same ids in the same order."""
        return len(self) == len(other) and self.ids() == other.ids()

    @cached_property
    def form(self) -> Integers:
        """Number of the form of each job's specification."""
        return np.array(self.specs.table.kind, np.int32)[self.row]

    def by_form(self, of: Callable[[Job], T]) -> list[T | None]:
        """What is so for each form of specification; None for forms without a job.

        :param of: of what all jobs of a form have in common: all but id, submission time, amount of work, and
            what labels say.
        """
        there = np.zeros(len(self.specs.table.forms), bool)
        there[self.form] = True
        forms = self.specs.table.forms
        return [of(forms[number].template) if is_there else None for number, is_there in enumerate(there)]

    def numbers(self, of: Callable[[Job], float | None]) -> Floats:
        """A number of each job, which depends on its form; NaN: None."""
        return np.array(self.by_form(of), np.float64)[self.form]

    def counts(self, of: Callable[[Job], int]) -> Integers:
        """A whole number of each job, which depends on its form."""
        return smallest_type(np.array([count or 0 for count in self.by_form(of)], np.int64))[self.form]

    def any_form(self, holds: Callable[[Job], object]) -> bool:
        """Whether something that depends on the form holds for any job."""
        return any(self.by_form(holds))

    def texts(self, of: Callable[[Job], str]) -> list[str]:
        """A text of each job, which depends on its form."""
        texts_by_form = self.by_form(of)
        return [texts_by_form[form] or "" for form in self.form.tolist()]

    def label_texts(self, of: Callable[[Job], str]) -> list[str]:
        """A text of each job, which may depend on its labels, too."""
        if any(form.labels for form in self.specs.table.forms):
            return [of(self.specs[row]) for row in self.row.tolist()]
        return self.texts(of)

    def have_outcome(self, outcome: Outcome) -> Booleans:
        have_it: Booleans = self.outcome == OUTCOMES.index(outcome)
        return have_it

    def ended(self, outcome: Outcome) -> int:
        """How many jobs ended so."""
        return int(np.count_nonzero(self.have_outcome(outcome)))

    @cached_property
    def jct_s(self) -> Floats:
        """NaN unless it finished."""
        return np.where(self.have_outcome("finished"), self.end_s - self.submit_s, np.nan)

    @cached_property
    def begins(self) -> Integers:
        """The first step of each job, and behind the last job the number of steps; shape (jobs + 1,)."""
        counts = np.bincount(self.steps.job, minlength=len(self))
        return np.concatenate([[0], np.cumsum(counts)])

    @property
    def first_start_s(self) -> Floats:
        """NaN if it never started. The first step of a job is its start."""
        starts_s = np.full(len(self), np.nan)
        there = self.begins[:-1] < self.begins[1:]
        starts_s[there] = self.steps.time_s[self.begins[:-1][there]]
        return starts_s

    @cached_property
    def target_s(self) -> Floats:
        """By when it is to finish, from its submission on; NaN without a target."""
        return self.numbers(lambda job: job.utility.target)

    @property
    def late_s(self) -> Floats:
        """Completion minus target; NaN of a job that did not finish, or has no target."""
        return self.jct_s - self.target_s

    def meet_targets(self, now_s: float) -> Floats:
        """1 or 0: whether a job finished by its target. NaN without one, if it may yet at that time, or if
        its owner cancelled it before.
        """
        open_s, lived_s = now_s - self.submit_s, self.end_s - self.submit_s
        unknown = np.isnan(self.target_s)
        unknown |= self.have_outcome("unfinished") & (open_s <= self.target_s)
        unknown |= self.have_outcome("cancelled") & (lived_s <= self.target_s)
        return np.where(unknown, np.nan, self.jct_s <= self.target_s)

    @property
    def queueing_delay_s(self) -> Floats:
        """NaN if it never started."""
        return self.first_start_s - self.submit_s

    def rescales_until(self, time_s: float) -> Integers:
        """Growths, shrinks and changes of the batch of each job."""
        counted = self.steps.rescales & (self.steps.time_s <= time_s)
        return np.bincount(self.steps.job[counted], minlength=len(self))

    def held(self, until_s: float) -> HeldPeriods:
        """Every time in which a job held GPUs, cut at ``until_s``."""
        steps = self.steps
        after_s = np.empty(len(steps.job))
        after_s[:-1] = steps.time_s[1:]
        holders = np.flatnonzero(self.begins[:-1] < self.begins[1:])
        after_s[self.begins[1:][holders] - 1] = np.fmin(self.end_s[holders], until_s)
        del holders
        at = np.flatnonzero((steps.gpus > 0) & (after_s > steps.time_s)).astype(np.int32)
        gpus: NDArray[Any] = steps.gpus[at]
        if steps.shared.any():
            gpus = np.where(steps.shared[at], gpus / 2, gpus)
        return HeldPeriods(at, steps.job[at], steps.time_s[at], after_s[at], gpus)

    def gpu_seconds(self, until_s: float) -> Floats:
        """Held by each job. Overheads are included; GPUs shared with another job count one half."""
        _, job, start_s, gpu_s, gpus = self.held(until_s)
        gpu_s -= start_s
        gpu_s *= gpus
        return totals(job, gpu_s, len(self))

    def stalled_s(self) -> Floats:
        """Seconds in which each job held GPUs without training."""
        return totals(self.steps.job, self.steps.stalled_s, len(self))

    def _made(self, job: int) -> JobRecord:
        extras = self.extras.get(job) or _SILENT
        row, first, last = int(self.row[job]), int(self.begins[job]), int(self.begins[job + 1])
        return JobRecord(
            self.specs.table.job_id(row),
            self.specs,
            row,
            float(self.submit_s[job]),
            self.curves[self.curve[job]],
            self.curves[self.rates[job]],
            _known(self.samples[job]),
            _known(self.demand_gpu_s[job]),
            self.is_measured,
            OUTCOMES[self.outcome[job]],
            _known(self.end_s[job]),
            _known(self.jct_s[job]),
            [self.steps.made(step) for step in range(first, last)],
            int(self.preemptions[job]),
            int(self.moves[job]),
            int(self.restarts[job]),
            _known(self.samples_done[job]),
            extras.first_loss,
            extras.last_loss,
            extras.forecasts,
            extras.observed,
            extras.admission,
        )


_SILENT: Final = JobExtras()
_JOB_COLUMNS: Final = (
    *("row", "submit_s", "curve", "rates", "samples", "demand_gpu_s", "outcome", "end_s"),
    *("preemptions", "moves", "restarts", "samples_done"),
)


def _known(value: float) -> float | None:
    return None if isnan(value) else float(value)


def known(values: Floats) -> list[float]:
    """Those that are there."""
    numbers: list[float] = values[~np.isnan(values)].tolist()
    return numbers


def largest(values: Floats) -> float | None:
    """Returns None if none is there."""
    highest = np.fmax.reduce(values, initial=-np.inf)
    return None if highest == -np.inf else float(highest)


def mean_known(values: NDArray[Any]) -> float | None:
    """Mean of those that are there. An exact sum, whatever their order. Returns None if none is there."""
    there = values[~np.isnan(values)]
    blocks = (there[first : first + BLOCK].tolist() for first in range(0, len(there), BLOCK))
    return fsum(chain.from_iterable(blocks)) / len(there) if len(there) else None


BLOCK: Final = 65536
"""Rows at a time, where intermediate results take more memory than what is computed."""


def optional(values: Floats) -> list[float | None]:
    """None where one is missing."""
    return [None if isnan(value) else value for value in values.tolist()]


def smallest_type(numbers: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in as few bytes each as hold them all, if they are whole."""
    if not len(numbers) or numbers.dtype.kind != "i":
        return numbers
    least, most = int(numbers.min()), int(numbers.max())
    holds = (np.iinfo(kind).min <= least and most <= np.iinfo(kind).max for kind in _WHOLE)
    return numbers.astype(next(compress(_WHOLE, holds)))


def smallest_index(count: int) -> type[np.signedinteger[Any]]:
    """The type of places among so many."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


_WHOLE: Final = (np.int8, np.int16, np.int32, np.int64)


def differ_from_last(values: NDArray[Any]) -> Booleans:
    """Whether each is another than the one before; the first is."""
    differs = np.ones(len(values), bool)
    differs[1:] = values[1:] != values[:-1]
    return differs


def ascending(numbers: Floats) -> Floats:
    """Each number once. Sorts ``numbers`` itself."""
    numbers.sort()
    return numbers[differ_from_last(numbers)]


def reached(ranked: Floats, values: Floats) -> NDArray[np.int32]:
    """How many of the ranked numbers each value reaches; some at a time, as places take twice the memory."""
    counts = np.empty(len(values), np.int32)
    for first in range(0, len(values), BLOCK):
        among = slice(first, first + BLOCK)
        counts[among] = np.searchsorted(ranked, values[among], side="right")
    return counts


def totals(place: Integers, amounts: Floats, places: int) -> Floats:
    """The sum of the amounts of each place, from the first to the last."""
    sums: Floats = np.bincount(place, amounts, places).astype(np.float64, copy=False)
    return sums


def distinct(numbers: NDArray[N]) -> tuple[NDArray[N], Integers]:
    """Each number once, ascending, and the place of each of ``numbers`` among these.

    As ``numpy.unique`` has them, which imports a module of masked arrays.
    """
    order = np.argsort(numbers, kind="stable")
    ranked = numbers[order]
    is_new = differ_from_last(ranked)
    place = np.empty(len(ranked), np.int32)
    place[order] = np.cumsum(is_new, dtype=np.int32) - 1
    return ranked[is_new], place
