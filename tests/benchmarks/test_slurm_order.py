"""The start order of the policy slurm beside that of a real Slurm: one plan with one right order."""

import pytest

from benchmarks.parts.slurm_order import Booked, Lived, PlannedJob, judged, live, lived_in, why_differs
from tests.slurm_cluster import NoSlurmError

LOG = """\
[2026-11-24T01:53:18.644] slurmctld version 22.05.8 started on cluster pliant
[2026-11-24T01:53:19.836] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=875 usec=844
[2026-11-24T01:53:20.500] sched/backfill: _attempt_backfill: beginning
[2026-11-24T01:53:20.678] sched/backfill: _start_job: Started JobId=1 in main on n[0-2,5]
[2026-11-24T01:53:20.900] _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1250 usec=610
[2026-11-24T01:53:21.500] sched/backfill: _attempt_backfill: beginning
[2026-11-24T01:53:21.510] sched/backfill: _dump_job_sched: JobId=2 to start at 2026-11-24T01:54:20, \
end at 2026-11-24T01:55:20 on nodes n[0-7] in partition debug
[2026-11-24T01:53:32.769] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-24T01:53:32.770] _job_complete: JobId=1 done
[2026-11-24T01:53:32.900] sched: Allocate JobId=2 NodeList=n7 #CPUs=8 Partition=debug
a line without a time
"""


def test_slurm_s_log_is_read():
    lived = lived_in(LOG)
    assert lived.came_s == {1: pytest.approx(1.836), 2: pytest.approx(2.9)}
    assert lived.priorities == {1: 875, 2: 1250}
    assert lived.nodes == {1: {0, 1, 2, 5}, 2: {7}}
    assert lived.started_s == {1: pytest.approx(2.678), 2: pytest.approx(14.9)}
    assert lived.left_s == {1: pytest.approx(14.77)}
    assert lived.looks == {2.5: {}, 3.5: {2: Booked(62.0, 122.0, frozenset(range(8)))}, 14.9: {}}
    assert lived.main_looks == {14.9}


@pytest.mark.parametrize(
    ("limit_min", "gpus", "left_s", "reason"),
    [
        (1, 1, 20.0, ""),
        (2, 1, 20.0, "job 3 asks for 1 of the idle n[6, 7], of which are booked: job 2 n[6, 7]"),
        (1, 1, 9.98, "job 1 had left 20 ms before, its nodes were completing"),
    ],
)
def test_a_difference_is_explained_by_what_slurm_had_booked(limit_min, gpus, left_s, reason):
    """Job 1 runs on six nodes of eight, and job 2 is to start on all of them at 100."""
    lived = Lived(
        nodes={1: frozenset(range(6))},
        started_s={1: 1.0},
        left_s={1: left_s},
        looks={10.0: {2: Booked(100.0, 160.0, frozenset(range(8)))}},
    )
    planned = PlannedJob(0.0, gpus, limit_min, 1.0, "main", 0)
    assert why_differs(3, planned, 10.0, lived, [1]) == reason


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
