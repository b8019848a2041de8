"""Profiles put together, compared and thinned out, as the commands do it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_profile, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.profile.upkeep import import_rows
from tests.cli.calling import call
from tests.tools.profile.rows_builder import reduce, step


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


# Rows measured elsewhere.


HEADER = (
    "kind,model,gpu_type,nodes,gpus,placement,local_batch,accum_steps,step_seconds,iterations,feasible,source"
)


def csv(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def test_a_csv_row_with_the_columns_that_matter(tmp_path: Path) -> None:
    path = csv(tmp_path, 'train,net,v100,2,6,"4,2",32,1,0.25,100,true,measured')
    (row,) = import_rows(path)
    assert (row.model, row.gpus, row.placement, row.step_seconds) == ("net", 6, "4,2", 0.25)
    assert (row.source, row.measured_at, row.feasible) == ("imported", None, True)
    lines = ("train,net,v100,1,1,1,64,1,,0,false,imported", "train,net,v100,1,1,1,8,1,1.5,0,true,modelled")
    modelled, misfit = import_rows(csv(tmp_path, *lines))
    assert (misfit.feasible, misfit.step_seconds, modelled.source) == (False, None, "modelled")


def test_a_parquet_file_needs_only_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_profile(Profile((step(1, 8, 0.1), reduce(2, 100, 0.1))), path)
    assert [(row.kind, row.source) for row in import_rows(path)] == [
        ("allreduce", "imported"),
        ("train", "imported"),
    ]
    values = ["train", "net", "v100", 1, 1, "1", 8, 1, 0.1, 3, True, "imported"]
    columns = {name: [value] for name, value in zip(HEADER.split(","), values, strict=True)}
    pq.write_table(pa.table(columns), tmp_path / "p")
    (row,) = import_rows(tmp_path / "p")
    assert row.local_batch == 8


def test_every_bad_cell_is_told_with_its_line(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "train,net,v100,1,1,1,eight,1,0.1,3,true,imported",
        "train,net,v100,1,1,1,8,1,fast,3,maybe,imported",
    )
    with pytest.raises(BadInputError) as error:
        import_rows(path)
    assert [str(problem).removeprefix(str(tmp_path)) for problem in error.value.problems] == [
        "/rows.csv:2: /local_batch: 'eight', expected a whole number",
        "/rows.csv:3: /step_seconds: 'fast', expected a number",
        "/rows.csv:3: /feasible: 'maybe', expected true or false",
    ]


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        ("kind,model", "train,net", "/gpu_type: column is missing"),
        (f"{HEADER},colour", "train,net,v100,1,1,1,8,1,0.1,3,true,imported,x", "/colour: is not a column"),
        (HEADER, "train,net,v100,1,1,1,8,1,nan,3,true,imported", "step_seconds"),
        (HEADER, "train,net,v100,1,1,1,8,1,-1,3,true,imported", "step_seconds"),
        (HEADER, "train,net,v100,1,2,1,8,1,0.1,3,true,imported", "placement"),
        (HEADER, "train,net,v100,1,1,1,8,1,0.1,3,true,guessed", "source"),
        (HEADER, "train,net,v100,1,1,1,8,1,0.1,3,true,imported,1,2", "more than the 12 fields"),
        (HEADER, "train,net,v100,1,1,1,,1,0.1,3,true,imported", "local_batch"),
    ],
)
def test_columns_and_values_that_no_profile_may_hold(
    tmp_path: Path, header: str, line: str, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        import_rows(csv(tmp_path, line, header=header))


def test_a_picture_is_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(BadInputError, match="neither Parquet nor text"):
        import_rows(path)
