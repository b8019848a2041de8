"""Benchmarks that need a real Slurm, small: the order of starts beside that of the policy, and a day."""

import pytest

from benchmarks.parts import slurm_day
from benchmarks.parts.slurm_order import PlannedJob, judged, live
from tests.slurm_cluster import NoSlurmError


@pytest.mark.services
def test_slurm_and_the_policy_start_a_plan_in_one_order():
    """The second job books all nodes for the end of the first; only the fourth ends before that."""
    planned = [
        PlannedJob(0.0, gpus=6, limit_min=2, run_s=8.0, partition="main", nice=0),
        PlannedJob(1.5, gpus=8, limit_min=1, run_s=1.0, partition="main", nice=0),
        PlannedJob(2.5, gpus=2, limit_min=5, run_s=1.0, partition="debug", nice=50),
        PlannedJob(2.5, gpus=2, limit_min=1, run_s=1.0, partition="main", nice=0),
    ]
    try:
        lived = live(planned, favor_small=False)
    except NoSlurmError as error:
        pytest.skip(str(error))
    result = judged(0, planned, lived, favor_small=False)
    assert result.slurm == result.policy == (1, 4, 2, 3)
    assert lived.priorities == {1: 1000, 2: 1250, 3: 1200, 4: 500}
    assert result.other_priority == ()


@pytest.mark.services
@pytest.mark.torch
def test_a_day_on_slurm_ends_with_all_jobs_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_day, "AWAY_S", 0.5)
    try:
        result = slurm_day.live(2, gap_s=1.0, epochs=(1, 2), profiled=False)
    except NoSlurmError as error:
        pytest.skip(str(error))
    assert (result.lost, result.wrong) == (0, 0)
    assert result.jct_s > 0
    assert result.simulated_jct_s > 0
