"""Speeds that a live run without a profile measured.

Without a profile a scheduler assumes one sample per second and GPU, and the log of a live run says so in
each ``submit``. :func:`measured` replaces that guess by what workers reported: samples over seconds between
the first and the last report on the same GPUs, without checkpoints. At sizes that a job never held it has
the speeds of other jobs of its model and batch. A job without reports that ran once on one size was as fast
as its duration says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Final

import numpy as np

from pliant.schemas.event import EVENT_NAMES
from pliant.schemas.job import GpuTimeWork
from pliant.schemas.runinfo import RunInfo
from pliant.tools.report.allocations import AllocationChanges, Allocations
from pliant.tools.report.isolated import rate_at
from pliant.tools.report.job_arrays import Booleans, Floats, Integers, Jobs, optional
from pliant.tools.report.job_record import AllocationStep, Curve, JobRecord, ReportedProgress

REPORTS: Final = frozenset({"progress", "epoch", "checkpoint", "finish"})
"""Events by which workers say how far they are."""
_REPORTS: Final = frozenset(map(EVENT_NAMES.index, REPORTS))
_CHECKPOINT: Final = EVENT_NAMES.index("checkpoint")
_FINISH: Final = EVENT_NAMES.index("finish")
Speeds = Mapping[int, tuple[float, float]]
"""(samples, seconds) of training, by GPUs."""


class ProgressReports:
    """What the events of a log that guesses report beside what changes them, in the order of its changes."""

    def __init__(self) -> None:
        self._samples_done: list[Floats] = []
        self._goes_on: list[Booleans] = []

    def add(self, samples_done: Floats, goes_on: Booleans) -> None:
        """:param goes_on: whether the event says that workers train on the GPUs that the job holds."""
        self._samples_done.append(samples_done)
        self._goes_on.append(goes_on)

    def of_steps(
        self, changes: AllocationChanges, order: Integers, held: Allocations
    ) -> dict[int, tuple[ReportedProgress, ReportedProgress]]:
        """The first and the last report on the GPUs of each step, by step.

        Until workers report progress ``after`` a change of GPUs, they may still train on the old ones. If
        there is no last report, the end of the job takes its place.

        :param changes: sorted by job.
        :param order: where each of them was in the log.
        """
        reported: dict[int, tuple[ReportedProgress, ReportedProgress]] = {}
        # Time without training because of checkpoints, by step.
        stood_s: dict[int, float] = defaultdict(float)
        # Samples that each job has done so far.
        known: dict[int, float] = {}
        for job, time_s, event, overhead_s, step, samples, goes_on in zip(
            changes.job.tolist(),
            changes.time_s.tolist(),
            changes.event.tolist(),
            changes.overhead_s.tolist(),
            held.step_before.tolist(),
            optional(np.concatenate(self._samples_done)[order]),
            np.concatenate(self._goes_on)[order].tolist(),
            strict=True,
        ):
            if event in _REPORTS and step >= 0 and held.steps.gpus[step]:
                if event == _CHECKPOINT:
                    stood_s[step] += overhead_s
                done = known.get(job, 0.0) if samples is None else samples
                report = ReportedProgress(time_s, done, stood_s[step])
                first, last = reported.get(step, (None, None))
                if first is None:
                    if goes_on:
                        reported[step] = report, report
                elif samples is not None and (event != _FINISH or last is first):
                    reported[step] = first, report
            if samples is not None:
                known[job] = samples
        return reported


def guesses_speeds(info: RunInfo) -> bool:
    """Whether the log only guesses curves and work: a live run without a profile."""
    return not info.simulated and info.profile_hash is None and info.profile is None


def measured(jobs: Jobs, until_s: float) -> Jobs:
    """The jobs with what was measured in the place of what the log guessed; without a measurement it is
    unknown.

    :param until_s: end of the log, on the clock of the jobs.
    """
    records = [*jobs]
    _measure(records, until_s)
    numbers: dict[Curve, int] = {}
    curve = [numbers.setdefault(record.curve, len(numbers)) for record in records]
    rates = [numbers.setdefault(record.rates, len(numbers)) for record in records]
    return replace(
        jobs,
        curves=[*numbers],
        curve=np.array(curve, np.int32),
        rates=np.array(rates, np.int32),
        samples=np.array([nan if record.samples is None else record.samples for record in records]),
        demand_gpu_s=np.full(len(records), nan),
        is_measured=True,
    )


def _measure(jobs: Sequence[JobRecord], until_s: float) -> None:
    own = {job.id: _speeds(job.steps) for job in jobs}
    alike: dict[object, list[Speeds]] = defaultdict(list)
    for job in jobs:
        alike[_kind(job)].append(own[job.id])
    together = {kind: _curve(_pooled(curves)) for kind, curves in alike.items()}
    for job in jobs:
        curve = dict(together[_kind(job)]) | dict(_curve(own[job.id]))
        _take(job, tuple(sorted(curve.items())))
        if not own[job.id]:
            _take_duration(job, until_s)


def _kind(job: JobRecord) -> object:
    return job.job.model, job.job.batch.size


def _speeds(steps: Iterable[AllocationStep]) -> Speeds:
    work_by_size: dict[int, tuple[float, float]] = {}
    for step in steps:
        if step.first is None or step.last is None or step.shared:
            continue
        stood_s = step.last.checkpoint_s - step.first.checkpoint_s
        samples, seconds = (
            step.last.samples - step.first.samples,
            step.last.time_s - step.first.time_s - stood_s,
        )
        if samples > 0 and seconds > 0:
            before = work_by_size.get(step.gpus, (0.0, 0.0))
            work_by_size[step.gpus] = before[0] + samples, before[1] + seconds
    return work_by_size


def _pooled(each: Iterable[Speeds]) -> Speeds:
    work_by_size: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for speeds in each:
        for gpus, (samples, seconds) in speeds.items():
            work_by_size[gpus] = work_by_size[gpus][0] + samples, work_by_size[gpus][1] + seconds
    return work_by_size


def _curve(speeds: Speeds) -> Curve:
    return tuple((gpus, samples / seconds) for gpus, (samples, seconds) in sorted(speeds.items()))


def _take(job: JobRecord, curve: Curve) -> None:
    job.curve = curve
    if job.outcome == "finished" and job.samples_done:
        job.samples = job.samples_done
    elif isinstance(work := job.job.work, GpuTimeWork) and (requested := job.job.gpus.requested):
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
