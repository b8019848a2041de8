"""The figures of a run: :class:`~pliant.schemas.metrics.RunMetrics` from a folded event file.

JCT, FTF and the GPS bound are over finished jobs; the counts of the others stand beside them. Percentiles
interpolate linearly between order statistics: the value at position q·(n − 1), as NumPy's default.

No schedule of the jobs that finished has a smaller mean JCT or makespan than the lower bounds, two
relaxations. *Alone*: every job has its best size from its submission on. *Pooled*: every job needs only the
GPU-time of its cheapest size, and the whole cluster works on the job with the least left (preemptive SRPT
with release times, optimal there). Both hold at the requested batch. A job whose work or speed is unknown
counts with no time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from math import floor, inf
from statistics import pstdev
from typing import Final

from pliant.schemas.job import Utility
from pliant.schemas.metrics import RunMetrics
from pliant.tools.report.fairness import Fairness, Reference, fairness, promise
from pliant.tools.report.records import JobRecord, RunRecord, Usage, gpu_usage
from pliant.tools.report.references.isolated import ReferenceJob, rate_at, reference_jobs


@dataclass(frozen=True, slots=True)
class Wanted:
    """Figures that are computed on demand."""

    bound: bool = False
    completed_at_s: tuple[float, ...] = ()
    """When to count the finished jobs, seconds since the first submission."""


NOTHING_MORE: Final = Wanted()
_OF_THE_RUN: Final = ("policy", "trace_hash", "seed", "parameters", "simulated", "oracle", "demand")


def run_metrics(
    run: RunRecord,
    fair: Mapping[Reference, Fairness] | None = None,
    usage: Usage | None = None,
    wanted: Wanted = NOTHING_MORE,
) -> RunMetrics:
    """``fair`` and ``usage`` are computed unless given."""
    fair = fairness(run) if fair is None else fair
    usage = gpu_usage(run) if usage is None else usage
    figures: dict[str, float | int | None] = {
        **_counts(run),
        **_times(run),
        **_fairness(fair["fair-share"], ""),
        **_fairness(fair["gps"], "_gps"),
        **_fairness(fair["isolated"], "_isolated"),
        **_gps_bound(run, fair["gps"], usage),
        **_service(run, usage),
        "total_utility": total_utility(run),
        **_against_targets(run),
        "jobs_admitted": _admitted(run),
        "mean_decision_ms": _mean_decision_ms(run),
        **(_lower_bounds(run) if wanted.bound else {}),
    }
    return RunMetrics.model_validate(
        {
            **{name: getattr(run.info, name) for name in _OF_THE_RUN},
            "jobs_completed_at": completed_at(run, wanted.completed_at_s),
            **figures,
        }
    )


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (0 to 1), linear between order statistics. Returns None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _counts(run: RunRecord) -> dict[str, int]:
    return {
        "jobs_submitted": len(run.jobs),
        "jobs_finished": len(run.with_outcome("finished")),
        "jobs_rejected": len(run.with_outcome("rejected")),
        "jobs_failed": len(run.with_outcome("failed")),
        "jobs_cancelled": len(run.with_outcome("cancelled")),
    }


def completed_at(run: RunRecord, times_s: Iterable[float]) -> tuple[tuple[float, int], ...]:
    """(time, jobs that finished by then), seconds since the first submission."""
    ends = completions(run)
    return tuple((time_s, bisect_right(ends, time_s)) for time_s in times_s)


def completions(run: RunRecord) -> list[float]:
    return sorted(job.end_s for job in run.with_outcome("finished") if job.end_s is not None)


def _times(run: RunRecord) -> dict[str, float | None]:
    jcts = [job.jct_s for job in run.jobs if job.jct_s is not None]
    delays = (job.queueing_delay_s for job in run.jobs)
    return {
        "mean_jct_s": mean(jcts),
        "median_jct_s": percentile(jcts, 0.5),
        "p90_jct_s": percentile(jcts, 0.9),
        "p99_jct_s": percentile(jcts, 0.99),
        "makespan_s": _last_completion_s(run),
        "mean_queueing_delay_s": mean(delay for delay in delays if delay is not None),
    }


def _last_completion_s(run: RunRecord) -> float | None:
    return max(completions(run), default=None)


def _fairness(fair: Fairness, suffix: str) -> dict[str, float | None]:
    return {
        f"mean_ftf{suffix}": fair.mean,
        f"worst_ftf{suffix}": fair.worst,
        f"unfair_fraction{suffix}": fair.unfair_fraction,
    }


def _gps_bound(run: RunRecord, fair: Fairness, usage: Usage) -> dict[str, float | int | None]:
    worst = max(fair.delays_s.values(), default=None)
    held = promise(run, fair, usage)
    if held is None:
        return {"worst_gps_delay_s": worst}
    return {
        "gps_bound_s": held.bound_s,
        "worst_gps_delay_s": worst,
        "jobs_past_gps_bound": len(held.past),
        "worst_bound_used": held.worst_used,
    }


def _service(run: RunRecord, usage: Usage) -> dict[str, float | None]:
    last = _last_completion_s(run)
    started = [job for job in run.jobs if job.first_start_s is not None]
    return {
        "utilization": None if last is None else usage.share(0.0, last),
        "preemptions_per_job": mean(job.preemptions for job in started),
        "rescales_per_job": mean(job.rescales for job in started),
        "moves_per_job": mean(job.moves for job in started),
        "rescales_per_hour": 3600 * sum(job.rescales for job in run.jobs) / last if last else None,
        "sjs_efficiency": _sjs_efficiency(run),
        "drop_ratio": len(run.with_outcome("rejected")) / len(run.jobs) if run.jobs else None,
    }


def _sjs_efficiency(run: RunRecord) -> float | None:
    """Single-GPU time of the finished jobs / GPU-time that they held."""
    alone = used = 0.0
    for job in run.with_outcome("finished"):
        # a live job may end before the work that it states; of a simulated one that is what there was to do
        stated, done = job.samples, job.samples_done
        samples = (stated or done) if run.info.simulated else (done or stated)
        if samples and knows_one_gpu(job):
            alone += samples / rate_at(job.curve, 1)
            used += job.gpu_seconds(run.last_event_s)
    return alone / used if used else None


def knows_one_gpu(job: JobRecord) -> bool:
    """Whether the speed on one GPU is known. Without a profile it must have been measured."""
    return bool(job.curve) and not (job.is_measured and job.curve[0][0] > 1)


def _lower_bounds(run: RunRecord) -> dict[str, float | None]:
    found = lower_bounds(run)
    return {} if found is None else {**asdict(found), "bound_jct_s": found.bound_jct_s}


def _mean_decision_ms(run: RunRecord) -> float | None:
    counters = run.info.counters
    seconds = counters.get("decision_seconds", run.decision_seconds)
    decisions = counters.get("decisions", run.decisions)
    timed = run.decisions or "decision_seconds" in counters
    return 1000 * seconds / decisions if timed and decisions else None


def total_utility(run: RunRecord) -> float | None:
    """Sum over the finished jobs. Returns None if no job states a utility."""
    unstated = Utility()
    if all(job.job.utility == unstated for job in run.jobs):
        return None
    return sum(job.job.utility.worth(job.jct_s) for job in run.jobs if job.jct_s is not None)


def _against_targets(run: RunRecord) -> dict[str, float | int | None]:
    """When the jobs with a target finished, measured from it."""
    late = [job.late_s for job in run.jobs if job.late_s is not None]
    middle = percentile(late, 0.5)
    kept = (job.meets_target(run.last_event_s) for job in run.jobs)
    return {
        "jobs_on_time": sum(each <= 0 for each in late) if late else None,
        "deadlines_met": mean(met for met in kept if met is not None),
        "median_late_s": middle,
        "stdev_late_s": pstdev(late) if late else None,
    }


def _admitted(run: RunRecord) -> int | None:
    """Returns None if the policy admits no job by name."""
    said = [job.admission["admitted"] for job in run.jobs if job.admission]
    return sum(said) if said else None


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Bounds of one run, named as in the metrics; times are seconds."""

    bound_jct_alone_s: float
    """Mean JCT with every job alone."""
    bound_jct_pooled_s: float
    """Mean JCT of the pooled cluster."""
    cheapest_gpu_s: float
    """GPU-seconds of all jobs at their cheapest sizes."""
    bound_makespan_s: float
    """From the first submission on: the larger of the last end alone and the last end pooled."""

    @property
    def bound_jct_s(self) -> float:
        return max(self.bound_jct_alone_s, self.bound_jct_pooled_s)


def lower_bounds(run: RunRecord) -> LowerBounds | None:
    """Bounds for the jobs that finished, in O(jobs · log jobs).

    Returns None if no job finished, or the run measured the speeds itself: jobs may be faster at other sizes.
    """
    known = {job.id: job for job in reference_jobs(run)}
    finished = run.with_outcome("finished")
    if not finished or run.is_measured:
        return None
    jobs = [known[job.id] for job in finished if job.id in known]
    alone = {job.id: job.samples / job.curve[-1][1] for job in jobs}
    least = {job.id: job.job.min_gpus for job in finished}
    work = {job.id: _cheapest_gpu_s(job, least[job.id]) for job in jobs}
    pooled = least_left_first((job.arrival_s, work[job.id] / run.total_gpus, job.id) for job in jobs)
    return LowerBounds(
        sum(alone.values()) / len(finished),
        sum(pooled[job.id] - job.arrival_s for job in jobs) / len(finished),
        sum(work.values()),
        max((max(job.arrival_s + alone[job.id], pooled[job.id]) for job in jobs), default=0.0),
    )


def _cheapest_gpu_s(job: ReferenceJob, min_gpus: int) -> float:
    """GPU-seconds at the cheapest size, which is a point of the piecewise linear curve."""
    sizes = [point for point in job.curve if point[0] >= min_gpus] or job.curve[-1:]
    return job.samples * min(size / rate for size, rate in sizes)


def least_left_first(jobs: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """End of each job (arrival, seconds of the whole machine, id) on one machine, least left first."""
    arrivals = sorted(jobs)
    ends: dict[str, float] = {}
    waiting: list[tuple[float, str]] = []
    time = 0.0
    for index, (arrival, seconds, job_id) in enumerate(arrivals):
        time = max(time, arrival)
        heappush(waiting, (seconds, job_id))
        until = arrivals[index + 1][0] if index + 1 < len(arrivals) else inf
        while waiting and time < until:
            left, first = heappop(waiting)
            if time + left <= until:
                time += left
                ends[first] = time
            else:
                heappush(waiting, (left - (until - time), first))
                time = until
    return ends
