"""What no policy may decide by: the hour, the letters of names, the unit of time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from benchmarks.parts import mends_oasis as stories
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.schedule.registry import BUILT_IN, parameter_defaults, policy_class

JOBS = 12
SEED = 3
"""Of the jobs whose one story all comparisons share."""
POLICIES = list(BUILT_IN)
UNSCALED: Mapping[str, str] = {"drl": "its network has learned from times in minutes"}
"""Policies whose results do not scale with all times, and why."""
BY_NAME: Mapping[str, str] = {
    "random-bs": "the batch of a job is drawn from its name",
    "slurm": "by how much its user overestimates a job is drawn from its name",
}
"""Policies that read more than the order of names, and why."""


@cache
def at_first(policy: str) -> tuple[list[Job], list[stories.Moment]]:
    """Some jobs, and all that happens to them."""
    jobs = stories.drawn_jobs(SEED, stories.FEW.get(policy, JOBS))
    return jobs, stories.story(jobs, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_years_later_under_other_names_the_same_happens(policy: str):
    """The names are others in the same order."""
    jobs, expected = at_first(policy)
    name = (lambda job_id: job_id) if policy in BY_NAME else renamed
    shift_s = stories.SHIFTS_S[1]
    others = [
        job.model_copy(update={"id": name(job.id), "submit_time": job.submit_time + shift_s}) for job in jobs
    ]
    moved = (stories.back(each, shift_s) for each in stories.story(others, policy))
    assert stories.are_alike([each._replace(job=each.job and name(each.job)) for each in expected], moved)


def renamed(job_id: str) -> str:
    """Another name that comes where the first came in the order of names."""
    return f"k-{int(job_id[1:]):05}-x"


@pytest.mark.parametrize("policy", ["pollux", "ones"])
def test_ties_of_claims_are_broken_alike_at_every_hour(policy: str):
    """The last digit of an age, or of the service that several jobs have had alike, chose between equals."""
    assert not stories.decisions_changed_by_translation(
        1, policies=[policy], shifts_s=stories.SHIFTS_S[:1], jobs=45
    )


def test_ties_of_plans_are_broken_alike_at_every_hour():
    """What they cost differs by rounding, from hour to hour."""
    assert not stories.decisions_changed_by_translation(1, policies=["oasis"], jobs=10, first=16)


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
    result = {}
    for name, value in parameter_defaults(policy_class(policy)).items():
        if name.endswith(("_s", "_seconds", "_hours")) and name not in policy_class(policy).depends_on_clock:
            if isinstance(value, int | float) and not isinstance(value, bool):
                result[name] = value * factor
            elif isinstance(value, str) and value:
                result[name] = ",".join(str(float(part) * factor) for part in value.split(","))
    return result


@pytest.mark.parametrize("policy", POLICIES)
def test_where_every_second_lasts_twice_as_long_all_is_later(policy: str):
    """Twice: then no number is rounded otherwise."""
    if policy in UNSCALED:
        pytest.skip(UNSCALED[policy])
    jobs, expected = at_first(policy)
    interval_s = policy_class(policy).default_interval_s
    rounds = {} if interval_s is None else {"interval": interval_s * 2}
    slower = stories.story(
        [slowed(job, 2.0) for job in jobs],
        policy,
        slowed_parameters(policy, 2.0),
        samples_per_second=0.5,
        costs_s=(stories.COSTS_S[0] * 2, stories.COSTS_S[1] * 2),
        **rounds,
    )
    assert stories.are_alike(expected, iter(slower), lambda time_s: time_s / 2)
