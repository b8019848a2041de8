"""What the finished jobs were worth, where jobs say what finishing in time is worth."""

from __future__ import annotations

from math import exp

from pliant.schemas.job import Utility
from pliant.tools.report.records import RunRecord


def total_utility(run: RunRecord) -> float | None:
    """Sum over the finished jobs; None where no job states a utility."""
    unstated = Utility()
    if all(job.job.utility == unstated for job in run.jobs):
        return None
    return sum(worth(job.job.utility, job.jct_s) for job in run.jobs if job.jct_s is not None)


def worth(utility: Utility, jct_s: float) -> float:
    """Utility of a job that ends ``jct_s`` after its submission.

    ``sigmoid`` is value / (1 + exp(decay·(JCT − target))), the form of OASiS; ``step`` is the value until
    the target and nothing after.
    """
    late_s = jct_s - (utility.target or 0.0)
    if utility.shape == "sigmoid":
        return utility.value / (1 + exp(min(700.0, utility.decay * late_s)))
    if utility.shape == "step":
        return utility.value if late_s <= 0 else 0.0
    return utility.value
