"""What the rows of a report mean, in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANING: Final[Mapping[str, str]] = {
    "jobs_finished": "of all that were submitted; the others are in no JCT",
    "mean_jct_s": "job completion time: completion minus submission, mean",
    "median_jct_s": "half of the jobs took less",
    "p90_jct_s": "nine of ten jobs took less",
    "p99_jct_s": "99 of 100 jobs took less",
    "mean_queueing_delay_s": "first start minus submission",
    "makespan_s": "from the first submission to the last completion",
    "mean_ftf": "JCT / JCT with an equal share of the GPUs, mean",
    "worst_ftf": "the same of the job that was served worst",
    "unfair_fraction": "jobs that took longer than with their fair share",
    "mean_ftf_gps": "JCT / JCT in generalized processor sharing, mean",
    "worst_ftf_gps": "the same of the job that was served worst",
    "unfair_fraction_gps": "jobs that took longer than in GPS",
    "mean_ftf_isolated": "JCT / JCT alone on its average share, mean",
    "worst_ftf_isolated": "the same of the job that was served worst",
    "unfair_fraction_isolated": "jobs that took longer than alone on their share",
    "gps_bound_s": "how much later than in GPS the policy lets a job end",
    "worst_gps_delay_s": "completion minus that in GPS",
    "jobs_past_gps_bound": "jobs that ended later than the policy promises",
    "worst_bound_used": "above 100 % the promise was broken",
    "utilization": "GPU-time that jobs held / that was there",
    "preemptions_per_job": "how often a job lost all its GPUs and waited again",
    "rescales_per_job": "changes of a job's number of GPUs or of its batch",
    "moves_per_job": "changes to other GPUs, as many as before",
    "rescales_per_hour": "of all jobs together",
    "sjs_efficiency": "time on one GPU / GPU-time held: what scaling cost",
    "drop_ratio": "jobs that the policy turned away for good",
    "jobs_admitted": "jobs that an admission policy let in",
    "total_utility": "sum of what jobs were worth when they finished",
    "deadlines_met": "of all jobs with a target; late, failed and turned away: missed",
    "jobs_on_time": "jobs that finished by the target they state",
    "median_late_s": "minus: half of the jobs were early",
    "stdev_late_s": "how much that differs between jobs",
    "mean_decision_ms": "what the policy took to decide",
    "bound_jct_s": "no schedule of these jobs has a smaller mean JCT",
    "bound_jct_alone_s": "every job at its best size from its submission on",
    "bound_jct_pooled_s": "all GPUs on the job with the least left",
    "bound_makespan_s": "no schedule of these jobs ends earlier",
    "cheapest_gpu_s": "GPU-time if each job had its cheapest size",
}
AGAINST: Final = "mean JCT beside it, of the jobs that finished in both"
"""Of the row that compares the columns."""
