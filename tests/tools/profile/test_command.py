"""``pliant profile``: options, refusals, appended and imported rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.cli.profile import numbers, profile
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.io import read_profile, write_jobs, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.profile.measuring.run import MeasuredProfile
from tests.builders import job
from tests.tools.profile.rows_builder import step


def imported(folder: Path, *rows: Any) -> str:
    path = folder / "rows.parquet"
    write_profile(Profile(rows), path)
    return str(path)


def test_imported_rows_become_a_profile_or_are_appended_to_one(tmp_path: Path) -> None:
    out = tmp_path / "profile.parquet"
    profile(imported=imported(tmp_path, step(1, 8, 0.1)), output=str(out))
    made = read_profile(out)
    assert [row.source for row in made.rows] == ["imported"]
    assert "imported_from" in dict(made.metadata)
    old, out = tmp_path / "old.parquet", tmp_path / "new.parquet"
    write_profile(Profile((step(1, 8, 0.1), step(1, 16, 0.2))), old)
    profile(imported=imported(tmp_path, step(1, 16, 0.3)), append=str(old), output=str(out))
    assert [row.step_seconds for row in read_profile(out).rows] == [0.1, 0.3]
    assert numbers("4,1,2,2", "--gpus") == (1, 2, 4)
    assert numbers("auto", "--gpus") is None
    for wrong in ("", "0", "1,x", "1,,2", "-1"):
        with pytest.raises(UsageError, match="--gpus"):
            numbers(wrong, "--gpus")


def test_what_is_wrong_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    jobs, out = str(tmp_path / "no-such-file"), str(tmp_path / "p")
    with pytest.raises(UsageError, match="give one of the two"):
        profile(jobs, imported=imported(tmp_path, step(1, 8, 0.1)), output=out)
    with pytest.raises(BadInputError, match="no such file"):
        profile(jobs, append=str(tmp_path / "old.parquet"), output=out)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="not written to a terminal"):
        profile(jobs)


def test_what_was_measured_is_written_though_another_model_failed(monkeypatch, tmp_path):
    made = MeasuredProfile(Profile((step(1, 8, 0.1),)), ('model "bad" failed: KeyError: 7',))
    monkeypatch.setattr("pliant.tools.profile.measuring.run.measure", lambda *_args, **_more: made)
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "profile.parquet"
    write_jobs([job("a")], jobs)
    with pytest.raises(JobsFailedError, match="KeyError: 7"):
        profile(str(jobs), output=str(out))
    assert len(read_profile(out).rows) == 1


def test_measured_rows_keep_the_error_of_the_model_on_them(tmp_path, monkeypatch):
    rows = (step(1, 8, 0.1), step(1, 16, 0.2), step(2, 8, 0.15), step(2, 16, 0.25), step(2, 32, 0.9))
    monkeypatch.setattr(
        "pliant.tools.profile.measuring.run.measure", lambda *_args, **_named: MeasuredProfile(Profile(rows))
    )
    write_jobs([job("a", model="net", command=("train.py",))], tmp_path / "jobs.jsonl")
    profile(str(tmp_path / "jobs.jsonl"), output=str(tmp_path / "p.parquet"))
    errors = {
        (row.gpus, row.local_batch): row.model_error for row in read_profile(tmp_path / "p.parquet").rows
    }
    assert errors[1, 8] is None, "one worker is measured, not modelled"
    assert (errors[2, 32] or 0.0) < -0.3
