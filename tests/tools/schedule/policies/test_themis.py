"""Themis: the worst off bid, leases last, and the worst finish-time fairness falls."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from pliant.schemas.job import Job
from pliant.tools.schedule.policies.common import Contention
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.themis import Themis
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.predict_start import advance, happen, in_order_of_arrival
from tests.builders import cluster, decided, job, opened, session
from tests.tools.schedule.policies.started import started

GPUS = 8


def random_jobs(seed: int) -> list[Job]:
    """Thirty jobs, mostly small and short, within two hours."""
    rng = np.random.default_rng(seed)
    return [
        job(
            f"j{number}",
            at=float(rng.uniform(0, 7200)),
            gpus=int(rng.choice([1, 2, 4])),
            gpu_seconds=float(3600 * np.exp(rng.uniform(np.log(0.1), np.log(10)))),
        )
        for number in range(30)
    ]


def worst_rho(policy: Policy, jobs: list[Job]) -> float:
    """The largest of JCT over time alone with 1/N of the cluster, over all jobs, once all have ended."""
    held, coming, time_s = session(policy, cluster(GPUS)), in_order_of_arrival(jobs), 0.0
    contention, worst = Contention(), 0.0
    happen(held, time_s, coming)
    while True:
        for change in held.changes:
            ended = change.ended_job
            if ended is not None:
                contention.follow([], change.time_s)
                shared_s = change.time_s - ended.spec.submit_time
                part = min(1.0, GPUS / contention.average(ended.id) / ended.spec.gpus.requested)
                alone_s = ended.spec.work.gpu_seconds / ended.spec.gpus.requested / part
                worst = max(worst, shared_s / alone_s)
            contention.follow([change], change.time_s)
        held.decide(time_s)
        next_s = advance(held, time_s, coming)
        if next_s is None:
            assert not held.jobs
            return worst
        time_s = next_s


def test_the_worst_fairness_is_lower_than_under_fifo():
    results = [(worst_rho(Themis(), jobs), worst_rho(Fifo(), jobs)) for jobs in map(random_jobs, range(4))]
    assert all(themis < fifo for themis, fifo in results), results
    assert fmean(themis for themis, _ in results) < 0.5 * fmean(fifo for _, fifo in results)


def test_a_lease_protects_its_holder_and_then_ends():
    held = started(Themis(lease_s=720), cluster(1), job("long", gpu_seconds=100_000))
    held.submit(job("short", at=100, gpu_seconds=100), 100)
    assert decided(held, 360) == {"long": 1}
    assert decided(held, 720) == {"short": 1}

    held = started(Themis(lease_s=1000), cluster(1), job("a", gpu_seconds=10_000))
    again = Themis(lease_s=1000)
    again.load_state(held.policy.dump_state(), held.jobs)
    assert again.dump_state() == held.policy.dump_state()
    assert again.dump_state()["leases"] == {"a": 1000}


def test_only_the_worst_off_bid_and_holders_keep_the_rest():
    work = {"a": 50_000, "b": 60_000, "c": 70_000, "d": 100}
    jobs = [job(name, gpu_seconds=seconds) for name, seconds in work.items()]
    held = opened(Themis(fairness=0.5), cluster(2), *jobs)
    assert decided(held, 0) == {"d": 1, "a": 1}  # ρ without GPUs is largest for short jobs: d and a bid
