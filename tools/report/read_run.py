"""From an event file to a :class:`~pliant.tools.report.records.RunRecord`, in one pass.

Without a profile a scheduler assumes one sample per second and GPU, and the log of a live run says so in
each ``submit``. :func:`measure` replaces that guess by what workers reported: samples over seconds between
the first and the last report on the same GPUs, without checkpoints. At sizes that a job never held it has
the speeds of other jobs of its model and batch. A job without reports that ran once on one size was as fast
as its duration says.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.event import ENDS, FREES, HOLDS, RESCALES, Event
from pliant.schemas.file_io.events import EventRow, event_rows, parse_events
from pliant.schemas.file_io.files import PARQUET_MAGIC, read_bytes, source_name
from pliant.schemas.file_io.json_lines import is_json, key_given_twice
from pliant.schemas.file_io.limits import ROWS_BYTES, garbage_collection_paused
from pliant.schemas.file_io.record import LARGEST_BATCH, MOST, Record, problems_of
from pliant.schemas.job import GpuTimeWork, Job, SharedParts, trace_hash
from pliant.schemas.runinfo import RunInfo, SubmitDetail
from pliant.schemas.schedule import TeamStanding
from pliant.tools.report.isolated import rate_at
from pliant.tools.report.records import (
    AllocationStep,
    Curve,
    Forecast,
    JobRecord,
    ObservedStep,
    ReportedProgress,
    RunRecord,
    Specs,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T")
AnyEvent = Event | EventRow
Detail = Mapping[str, Any] | str
"""A detail, or its JSON text."""
_SHORTEST_STEP_S: Final = 1e-9
_JOB: Final = '{"job":'
_CURVE: Final = ',"curve":'
"""Around the job in a submission."""
_REPORTS: Final = frozenset({"progress", "epoch", "checkpoint", "finish"})
Speeds = Mapping[int, tuple[float, float]]
"""(samples, seconds) of training, by GPUs."""


@garbage_collection_paused()
def read_run(path: str | Path) -> RunRecord:
    """Read and fold one event file; ``-`` is stdin.

    :raises BadInputError: it is not an event file, or its events do not fit together.
    """
    data, source = read_bytes(path, most=ROWS_BYTES), source_name(path)
    digest = sha256(data).hexdigest()
    if data.startswith(PARQUET_MAGIC):
        with suppress(BadInputError):  # the careful reader says what is wrong
            return replace(fold(event_rows(data, source), source), sha256=digest)
    return replace(fold(parse_events(data, source), source), sha256=digest)


def fold(events: Iterable[AnyEvent], source: str = "events") -> RunRecord:
    """Fold the events of one run, complete or cut short.

    :raises BadInputError: with every problem; events are counted from 1.
    """
    state = _Fold(source)
    for number, event in enumerate(events, 1):
        state.take(event, number)
    return state.record()


class _Fold:
    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.info: RunInfo | None = None
        self.guesses = False
        """Whether the log guesses how fast jobs are, so that speeds are measured from reports."""
        self.jobs: dict[str, JobRecord] = {}
        self.node_gpus: dict[str, int] = {}
        self.down: set[str] = set()
        self.capacity: list[tuple[float, int]] = []
        self.last_s = 0.0
        self.decisions = 0
        self.decision_seconds = 0.0
        self.policies: dict[str, None] = {}
        self.teams: list[tuple[float, tuple[TeamStanding, ...]]] = []
        self.curves: dict[Curve, Curve] = {}
        self.share = SharedParts().share
        self.specs = Specs()
        self.beside: dict[str, str] = {}
        """The other job of two on the same GPUs."""
        self.cluster_events: dict[str, Callable[[AnyEvent, int], None]] = {
            "submit": self._submit,
            "decision": self._decision,
            "node_down": self._node,
            "node_up": self._node,
            "slot_down": self._slot,
            "slot_up": self._slot,
            "drain": self._slot,
            "undrain": self._slot,
        }

    def take(self, event: AnyEvent, number: int) -> None:
        if self.info is None and not self._run_info(event, number):
            return
        self.last_s = max(self.last_s, event.time)
        handler = self.cluster_events.get(event.event)
        if handler is not None:
            handler(event, number)
            return
        job = self.jobs.get(event.job or "")
        if job is None:
            self._problem(number, f'{event.event} of job "{event.job}", which was never submitted')
        else:
            if self.guesses and event.event in _REPORTS:
                _see(job, event)
            _apply(job, event)
            if (self.beside or event.detail) and (event.event in HOLDS or event.event in FREES):
                self._share(job, event)

    def _share(self, job: JobRecord, event: AnyEvent) -> None:
        other_id = self.beside.pop(job.id, None)
        if other_id is not None:
            del self.beside[other_id]
            _keep_on(self.jobs[other_id], event.time, shared=False)
        named = _fields(event).get("beside") if event.detail and event.gpus else None
        other = self.jobs.get(named) if isinstance(named, str) else None
        if other is not None and other is not job and other.id not in self.beside:
            self.beside |= {job.id: other.id, other.id: job.id}
            job.steps[-1].shared = job.shared_lately = True
            _keep_on(other, event.time, shared=True)

    def record(self) -> RunRecord:
        """The run, on a clock that starts with the first submission."""
        if self.info is None and not self.problems:
            self.problems.append(Problem(self.source, None, "", "has no events, expected a run"))
        if self.problems or self.info is None:
            raise BadInputError(self.problems)
        origin = min((job.submit_s for job in self.jobs.values()), default=self.capacity[0][0])
        for job in self.jobs.values():
            _shift(job, origin)
        if self.guesses:
            measure([*self.jobs.values()], self.last_s - origin)
        return RunRecord(
            self.source,
            self.info,
            tuple(sorted(self.jobs.values(), key=lambda job: (job.submit_s, job.id))),
            tuple((time - origin, gpus) for time, gpus in self.capacity),
            origin,
            self.last_s - origin,
            self.decisions,
            self.decision_seconds,
            tuple(self.policies),
            None if self.info.simulated else _hash_of_work(job.job for job in self.jobs.values()),
            teams=tuple((time - origin, standings) for time, standings in self.teams),
        )

    def _run_info(self, event: AnyEvent, number: int) -> bool:
        """Read what the first event says about the run. Returns False if it says nothing."""
        if number > 1:
            return False
        if event.event != "decision" or "policy" not in _fields(event):
            self._problem(number, "does not name the run, expected a decision that says policy and cluster")
            return False
        self.info = self._parse(RunInfo, event.detail or {}, number)
        if self.info is None:
            return False
        self.guesses = guesses_speeds(self.info)
        self.node_gpus = {node.name: node.gpus for node in self.info.cluster.expanded()}
        self.capacity = [(event.time, self.info.cluster.total_gpus)]
        return True

    def _submit(self, event: AnyEvent, number: int) -> None:
        spec, rest = _parted(event.detail)
        found = self._of_known_form(spec, rest) or self._submitted(event, number, spec)
        if found is None:
            return
        row, detail = found
        described, job_id = self.specs.table.job_id(row), event.job or ""
        if described != job_id:
            self._problem(number, f'submit of "{job_id}" describes job "{described}"', "/detail/job/id")
        elif job_id in self.jobs:
            self._problem(number, f'job "{job_id}" is submitted twice')
        else:
            curve = self.curves.setdefault(detail.curve, detail.curve)  # many jobs share few curves
            rates = self.curves.setdefault(detail.rates, detail.rates)
            self.jobs[job_id] = JobRecord(
                described, self.specs, row, event.time, curve, rates, detail.samples, detail.demand_gpu_s
            )

    def _submitted(self, event: AnyEvent, number: int, spec: bytes) -> tuple[int, SubmitDetail] | None:
        """The row of the job that is submitted, and what the event says of it. Returns None for a problem."""
        detail = self._parse(SubmitDetail, event.detail or {}, number)
        if detail is None:
            return None
        is_plain = is_json(spec) and key_given_twice(spec, self.source) is None
        line = spec if is_plain else b""  # more may stand before the curve
        return self.specs.table.append(self.share(detail.job), line), detail

    def _of_known_form(self, spec: bytes, rest: bytes) -> tuple[int, SubmitDetail] | None:
        """The same of a job that differs from one before in few values. Returns None for others."""
        try:
            others = from_json(rest) if spec else None
            if not isinstance(others, dict) or "job" in others or not self.jobs:
                return None
            known = next(iter(self.jobs.values())).job
            found = SubmitDetail.model_validate({**others, "job": known}, strict=False)
        except ValueError:  # which includes what pydantic has to say
            return None
        row = len(self.specs.table)
        return (row, found) if self.specs.table.take(spec) else None

    def _decision(self, event: AnyEvent, number: int) -> None:
        detail = _fields(event)
        if isinstance(detail.get("policy"), str):
            self.policies[detail["policy"]] = None
        forecasts = detail.get("forecasts")
        for job_id, found in forecasts.items() if isinstance(forecasts, Mapping) else ():
            if job_id in self.jobs:
                _forecast(self.jobs[job_id], found)
        admissions = detail.get("admissions")
        for job_id, found in admissions.items() if isinstance(admissions, Mapping) else ():
            if job_id in self.jobs:
                _admission(self.jobs[job_id], found)
        if detail.get("teams"):
            found = self._parse(_Teams, {"teams": detail["teams"]}, number)
            self.teams += [] if found is None else [(event.time, found.teams)]
        seconds = detail.get("decision_seconds")
        if isinstance(seconds, int | float) and number > 1:
            self.decisions += 1
            self.decision_seconds += seconds

    def _node(self, event: AnyEvent, number: int) -> None:
        name = _fields(event).get("node")
        if name not in self.node_gpus:
            self._problem(number, f"{event.event} of {name!r}, which is not in the cluster", "/detail/node")
            return
        (self.down.add if event.event == "node_down" else self.down.discard)(name)
        gpus = sum(count for node, count in self.node_gpus.items() if node not in self.down)
        self.capacity.append((event.time, gpus))

    def _slot(self, event: AnyEvent, number: int) -> None:
        """Slots out of service and drained nodes still count as capacity."""

    def _parse(self, record: type[R], detail: Detail, number: int) -> R | None:
        try:
            if isinstance(detail, str):
                return record.model_validate_json(detail, strict=False)
            return record.model_validate(detail, strict=False)
        except ValidationError as error:
            self.problems += problems_of(error, self.source, where=f"event {number}: /detail")
            return None

    def _problem(self, number: int, text: str, pointer: str = "") -> None:
        where = f"event {number}: {pointer}" if pointer else f"event {number}"
        self.problems.append(Problem(self.source, None, where, text))


class _Teams(Record):
    teams: tuple[TeamStanding, ...]


def _parted(detail: Detail | None) -> tuple[bytes, bytes]:
    """The text of the job in a submission, and that of all else as an object of its own. Both are empty if it
    is not as a replay writes it.
    """
    if not isinstance(detail, str) or not detail.startswith(_JOB):
        return b"", b""
    spec, curve, rest = detail[len(_JOB) :].rpartition(_CURVE)
    return (spec.encode(), f"{{{curve[1:]}{rest}".encode()) if curve else (b"", b"")


def _fields(event: AnyEvent) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (
        json.loads(event.detail) if isinstance(event.detail, str) else event.detail or {}
    )
    return found


def _apply(job: JobRecord, event: AnyEvent) -> None:
    name = event.event
    if event.samples_done is not None:
        job.samples_done = event.samples_done
    if event.loss is not None:
        job.first_loss = event.loss if job.first_loss is None else job.first_loss
        job.last_loss = event.loss
    if name == "progress" and event.detail:
        _forecast(job, _fields(event).get("progress"))
    if name in ("progress", "reject") and event.detail:
        _admission(job, _fields(event).get("admission"))
    if name in _REPORTS and event.detail:
        _observe(job, event)
    if name in HOLDS:
        _step(job, event)
    elif name in ENDS:
        _end(job, event)
    elif name == "requeue":
        job.outcome, job.end_s = "unfinished", None
        job.restarts += 1
        _hold(job, event.time, event.gpus or 0, name)
    if event.overhead_seconds:
        _add_overhead(job, name, event.overhead_seconds)


def _see(job: JobRecord, event: AnyEvent) -> None:
    """Until workers report progress ``after`` a change of GPUs, they may still train on the old ones.

    If there is no last report, the end of the job takes its place.
    """
    step = job.steps[-1] if job.steps else None
    if step is None or not step.gpus:
        return
    stood_s = step.checkpoint_s
    if event.event == "checkpoint":
        stood_s += event.overhead_seconds or 0.0
    if step.first is None and event.detail and "after" in _fields(event):
        known = job.samples_done or 0.0 if event.samples_done is None else event.samples_done
        step.first = step.last = ReportedProgress(event.time, known, stood_s)
    elif step.first is None or event.samples_done is None:
        return
    elif event.event != "finish" or step.last is step.first:
        step.last = ReportedProgress(event.time, event.samples_done, stood_s)


def _observe(job: JobRecord, event: AnyEvent) -> None:
    """The time of a step that the event tells of; one in another form is skipped."""
    if isinstance(event.detail, str) and '"observed"' not in event.detail:
        return
    found = _fields(event).get("observed")
    if not isinstance(found, Mapping):
        return
    placement, step_s = found.get("placement"), found.get("step_seconds")
    counts = [
        found.get("local_batch"),
        found.get("accum"),
        *(placement if isinstance(placement, list | tuple) else ()),
    ]
    if isinstance(step_s, bool) or not isinstance(step_s, int | float) or len(counts) < 3:
        return
    if _SHORTEST_STEP_S <= step_s <= MOST and all(
        type(count) is int and 0 < count <= LARGEST_BATCH
        for count in counts  # not a bool
    ):
        local_batch, accum, *gpus = counts
        shared, job.shared_lately = job.shared_lately, bool(job.steps) and job.steps[-1].shared
        step = ObservedStep(tuple(gpus), local_batch, accum, float(step_s), job.global_batch, shared)
        if step.batch <= LARGEST_BATCH:
            job.observed = _with(job.observed, step)


def _forecast(job: JobRecord, found: object) -> None:
    """Values that other programs wrote in another form are skipped."""
    if isinstance(found, Mapping):
        values = [found.get(name) for name in Forecast._fields]
        numbers = [float(value) for value in values if isinstance(value, int | float) and abs(value) <= MOST]
        if len(numbers) == len(values):
            job.forecasts = _with(job.forecasts, Forecast(*numbers))


def _with(before: Sequence[T], new: T) -> Sequence[T]:
    """Most jobs have none, and no list for it."""
    if isinstance(before, list):
        before.append(new)
        return before
    return [new]


def _admission(job: JobRecord, found: object) -> None:
    if isinstance(found, Mapping) and isinstance(found.get("admitted"), bool):
        job.admission = found


def _step(job: JobRecord, event: AnyEvent) -> None:
    if job.outcome == "failed":  # restarted without an event in between
        job.outcome, job.end_s = "unfinished", None
    job.preemptions += event.event == "preempt"
    same_batch = event.global_batch in (None, job.global_batch) or job.global_batch is None
    moves = event.event == "move" and same_batch
    job.moves += moves
    job.global_batch = job.global_batch if event.global_batch is None else event.global_batch
    unchanged = job.steps[-1].gpus if job.steps and event.event != "preempt" else 0
    gpus = unchanged if event.gpus is None else event.gpus
    _hold(job, event.time, gpus, event.event, rescales=event.event in RESCALES and not moves)


def _end(job: JobRecord, event: AnyEvent) -> None:
    job.outcome = ENDS[event.event]
    job.end_s = _not_before(job, event.time)
    if job.steps and job.steps[-1].gpus:
        _hold(job, event.time, 0, event.event)


def _add_overhead(job: JobRecord, name: str, seconds: float) -> None:
    """In a live run the overhead of a change is known some events later."""
    holding = next((step for step in reversed(job.steps) if step.gpus), None)
    if holding is None:
        return
    if name == "checkpoint":
        holding.checkpoint_s += seconds
    else:
        holding.overhead_s += seconds


def _hold(job: JobRecord, time_s: float, gpus: int, name: str, *, rescales: bool = False) -> None:
    if job.steps or gpus:
        since_s = _not_before(job, time_s)
        job.steps.append(AllocationStep(since_s, gpus, name, batch=job.global_batch, rescales=rescales))


def _keep_on(job: JobRecord, time_s: float, *, shared: bool) -> None:
    job.shared_lately = job.shared_lately or shared
    if job.steps and job.steps[-1].gpus and job.steps[-1].shared != shared:
        last = job.steps[-1]
        again = AllocationStep(
            _not_before(job, time_s), last.gpus, last.event, shared=shared, batch=last.batch
        )
        job.steps.append(again)


def _not_before(job: JobRecord, time_s: float) -> float:
    """Clocks of machines may disagree a little; the events of a job never run backwards."""
    before = job.steps[-1].time_s if job.steps else job.submit_s
    return time_s if time_s > before else before


def _shift(job: JobRecord, origin_s: float) -> None:
    job.submit_s -= origin_s
    if job.end_s is not None:
        job.end_s -= origin_s
    for step in job.steps:
        step.time_s -= origin_s


def _hash_of_work(jobs: Iterable[Job]) -> str:
    """Equal for live runs that served the same jobs, whenever these came.

    The hash of the trace only says which jobs a live run began with.
    """
    return trace_hash(job.model_copy(update={"submit_time": 0.0, "workdir": None}) for job in jobs)


def guesses_speeds(info: RunInfo) -> bool:
    """Whether the log only guesses curves and work: a live run without a profile."""
    return not info.simulated and info.profile_hash is None and info.profile is None


def measure(jobs: Sequence[JobRecord], until_s: float) -> None:
    """Replace what the log guessed by what was measured; without a measurement it is unknown.

    :param until_s: end of the log, on the clock of the jobs.
    """
    own = {job.id: _speeds(job.steps) for job in jobs}
    alike: dict[object, list[Speeds]] = defaultdict(list)
    for job in jobs:
        alike[_kind(job)].append(own[job.id])
    together = {kind: _curve(_pooled(found)) for kind, found in alike.items()}
    for job in jobs:
        curve = dict(together[_kind(job)]) | dict(_curve(own[job.id]))
        _take(job, tuple(sorted(curve.items())))
        if not own[job.id]:
            _take_duration(job, until_s)


def _kind(job: JobRecord) -> object:
    return job.job.model, job.job.batch.size


def _speeds(steps: Iterable[AllocationStep]) -> Speeds:
    found: dict[int, tuple[float, float]] = {}
    for step in steps:
        if step.first is None or step.last is None or step.shared:
            continue
        stood_s = step.last.checkpoint_s - step.first.checkpoint_s
        samples, seconds = (
            step.last.samples - step.first.samples,
            step.last.time_s - step.first.time_s - stood_s,
        )
        if samples > 0 and seconds > 0:
            before = found.get(step.gpus, (0.0, 0.0))
            found[step.gpus] = before[0] + samples, before[1] + seconds
    return found


def _pooled(each: Iterable[Speeds]) -> Speeds:
    found: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for speeds in each:
        for gpus, (samples, seconds) in speeds.items():
            found[gpus] = found[gpus][0] + samples, found[gpus][1] + seconds
    return found


def _curve(speeds: Speeds) -> Curve:
    return tuple((gpus, samples / seconds) for gpus, (samples, seconds) in sorted(speeds.items()))


def _take(job: JobRecord, curve: Curve) -> None:
    job.curve, job.is_measured, job.demand_gpu_s = curve, True, None
    if job.outcome == "finished" and job.samples_done:
        job.samples = job.samples_done
    elif isinstance(work := job.job.work, GpuTimeWork):
        requested = job.job.gpus.requested
        job.samples = work.gpu_seconds / requested * rate_at(curve, requested) or None


def _take_duration(job: JobRecord, until_s: float) -> None:
    """For a job that ran once, on one size. Its work is in seconds if it states none."""
    held = [*job.held(until_s)]
    starts = [step for step in job.steps if step.gpus]
    if job.outcome != "finished" or len(starts) != 1 or len(held) != 1 or starts[0].shared:
        return
    start_s, end_s, step = held[0]
    seconds = end_s - start_s - step.overhead_s - step.checkpoint_s
    if seconds > 0:
        job.samples = job.samples or seconds
        job.curve = ((step.gpus, job.samples / seconds),)
