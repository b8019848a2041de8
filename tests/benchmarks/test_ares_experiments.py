"""Figures of the comparison on the workloads of Ares: of the replays that the experiment has, too."""

from __future__ import annotations

import pytest

from benchmarks import ares_experiments
from experiments.ares.facts import POLICIES
from experiments.ares.traces import FAMILIES


def test_the_wall_time_is_the_cpu_of_all_replays_over_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (
        "mean_jct_s",
        "p99_jct_s",
        "unfair_fraction",
        "worst_ftf",
        "preemptions_per_job",
        "rescales_per_job",
    )
    one = {**dict.fromkeys(fields, 2.0), "decision_ms": 1.0, "cpu_s": 10.0}
    replays = {
        f"{family}-{sample}-{name}": one for family in FAMILIES for sample in (0, 1) for name in POLICIES
    }
    monkeypatch.setattr(
        ares_experiments, "_replayed", lambda *_families, **_how: {**replays, "philly-0-ares-alpha0.9": one}
    )
    monkeypatch.setattr(ares_experiments, "need_data", lambda *_names: None)
    result = {row.name: row for row in ares_experiments.figures()}
    assert result["all_policies_cpu_s"].value == 3 * 2 * len(POLICIES) * 10.0
    assert result["all_policies_wall_s"].value == result["all_policies_cpu_s"].value / 2
    assert result["all_policies_wall_s"].limit == 1800
    assert result["newtrace_ares_gain_over_pollux"].value == 0.0
    assert len(result) == len(FAMILIES) * (7 * len(POLICIES) + 3) + 2
