"""From an event file to a :class:`~pliant.tools.report.records.RunRecord`, in one pass over blocks of events.

What most events say, columns of numbers hold; only submissions, decisions and events with a detail are looked
at one by one. A job is known by its id as long as it lives, and then by its row alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import file_digest, sha256
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ALLOCATION_EVENTS, ENDS, EVENT_NAMES, FREES, OF_THE_CLUSTER, Event
from pliant.schemas.events import (
    Decided,
    NodeDown,
    NodeUp,
    Placed,
    Progressed,
    Rejected,
    Reloaded,
    RunBegan,
    Trained,
    TypedEvent,
)  # fmt: skip
from pliant.schemas.file_io.archives import all_events, archives_of
from pliant.schemas.file_io.events import (
    UNSTATED,
    EventColumns,
    columns_of,
    event_columns,
    parse_events,
)
from pliant.schemas.file_io.files import PARQUET_MAGIC, PIPE, read_bytes, source_name
from pliant.schemas.file_io.limits import ROWS_BYTES, garbage_collection_paused
from pliant.schemas.file_io.record import LARGEST_BATCH, MOST, Record
from pliant.schemas.job import Job, trace_hash
from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import TeamStanding
from pliant.tools.report.allocations import (
    CHANGES,
    KEEP_ON,
    AllocationChanges,
    Allocations,
    ChangeLog,
    allocations,
    is_one_of,
)
from pliant.tools.report.fold_parts import ClusterCapacity, DecisionsMade, EventProblems, LivingJobs
from pliant.tools.report.job_arrays import Integers, JobExtras, Jobs, smallest_type
from pliant.tools.report.job_record import Forecast, ObservedStep, Specs
from pliant.tools.report.measured_speeds import REPORTS, ProgressReports, guesses_speeds, measured
from pliant.tools.report.records import RunRecord
from pliant.tools.report.submissions import SubmittedJobs

_SHORTEST_STEP_S: Final = 1e-9
_SUBMIT: Final = EVENT_NAMES.index("submit")
_OF_JOBS: Final = ~is_one_of(["submit", *OF_THE_CLUSTER])
_SHARES: Final = is_one_of([*ALLOCATION_EVENTS, *FREES])
_OVER: Final = is_one_of(frozenset(ENDS) - {"fail"})
"""Events after which a log rarely tells more of a job."""
_LOOKED_AT: Final = is_one_of(["decision", "reload", "node_down", "node_up", "reject", *REPORTS])
"""Events that are looked at one by one; those of jobs if they have a detail."""
_FACT_KEYS: Final = ("progress", "admission", "observed")
"""Keys of what a report takes from details of events of jobs."""


@garbage_collection_paused()
def read_run(path: str | Path) -> RunRecord:
    """Read and fold one event file; ``-`` is stdin.

    :raises BadInputError: it is not an event file, or its events do not fit together.
    """
    source = source_name(path)
    if (streamed := _of_parquet(path, source)) is not None:
        return streamed
    data = read_bytes(path, most=ROWS_BYTES)
    digest, state = sha256(data).hexdigest(), None
    if data.startswith(PARQUET_MAGIC):
        with suppress(BadInputError):  # the careful reader says what is wrong
            state = _folded(event_columns(data, source), source)
    elif str(path) != PIPE and archives_of(Path(path)):
        state = _folded(map(columns_of, all_events(Path(path))), source)
    state = state or _folded([columns_of(parse_events(data, source))], source)
    del data  # it is large, and so is what is made of the fold
    return replace(state.record(), sha256=digest)


def _of_parquet(path: str | Path, source: str) -> RunRecord | None:
    """The run in a good Parquet file, of which a row group is in memory at a time. Returns None for others:
    the careful reader says what is wrong.
    """
    try:
        if str(path) == PIPE or not Path(path).is_file():
            return None
        with Path(path).open("rb") as file:
            if file.read(len(PARQUET_MAGIC)) != PARQUET_MAGIC:
                return None
            state = _folded(event_columns(Path(path), source), source)
            file.seek(0)
            digest = file_digest(file, "sha256").hexdigest()
    except (OSError, BadInputError):
        return None
    return replace(state.record(), sha256=digest)


def fold(events: Iterable[Event], source: str = "events") -> RunRecord:
    """Fold the events of one run, complete or cut short.

    :raises BadInputError: with every problem; events are counted from 1.
    """
    return _folded([columns_of(tuple(events))], source).record()


def _folded(blocks: Iterable[EventColumns], source: str) -> _Fold:
    """:raises BadInputError: the events do not fit together."""
    state = _Fold(source)
    for block in blocks:
        state.take(block)
    state.check()
    return state


class _Block:
    """A block of events, and the row of the job of each."""

    def __init__(self, columns: EventColumns, first: int, rows: list[int]) -> None:
        """:param first: the number of the first event, from 1.
        :param rows: by place in ``columns.job_ids``; -1: not submitted before this block.
        """
        self.columns = columns
        self.first = first
        self.rows = rows
        # Where in this block each job was submitted.
        self.since = [-1] * len(rows)
        self.job = columns.job.tolist()
        # After which event which job trains on, and whether it shares its GPUs from then on.
        self.keeps: list[tuple[int, int, bool]] = []
        # Events that give a job the GPUs of another one.
        self.shared: list[int] = []

    def row(self, at: int) -> int:
        """Row of the job of an event; -1: it was not submitted by then."""
        job = self.job[at]
        return self.rows[job] if job >= 0 and self.since[job] < at else -1

    def job_id(self, at: int) -> str | None:
        job = self.job[at]
        return self.columns.job_ids[job] if job >= 0 else None

    def goes_on(self, at: int) -> bool:
        """Whether an event is of the first step after a change."""
        event = self.columns.typed(at) if self.columns.may_contain(at, "after") else None
        return isinstance(event, Progressed) and event.after is not None

    def partner(self, at: int) -> str | None:
        """The job that already trains on the GPUs that an event gives to a job."""
        event = self.columns.typed(at) if self.columns.may_contain(at, "beside") else None
        return event.beside if isinstance(event, Placed) else None

    def known_rows(self) -> Integers:
        """The rows of all events, -1 where the job was not submitted before it."""
        rows, since = (np.array([*values, -1]) for values in (self.rows, self.since))
        last_rows: Integers = rows[self.columns.job]  # the last is that of no job
        last_rows[np.arange(len(last_rows)) < since[self.columns.job]] = -1
        return last_rows

    def changes(self, rows: Integers, at: Integers) -> tuple[AllocationChanges, Integers]:
        """Some events as changes, with those that other jobs brought in between; and the place of each of
        ``at`` among them.
        """
        columns, kept = self.columns, np.array([after for after, _, _ in self.keeps], np.int64)
        order = np.argsort(np.concatenate([2 * at, 2 * kept + 1]), kind="stable")
        shares = np.zeros(len(columns.event), bool)
        shares[self.shared] = True

        def merged(values: Any, of_kept: Any) -> Any:
            return np.concatenate([values[at], np.full(len(kept), of_kept, values.dtype)])[order]

        changes = AllocationChanges(
            merged(rows.astype(np.int32), np.array([row for _, row, _ in self.keeps], np.int32)),
            np.concatenate([columns.time_s[at], columns.time_s[kept]])[order],
            merged(columns.event, KEEP_ON),
            smallest_type(merged(columns.gpus, UNSTATED)),
            smallest_type(merged(columns.global_batch, UNSTATED)),
            merged(columns.overhead_s, 0.0),
            merged(shares, np.array([shared for _, _, shared in self.keeps], bool)),
        )
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return changes, places[: len(at)]


class _Fold:
    def __init__(self, source: str) -> None:
        self.problems = EventProblems(source)
        self.info: RunInfo | None = None
        # Whether the log guesses how fast jobs are, so that speeds are measured from reports.
        self.guesses = False
        # Those taken.
        self.events = 0
        self.submitted = SubmittedJobs()
        self.living = LivingJobs(self.submitted)
        self.samples_done = array("d")
        self.extras: dict[int, JobExtras] = {}
        self.changes = ChangeLog()
        # With the job and the number of the change.
        self.observed: list[tuple[int, int, ObservedStep]] = []
        self.reports = ProgressReports()
        self.capacity = ClusterCapacity()
        self.last_s = 0.0
        self.decisions = DecisionsMade()
        # The other job of two on the same GPUs, by row.
        self.beside: dict[int, int] = {}
        self.looks: dict[str, Callable[[_Block, int], None]] = {
            "decision": self._decision,
            "reload": self._reload,
            "node_down": self._node,
            "node_up": self._node,
        }

    def take(self, columns: EventColumns) -> None:
        """The next events."""
        first, count = self.events + 1, len(columns.event)
        self.events += count
        if not count or (self.info is None and not self._run_info(columns, first)):
            return
        self.last_s = max(self.last_s, float(columns.time_s.max()))
        block = _Block(columns, first, self._rows_before(columns))
        self._submit(block)
        observed = self._look(block)
        rows = block.known_rows()
        of_jobs = _OF_JOBS[columns.event]
        for at in np.flatnonzero(of_jobs & (rows < 0)).tolist():
            name = EVENT_NAMES[columns.event[at]]
            self.problems.add(first + at, f'{name} of job "{block.job_id(at)}", which was never submitted')
        rows[~of_jobs] = -1
        self._progress(block, rows)
        self._share(block, rows)
        self._keep_changes(block, rows, observed)
        over = columns.job[_OVER[columns.event] & (rows >= 0)]
        self.living.drop(columns.job_ids[job] for job in over.tolist())

    def check(self) -> None:
        """:raises BadInputError: with every problem of its events."""
        for row in self.submitted.repeated() if len(self.submitted) else ():
            job_id = self.submitted.table.job_id(row)
            self.problems.add(self.submitted.event[row], f'job "{job_id}" is submitted twice')
        self.problems.check()

    def record(self) -> RunRecord:
        """The run, on a clock that starts with the first submission. Only once: nothing is left here.

        :raises BadInputError: there was no event.
        """
        if self.info is None:
            raise BadInputError.one(self.problems.source, "has no events, expected a run")
        origin = min(self.submitted.submit_s, default=self.capacity.steps[0][0])
        jobs = self._jobs(origin)
        if self.guesses:
            jobs = measured(jobs, self.last_s - origin)
        return RunRecord(
            self.problems.source,
            self.info,
            jobs,
            tuple((time - origin, gpus) for time, gpus in self.capacity.steps),
            origin,
            self.last_s - origin,
            self.decisions.count,
            self.decisions.seconds,
            tuple(self.decisions.policies),
            None if self.info.simulated else _hash_of_work(self.submitted.table),
            teams=tuple((time - origin, standings) for time, standings in self.decisions.teams),
        )

    def _jobs(self, origin_s: float) -> Jobs:
        order = self.submitted.order()
        rows = np.arange(len(self.submitted), dtype=np.int32) if order is None else order.astype(np.int32)
        # Of each row in the order of submission and id.
        place = np.empty_like(rows)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        stated = self.submitted.columns(rows)
        changes = self.changes.by_job(place)
        held = allocations(changes, stated.submit_s, tell_before=bool(self.observed) or self.guesses)
        reported = self.reports.of_steps(changes.all(), changes.order, held) if self.guesses else {}
        if self.observed:
            self._observe(held, changes.order)
        del changes
        steps = replace(held.steps, time_s=held.steps.time_s - origin_s, reported=reported)
        return Jobs(
            Specs(self.submitted.table),
            rows,
            stated.submit_s - origin_s,
            self.submitted.curves,
            stated.curve,
            stated.rates,
            stated.samples,
            stated.demand_gpu_s,
            is_measured=False,
            outcome=held.outcome,
            end_s=held.end_s - origin_s,
            preemptions=held.preemptions,
            moves=held.moves,
            restarts=held.restarts,
            samples_done=np.array(self.samples_done)[rows],
            steps=steps,
            extras={int(place[row]): extras for row, extras in self.extras.items()},
        )

    def _run_info(self, columns: EventColumns, number: int) -> bool:
        """Read what the first event says about the run. Returns False if it says nothing."""
        if number > 1:
            return False
        event = columns.typed(0)
        if not isinstance(event, RunBegan) and not (isinstance(event, Decided) and event.policy is not None):
            self.problems.add(
                number, "does not name the run, expected a decision that says policy and cluster"
            )
            return False
        self.info = self.problems.parse(RunInfo, columns.stated(0), number)
        if self.info is None:
            return False
        self.guesses = guesses_speeds(self.info)
        self.capacity.have(self.info.cluster, float(columns.time_s[0]))
        return True

    def _rows_before(self, columns: EventColumns) -> list[int]:
        """Rows of the jobs of a block that were submitted before it; -1: of another job."""
        ids = columns.job_ids
        rows = [self.living.rows.get(job_id, -1) for job_id in ids]
        if self.living.knows_all or -1 not in rows:
            return rows
        events = np.arange(len(columns.job))[::-1]
        first = np.full(len(ids) + 1, -1)
        first[columns.job[::-1]] = events
        begins = (columns.event[first] == _SUBMIT).tolist()
        if all(row >= 0 or is_new for row, is_new in zip(rows, begins, strict=False)):
            return rows
        self.living.know_all()
        return [self.living.rows.get(job_id, -1) for job_id in ids]

    def _look(self, block: _Block) -> list[tuple[int, ObservedStep]]:
        """Look at what needs it, in order. Returns the times of steps that were observed, and the events."""
        columns, observed = block.columns, []
        for at in np.flatnonzero(_LOOKED_AT[columns.event]).tolist():
            look = self.looks.get(EVENT_NAMES[columns.event[at]])
            if look is not None:
                look(block, at)
            elif columns.detail[at] and columns.may_contain(at, *_FACT_KEYS) and (row := block.row(at)) >= 0:
                step = self._read_facts(row, columns.typed(at))
                observed += [] if step is None else [(at, step)]
        return observed

    def _submit(self, block: _Block) -> None:
        columns, first_row = block.columns, len(self.submitted)
        at = np.flatnonzero(columns.event == _SUBMIT)
        if not len(at):
            return
        details = [columns.stated(place) for place in at.tolist()]
        refused = self.submitted.add(columns.time_s[at], details, block.first + at)
        for place, error in refused.items():
            self.problems.refuse(error, block.first + int(at[place]))
        self.samples_done.extend([nan] * (len(self.submitted) - first_row))
        places = np.delete(at, [*refused]).tolist()
        described_ids = self.submitted.table.ids(first_row)
        for row, (place, described) in enumerate(zip(places, described_ids, strict=True), first_row):
            job_id = block.job_id(place) or ""
            if described != job_id:
                self.submitted.misnamed.add(row)
                text = f'submit of "{job_id}" describes job "{described}"'
                self.problems.add(block.first + place, text, "/detail/job/id")
            elif block.rows[block.job[place]] < 0:  # else it is repeated, as one of a job that ended is
                job = block.job[place]
                self.living.rows[job_id] = block.rows[job] = row
                block.since[job] = place

    def _decision(self, block: _Block, at: int) -> None:
        event, number = block.columns.typed(at), block.first + at
        if isinstance(event, RunBegan):
            self.decisions.policies[event.policy] = None
        if not isinstance(event, Decided):
            return
        if event.policy is not None:
            self.decisions.policies[event.policy] = None
        for stated_of, take in ((event.forecasts, _forecast), (event.admissions, _admission)):
            for job_id, stated in (stated_of or {}).items():
                row = self.living.row(job_id, number)
                if row >= 0:
                    take(self._extras_of(row), stated)
        if event.teams:
            standings = self.problems.parse(_Teams, {"teams": event.teams}, number)
            self.decisions.teams += [] if standings is None else [(event.time, standings.teams)]
        if event.decision_seconds is not None and number > 1:
            self.decisions.count += 1
            self.decisions.seconds += event.decision_seconds

    def _reload(self, block: _Block, at: int) -> None:
        event = block.columns.typed(at)
        if not isinstance(event, Reloaded) or event.error is not None:
            return
        try:
            cluster, _ = event.clusters()
        except ValidationError as error:
            self.problems.refuse(error, block.first + at)
            return
        self.capacity.have(cluster, block.columns.time_s.item(at))

    def _node(self, block: _Block, at: int) -> None:
        event = block.columns.typed(at)
        if not isinstance(event, NodeDown | NodeUp) or event.node not in self.capacity.node_gpus:
            text = f"{event.name} of {getattr(event, 'node', '')!r}, which is not in the cluster"
            self.problems.add(block.first + at, text, "/detail/node")
            return
        self.capacity.take(event, block.columns.time_s.item(at))

    def _read_facts(self, row: int, event: TypedEvent) -> ObservedStep | None:
        """Take what an event says of its job. Returns the time of a step that it tells of."""
        if isinstance(event, Progressed) and event.progress is not None:
            _forecast(self._extras_of(row), event.progress)
        if isinstance(event, Progressed | Rejected) and event.admission is not None:
            _admission(self._extras_of(row), event.admission)
        return _observed(event.observed) if isinstance(event, Trained) else None

    def _extras_of(self, row: int) -> JobExtras:
        return self.extras.setdefault(row, JobExtras())

    def _progress(self, block: _Block, rows: Integers) -> None:
        columns = block.columns
        told = np.flatnonzero(~np.isnan(columns.samples_done) & (rows >= 0))
        np.frombuffer(self.samples_done)[rows[told]] = columns.samples_done[told]  # in order: the last stays
        for at in np.flatnonzero(~np.isnan(columns.loss) & (rows >= 0)).tolist():
            extras, loss = self._extras_of(int(rows[at])), columns.loss.item(at)
            extras.first_loss = loss if extras.first_loss is None else extras.first_loss
            extras.last_loss = loss

    def _share(self, block: _Block, rows: Integers) -> None:
        """Follow which jobs train on the same GPUs, where any do."""
        columns = block.columns
        places = np.flatnonzero(_SHARES[columns.event] & (rows >= 0)).tolist()
        named = {at: name for at in places if columns.detail[at] and (name := block.partner(at)) is not None}
        if not named and not self.beside:
            return
        for at in places:
            row = int(rows[at])
            left = self.beside.pop(row, None)
            if left is not None:
                del self.beside[left]
                block.keeps.append((at, left, False))
            shares = at in named and columns.gpus[at] > 0
            other = self.living.row(named[at], block.first + at) if shares else -1
            if other >= 0 and other != row and other not in self.beside:
                self.beside |= {row: other, other: row}
                block.shared.append(at)
                block.keeps.append((at, other, True))

    def _keep_changes(self, block: _Block, rows: Integers, observed: list[tuple[int, ObservedStep]]) -> None:
        columns = block.columns
        kept = CHANGES[columns.event] | (columns.overhead_s != 0) | self.guesses
        kept[[at for at, _ in observed]] = True
        at = np.flatnonzero(kept & (rows >= 0))
        changes, places = block.changes(rows, at)
        for event, step in observed:
            number = len(self.changes) + int(places[np.searchsorted(at, event)])
            self.observed.append((int(rows[event]), number, step))
        if self.guesses:
            samples_done = np.full(len(changes.job), nan)
            samples_done[places] = columns.samples_done[at]
            goes_on = np.zeros(len(changes.job), bool)
            goes_on[places] = [block.goes_on(event) for event in at.tolist()]
            self.reports.add(samples_done, goes_on)
        self.changes.add(changes)

    def _observe(self, held: Allocations, order: Integers) -> None:
        """Keep the observed times of steps with the batch that the job had, and whether it shared its GPUs at
        any time since the last of them.

        :param order: the changes sorted by job.
        """
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        before: dict[int, tuple[int, bool]] = {}
        for row, number, step in self.observed:
            at = int(place[number])
            seen, shared = before.get(row, (0, False))
            times, last = int(held.shared_before[at]), int(held.step_before[at])
            batch = int(held.batch_before[at])
            told = step._replace(
                global_batch=None if batch == UNSTATED else batch, shared=shared or times > seen
            )
            before[row] = times, last >= 0 and bool(held.steps.shared[last])
            if told.batch <= LARGEST_BATCH:
                self._extras_of(row).observed.append(told)


class _Teams(Record):
    teams: tuple[TeamStanding, ...]


def _forecast(extras: JobExtras, forecast: object) -> None:
    """Values that other programs wrote in another form are skipped."""
    if isinstance(forecast, Mapping):
        values = [forecast.get(name) for name in Forecast._fields]
        numbers = [float(value) for value in values if isinstance(value, int | float) and abs(value) <= MOST]
        if len(numbers) == len(values):
            extras.forecasts.append(Forecast(*numbers))


def _admission(extras: JobExtras, admission: object) -> None:
    if isinstance(admission, Mapping) and isinstance(admission.get("admitted"), bool):
        extras.admission = admission


def _observed(observed: object) -> ObservedStep | None:
    """The time of a step that an event tells of; one in another form is skipped."""
    if not isinstance(observed, Mapping):
        return None
    placement, step_s = observed.get("placement"), observed.get("step_seconds")
    counts = [
        observed.get("local_batch"),
        observed.get("accum"),
        *(placement if isinstance(placement, list | tuple) else ()),
    ]
    if isinstance(step_s, bool) or not isinstance(step_s, int | float) or len(counts) < 3:
        return None
    if _SHORTEST_STEP_S <= step_s <= MOST and all(
        type(count) is int and 0 < count <= LARGEST_BATCH
        for count in counts  # not a bool
    ):
        local_batch, accum, *gpus = counts
        return ObservedStep(tuple(gpus), local_batch, accum, float(step_s), None)
    return None


def _hash_of_work(jobs: Iterable[Job]) -> str:
    """Equal for live runs that served the same jobs, whenever these came.

    The hash of the trace only says which jobs a live run began with.
    """
    return trace_hash(job.model_copy(update={"submit_time": 0.0, "workdir": None}) for job in jobs)
