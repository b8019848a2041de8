"""The benchmark of predicted starts: what was predicted at arrival beside what happened."""

from __future__ import annotations

from pathlib import Path

from benchmarks.predicted_start import Wait, misjudged, waits
from pliant.schemas.io import write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile
from tests.builders import cluster, job
from tests.tools.profile.rows_builder import step


def test_what_is_predicted_at_arrival_and_what_happens(tmp_path: Path) -> None:
    """One GPU does 10 samples per second; three jobs of 100 s come at 0, 10 and 20 s, then a short one."""
    lengths = {"a": 100, "b": 100, "c": 100, "d": 10}
    jobs = [
        job(name, at=10.0 * place, work={"samples": 10.0 * length_s}, batch=10, model="net")
        for place, (name, length_s) in enumerate(lengths.items())
    ]
    write_jobs(jobs, tmp_path / "jobs.jsonl")
    write_cluster(cluster(1), tmp_path / "cluster.json")
    write_profile(Profile((step(1, 10, 1.0),)), tmp_path / "profile.parquet")
    expected = [Wait("b", 90.0, 90.0), Wait("c", 180.0, 180.0), Wait("d", 270.0, 270.0)]
    assert waits(tmp_path, "fifo") == expected
    overtaken = [Wait("b", 100.0, 90.0), Wait("c", 190.0, 180.0)]
    assert waits(tmp_path, "srtf")[:2] == overtaken


def test_a_misjudged_profile_is_off_by_one_factor_per_model() -> None:
    rows = (step(1, 10, 1.0), step(2, 10, 1.5), step(1, 10, 1.0, model="other"))
    result = misjudged(Profile(rows), 0.2).rows
    factors = [
        (new.step_seconds or 0) / (old.step_seconds or 1) for new, old in zip(result, rows, strict=True)
    ]
    assert factors[0] == factors[1] != factors[2]
    assert all((row.samples_per_second or 0) * (row.step_seconds or 0) == row.gpus * 10 for row in result)
