"""Steps of a live run as its workers measured them, beside what the profile predicted.

The prediction is that of the log: the curve that the scheduler wrote down with each job, which holds at the
job's own batch, on as few nodes as possible, for a job that has its GPUs to itself. Of all else the log
predicts nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, dataclass
from statistics import median
from typing import Final

from pliant.schemas.metrics import StepTime, Unpredicted
from pliant.schemas.text import counted
from pliant.tools.report.read_run import guesses_speeds
from pliant.tools.report.records import RunRecord
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
    own_batch: int
    """Of the job; 0 if it states none."""
    shared: bool


def step_times(run: RunRecord) -> tuple[StepTime, ...]:
    """A row for each model, placement and batch, in this order. Empty of a run without a profile.

    Steps of which the log predicts nothing have rows of their own.
    """
    if run.info.simulated or guesses_speeds(run.info):
        return ()
    measured: dict[_Key, list[float]] = defaultdict(list)
    predicted: dict[_Key, list[float]] = defaultdict(list)
    for job in run.jobs:
        own = job.job.batch.size or 0
        for step in job.observed:
            key = _Key(
                job.job.model, step.placement, step.batch, step.local_batch, step.accum, own, step.shared
            )
            measured[key].append(step.step_s)
            rate = rate_at(job.curve, sum(step.placement)) if job.curve else 0.0
            if rate:
                predicted[key].append(own / rate)
    order = sorted(measured, key=lambda key: (key.model, sum(key.placement), *astuple(key)[1:]))
    node_gpus = _node_gpus(run)
    return tuple(_row(key, measured[key], predicted[key], node_gpus) for key in order)


def _node_gpus(run: RunRecord) -> frozenset[int]:
    """The GPUs of the largest node of each GPU type."""
    largest: dict[str, int] = {}
    for node in run.info.cluster.nodes:
        largest[node.gpu_type] = max(node.gpus, largest.get(node.gpu_type, 1))
    return frozenset(largest.values())


def _is_consolidated(placement: tuple[int, ...], node_gpus: frozenset[int]) -> bool:
    """Whether it is on whole nodes of a type and at most one more, as where the curve was taken."""
    return any(
        set(placement[:-1]) <= {gpus} and placement[-1] <= gpus and sum(placement) > 0 for gpus in node_gpus
    )


def _row(key: _Key, measured_s: list[float], predicted_s: list[float], node_gpus: frozenset[int]) -> StepTime:
    why: Unpredicted | None = None
    if key.batch != key.own_batch:
        why = "batch"
    elif not _is_consolidated(key.placement, node_gpus):
        why = "spread"
    elif key.shared:
        why = "shared"
    elif not predicted_s:
        why = "speed"
    found, expected = median(measured_s), None if why else median(predicted_s)
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
        unpredicted=why,
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
