"""What is in a trace: its jobs, their work, and how much of a cluster that fills while jobs arrive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pliant.schemas.errors import UsageError
from pliant.schemas.job import GpuTimeWork, Job
from pliant.schemas.text import counted, in_gpus, span_text
from pliant.tools.replay.recorded import held_gpus, runs_of

_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_QUANTILES: Final = (0.1, 0.5, 0.9, 0.99)
_STATES_NAMED: Final = 8
_DAYS_NAMED: Final = 10
_LONGEST_S: Final = 10_000 * 365.25 * _DAY_S
_HOURLY_DAYS: Final = 4
"""Longer traces are drawn by day."""


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """Figures of a trace. Work is GPU time that jobs state or that was recorded of them."""

    jobs: int
    users: int
    """0: none is named."""
    span_s: float
    """From the first to the last submission."""
    gpu_hours: float
    jobs_without_work: int
    """They state no GPU time and have no recorded runs: they count neither as work nor as durations."""
    sizes: tuple[tuple[int, int], ...]
    """GPUs and how many jobs request them."""
    durations_s: tuple[float, ...]
    """At the requested size: the 10th, 50th, 90th and 99th percentile; empty: no job has any."""
    arrivals_by_hour: tuple[int, ...]
    """Jobs by the hour of the day; the trace starts at hour 0."""
    states: tuple[tuple[str, int], ...]
    """Label ``status`` and jobs, most first; empty: no job has it."""
    most_held_gpus: int | None
    """GPUs that all recorded runs held at a time; None: none are recorded."""
    gpus: int | None
    """GPUs of the cluster that it is compared with; None: there is none."""
    load: float | None
    """GPU time that arrives / GPU time of the cluster meanwhile; None: no cluster, or no time."""
    load_by_day: tuple[float, ...]
    """The same by the day of submission."""
    bin_s: float
    """An hour, or a day for a trace of more than four days."""
    arriving_gpus: tuple[float, ...]
    """By bin from the first submission: GPUs that the work submitted in it would keep busy while it lasts."""

    def lines(self) -> list[str]:
        users = counted(self.users, "user") if self.users else "no named user"
        silent = f", none known of {counted(self.jobs_without_work, 'job')}" if self.jobs_without_work else ""
        texts = [
            f"{counted(self.jobs, 'job')} of {users} in {span_text(self.span_s)}",
            f"work: {self.gpu_hours:,.1f} GPU hours{silent}",
            "GPUs: " + ", ".join(f"{gpus}: {jobs / self.jobs:.1%}" for gpus, jobs in self.sizes),
            f"durations: {self._durations()}",
            f"arrivals by hour of the trace's days: {' '.join(map(str, self.arrivals_by_hour))}",
        ]
        if self.states:
            texts.append(
                "states: " + ", ".join(f"{name} {jobs / self.jobs:.1%}" for name, jobs in self.states)
            )
        if self.most_held_gpus is not None:
            texts.append(f"recorded: at most {in_gpus(self.most_held_gpus)} held at a time")
        if self.load is not None:
            days = " ".join(f"{load:.2f}" for load in self.load_by_day)
            texts += [f"load of {in_gpus(self.gpus or 0)}: {self.load:.3g}", f"load by day: {days}"]
        return texts

    def load_of(self, gpus: int) -> float:
        """Load of that many GPUs."""
        return self.gpu_hours * _HOUR_S / (self.span_s * gpus)

    def _durations(self) -> str:
        if not self.durations_s:
            return "-, as no job states GPU time"
        pairs = zip(_QUANTILES, self.durations_s, strict=True)
        return ", ".join(f"p{100 * part:g} {span_text(seconds)}" for part, seconds in pairs)


def describe(jobs: Sequence[Job], gpus: int | None = None) -> TraceDescription:
    """Figures of a trace of at least one job, held against a cluster of that many GPUs.

    :raises UsageError: it spans more than 10,000 years.
    """
    first_s, last_s = (pick(job.submit_time for job in jobs) for pick in (min, max))
    if last_s - first_s > _LONGEST_S:
        raise UsageError(f"jobs are submitted over {last_s - first_s:g} s, expected less than 10,000 years")
    known_s = {index: seconds for index, job in enumerate(jobs) if (seconds := gpu_seconds(job)) is not None}
    work = {index: seconds for index, seconds in known_s.items() if not jobs[index].on_cpus}
    by_day: Counter[int] = Counter()
    for index, seconds in work.items():
        by_day[int((jobs[index].submit_time - first_s) // _DAY_S)] += round(seconds)
    span_s = last_s - first_s
    days = range(int(span_s // _DAY_S) + 1)
    day_s = [min(_DAY_S, span_s - day * _DAY_S) for day in days]
    hours = Counter(int((job.submit_time - first_s) % _DAY_S // _HOUR_S) for job in jobs)
    held = [count for _, count in held_gpus(jobs)]
    states = Counter(job.labels["status"] for job in jobs if "status" in job.labels)
    known = gpus is not None and span_s > 0
    bin_s = _HOUR_S if span_s <= _HOURLY_DAYS * _DAY_S else _DAY_S
    arriving = [0.0] * (int(span_s // bin_s) + 1)
    for index, seconds in work.items():
        arriving[int((jobs[index].submit_time - first_s) // bin_s)] += seconds / bin_s
    return TraceDescription(
        jobs=len(jobs),
        users=len({job.user for job in jobs} - {""}),
        span_s=span_s,
        gpu_hours=math.fsum(work.values()) / _HOUR_S,
        jobs_without_work=len(jobs) - len(known_s),
        sizes=tuple(sorted(Counter(job.gpus.requested for job in jobs).items())),
        durations_s=_quantiles(
            seconds / (jobs[index].gpus.requested or 1) for index, seconds in known_s.items()
        ),
        arrivals_by_hour=tuple(hours[hour] for hour in range(24)),
        states=tuple(states.most_common(_STATES_NAMED)),
        most_held_gpus=max(held, default=None),
        gpus=gpus,
        load=math.fsum(work.values()) / (gpus * span_s) if known and gpus else None,
        load_by_day=tuple(
            by_day[day] / (gpus * day_s[day]) for day in days if known and gpus and day_s[day] > 0
        ),
        bin_s=bin_s,
        arriving_gpus=tuple(arriving),
    )


def gpu_seconds(job: Job) -> float | None:
    """Returns None if the job states no GPU time and has no recorded runs; seconds of one without GPUs."""
    if isinstance(job.work, GpuTimeWork):
        return job.work.gpu_seconds
    runs = runs_of(job)
    return math.fsum((run.end_s - run.start_s) * (run.gpus or 1) for run in runs) if runs else None


def cluster_for(trace: TraceDescription, load: float) -> int:
    """GPUs that the trace fills to this load while its jobs arrive; its largest job fits them.

    :raises UsageError: the load is not above 0, or the trace states no GPU time or has no span.
    """
    if not 0 < load < math.inf:
        raise UsageError(f"--cluster-for {load:g}: expected a load above 0, as 0.8")
    if not trace.gpu_hours or not trace.span_s:
        raise UsageError("--cluster-for: the trace states no GPU time, or all jobs are submitted at once")
    return max(trace.sizes[-1][0], math.ceil(trace.load_of(1) / load))


def _quantiles(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(ordered[math.ceil(part * len(ordered)) - 1] for part in _QUANTILES) if ordered else ()


def warning(trace: TraceDescription) -> str | None:
    """One line where the trace brings more than the cluster can do; None: it does not."""
    if trace.load is None or trace.load <= 1:
        return None
    over = [str(day) for day, load in enumerate(trace.load_by_day, 1) if load > 1]
    what = f"{trace.load:.3g} times what {in_gpus(trace.gpus or 0)} can do arrives"
    return (
        f"overload: {what}; days above 1: {', '.join(over[:_DAYS_NAMED])}{', …' * (len(over) > _DAYS_NAMED)}"
    )
