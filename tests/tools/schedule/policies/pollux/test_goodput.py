"""Goodput by allocation: statistical efficiency, the best batch, speedup over the fair share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.pollux.goodput import (
    BatchCandidates,
    Fit,
    Goodput,
    JobLimits,
    ProfileCandidates,
    efficiency,
    from_fit,
)
from pliant.tools.schedule.policies.pollux.policy import Goodputs
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, job

PLAIN = Fit(alpha_c=0.1, beta_c=0.01, alpha_n=0.2, beta_n=0.0, alpha_r=0.1, beta_r=0.0, gamma=1.0)
POOL = Pool("gpu", 8, 4)


def test_efficiency_by_hand():
    assert efficiency(100.0, 20, np.array([20, 60, 140])).tolist() == pytest.approx([1.0, 0.75, 0.5])


def test_noise_without_end_makes_every_batch_as_good():
    assert efficiency(float("inf"), 20, np.array([20, 2000])).tolist() == [1.0, 1.0]


def test_goodput_by_hand():
    """Two GPUs at batch 20: 10 samples each, 0.1 + 0.1 + 0.1 s across one node, 0.4 s across two."""
    found = from_fit(PLAIN, JobLimits(1, 2, 20, 20)).best(None, 20)
    assert found.rates[0, 1] == pytest.approx(20 / 0.3)
    assert found.rates[0, 2] == pytest.approx(20 / 0.3)
    assert found.rates[1, 2] == pytest.approx(20 / 0.4)
    assert found.rates[1, 1] == 0
    assert found.batches[0, 2] == 20


def test_the_best_batch_beats_all_others_by_hand():
    """One GPU, B samples in 0.1 + 0.01 B s at efficiency 110 / (100 + B): best at B = sqrt(10 · 100)."""
    found = from_fit(PLAIN, JobLimits(1, 1, 10, 1000)).best(100.0, 10)
    best = max(range(10, 1001), key=lambda batch: batch / (0.1 + 0.01 * batch) / (100 + batch))
    assert best == 32
    assert found.batches[0, 1] == pytest.approx(best, rel=0.2)


def test_more_noise_makes_larger_batches():
    candidates = from_fit(PLAIN, JobLimits(1, 8, 10, 1000, 1, 64))
    quiet, loud = (candidates.best(noise, 10).batches[1, 8] for noise in (10.0, 10_000.0))
    assert quiet < loud


def test_a_batch_that_does_not_fit_is_accumulated():
    """48 samples on one GPU that holds 16: three micro-steps."""
    found = from_fit(PLAIN, JobLimits(1, 1, 48, 48, 1, 16)).best(None, 48)
    assert found.rates[0, 1] == pytest.approx(48 / (3 * 0.26))


def test_one_gpu_accumulates_above_the_smallest_batch_where_its_library_does():
    limits = JobLimits(1, 1, 16, 32)
    plain, careful = (from_fit(PLAIN, limits, lone_accumulates=each) for each in (False, True))
    assert plain.samples_per_second[0, 1, -1] == pytest.approx(32 / 0.42)
    assert careful.samples_per_second[0, 1, -1] == pytest.approx(32 / (2 * 0.26))
    assert careful.samples_per_second[0, 1, 0] == plain.samples_per_second[0, 1, 0]


@given(
    low=st.integers(1, 64),
    factor=st.integers(1, 64),
    most=st.integers(1, 16),
    cap=st.none() | st.integers(1, 64),
)
def test_every_feasible_candidate_keeps_the_limits(low: int, factor: int, most: int, cap: int | None):
    candidates = from_fit(PLAIN, JobLimits(1, most, low, low * factor, 1, cap))
    feasible = candidates.samples_per_second > 0
    batches = candidates.batches[feasible]
    gpus = np.broadcast_to(np.arange(most + 1)[None, :, None], feasible.shape)[feasible]
    assert (batches >= low).all()
    assert (batches <= low * factor).all()
    assert (batches >= gpus).all()
    assert not feasible[:, 0].any()


def test_speedup_is_against_the_fair_share_on_one_node_where_it_fits():
    rates = np.array([[0.0, 10.0, 18.0, 0.0], [0.0, 0.0, 15.0, 20.0]])
    table = Goodput(rates, np.ones_like(rates, dtype=np.int64))
    assert table.speedups(2, node_gpus=2)[1, 3] == pytest.approx(20 / 18)
    assert table.speedups(3, node_gpus=2)[1, 3] == pytest.approx(1.0)


def test_an_infeasible_fair_share_is_replaced_by_the_best_smaller_one():
    rates = np.array([[0.0, 10.0, 0.0], [0.0, 0.0, 30.0]])
    assert Goodput(rates, rates.astype(np.int64)).speedups(2, node_gpus=4)[1, 2] == pytest.approx(1.0)
    nothing = np.zeros((2, 3))
    assert not Goodput(nothing, nothing.astype(np.int64)).speedups(2, 4).any()


def held(**more: object) -> Session:
    found = Session(Fifo(), cluster(4, 4), curves(linear={1: 10, 2: 18, 4: 30}))
    found.submit(job("a", high=8, gpus=2, **more), 0.0)
    return found


def test_the_profile_answers_for_jobs_that_measured_nothing():
    found = held()
    table = Goodputs(found.speeds, "profile", lone_accumulates=False).goodput(found.jobs["a"], POOL)
    assert table.rates[0, 1:5].tolist() == pytest.approx([10, 18, 24, 30])
    assert table.batches[0, 4] == 960
    assert table.rates.shape == (2, 9)


def test_jobs_alike_share_what_the_profile_says():
    found = held()
    found.submit(job("b", high=8, gpus=2), 0.0)
    profile = ProfileCandidates(found.speeds)
    first, second = (profile.of(state, "gpu", 4, JobLimits(1, 8, 960, 960)) for state in found.jobs.values())
    assert isinstance(first, BatchCandidates)
    assert first is second


def test_a_job_that_only_measures_tries_one_gpu_then_twice_as_many():
    found = held()
    state = found.jobs["a"]
    goodputs = Goodputs(found.speeds, "measured", lone_accumulates=False)
    assert goodputs.goodput(state, POOL).rates.shape == (2, 2)
    state.observe(Observation((1,), 960, 1, 9.7, 0.0))
    assert goodputs.goodput(state, POOL).rates.shape == (2, 3)
    state.observe(Observation((2,), 480, 1, 5.0, 0.1))
    assert goodputs.goodput(state, POOL).rates.shape == (2, 5)


def test_a_gang_that_only_measures_starts_at_the_size_it_asked_for():
    found = Session(Fifo(), cluster(4, 4), curves())
    found.submit(job("gang", gpus=8), 0.0)
    goodputs = Goodputs(found.speeds, "measured", lone_accumulates=False)
    limits = goodputs.limits(found.jobs["gang"], POOL)
    assert (limits.least_gpus, limits.most_gpus) == (8, 8)


def test_the_batch_moves_only_where_the_job_lets_it_and_its_noise_is_known():
    batch = {"size": 64, "min": 32, "max": 256}
    states = []
    for elastic in ("size", "size+batch"):
        state = job_state(job("a", high=8, elastic=elastic, batch=batch), held().speeds)
        state.noise_scale = 100.0
        states.append(state)
    goodputs = Goodputs(held().speeds, "profile", lone_accumulates=False)
    assert [goodputs.limits(state, POOL).resizes_batch for state in states] == [False, True]
    states[1].noise_scale = None
    assert goodputs.limits(states[1], POOL)[2:4] == (64, 64)
    measuring = Goodputs(held().speeds, "measured", lone_accumulates=False)
    assert measuring.limits(states[1], POOL)[2:4] == (32, 32)


def test_a_new_noise_scale_chooses_another_batch():
    state = job_state(
        job("a", high=8, elastic="size+batch", batch={"size": 64, "min": 64, "max": 4096}), held().speeds
    )
    state.observe(Observation((1,), 64, 1, 0.74, 0.0))
    state.observe(Observation((1,), 128, 1, 1.38, 0.0))
    goodputs = Goodputs(held().speeds, "measured", lone_accumulates=False)
    batches = []
    for noise in (10.0, 100_000.0):
        state.noise_scale = noise
        batches.append(int(goodputs.goodput(state, POOL).batches[0, 1]))
    assert batches[0] < batches[1]
