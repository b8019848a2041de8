"""Deadlines of a third party's jobs, and decisions that do not follow the hour."""

from __future__ import annotations

from pathlib import Path

from benchmarks.parts.elasticflow import trace
from benchmarks.parts.mends_oasis import decisions_changed_by_translation, oasis_deadlines_met


def test_no_decision_of_a_few_policies_changes_with_the_hour():
    assert decisions_changed_by_translation(2, policies=["fifo", "oasis", "ares"], jobs=6) == 0


def test_the_jobs_of_the_testbed_state_deadlines_and_may_have_what_was_measured(reference_data: Path):
    found = trace("195job", reference_data / "elasticflow")
    first = found.jobs[0]
    assert len(found.jobs) == 195
    assert found.cluster.total_gpus == 128
    assert (first.model, first.batch.size, first.gpus.max) == ("deepspeech2", 32, 32)
    assert (first.utility.shape, first.utility.target) == ("step", 693.0)


def test_oasis_meets_no_fewer_deadlines_than_first_come_first_served(reference_data: Path):
    met = oasis_deadlines_met(reference_data, jobs_limit=10)
    assert met["oasis"] >= met["fifo"] > 0
