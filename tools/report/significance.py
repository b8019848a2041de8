"""Whether jobs fare differently under two policies: Wilcoxon's signed-rank test on runs of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pliant.schemas.errors import UsageError
from pliant.tools.report.records import JobRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Significance:
    """Wilcoxon's test of paired values; p values are probabilities under the hypothesis that is tested."""

    pairs: int
    """Pairs compared, those of equal values among them."""
    two_sided: float
    """Of: both are distributed alike. Small: they differ."""
    greater: float
    """Small: the first are larger. ONES (SC '21, table 4) prints this one: close to 1, they are smaller."""
    less: float
    """Small: the first are smaller."""


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> Significance:
    """The test of pairs: the n-th value of the one belongs to the n-th of the other.

    Without a pair that differs, nothing speaks against any hypothesis: all p values are 1.

    :raises UsageError: there are no pairs, or one value has no partner.
    """
    if len(first) != len(second) or not first:
        raise UsageError(f"a paired test needs values in pairs, got {len(first)} and {len(second)}")
    if all(left == right for left, right in zip(first, second, strict=True)):
        return Significance(len(first), 1.0, 1.0, 1.0)
    from scipy.stats import wilcoxon as signed_rank

    two_sided, greater, less = (
        float(signed_rank(first, second, alternative=alternative).pvalue)
        for alternative in ("two-sided", "greater", "less")
    )
    return Significance(len(first), two_sided, greater, less)


def steady(run: RunRecord, dropped: float = 0.0) -> tuple[JobRecord, ...]:
    """The jobs of a run without the first to be submitted, who found the cluster empty.

    :param dropped: part of the jobs to leave out, 0 to below 1, rounded up.
    """
    ordered = sorted(run.jobs, key=lambda job: (job.submit_s, job.id))
    return tuple(ordered[ceil(dropped * len(ordered)) :])


def compare_jcts(first: RunRecord, second: RunRecord, dropped: float = 0.0) -> Significance:
    """The test of the JCTs of the jobs that finished in both runs.

    :param dropped: as :func:`steady`.
    :raises UsageError: the runs are not of one trace, or no job finished in both.
    """
    if first.info.trace_hash != second.info.trace_hash:
        raise UsageError(f"{first.source} and {second.source} are runs of different traces")
    pairs = paired_jcts_s(first, second, dropped)
    return wilcoxon([left for left, _ in pairs], [right for _, right in pairs])


def paired_jcts_s(first: RunRecord, second: RunRecord, dropped: float = 0.0) -> list[tuple[float, float]]:
    """Both JCTs of each job that finished in two runs of one trace; empty for runs of different traces.

    :param dropped: as :func:`steady`.
    """
    if first.info.trace_hash != second.info.trace_hash:
        return []
    theirs = {job.id: job.jct_s for job in second.jobs}
    return [
        (job.jct_s, jct_s)
        for job in steady(first, dropped)
        if job.jct_s is not None and (jct_s := theirs.get(job.id)) is not None
    ]
