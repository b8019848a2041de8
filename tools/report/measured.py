"""The speeds that a run measured itself: what its report rests on where it had no profile.

Without a profile a scheduler takes every GPU to train one sample per second, and the log of a live run says
so in each ``submit``. That is a guess to decide by. How fast jobs really were follows from what their workers
reported: samples over seconds between the first report on some GPUs and the last one there, without
checkpoints. A job has its own speeds and, at sizes that it never held, those of other jobs of its model and
batch. A job without such reports, which ran once and on one size, was as fast as its duration says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pliant.schemas.job import GpuTimeWork
from pliant.schemas.runinfo import RunInfo
from pliant.tools.report.records import Curve, JobRecord, Step
from pliant.tools.report.references.jobs import rate_at

Speeds = Mapping[int, tuple[float, float]]
"""(samples, seconds) of training by GPUs."""


def guesses_speeds(info: RunInfo) -> bool:
    """Whether the curves and the work in the log of a run are guesses: a live one without a profile."""
    return not info.simulated and info.profile_hash is None and info.profile is None


def measure(jobs: Sequence[JobRecord], until_s: float) -> None:
    """Replace what the log guessed about the jobs by what they did; unknown where nothing was measured.

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


def _speeds(steps: Iterable[Step]) -> Speeds:
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
    """The speed of a job that ran once, on one size; its work in seconds, if it states none."""
    held = [*job.held(until_s)]
    starts = [step for step in job.steps if step.gpus]
    if job.outcome != "finished" or len(starts) != 1 or len(held) != 1 or starts[0].shared:
        return
    start_s, end_s, step = held[0]
    seconds = end_s - start_s - step.overhead_s - step.checkpoint_s
    if seconds > 0:
        job.samples = job.samples or seconds
        job.curve = ((step.gpus, job.samples / seconds),)
