"""Profiles put together, compared and thinned out, as the commands do it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.io import read_profile, write_profile
from pliant.schemas.profile import Profile
from tests.cli.calling import call
from tests.tools.profile.rows_builder import step


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``new`` was measured later than ``old``: one row beside others, one slower, one new, one gone."""
    monkeypatch.chdir(tmp_path)
    old = [step(1, 4, 0.1), step(1, 8, 0.2), step(1, 16, 0.4), step(2, 4, 0.15)]
    new = [replace(step(1, 4, 0.9), busy_share=0.5), step(1, 8, 0.3), step(2, 4, 0.15), step(2, 8, 0.2)]
    for name, rows, at in (("old", old, 1e9), ("new", new, 2e9)):
        write_profile(Profile(tuple(replace(row, measured_at=at) for row in rows)), f"{name}.parquet")
    return tmp_path


def seconds(name: str) -> dict[tuple[int, int], float | None]:
    return {(row.gpus, row.local_batch): row.step_seconds for row in read_profile(name).rows}


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_like_rows_the_newest_undisturbed_one_is_kept(files, order):
    done = call("profile", "merge", *(f"{name}.parquet" for name in order), "-o", "both.parquet")
    assert (done.exit_code, done.stderr) == (0, "pliant: 5 rows of 8\n")
    assert seconds("both.parquet") == {(1, 4): 0.1, (1, 8): 0.3, (1, 16): 0.4, (2, 4): 0.15, (2, 8): 0.2}


def test_the_differences_of_two_profiles_are_rows_and_steps(files: Path) -> None:
    done = call("profile", "diff", "old.parquet", "new.parquet")
    assert [line.split()[2:] for line in done.stdout.splitlines()[1:]] == [
        ["1", "4", "100", "900", "+800%"],
        ["1", "8", "200", "300", "+50%"],
        ["1", "16", "400", "-", "gone"],
        ["2", "8", "-", "200", "new"],
    ]
    assert call("profile", "diff", "old.parquet", "old.parquet").stdout == ""


def test_rows_that_match_all_options_are_taken_out(files: Path) -> None:
    call("profile", "prune", "new.parquet", "--disturbed", "-o", "kept.parquet")
    assert set(seconds("kept.parquet")) == {(1, 8), (2, 4), (2, 8)}
    none = call(
        "profile", "prune", "new.parquet", "--disturbed", "--before", "2020-01-01", "-o", "all.parquet"
    )
    assert none.stderr == "pliant: 0 rows of 4 taken out\n"
    assert call("profile", "prune", "new.parquet").exit_code == 2
    assert (
        call("profile", "prune", "old.parquet", "--before", "2020-01-01", "-o", "no.parquet").exit_code == 3
    )
    assert not (files / "no.parquet").exists()
