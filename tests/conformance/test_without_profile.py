"""What policies do where no profile says how fast jobs are: the first to come is not worse off."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.registry import policy_class, policy_names
from tests.builders import cluster, job

ADMITS = {name for name in policy_names() if policy_class(name).trusts_guesses}
"""These admit jobs by what they are worth, and refuse those of unknown work."""


def gpus_given(policy: str, first: dict, later: dict) -> tuple[int, int]:
    """GPUs of two jobs on two slots, the one submitted a second before the other."""
    jobs = [job("z", at=0.0, batch=64, **first), job("a", at=1.0, batch=64, **later)]
    schedule = decide(jobs, cluster(2), None, Question(policy), now_s=1.0)
    found = {each.job: each.gpus for each in schedule.allocations}
    return found.get("z", 0), found.get("a", 0)


@pytest.mark.parametrize("limits", [{}, {"low": 1, "high": 2}], ids=["rigid", "elastic"])
@pytest.mark.parametrize("policy", policy_names())
def test_of_two_equal_jobs_the_earlier_one_is_not_worse_off(policy: str, limits: dict):
    for work in ({"iterations": 1000}, None):
        if work is None and policy in ADMITS:
            continue
        alike = {"gpus": 2, "work": work, **limits}
        first, later = gpus_given(policy, alike, alike)
        assert first >= later
        assert first >= 1


@pytest.mark.parametrize("limits", [{}, {"low": 1, "high": 2}], ids=["rigid", "elastic"])
@pytest.mark.parametrize("policy", sorted({*policy_names()} - ADMITS))
def test_fewer_iterations_of_another_model_do_not_come_first(policy: str, limits: dict):
    """A hundred iterations of one model may take longer than a thousand of another."""
    first, later = gpus_given(
        policy,
        {"gpus": 2, "work": {"iterations": 1000}, "model": "one", **limits},
        {"gpus": 2, "work": {"iterations": 100}, "model": "other", **limits},
    )
    assert first >= later


@pytest.mark.parametrize("policy", ["ares", "srtf", "sjf", "shadow-price"])
def test_gpu_seconds_say_how_long_a_job_takes_without_a_profile(policy: str):
    first, later = gpus_given(policy, {"gpus": 2, "gpu_seconds": 9e4}, {"gpus": 2, "gpu_seconds": 900})
    assert (first, later) == (0, 2)
