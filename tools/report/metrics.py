"""The figures of a run, its teams and its steps: :class:`~pliant.schemas.metrics.RunMetrics` from a folded
event file.

JCT, FTF and the GPS bound are over finished jobs; the counts of the others stand beside them. Percentiles
interpolate linearly between order statistics: the value at position q·(n − 1), as NumPy's default.

No schedule of the jobs that finished has a smaller mean JCT or makespan than the lower bounds, two
relaxations. *Alone*: every job has its best size from its submission on. *Pooled*: every job needs only the
GPU-time of its cheapest size, and the whole cluster works on the job with the least left (preemptive SRPT
with release times, optimal there). Both hold at the requested batch. A job whose work or speed is unknown
counts with no time.

Logs can contradict themselves, and the speeds that references rest on can be wrong. A figure outside its
range is not knowledge then: the report withholds it and says so. The tables of ranges name every number of a
run, of a job and of a paired test.

The log says with each decision what every team held and was entitled to. A team's deficit are the GPU-seconds
that it held less than its entitlement while it had jobs that waited; what it held beyond its own share it had
borrowed.

Steps of a live run are held against the prediction of its log: the curve that the scheduler wrote down with
each job, which holds at the job's own batch, on as few nodes as possible, for a job that has its GPUs to
itself. Of all else the log predicts nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from heapq import heappop, heappush
from itertools import pairwise
from math import floor, fsum, inf
from statistics import fmean, median, pstdev
from typing import Any, Final

import numpy as np

from pliant.schemas.job import Utility
from pliant.schemas.metrics import (
    RUN_METRICS,
    Metric,
    Reference,
    RunMetrics,
    StepTime,
    TeamFigures,
    Unpredicted,
    is_number,
)
from pliant.schemas.schedule import TeamStanding
from pliant.schemas.text import counted
from pliant.tools.report.fairness import Fairness, fairness, promise
from pliant.tools.report.isolated import Point, distinct_pairs, rate_at, reference_jobs
from pliant.tools.report.job_arrays import Booleans, Floats, Jobs, known, largest, mean_known
from pliant.tools.report.measured_speeds import guesses_speeds
from pliant.tools.report.records import RunRecord, Usage, gpu_usage, in_turn


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """Figures that are computed on demand."""

    bound: bool = False
    completed_at_s: tuple[float, ...] = ()
    """When to count the finished jobs, seconds since the first submission."""


NOTHING_MORE: Final = MetricOptions()
_OF_THE_RUN: Final = ("policy", "trace_hash", "seed", "parameters", "simulated", "oracle", "demand")


def run_metrics(
    run: RunRecord,
    fair: Mapping[Reference, Fairness] | None = None,
    usage: Usage | None = None,
    wanted: MetricOptions = NOTHING_MORE,
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


def percentile(values: Sequence[float] | Floats, q: float) -> float | None:
    """The q-quantile (0 to 1), linear between order statistics. Returns None without values."""
    if not len(values):
        return None
    ordered = np.sort(np.asarray(values, np.float64))
    position = q * (len(ordered) - 1)
    low = floor(position)
    below, above = ordered.item(low), ordered.item(min(low + 1, len(ordered) - 1))
    return below + (above - below) * (position - low)


def mean(values: Iterable[float]) -> float | None:
    """Returns None without values. Exact sums: those of Python differ between its versions."""
    known = list(values)
    return fmean(known) if known else None


def _counts(run: RunRecord) -> dict[str, int]:
    return {
        "jobs_submitted": len(run.jobs),
        "jobs_finished": run.jobs.ended("finished"),
        "jobs_rejected": run.jobs.ended("rejected"),
        "jobs_failed": run.jobs.ended("failed"),
        "jobs_cancelled": run.jobs.ended("cancelled"),
    }


def completed_at(run: RunRecord, times_s: Iterable[float]) -> tuple[tuple[float, int], ...]:
    """(time, jobs that finished by then), seconds since the first submission."""
    ends = completions(run)
    return tuple((time_s, bisect_right(ends, time_s)) for time_s in times_s)


def completions(run: RunRecord) -> list[float]:
    ends_s: list[float] = np.sort(run.jobs.end_s[run.jobs.have_outcome("finished")]).tolist()
    return ends_s


def _times(run: RunRecord) -> dict[str, float | None]:
    jct_s = run.jobs.jct_s
    jcts = np.sort(jct_s[~np.isnan(jct_s)])
    return {
        "mean_jct_s": mean_known(jcts),
        "median_jct_s": percentile(jcts, 0.5),
        "p90_jct_s": percentile(jcts, 0.9),
        "p99_jct_s": percentile(jcts, 0.99),
        "makespan_s": _last_completion_s(run),
        "mean_queueing_delay_s": mean_known(run.jobs.queueing_delay_s),
    }


def _last_completion_s(run: RunRecord) -> float | None:
    return largest(run.jobs.end_s[run.jobs.have_outcome("finished")])


def _fairness(fair: Fairness, suffix: str) -> dict[str, float | None]:
    return {
        f"mean_ftf{suffix}": fair.mean,
        f"worst_ftf{suffix}": fair.worst,
        f"unfair_fraction{suffix}": fair.unfair_fraction,
    }


def _gps_bound(run: RunRecord, fair: Fairness, usage: Usage) -> dict[str, float | int | None]:
    worst = largest(fair.delays_s())
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
    jobs = run.jobs
    started = ~np.isnan(jobs.first_start_s)
    rescales = int(jobs.rescales_until(last).sum()) if last else 0
    return {
        "utilization": None if last is None else usage.share(0.0, last),
        "preemptions_per_job": mean_known(jobs.preemptions[started]),
        "rescales_per_job": mean_known(jobs.rescales_until(inf)[started]),
        "moves_per_job": mean_known(jobs.moves[started]),
        "rescales_per_hour": 3600 * rescales / last if last else None,
        "sjs_efficiency": _sjs_efficiency(run),
        "drop_ratio": jobs.ended("rejected") / len(jobs) if len(jobs) else None,
    }


def _sjs_efficiency(run: RunRecord) -> float | None:
    """Single-GPU time of the finished jobs / GPU-time that they held."""
    jobs = run.jobs
    used_s = jobs.gpu_seconds(run.last_event_s)
    # a live job may end before the work that it states; of a simulated one that is what there was to do
    stated, done = jobs.samples, jobs.samples_done
    first, second = (stated, done) if run.info.simulated else (done, stated)
    samples = np.where(first > 0, first, second)
    counts = jobs.have_outcome("finished") & (samples > 0) & know_one_gpu(jobs)
    speed = np.array([rate_at(curve, 1) if curve else np.nan for curve in jobs.curves], np.float64)
    used = in_turn(used_s[counts])
    alone = in_turn(samples[counts] / speed[jobs.curve[counts]])
    return alone / used if used else None


def know_one_gpu(jobs: Jobs) -> Booleans:
    """Whether the speed of each job on one GPU is known. Without a profile it must have been measured."""
    known = [bool(curve) and not (jobs.is_measured and curve[0][0] > 1) for curve in jobs.curves]
    return np.array(known, bool)[jobs.curve]


def _lower_bounds(run: RunRecord) -> dict[str, float | None]:
    bounds = lower_bounds(run)
    return {} if bounds is None else {**asdict(bounds), "bound_jct_s": bounds.bound_jct_s}


def _mean_decision_ms(run: RunRecord) -> float | None:
    counters = run.info.counters
    seconds = counters.get("decision_seconds", run.decision_seconds)
    decisions = counters.get("decisions", run.decisions)
    timed = run.decisions or "decision_seconds" in counters
    return 1000 * seconds / decisions if timed and decisions else None


def total_utility(run: RunRecord) -> float | None:
    """Sum over the finished jobs. Returns None if no job states a utility."""
    unstated = Utility()
    if not run.jobs.any_form(lambda job: job.utility != unstated):
        return None
    utilities, forms = run.jobs.by_form(lambda job: job.utility), run.jobs.form
    jct_s = run.jobs.jct_s
    at = np.flatnonzero(~np.isnan(jct_s))
    return sum(
        (utilities[form] or unstated).worth(seconds)
        for form, seconds in zip(forms[at].tolist(), jct_s[at].tolist(), strict=True)
    )


def _against_targets(run: RunRecord) -> dict[str, float | int | None]:
    """When the jobs with a target finished, measured from it."""
    if not run.jobs.any_form(lambda job: job.utility.target is not None):
        return {}
    late = known(run.jobs.late_s)
    return {
        "jobs_on_time": sum(each <= 0 for each in late) if late else None,
        "deadlines_met": mean_known(run.jobs.meet_targets(run.last_event_s)),
        "median_late_s": percentile(late, 0.5),
        "stdev_late_s": pstdev(late) if late else None,
    }


def _admitted(run: RunRecord) -> int | None:
    """Returns None if the policy admits no job by name."""
    extras = [extras.admission["admitted"] for extras in run.jobs.extras.values() if extras.admission]
    return sum(extras) if extras else None


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
    finished = run.jobs.ended("finished")
    if not finished or run.is_measured:
        return None
    jobs = reference_jobs(run)
    counts = run.jobs.have_outcome("finished")[jobs.job]
    arrival_s, alone_s = jobs.arrival_s[counts], jobs.alone_s[counts]
    least = run.jobs.counts(lambda job: job.min_gpus)[jobs.job[counts]]
    pairs, place = distinct_pairs(jobs.curve[counts], least)
    cheapest = [_cheapest_gpu_s(jobs.curves[curve], size) for curve, size in pairs]
    work = jobs.samples[counts] * np.array(cheapest, np.float64)[place]
    ids = run.jobs.ids()
    names = [ids[row] for row in jobs.job[counts].tolist()]
    rows = zip(arrival_s.tolist(), (work / run.total_gpus).tolist(), names, strict=True)
    ends = least_left_first(rows)
    pooled_s = np.array([ends[name] for name in names], np.float64)
    return LowerBounds(
        fsum(alone_s.tolist()) / finished,
        fsum((pooled_s - arrival_s).tolist()) / finished,
        fsum(work.tolist()),
        largest(np.maximum(arrival_s + alone_s, pooled_s)) or 0.0,
    )


def _cheapest_gpu_s(curve: tuple[Point, ...], min_gpus: int) -> float:
    """GPU-seconds a sample at the cheapest size, which is a point of the piecewise linear curve."""
    sizes = [point for point in curve if point[0] >= min_gpus] or curve[-1:]
    return min(size / rate for size, rate in sizes)


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


def impossible(figures: Mapping[str, Any], metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Names of the figures with a value that they cannot have."""
    return tuple(
        name
        for name, metric in metrics.items()
        if is_number(value := figures.get(name)) and not metric.allows(value, figures)
    )


def withheld(metrics: RunMetrics) -> tuple[RunMetrics, dict[str, str]]:
    """The figures without the impossible ones, and why each of those is missing."""
    figures = dict(metrics)
    optional = [name for name, field in RunMetrics.model_fields.items() if field.default is None]
    names = [name for name in impossible(figures, RUN_METRICS) if name in optional]
    reasons = {
        name: f"{figures[name]:.6g} is impossible, expected {RUN_METRICS[name].range_text}" for name in names
    }
    return metrics.model_copy(update=dict.fromkeys(names)), reasons


HOUR_S = 3600.0


def team_figures(run: RunRecord) -> tuple[TeamFigures, ...]:
    """Figures of each team, then of each user of a team with several; empty where nothing is shared."""
    shares = run.info.cluster.shares
    if shares is None:
        return ()
    jobs = run.jobs
    teams, users = jobs.label_texts(shares.team_of), jobs.texts(lambda job: job.user)
    rows: dict[tuple[str, str], list[int]] = {}
    for row, (team, user) in enumerate(zip(teams, users, strict=True)):
        for key in {(team, ""), (team, user)}:  # one key where the job names no user
            rows.setdefault(key, []).append(row)
    several = {team: sum(1 for name, user in rows if name == team and user) for team, _ in rows}
    deficit, borrowed = _integrals(run)
    gpu_s, jct_s = jobs.gpu_seconds(run.last_event_s), jobs.jct_s
    standings = []
    for team, user in sorted(rows):
        if user and several[team] < 2:
            continue
        own = rows[team, user]
        times = known(jct_s[own])
        standings.append(
            TeamFigures(
                team=team,
                user=user,
                jobs=len(own),
                finished=len(times),
                mean_jct_s=mean(times),
                p99_jct_s=percentile(times, 0.99),
                service_gpu_hours=fsum(gpu_s[own].tolist()) / HOUR_S,
                deficit_gpu_hours=deficit.get((team, user)),
                borrowed_gpu_hours=borrowed.get((team, user)),
            )
        )
    return tuple(standings)


def _integrals(run: RunRecord) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """GPU-hours below the entitlement while jobs waited, and beyond the own share; by team and by user."""
    deficit: dict[tuple[str, str], float] = {}
    borrowed: dict[tuple[str, str], float] = {}
    for seconds, standings in team_spans(run):
        for each in standings:
            hours = seconds / HOUR_S
            lacks = max(0, each.entitled - each.held) if each.waiting_jobs else 0
            for key in {(each.team, ""), (each.team, each.user)}:
                deficit[key] = deficit.get(key, 0.0) + lacks * hours
                borrowed[key] = borrowed.get(key, 0.0) + each.borrowed * hours
    return deficit, borrowed


def team_spans(run: RunRecord) -> Iterator[tuple[float, Sequence[TeamStanding]]]:
    """How long teams stood as they did."""
    ends = [*run.teams, (run.last_event_s, ())]
    for (since_s, standings), (until_s, _) in pairwise(ends):
        if until_s > since_s:
            yield until_s - since_s, standings


def team_gpus_over_time(run: RunRecord) -> dict[str, tuple[list[float], list[int], list[int]]]:
    """By team: times, GPUs held and GPUs entitled to from then on."""
    names = sorted({each.team for _, standings in run.teams for each in standings})
    gpus_by_team: dict[str, tuple[list[float], list[int], list[int]]] = {
        name: ([0.0], [0], [0]) for name in names
    }
    for time_s, standings in run.teams:
        for name, (times, held, entitled) in gpus_by_team.items():
            own = [each for each in standings if each.team == name]
            times.append(time_s)
            held.append(sum(each.held for each in own))
            entitled.append(sum(each.entitled for each in own))
    for times, held, entitled in gpus_by_team.values():
        times.append(run.last_event_s)
        held.append(held[-1])
        entitled.append(entitled[-1])
    return gpus_by_team


OFF: Final = 0.1
"""Median error from which on a report warns."""


@dataclass(frozen=True, slots=True)
class _Key:
    model: str
    placement: tuple[int, ...]
    batch: int
    local_batch: int
    accum: int
    own_batch: int
    """Batch of the job; 0 if it states none."""
    shared: bool


def step_times(run: RunRecord) -> tuple[StepTime, ...]:
    """A row for each model, placement and batch, in this order. Empty of a run without a profile.

    Steps of which the log predicts nothing have rows of their own.
    """
    if run.info.simulated or guesses_speeds(run.info):
        return ()
    measured: dict[_Key, list[float]] = defaultdict(list)
    predicted: dict[_Key, list[float]] = defaultdict(list)
    for job in (run.jobs[row] for row, extras in sorted(run.jobs.extras.items()) if extras.observed):
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
    measured, expected = median(measured_s), None if why else median(predicted_s)
    return StepTime(
        model=key.model,
        gpus=sum(key.placement),
        placement="+".join(map(str, key.placement)),
        global_batch=key.batch,
        local_batch=key.local_batch,
        accum_steps=key.accum,
        reports=len(measured_s),
        measured_s=measured,
        predicted_s=expected,
        error=None if expected is None else expected / measured - 1,
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
