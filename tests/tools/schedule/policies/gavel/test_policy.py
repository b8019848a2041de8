"""Gavel: rounds that follow the fractions of time."""

from __future__ import annotations

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies.gavel import Gavel, GavelFtf, GavelMakespan
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, mixed_cluster, session, sizes

ROUND_S = 360.0


def rounds(policy: Policy, nodes: Cluster, jobs: list[Job], count: int) -> Session:
    """A session after so many rounds."""
    held = session(policy, nodes)
    for each in jobs:
        held.submit(each, 0)
    for number in range(count):
        held.decide(ROUND_S * number)
    return held


def received(held: Session, count: int) -> dict[str, float]:
    """Rounds for which each job had GPUs."""
    return {
        job_id: state.attained_service_s(count * ROUND_S) / state.spec.gpus.requested / ROUND_S
        for job_id, state in held.jobs.items()
    }


def test_three_jobs_on_two_gpus_take_turns():
    jobs = [job(name, gpu_seconds=1e6) for name in "abc"]
    assert received(rounds(Gavel(), cluster(2), jobs, 30), 30) == {"a": 20, "b": 20, "c": 20}


def test_a_wide_job_gets_the_gpu_time_of_a_narrow_one():
    jobs = [job("wide", gpus=4, gpu_seconds=1e6), *(job(f"j{i}", gpu_seconds=1e6) for i in range(4))]
    held = rounds(Gavel(), cluster(4), jobs, 40)
    # equal GPU-time: 40 rounds of 4 GPUs among five jobs are 32 each, which are 8 rounds of the wide one
    assert received(held, 40) == pytest.approx({"wide": 8, **{f"j{i}": 32 for i in range(4)}}, abs=1)


def test_a_job_gets_the_gpu_type_that_suits_it():
    rates = {("even", "old"): 1.0, ("even", "new"): 1.5, ("picky", "old"): 1.0, ("picky", "new"): 6.0}
    held = Session(Gavel(), mixed_cluster(old=(1,), new=(1,)), _measured(rates))
    held.submit(job("first", model="even", batch=16, work={"samples": 1e6}), 0)
    held.submit(job("second", at=1, model="picky", batch=16, work={"samples": 1e6}), 1)
    held.decide(ROUND_S)
    assert {each.id: each.gpu_type for each in held.jobs.values()} == {"first": "old", "second": "new"}


def test_what_a_job_missed_counts_across_a_restart_of_the_scheduler():
    jobs = [job(name, gpus=2, gpu_seconds=1e6) for name in "ab"]
    kept = rounds(Gavel(), cluster(2), jobs, 1)
    assert sizes(kept) == {"a": 2}
    again = Session(Gavel(), cluster(2), kept.speeds.throughput)
    for each in jobs:
        again.submit(each, 0)
    again.adopt([Holding("a", kept.jobs["a"].placement, kept.jobs["a"].global_batch)], 0)
    again.carry(kept.policy_state())
    again.decide(ROUND_S)
    kept.decide(ROUND_S)
    assert sizes(again) == sizes(kept) == {"b": 2}


def test_no_gpu_idles_while_a_job_could_use_it():
    jobs = [job("wide", gpus=3, gpu_seconds=1e6), job("pair", gpus=2, gpu_seconds=1e6)]
    held = rounds(Gavel(), mixed_cluster(a=(3,), b=(2,)), jobs, 1)
    assert sizes(held) == {"wide": 3, "pair": 2}


def test_a_quiet_cluster_is_left_alone():
    held = rounds(Gavel(), cluster(4), [job(gpus=2, gpu_seconds=1e6)], 1)
    assert held.quiet_until_s == float("inf")


def test_makespan_gives_time_by_what_is_left():
    jobs = [job("long", gpu_seconds=3e5), job("short", gpu_seconds=1e5)]
    held = rounds(GavelMakespan(), cluster(1), jobs, 40)
    assert received(held, 40) == pytest.approx({"long": 30, "short": 10}, abs=1)


def test_finish_time_fairness_gives_half_to_each_of_two_whatever_their_length():
    jobs = [job("long", gpu_seconds=3e6), job("short", gpu_seconds=1e6)]
    held = rounds(GavelFtf(), cluster(1), jobs, 20)
    assert received(held, 20) == pytest.approx({"long": 10, "short": 10}, abs=1)


def test_finish_time_fairness_gives_more_to_the_job_that_was_promised_more():
    held = session(GavelFtf(), cluster(1))
    held.submit(job("ahead", gpu_seconds=36_000), 0)
    times_s = [ROUND_S * number for number in range(60)]
    for time_s in times_s:
        if time_s == times_s[50]:
            held.submit(job("late", at=time_s, gpu_seconds=36_000), time_s)
        held.decide(time_s)
    # alone until half of its work was done, "ahead" was promised most of the GPU; "late" has always shared
    assert received(held, 60)["ahead"] - 50 > received(held, 60)["late"]


@pytest.mark.parametrize("policy", [Gavel, GavelFtf, GavelMakespan])
def test_the_reason_is_the_fraction_and_what_came_of_it(policy: type[Policy]):
    held = rounds(policy(), cluster(2), [job(name, gpus=2, gpu_seconds=1e6) for name in "ab"], 2)
    reasons = {job_id: told.reason for job_id, told in held.explain(ROUND_S).items()}
    assert reasons["a"] == "entitled to 50% of the time on gpu (360 s received), priority 0.67"
    assert reasons["b"] == "entitled to 50% of the time on gpu (0 s received), priority 2"
    assert policy.default_interval_s == ROUND_S


def _measured(rates: dict[tuple[str, str], float]) -> ThroughputBySize:
    rows = [
        ProfileRow("train", model, gpu_type, 1, 1, "1", 16, 1, 16 / rate, samples_per_second=rate)
        for (model, gpu_type), rate in rates.items()
    ]
    return ThroughputBySize(Profile(tuple(rows)))
