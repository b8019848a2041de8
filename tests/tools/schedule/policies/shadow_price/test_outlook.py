"""What is ahead of a job: mean rates over the work that is left, and what jobs of a model teach."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policies.shadow_price.curves import GoodputCurve, sizes_of
from pliant.tools.schedule.policies.shadow_price.knowledge import (
    CELLS,
    Ahead,
    ChangeCosts,
    Knowledge,
    noise_scales,
)
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job, opened

ONES = np.ones(CELLS)
CURVE = GoodputCurve(np.array([10, 30]), np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 3.0]]), 10, 0)


def test_rates_ahead_are_means_over_the_work_left():
    # φ = 10 makes batch 30 half as useful: 1 a second on one GPU; where φ is large, 2 a second.
    ahead = Ahead(CURVE)
    ahead.update(np.where(np.arange(CELLS) < CELLS // 2, 10.0, 1e15), ONES)
    assert ahead.whole(0.0) == pytest.approx([0.0, 1 / (0.5 / 1 + 0.5 / 2), 1 / (0.5 / 2 + 0.5 / 3)])
    assert ahead.whole(0.5) == pytest.approx([0.0, 2.0, 3.0])

    # 100 samples, the first half at 1 a second on one GPU: 25 s are a quarter of the work.
    assert ahead.at(0.0, 100.0, 25.0, 1).soon == pytest.approx([0.0, 1.0, 2.0])
    over_the_end = ahead.at(0.9, 100.0, 1e6, 1)
    assert over_the_end.soon == pytest.approx(over_the_end.whole)

    ahead.update(10.0 * ONES, 0.5 * ONES)
    assert ahead.whole(0.0) == pytest.approx([0.0, 0.5, 1.0])


def test_noise_scales_are_interpolated_by_their_logarithms():
    seen = noise_scales()
    assert seen.line("net") is None
    seen.observe("net", 0.0, 1.0)
    seen.observe("net", 0.5, 100.0)
    assert seen.at("net", 0.25) == pytest.approx(10.0)
    assert seen.at("net", 0.9) == pytest.approx(100.0)
    again = noise_scales()
    again.load(seen.dump())
    assert again.line("net") == pytest.approx(seen.line("net"))


def test_unstated_work_is_that_of_longer_jobs_of_the_model():
    jobs = [job(name, work={"samples": samples}) for name, samples in (("short", 10.0), ("long", 1000.0))]
    held = opened(ShadowPrice(), cluster(1), *jobs, job("silent", low=1, high=1))
    known, silent = Knowledge(900.0, 30.0, "stated", 1.0), held.jobs["silent"]
    assert known.left(silent, 0.0) is None
    for name in ("short", "long"):
        held.jobs[name].report_progress(0.0, held.jobs[name].total_samples or math.nan)
        known.learn(held.jobs[name])
    for samples, expected in ((0.0, 505.0), (100.0, 900.0), (2000.0, None)):
        silent.report_progress(0.0, samples)
        assert known.left(silent, 0.0) == (expected and pytest.approx(expected))


def test_large_pools_try_whole_nodes_beyond_the_exact_sizes():
    sizes = sizes_of(2048, 8)
    assert sizes[:129].tolist() == [*range(129)]
    assert all(size % 8 == 0 for size in sizes[129:].tolist())
    assert sizes[-1] == 2048
    assert sizes_of(64, 4).tolist() == [*range(65)]


def test_what_changes_cost_is_how_long_jobs_do_not_train():
    """A job that stands still for 200 s after each change of its size is seen to do so for 180."""
    costs = ChangeCosts()
    speeds = Speeds(curves(), node_states(cluster(4)))
    state = job_state(job("a", low=1, high=4, model="net", work={"samples": 1e6}), speeds)
    state.gpus = 1
    for change_s in (0.0, 600.0, 1200.0, 1800.0):
        state.changed_s = change_s
        state.train_from(change_s + 200.0, 2.0)
        for after_s in range(60, 601, 60):
            costs.follow([state], change_s + after_s)
        if change_s == 1200.0:
            assert costs.cost_s("net", 30.0) == 30.0, "the first start is none, and two are too few"
    assert costs.cost_s("net", 30.0) == 180.0
    assert costs.cost_s("net", 150.0) == 150.0, "what is stated holds where it is about right"
    assert costs.cost_s("other", 30.0) == 30.0
    again = ChangeCosts()
    again.load(json.loads(json.dumps(costs.dump())))
    assert again.cost_s("net", 30.0) == 180.0
