"""The report's references against policies that are proved about them."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.report import fairness
from pliant.tools.report.equal_shares import fluid_finishes
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.report.report import make_report
from tests.builders import FREE_CHANGES, cluster, job
from tests.effort import examples

traces = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 800), st.sampled_from([1, 2, 4, 8])),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        job(f"j{n:02}", at=float(at), gpus=gpus, low=1, high=8, gpu_seconds=float(work))
        for n, (at, work, gpus) in enumerate(sorted(rows))
    ]
)


def replayed(jobs, policy):
    return fold(replay(inputs(jobs, cluster(4, 4)), Run(policy, simulated=FREE_CHANGES)).log.events(), policy)


@settings(max_examples=examples(25))
@given(traces)
def test_with_linear_scaling_nobody_ends_later_under_ares_than_in_gps(jobs):
    found = run_metrics(replayed(jobs, "ares"))
    assert found.jobs_finished == len(jobs)
    assert found.unfair_fraction_gps == 0.0
    assert found.worst_gps_delay_s <= 1e-6


@settings(max_examples=examples(10))
@given(traces)
def test_policies_on_one_trace_share_their_references(jobs):
    with patch.object(fairness, "fluid_finishes", wraps=fluid_finishes) as computed:
        fifo, ares = make_report([replayed(jobs, "fifo"), replayed(jobs, "ares")]).runs
    assert computed.call_count == 1
    for name in ("fair-share", "gps"):
        assert fifo.fair[name].finish_s.tolist() == ares.fair[name].finish_s.tolist()
    assert fifo.metrics.trace_hash == ares.metrics.trace_hash
