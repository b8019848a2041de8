"""The replay of Shockwave's experiment, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts.shockwave import Outcome, errors, figures, published


def test_the_error_is_that_of_the_mean_jct():
    physical = {"a": Outcome(100.0, 1.0, 1.0, 1.0), "b": Outcome(200.0, 1.0, 1.0, 1.0)}
    ours = {"a": Outcome(90.0, 9.0, 9.0, 9.0), "b": Outcome(250.0, 9.0, 9.0, 9.0)}
    assert errors(ours, physical) == pytest.approx({"a": 0.1, "b": 0.25})


def test_four_jobs_without_a_queue_train_alone(reference_data: Path):
    if not (reference_data / "shockwave").is_dir():
        pytest.skip("no shockwave in the reference data")
    rows = {row.name: row for row in figures(jobs=4)}
    assert rows["shockwave_physical_error"].limit == pytest.approx(0.0369, abs=1e-4)
    for policy in published("physical"):
        assert 1.0 < rows[f"shockwave_{policy}_worst_ftf_static_ours"].value < 1.25
