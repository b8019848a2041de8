"""What no policy may decide by: the hour, the letters of names, the unit of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchmarks.parts.mends_oasis import (
    COSTS_S,
    FEW,
    SHIFTS_S,
    Moment,
    are_alike,
    decisions_changed_by_translation,
    drawn_jobs,
    story,
)
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.schedule.registry import BUILT_IN, parameter_defaults, policy_class

JOBS = 12
POLICIES = list(BUILT_IN)
UNSCALED: Mapping[str, str] = {"drl": "its network has learned from times in minutes"}
"""Policies whose results do not scale with all times, and why."""
BY_NAME: Mapping[str, str] = {
    "random-bs": "the batch of a job is drawn from its name",
    "slurm": "by how much its user overestimates a job is drawn from its name",
}
"""Policies that read more than the order of names, and why."""


def few(policy: str) -> int:
    return FEW.get(policy, JOBS)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_that_happens_years_later_is_the_same_years_later(policy: str):
    assert not decisions_changed_by_translation(1, policies=[policy], shifts_s=SHIFTS_S[1:], jobs=JOBS)


@pytest.mark.parametrize("policy", ["pollux", "ones"])
def test_ties_of_claims_are_broken_alike_at_every_hour(policy: str):
    """The last digit of an age, or of the service that several jobs have had alike, chose between equals."""
    assert not decisions_changed_by_translation(1, policies=[policy], shifts_s=SHIFTS_S[:1], jobs=45)


def test_ties_of_plans_are_broken_alike_at_every_hour():
    """What they cost differs by rounding, from hour to hour."""
    assert not decisions_changed_by_translation(1, policies=["oasis"], jobs=10, first=16)


def renamed(job_id: str) -> str:
    """Another name that comes where the first came in the order of names."""
    return f"k-{int(job_id[1:]):05}-x"


@pytest.mark.parametrize("policy", POLICIES)
def test_names_in_the_same_order_change_nothing_but_names(policy: str):
    if policy in BY_NAME:
        pytest.skip(BY_NAME[policy])
    jobs = drawn_jobs(3, few(policy))
    others = [job.model_copy(update={"id": renamed(job.id)}) for job in jobs]
    expected = [each._replace(job=each.job and renamed(each.job)) for each in story(jobs, policy)]
    assert story(others, policy) == expected


def slowed(job: Job, factor: float) -> Job:
    """The same job where every second lasts longer."""
    assert isinstance(job.work, GpuTimeWork)
    utility = job.utility
    changes = {"decay": utility.decay / factor, "target": utility.target and utility.target * factor}
    return job.model_copy(
        update={
            "submit_time": job.submit_time * factor,
            "work": GpuTimeWork(gpu_seconds=job.work.gpu_seconds * factor),
            "utility": utility.model_copy(update=changes),
        }
    )


def slowed_parameters(policy: str, factor: float) -> dict[str, Any]:
    """Its parameters in seconds and hours, that many times what they are by default."""
    found = {}
    for name, value in parameter_defaults(policy_class(policy)).items():
        if name.endswith(("_s", "_seconds", "_hours")) and name not in policy_class(policy).depends_on_clock:
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = value * factor
            elif isinstance(value, str) and value:
                found[name] = ",".join(str(float(part) * factor) for part in value.split(","))
    return found


def slow_story(jobs: Sequence[Job], policy: str, factor: float) -> list[Moment]:
    interval_s = policy_class(policy).default_interval_s
    rounds = {} if interval_s is None else {"interval": interval_s * factor}
    costs_s = (COSTS_S[0] * factor, COSTS_S[1] * factor)
    slower = [slowed(job, factor) for job in jobs]
    parameters = slowed_parameters(policy, factor)
    return story(slower, policy, parameters, samples_per_second=1 / factor, costs_s=costs_s, **rounds)


@pytest.mark.parametrize("policy", POLICIES)
def test_where_every_second_lasts_longer_the_same_happens_later(policy: str):
    """Twice as long: then no number is rounded otherwise."""
    if policy in UNSCALED:
        pytest.skip(UNSCALED[policy])
    jobs = drawn_jobs(5, few(policy))
    at_first, slower = (slow_story(jobs, policy, factor) for factor in (1.0, 2.0))
    assert are_alike(at_first, iter(slower), lambda time_s: time_s / 2)
