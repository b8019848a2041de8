"""A simulated run beside the measured run of the same jobs, and what explains their difference."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from pliant.schemas.errors import UsageError
from pliant.schemas.events import Started
from pliant.tools.report.isolated import rate_at
from pliant.tools.report.job_record import JobRecord
from pliant.tools.report.metrics import mean
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.sections import Section, number, time_unit


@dataclass(frozen=True, slots=True)
class Parts:
    """What the JCT of one job is made of, seconds; they add up to it."""

    waiting_s: float
    """Without GPUs: before the first start and while preempted."""
    startup_s: float
    """Holding GPUs after the first start, without training yet."""
    rescale_s: float
    """The same after resumes, growths, shrinks and moves."""
    checkpoint_s: float
    """Training stands still while a checkpoint is written."""
    training_s: float


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """One job in both runs. Times are seconds, null where a run did not get that far."""

    job: str
    simulated_jct_s: float | None
    measured_jct_s: float | None
    ratio: float | None
    """Simulated JCT / measured JCT."""
    extra: Parts | None
    """Measured minus simulated: the parts add up to the difference of the JCTs."""
    startup_s: float
    rescale_s: float
    speed: float | None
    """Measured samples per second of training / those that the profile predicts for the same sizes."""


def compare_runs(measured: RunRecord, simulated: RunRecord) -> tuple[ComparedJob, ...]:
    """The jobs that both runs have, in order of submission.

    :raises UsageError: the runs have no job in common.
    """
    twins = {job.id: job for job in simulated.jobs}
    comparisons = tuple(
        _compare(job, twins[job.id], measured.last_event_s) for job in measured.jobs if job.id in twins
    )
    if not comparisons:
        raise UsageError(f"{measured.source} and {simulated.source} have no job in common")
    return comparisons


def mean_ratio(rows: tuple[ComparedJob, ...]) -> float | None:
    """Mean simulated JCT / mean measured JCT over the jobs that finished in both."""
    both = [
        (row.simulated_jct_s, row.measured_jct_s)
        for row in rows
        if row.simulated_jct_s is not None and row.measured_jct_s is not None
    ]
    measured = mean(right for _, right in both)
    return (mean(left for left, _ in both) or 0.0) / measured if measured else None


def _compare(job: JobRecord, twin: JobRecord, until_s: float) -> ComparedJob:
    measured, simulated = job.jct_s, twin.jct_s
    extra = _difference(_parts(job), _parts(twin))
    startup = _startup_s(job)
    return ComparedJob(
        job.id,
        simulated,
        measured,
        simulated / measured if simulated is not None and measured else None,
        extra,
        startup_s=startup,
        rescale_s=_overhead_s(job) - startup,
        speed=relative_speed(job, until_s),
    )


def _difference(measured: Parts | None, simulated: Parts | None) -> Parts | None:
    if measured is None or simulated is None:
        return None
    return Parts(*(a - b for a, b in zip(astuple(measured), astuple(simulated), strict=True)))


def _parts(job: JobRecord) -> Parts | None:
    """Returns None for a job that did not finish."""
    if job.jct_s is None or job.end_s is None:
        return None
    held = sum(end - start for start, end, _ in job.held(job.end_s))
    startup, overhead = _startup_s(job), _overhead_s(job)
    checkpoint = sum(step.checkpoint_s for step in job.steps)
    return Parts(job.jct_s - held, startup, overhead - startup, checkpoint, held - overhead - checkpoint)


def _startup_s(job: JobRecord) -> float:
    return sum(step.overhead_s for step in job.steps if step.event == Started.name)


def _overhead_s(job: JobRecord) -> float:
    return sum(step.overhead_s for step in job.steps)


def relative_speed(job: JobRecord, until_s: float) -> float | None:
    """Samples trained / predicted for its time at each size. Returns None if nothing was predicted."""
    if job.is_measured:
        return None
    done = job.samples_done
    if done is None and job.outcome == "finished":
        done = job.samples
    predicted = sum(
        rate_at(job.curve, step.gpus) * max(0.0, end - start - step.overhead_s - step.checkpoint_s)
        for start, end, step in job.held(until_s)
    )
    return done / predicted if done is not None and predicted else None


def comparison_rows(rows: tuple[ComparedJob, ...]) -> list[dict[str, Any]]:
    """Plain rows; the parts of the difference are columns ``extra_…``."""
    names = [part.name for part in fields(Parts)]
    return [
        {
            **{name: value for name, value in asdict(row).items() if name != "extra"},
            **{f"extra_{name}": getattr(row.extra, name, None) for name in names},
        }
        for row in rows
    ]


def comparison_section(rows: tuple[ComparedJob, ...], simulated: RunRecord) -> Section:
    unit = time_unit([row.measured_jct_s for row in rows] + [row.simulated_jct_s for row in rows])
    headers = (
        *("job", f"JCT simulated, {unit.name}", f"measured, {unit.name}", "simulated / measured"),
        *("waiting, +s", "start-up, +s", "rescales, +s", "checkpoints, +s", "training, +s"),
        "speed, measured / predicted",
    )
    cells = tuple(
        (
            row.job,
            unit.text(row.simulated_jct_s),
            unit.text(row.measured_jct_s),
            number(row.ratio, 3),
            *(number(getattr(row.extra, part.name, None), 2) for part in fields(Parts)),
            number(row.speed, 3),
        )
        for row in rows
    )
    notes = (
        f"mean simulated JCT / mean measured JCT: {number(mean_ratio(rows), 3)}",
        "+s: seconds by which the measured part exceeds the simulated one; together they are the difference",
        "training: jobs that share a machine slow each other down, beside the throughput model's own error",
        f"simulated with policy {simulated.info.policy}, seed {simulated.info.seed}",
    )
    return Section("Simulated beside measured", headers, cells, 1, notes)
