"""Rows measured elsewhere: CSV and Parquet, checked cell by cell."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import write_profile
from pliant.schemas.profile import Profile
from pliant.tools.profile.upkeep import import_rows
from tests.tools.profile.rows_builder import reduce, step

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
