"""What policies are told is off as stated, and what really happens is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.parts.pollux_workloads import inputs
from benchmarks.parts.robust import ERRORS, jcts_s, stated, truths
from pliant.schemas.job import EpochWork

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def few(reference_data):
    return inputs("w6", 8)


def test_every_job_errs_within_the_stated_factors(few):
    for error in ERRORS:
        for truth in truths(few, error).values():
            assert 0.5 <= truth.speed <= 2.0
            assert all(0.5 <= factor <= 2.0 for factor in (truth.by_size or {}).values())
            assert 0.25 <= truth.noise <= 4.0
            assert 0.01 <= truth.work <= 1.0
    assert len({truth.work for truth in truths(few, "work").values()}) == len(few.jobs)


def test_jobs_that_overstate_their_work_end_when_it_is_done(few):
    """Alone, a policy that does not look at work cannot tell the difference."""
    reported, truth = stated(few, "work"), truths(few, "work")
    for job, true in zip(reported.jobs, few.jobs, strict=True):
        assert isinstance(job.work, EpochWork)
        assert isinstance(true.work, EpochWork)
        assert job.work.epochs * truth[job.id].work == pytest.approx(true.work.epochs)
    alone = replace(few, jobs=few.jobs[:1])
    assert jcts_s(alone, "fifo", "work") == pytest.approx(jcts_s(alone, "fifo", "nothing"))
