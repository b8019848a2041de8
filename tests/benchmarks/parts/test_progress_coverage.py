"""The calibration of the progress predictor, split by job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.parts.progress_coverage import HIGH, LOW, coverage, published_history
from tests.tools.profile.histories import history, progress_of


def test_the_interval_covers_held_out_jobs_of_the_published_history(reference_data: Path) -> None:
    folder = reference_data / "ones"
    if not folder.is_dir():
        pytest.skip("the reference data has no folder ones")
    jobs = published_history(folder)
    assert (len(jobs), sum(len(job.epochs) for job in jobs)) == (20, 569)
    assert LOW <= coverage(jobs) <= HIGH


def test_every_job_is_predicted_by_all_others() -> None:
    few = history(4)
    assert coverage(few) == pytest.approx(
        np.mean([0.05 <= p <= 0.95 for job in few for p in progress_of(job)])
    )
