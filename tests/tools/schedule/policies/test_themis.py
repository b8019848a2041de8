from statistics import fmean

import numpy as np

from pliant.schemas.job import Job
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.schedule.policies.themis import Themis
from tests.builders import FREE_CHANGES, cluster, decided, job, opened
from tests.tools.replay.world import given
from tests.tools.schedule.policies.started import started


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


def worst_rho(policy: str, jobs: list[Job]) -> float:
    """The largest of JCT over time alone with 1/N of the cluster."""
    run = Run(policy, simulated=FREE_CHANGES)
    result = run_metrics(fold(replay(given(jobs, cluster(8)), run).log.events()))
    assert result.jobs_finished == len(jobs)
    assert result.worst_ftf is not None
    return result.worst_ftf


def test_the_worst_off_bid_and_a_lease_protects_until_it_ends() -> None:
    worst = [
        [worst_rho(policy, jobs) for policy in ("themis", "fifo")] for jobs in map(random_jobs, range(4))
    ]
    assert all(themis < fifo for themis, fifo in worst), worst
    assert fmean(themis for themis, _ in worst) < 0.5 * fmean(fifo for _, fifo in worst)
    # A lease protects its holder and then ends.
    held = started(Themis(lease_s=720), cluster(1), job("long", gpu_seconds=100_000))
    held.submit(job("short", at=100, gpu_seconds=100), 100)
    assert decided(held, 360) == {"long": 1}
    assert decided(held, 720) == {"short": 1}

    held = started(Themis(lease_s=1000), cluster(1), job("a", gpu_seconds=10_000))
    assert held.policy.dump_state()["leases"] == {"a": 1000}
    # Only the worst off bid and holders keep the rest.
    work = {"a": 50_000, "b": 60_000, "c": 70_000, "d": 100}
    jobs = [job(name, gpu_seconds=seconds) for name, seconds in work.items()]
    held = opened(Themis(fairness=0.5), cluster(2), *jobs)
    assert decided(held, 0) == {"d": 1, "a": 1}  # ρ without GPUs is largest for short jobs: d and a bid
