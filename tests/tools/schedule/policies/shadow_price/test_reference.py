"""The reference that shadow-price keeps, against the one that reports compute from the event file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.runinfo import EqualDeals
from pliant.tools.report.references.equal_shares import equal_deal_finishes
from pliant.tools.report.references.isolated import ReferenceJob
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.policies.shadow_price.bound import EqualShares
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job

GPUS = 4
TERMS = EqualDeals(grace=0.0, grace_s=50.0, deal_s=100.0, lost_s=20.0)
rows = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 900), st.integers(1, 3), st.integers(3, 4)),
    min_size=1,
    max_size=8,
)
"""Submission, samples, least and most GPUs."""


def rates_of(job: JobState) -> tuple[Ints, Floats]:
    """One sample a GPU-second, within the job's limits."""
    sizes = np.arange(GPUS + 1)
    able = (sizes >= job.spec.min_gpus) & (sizes <= job.max_gpus(GPUS))
    return sizes, np.where(able, sizes, 0).astype(float)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(0, 500))
def test_it_is_the_one_of_reports_however_often_it_is_asked(
    drawn: list[tuple[int, int, int, int]], asked_s: int
) -> None:
    speeds = Speeds(curves(), node_states(cluster(GPUS)))
    kept, jobs = EqualShares(TERMS.deal_s, TERMS.lost_s), []
    for number, (at, samples, low, high) in enumerate(sorted(drawn)):
        name = f"j{number}"
        state = job_state(job(name, at=at, gpus=low, low=low, high=high, work={"samples": samples}), speeds)
        kept.enter(state, at + TERMS.grace_s)
        kept.end(name, float(samples))
        curve = ((float(low), float(low)), (float(high), float(high)))
        jobs.append(ReferenceJob(name, float(at), float(samples), curve, float(samples), low))

    left = [*kept.advance(float(asked_s), GPUS, rates_of), *kept.advance(1e6, GPUS, rates_of)]

    assert {name: time_s for time_s, name in left} == equal_deal_finishes(jobs, [(0.0, GPUS)], TERMS)


def test_a_job_that_really_goes_on_keeps_its_share() -> None:
    """What it has left is not known here: only the real job says that it is done."""
    speeds = Speeds(curves(), node_states(cluster(GPUS)))
    kept = EqualShares(TERMS.deal_s, TERMS.lost_s)
    kept.enter(job_state(job("a", low=1, high=4, work={"samples": 100}), speeds), 0.0)
    assert not [*kept.advance(150.0, GPUS, rates_of)]
    share = kept.share("a")
    assert share is not None
    assert (share.gpus, share.credit, share.target) == (4, pytest.approx(320.0), pytest.approx(640.0))
    kept.end("a", 400.0)
    assert [*kept.advance(300.0, GPUS, rates_of)] == [(200.0, "a")]
