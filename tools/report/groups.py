"""Runs that differ in their seed only, as one column of the tables; and how sure differences are.

The seed is that of the policy, or that with which a sweep made the trace: its traces ``NAME-t0``,
``NAME-t1`` … are one workload. The values over which means and intervals are formed are traces; of a single
trace, seeds. The seeds of a trace share its jobs and are averaged first.

Intervals (95 %, after Student) are of means and of ratios of means. Jobs that follow each other in a queue
fare alike, so they are no independent observations: jobs are taken in batches of neighbours in order of
submission, and the batches count (method of batch means). Intervals of ratios are symmetrical in the
logarithm: they stay positive, and turn around with the runs.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, fsum, log, sqrt
from statistics import fmean
from typing import Final

from pliant.schemas.text import counted
from pliant.tools.report.metrics import mean
from pliant.tools.report.records import RunRecord, labels
from pliant.tools.report.report import Report, RunReport, paired_jcts_s

MOST_BATCHES: Final = 10
"""Batches at most: more would be too short to be independent of each other."""
LEAST_BATCH: Final = 3
FEWEST_JOBS: Final = 12
"""Jobs of four batches: fewer would call luck a difference."""
_SEED_OF_TRACE: Final = re.compile(r"-t[0-9]+$")
"""Ending of a trace's name where a sweep made several with one recipe."""
_Z: Final = 1.959963984540054
_T: Final = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""The 97.5 % quantile for 1, 2, … degrees of freedom: scipy would cost a report more time than the rest."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A mean and its 95 % interval, null where there is but one value."""

    mean: float
    low: float | None
    high: float | None
    count: int
    """Independent values that it rests on."""

    @property
    def slack(self) -> float | None:
        """Half of the interval."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """The ratio of two means over the same things, with its 95 % interval."""

    ratio: float
    low: float | None
    """Null, as ``high``: too few pairs."""
    high: float | None
    pairs: int

    def reversed(self) -> MeanRatio:
        """The second mean / the first."""
        return MeanRatio(1 / self.ratio, self.high and 1 / self.high, self.low and 1 / self.low, self.pairs)

    @property
    def is_known(self) -> bool:
        """Whether the interval leaves out that there is no difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = _Z  # Abramowitz and Stegun, 26.7.5
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def estimate(values: Sequence[float]) -> _Estimate | None:
    """The mean of independent values. Returns None without values."""
    count = len(values)
    if not count:
        return None
    middle = fmean(values)
    if count == 1:
        return _Estimate(middle, None, None, 1)
    variance = fsum((value - middle) ** 2 for value in values) / (count - 1)
    slack = t_quantile(count - 1) * sqrt(variance / count)
    return _Estimate(middle, middle - slack, middle + slack, count)


def difference(pairs: Sequence[tuple[float, float]], *, independent: bool = False) -> MeanRatio | None:
    """Mean of the first values / mean of the second.

    :param pairs: of jobs, in order of submission.
    :param independent: each pair is an observation of its own: a seed or a trace, not a job.

    Returns None if there are no pairs, or a mean is 0.
    """
    count = len(pairs)
    first, second = (fsum(pair[side] for pair in pairs) / max(1, count) for side in (0, 1))
    if first <= 0 or second <= 0:
        return None
    ratio = first / second
    if count < (2 if independent else FEWEST_JOBS):
        return MeanRatio(ratio, None, None, count)
    batches = count if independent else min(MOST_BATCHES, count // LEAST_BATCH)
    # to first order, log(mean a / mean b) errs by the sum over pairs of (a / mean a − b / mean b) / count
    deviations = [left / first - right / second for left, right in pairs]
    cuts = [number * count // batches for number in range(batches + 1)]
    squares = fsum(fsum(deviations[low:high]) ** 2 for low, high in pairwise(cuts))
    error = sqrt(squares * batches / (batches - 1)) / count
    slack = t_quantile(batches - 1) * error
    return MeanRatio(ratio, exp(log(ratio) - slack), exp(log(ratio) + slack), count)


@dataclass(frozen=True, slots=True)
class Group:
    """One run, or several that differ in their seed only."""

    label: str
    runs: tuple[RunReport, ...]
    by_trace: bool = False
    """Whether traces are the independent values, not seeds."""

    @property
    def first(self) -> RunReport:
        """Its first run; of several, under the name of the group."""
        return self.runs[0] if len(self.runs) == 1 else replace(self.runs[0], label=self.label)

    @property
    def workload(self) -> str:
        """The name of the trace, without that of its seed; empty where it has none."""
        return _workload(self.runs[0].run)

    def is_beside(self, other: Group, *, same_cluster: bool) -> bool:
        """Whether both are of one workload, if asked for on one cluster."""
        mine, theirs = self.runs[0].run.info, other.runs[0].run.info
        return self.workload == other.workload and (not same_cluster or mine.cluster == theirs.cluster)

    @property
    def units(self) -> dict[object, list[RunReport]]:
        """The runs by what counts as one value."""
        runs_by_unit: dict[object, list[RunReport]] = defaultdict(list)
        for each in self.runs:
            runs_by_unit[self._unit(each)].append(each)
        return runs_by_unit

    def _unit(self, each: RunReport) -> object:
        return each.run.info.trace_hash if self.by_trace else each.run.info.seed

    def estimate(self, name: str) -> _Estimate | None:
        """A figure over the units. Returns None if no run has it."""
        known = (
            [float(value) for each in runs if (value := getattr(each.metrics, name)) is not None]
            for runs in self.units.values()
        )
        return estimate([fmean(values) for values in known if values])

    def value(self, name: str) -> float | None:
        estimate = self.estimate(name)
        return None if estimate is None else estimate.mean

    def units_text(self) -> str:
        """``5 seeds``, ``3 traces``; nothing for a single run."""
        if len(self.runs) == 1:
            return ""
        return counted(len(self.units), "trace" if self.by_trace else "seed")

    @property
    def jobs_finished(self) -> int:
        return sum(each.metrics.jobs_finished for each in self.runs)

    @property
    def jobs_submitted(self) -> int:
        return sum(each.metrics.jobs_submitted for each in self.runs)


def groups(report: Report, *, each_run: bool = False) -> tuple[Group, ...]:
    """The columns of a report, the baseline's first, the others in the order of their runs.

    :param each_run: one column a run.
    """
    unsorted = _single(report.runs) if each_run else _grouped(report.runs)
    base, policy = report.baseline, report.base_policy
    return tuple(
        sorted(unsorted, key=lambda group: base not in group.runs and policy != group.runs[0].run.info.policy)
    )


def _single(runs: Sequence[RunReport]) -> list[Group]:
    return [Group(each.label, (each,)) for each in runs]


def _grouped(runs: Sequence[RunReport]) -> list[Group]:
    alike: dict[str, list[RunReport]] = defaultdict(list)
    for each in runs:
        alike[_key(each.run)].append(each)
    parts = [part for members in alike.values() for part in _parts(members)]
    if len(parts) == len(runs):
        return _single(runs)
    traces: dict[str, set[str]] = defaultdict(set)
    for each in runs:
        traces[_workload(each.run)].add(each.run.info.trace_hash)
    names = labels([_without_seed(part[0].run) for part in parts])
    return [
        Group(name, tuple(part), len(traces[_workload(part[0].run)]) > 1)
        for name, part in zip(names, parts, strict=True)
    ]


def _workload(run: RunRecord) -> str:
    return _SEED_OF_TRACE.sub("", run.info.trace or "")


def _key(run: RunRecord) -> str:
    info = run.info.model_dump(
        mode="json",
        include={
            *("policy", "parameters", "simulated", "oracle", "demand", "preemptible", "progress", "compat")
        },
    )
    cluster = run.info.cluster.model_dump(mode="json")
    # those by model may differ by trace
    costs = [cost for cost in _stated_costs(run) if not isinstance(cost, dict)]
    return json.dumps(
        [info, _workload(run), cluster, run.info.interference, run.info.interval_s, costs], sort_keys=True
    )


def _stated_costs(run: RunRecord) -> tuple[dict[str, float] | float | None, ...]:
    return run.info.start_cost_s, run.info.rescale_cost_s, run.info.resume_cost_s


def _world(run: RunRecord) -> str:
    """What all runs of a trace have in common where they differ in seed alone."""
    return json.dumps([run.info.profile_hash, run.info.profile, *_stated_costs(run)], sort_keys=True)


def _parts(members: list[RunReport]) -> Iterator[list[RunReport]]:
    """All together, or each alone where something else differs: two have the same trace and seed, or one
    trace has several profiles or costs by model, which may differ between traces.
    """
    places = Counter((each.run.info.trace_hash, each.run.info.seed) for each in members)
    worlds = {(each.run.info.trace_hash, _world(each.run)) for each in members}
    if max(places.values()) == 1 and len(worlds) == len({trace for trace, _ in worlds}):
        yield members
    else:
        yield from ([each] for each in members)


def _without_seed(run: RunRecord) -> RunRecord:
    workload = _workload(run)
    named = {"seed": 0, "trace": workload or None, "trace_hash": workload}
    return replace(run, info=run.info.model_copy(update=named))


def jct_difference(group: Group, base: Group) -> MeanRatio | None:
    """The mean JCT of a group / that of another, over the jobs that finished in both.

    Of several traces or seeds the units are the values, of one run each the jobs. Returns None if no job
    finished in both, or the groups have no trace in common.
    """
    if len(group.runs) < len(base.runs):
        opposite = jct_difference(base, group)
        return None if opposite is None else opposite.reversed()
    of_base: dict[str, list[RunReport]] = defaultdict(list)
    for each in base.runs:
        of_base[each.run.info.trace_hash].append(each)
    by_unit: dict[object, list[tuple[float, float]]] = defaultdict(list)
    jobs: list[tuple[float, float]] = []
    for unit, runs in group.units.items():
        for each in runs:
            for other in _partners(each, of_base[each.run.info.trace_hash]):
                jobs = paired_jcts_s(each.run, other.run)
                first, second = mean(left for left, _ in jobs), mean(right for _, right in jobs)
                if first is not None and second is not None:
                    by_unit[unit].append((first, second))
    if len(group.runs) == len(base.runs) == 1:
        return difference(jobs)
    units = [
        (fmean(left for left, _ in pairs), fmean(right for _, right in pairs)) for pairs in by_unit.values()
    ]
    return difference(units, independent=True)


def _partners(each: RunReport, others: list[RunReport]) -> list[RunReport]:
    """The run with the same seed; without one, all of the trace: a policy without chance has but one."""
    same = [other for other in others if other.run.info.seed == each.run.info.seed]
    return same or others
