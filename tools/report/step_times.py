"""Steps of a live run as its workers measured them, beside what the profile predicted.

The prediction is that of the log: the curve that the scheduler wrote down with each job, at the job's own
batch. Of other batches the log predicts nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Final

from pliant.schemas.metrics import StepTime
from pliant.schemas.text import counted
from pliant.tools.report.read_run import guesses_speeds
from pliant.tools.report.records import JobRecord, ObservedStep, RunRecord
from pliant.tools.report.references.isolated import rate_at

OFF: Final = 0.1
"""From this median error on a report warns."""


@dataclass(frozen=True, slots=True)
class _Key:
    model: str
    placement: tuple[int, ...]
    batch: int
    local_batch: int
    accum: int


def step_times(run: RunRecord) -> tuple[StepTime, ...]:
    """A row for each model, placement and batch, in this order. Empty of a run without a profile."""
    if run.info.simulated or guesses_speeds(run.info):
        return ()
    measured: dict[_Key, list[float]] = defaultdict(list)
    predicted: dict[_Key, list[float]] = defaultdict(list)
    for job in run.jobs:
        for step in job.observed:
            key = _Key(job.job.model, step.placement, step.batch, step.local_batch, step.accum)
            measured[key].append(step.step_s)
            expected_s = _predicted_s(job, step)
            if expected_s is not None:
                predicted[key].append(expected_s)
    order = sorted(
        measured, key=lambda key: (key.model, sum(key.placement), key.placement, key.batch, key.accum)
    )
    return tuple(_row(key, measured[key], predicted[key]) for key in order)


def _predicted_s(job: JobRecord, step: ObservedStep) -> float | None:
    """Returns None for a batch that is not the job's own, or an unknown speed."""
    own = job.job.batch.size
    if own is None or step.batch != own or not job.curve:
        return None
    rate = rate_at(job.curve, sum(step.placement))
    return own / rate if rate else None


def _row(key: _Key, measured_s: list[float], predicted_s: list[float]) -> StepTime:
    found, expected = median(measured_s), median(predicted_s) if predicted_s else None
    return StepTime(
        model=key.model,
        gpus=sum(key.placement),
        placement="+".join(map(str, key.placement)),
        global_batch=key.batch,
        local_batch=key.local_batch,
        accum_steps=key.accum,
        reports=len(measured_s),
        measured_s=found,
        predicted_s=expected,
        error=None if expected is None else expected / found - 1,
    )


def off_caveat(rows: tuple[StepTime, ...]) -> str:
    """What a reader must know of predictions that did not come true; empty if they did, or are not known."""
    errors = [row.error for row in rows if row.error is not None]
    off = median(map(abs, errors)) if errors else 0.0
    if off <= OFF:
        return ""
    return (
        f"predicted times of steps are {100 * off:.0f} % off the measured ones, in the median of "
        f"{counted(len(errors), 'configuration')} (--all lists them): profile these models again"
    )
