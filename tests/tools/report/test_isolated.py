"""JCTs alone on the average share, by hand."""

from __future__ import annotations

import pytest

from pliant.schemas.event import Event
from pliant.tools.report.fairness import fairness
from pliant.tools.report.read_run import fold
from pliant.tools.report.references.isolated import isolated_finishes, reference_jobs
from tests.builders import cluster, job
from tests.tools.report.runs import begin, first_come, shared, submit


def isolated_jcts(*events):
    run = fold(events)
    finishes = isolated_finishes(run, reference_jobs(run))
    return {record.id: finishes[record.id] - record.submit_s for record in run.jobs if record.id in finishes}


def ran(name, start, end, gpus=1):
    return [Event(start, "start", name, gpus), Event(end, "finish", name, 0)]


def test_a_rigid_job_is_alone_at_its_requested_size():
    # Alone in the cluster, v is 4: the two GPUs it asked for are its own, 10 samples take 5 s.
    alone = isolated_jcts(begin(), submit(job("a", gpus=2), 10.0), *ran("a", 7, 12, 2))
    assert alone == {"a": 5.0}


def test_a_rigid_job_that_asks_for_more_than_its_share_is_slowed_down():
    # Three jobs from 0 to 12 on 4 GPUs: v = 4/3. a asked for 4: 12 s alone, times 4 / (4/3) = 36 s.
    jobs = [submit(job("a", gpus=4), 48.0), submit(job("b"), 12.0), submit(job("c"), 12.0)]
    ends = [*ran("a", 0, 12, 4), *ran("b", 0, 12), *ran("c", 0, 12)]
    assert isolated_jcts(begin(cluster(4)), *jobs, *ends) == pytest.approx({"a": 36.0, "b": 12.0, "c": 12.0})


def test_the_share_is_a_mean_over_the_jobs_life():
    # a lives from 0 to 30, c with it to 10, b from 10 to 20: 5/3 active, v = 4 / (5/3) = 2.4.
    # It asked for 3 GPUs: 8 s alone, times 3 / 2.4 = 10 s.
    curve = ((1, 1.0), (2, 2.0), (3, 3.0))
    jobs = [submit(job("a", gpus=3), 24.0, curve), submit(job("c"), 5.0), submit(job("b", at=10), 5.0)]
    ends = [*ran("c", 5, 10), *ran("b", 15, 20), *ran("a", 20, 30, 3)]
    assert isolated_jcts(begin(), *jobs, *ends)["a"] == pytest.approx(10.0)


def test_under_a_policy_that_sizes_jobs_it_is_linear_between_whole_shares():
    # v = 2.4 as above. On 2 GPUs a takes 24 / 2 = 12 s, on 3 it takes 24 / 3 = 8 s: 12 - 0.4 · 4 = 10.4 s.
    curve = ((1, 1.0), (2, 2.0), (3, 3.0))
    jobs = [submit(job("a", gpus=1, low=1), 24.0, curve), submit(job("c"), 5.0), submit(job("b", at=10), 5.0)]
    ends = [*ran("c", 5, 10), *ran("b", 15, 20), *ran("a", 20, 30, 3)]
    assert isolated_jcts(begin(), *jobs, *ends)["a"] == pytest.approx(10.4)


def test_under_it_a_job_without_speedup_keeps_its_best_size():
    # Two GPUs are its best; alone on all four it would still take 10 / 2 s.
    curve = ((1, 1.0), (2, 2.0), (4, 1.5))
    alone = isolated_jcts(begin(), submit(job("a", gpus=1, low=1), 10.0, curve), *ran("a", 0, 5, 2))
    assert alone == {"a": 5.0}


def test_below_one_gpu_it_is_the_time_on_one_over_the_share():
    # Two jobs on one GPU from 0 to 9: v = 1/2 for a: 3 s alone are 6 s. b is there to 12: (9·2 + 3)/12.
    nodes = cluster(1)
    jobs = [submit(job("a", gpus=1, low=1), 3.0), submit(job("b", gpus=1, low=1), 3.0)]
    resized = Event(9, "grow", "b", 2)  # so that the policy counts as one that sizes jobs
    ends = [*ran("a", 6, 9), Event(0, "start", "b", 1), resized, Event(12, "finish", "b", 0)]
    assert isolated_jcts(begin(nodes), *jobs, *ends) == pytest.approx({"a": 6.0, "b": 3.0 * (9 * 2 + 3) / 12})


def test_it_depends_on_what_the_policy_did_and_the_others_do_not():
    one, other = (fairness(fold(events)) for events in (first_come(), shared()))
    assert one["gps"].finish_s == other["gps"].finish_s
    assert one["isolated"].finish_s != other["isolated"].finish_s


def test_jobs_that_did_not_finish_have_none():
    found = isolated_jcts(begin(), submit(job("a"), 4.0), submit(job("b")), *ran("b", 0, 3))
    assert found == {}
