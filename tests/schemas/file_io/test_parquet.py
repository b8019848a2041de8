# ruff: noqa: E501 (one case a line reads better)

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas import io
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.columns import About, TableKind
from pliant.schemas.file_io.parquet import TextWeight, columns_hash, text_array, to_columns
from pliant.schemas.profile import PROFILE, Profile, ProfileRow

ROW = ProfileRow("train", "m", "gpu", 2, 6, "4,2", 8, step_seconds=0.5, samples_per_second=96.0)


def columns(**changes: list[Any]) -> dict[str, list[Any]]:
    return {**io.profile_to_columns([ROW]), **changes}


def problems_of_columns(**changes: list[Any]) -> list[str]:
    with pytest.raises(BadInputError) as caught:
        io.profile_from_columns(columns(**changes))
    return str(caught.value).splitlines()


def problems_of_file(path: Path) -> list[str]:
    with pytest.raises(BadInputError) as caught:
        io.read_profile(path)
    return [line.removeprefix(f"{path}: ") for line in str(caught.value).splitlines()]


def write(path: Path, table: pa.Table, schema: str = "pliant.profile/1") -> Path:
    pq.write_table(table.replace_schema_metadata({"schema": schema}), path)
    return path


def whole() -> pa.Table:
    return pa.Table.from_pydict(to_columns([ROW], PROFILE), schema=PROFILE.arrow())


def test_a_truncated_file_is_told_as_such_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    io.write_profile(Profile((ROW,)), path)
    data = path.read_bytes()
    for length in range(4, len(data), 97):
        path.write_bytes(data[:length])
        assert problems_of_file(path) == ["the Parquet file is truncated (no footer), expected a whole file"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"PAR1" + bytes(64) + b"PAR1", "the Parquet file is damaged: "),
        (b"kind,model\n", "is not a Parquet file, expected a 'profile' file (Parquet)"),
    ],
)
def test_a_file_that_is_damaged_or_another_one_is_one_line(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "profile.parquet"
    path.write_bytes(data)
    (line,) = problems_of_file(path)
    assert line.startswith(problem)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (None, "metadata is missing, expected 'pliant.profile/1'"),
        ("pliant.profile/2", "major version 2 of 'profile' is unknown, this pliant reads version 1"),
        ("pliant.event/1", "this is an 'event' file, expected a 'profile' file ('pliant.profile/1')"),
    ],
)
def test_a_table_of_another_schema_is_refused(tmp_path: Path, schema: str | None, problem: str) -> None:
    table = whole().replace_schema_metadata(None if schema is None else {"schema": schema})
    pq.write_table(table, tmp_path / "p")
    assert problems_of_file(tmp_path / "p") == [f"/schema: {problem}"]


def test_missing_unknown_repeated_and_wrong_columns_are_named(tmp_path: Path) -> None:
    table = whole().drop_columns(["gpus", "source"]).append_column("colour", [["red"]])
    assert problems_of_file(write(tmp_path / "p", table)) == [
        "/gpus: column is missing, expected int64",
        "/source: column is missing, expected string",
        "/colour: is not a column that this version knows",
    ]
    table = whole().append_column("gpus", [[6]])
    assert problems_of_file(write(tmp_path / "p", table)) == ["/gpus: column is there twice"]
    table = whole().set_column(PROFILE.names.index("gpus"), "gpus", [["six"]])
    assert problems_of_file(write(tmp_path / "p", table)) == ["/gpus: column is string, expected int64"]


def test_columns_of_other_minor_versions_are_filled_or_not_read(tmp_path, caplog) -> None:
    older = write(tmp_path / "older", whole().drop_columns(["node_order"]))
    assert io.read_profile(older).rows == (ROW,)
    assert caplog.text == ""
    newer = write(tmp_path / "newer", whole().append_column("colour", [["red"]]), "pliant.profile/1.2")
    assert io.read_profile(newer).rows == (ROW,)
    assert "fields left out: /colour" in caplog.text


def test_rows_nodes_and_types_of_a_file_are_checked_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    linked = replace(ROW, node_order="2,4")
    io.write_profile(Profile((linked,)), path)
    assert io.read_profile(path).rows == (linked,)
    assert problems_of_columns(node_order=["4,3"]) == [
        'profile: row 1: /node_order: "4,3" does not fit, expected the nodes of placement "4,2" in any order, or null'
    ]
    # Narrower types that hold the same values are read.
    table = whole()
    for name, kind in (("gpus", pa.int8()), ("model", pa.large_string()), ("step_seconds", pa.float32())):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(name).cast(kind))
    encoded = table.column("kind").dictionary_encode()
    table = table.set_column(0, "kind", encoded)
    assert io.read_profile(write(tmp_path / "p", table)).rows == (ROW,)
    # Rows in a file are checked and counted from one.
    two = pa.concat_tables([whole(), whole()])
    at = PROFILE.names.index("step_seconds")
    table = two.set_column(at, "step_seconds", [[0.5, float("nan")]])
    assert problems_of_file(write(tmp_path / "p", table)) == [
        "row 2: /step_seconds: NaN is not allowed, expected a finite number"
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": [None]}, "/model: null has the wrong type, expected a string"),
        ({"gpus": [2.0]}, "/gpus: 2.0 has the wrong type, expected an integer"),
        ({"nodes": [0]}, "/nodes: 0 is below 1, expected 1 or more"),
        ({"iterations": [2**63]}, "/iterations: 9223372036854775808 is not below 9,223,372,036,854,775,808, expected less than 9,223,372,036,854,775,808"),
        ({"step_seconds": [float("inf")]}, "/step_seconds: Infinity is not allowed, expected a finite number"),
        ({"step_seconds": [-1.0]}, "/step_seconds: -1.0 is below 0, expected 0 or more"),
        ({"step_seconds": [None]}, "/step_seconds: is null in a feasible row, expected a number"),
        ({"step_seconds": [0.0]}, "/step_seconds: 0.0 is not above 0, expected more than 0 in a training row"),
        ({"local_batch": [0]}, "/local_batch: 0 is below 1, expected 1 or more in a training row"),
        ({"samples_per_second": [9.6]}, "/samples_per_second: 9.6 contradicts the row, expected 96 (gpus × local_batch × accum_steps / step_seconds)"),
        ({"kind": ["test"]}, "/kind: \"test\" is unknown, expected 'train', 'allreduce' or 'pair'"),
        ({"placement": ["2,4"]}, '/placement: "2,4" does not fit, expected 6 GPUs on 2 nodes, largest first, like "4,2"'),
        ({"placement": ["6"]}, '/placement: "6" does not fit, expected 6 GPUs on 2 nodes, largest first, like "4,2"'),
        ({"placement": [""]}, '/placement: "" does not fit, expected 6 GPUs on 2 nodes, largest first, like "4,2"'),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_row(changes: dict[str, list[Any]], expected: str) -> None:
    assert problems_of_columns(**changes) == [f"profile: row 1: {expected}"]


def test_missing_values_uneven_columns_and_order_of_metadata(tmp_path: Path) -> None:
    failed = replace(ROW, feasible=False, step_seconds=None, samples_per_second=None)
    assert io.profile_from_columns(io.profile_to_columns([failed])) == (failed,)
    assert problems_of_columns(feasible=[False]) == [
        "profile: row 1: /step_seconds: is 0.5 in a row that is not feasible, expected null",
        "profile: row 1: /samples_per_second: is 96.0 in a row that is not feasible, expected null",
    ]
    # Columns of different lengths are refused.
    assert problems_of_columns(gpus=[]) == ["profile: /gpus: has 0 rows, expected 1 as in the others"]
    profile = Profile((ROW,), (("torch", "2"), ("host", "é"), ("command", "")))
    io.write_profile(profile, tmp_path / "p")
    assert io.read_profile(tmp_path / "p") == profile
    assert pq.read_schema(tmp_path / "p").metadata[b"schema"] == b"pliant.profile/1"


COUNTS_THREADS = """
import os, sys
import pyarrow.parquet
from pliant.schemas import io
before = len(os.listdir("/proc/self/task"))
io.read_profile(sys.argv[1])
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs a kernel that lists threads")
def test_a_small_file_is_read_without_threads(tmp_path: Path) -> None:
    io.write_profile(Profile((ROW,)), tmp_path / "p.parquet")
    command = [sys.executable, "-c", COUNTS_THREADS, str(tmp_path / "p.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


@dataclass(frozen=True, slots=True)
class Sighting:
    bird: Annotated[str, About("its name")]
    size: Annotated[Literal["small", "large"] | None, About("as seen")]
    count: Annotated[int, About("how many", least=1)] = 1
    nests: Annotated[tuple[tuple[str, int], ...] | None, About("[[place, nests], …]", added=True)] = None
    more: Annotated[Mapping[str, Any] | None, About("free")] = None


SIGHTING = TableKind("sighting", Sighting, first=("count",))


def test_columns_types_words_and_nulls_are_those_of_the_fields() -> None:
    types = {column.name: (column.type, column.nullable) for column in SIGHTING.columns}
    assert list(types) == ["count", "bird", "size", "nests", "more"]
    assert list(types.values()) == [
        *(("int64", False), ("string", False)),
        *(("string", True), ("json", True), ("json", True)),
    ]
    (size,) = (column for column in SIGHTING.columns if column.name == "size")
    assert size.words == ("small", "large")
    schema = SIGHTING.arrow()
    assert schema.metadata == {b"schema": b"pliant.sighting/1"}
    assert [field.type for field in schema] == [pa.int64(), *[pa.string()] * 4], "JSON stays text"


VALUES = (st.integers() | st.text() | st.none(), st.booleans() | st.just(1), st.floats() | st.just(1.0))
COLUMNS = st.dictionaries(
    st.text(),
    st.one_of(
        *(st.lists(values) for values in VALUES),
        st.lists(st.floats(1e-4, 1e16, exclude_max=True)),
        st.builds(lambda value, times: [value] * times, st.one_of(*VALUES), st.integers(0, 4)),
        st.lists(st.lists(st.booleans() | st.just(1), max_size=1)),
    ),
    max_size=4,
)


def plainly(columns: dict[str, list[Any]]) -> str:
    return hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()


@given(st.lists(st.none() | st.text("[{,é")), st.data())
def test_texts_weigh_the_same_in_dictionaries(texts: list[str | None], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(texts)))
    column = text_array(texts).slice(first)
    result = [TextWeight(), TextWeight()]
    for weight, block in zip(result, (column, column.dictionary_encode()), strict=True):
        weight.add(pa.record_batch([block], names=["text"]))
    assert result[0] == result[1]
    assert result[0].text_bytes == len("".join(text or "" for text in texts[first:]).encode())


@given(COLUMNS)
def test_the_hash_of_columns_is_that_of_their_json(columns: dict[str, list[Any]]) -> None:
    assert columns_hash(columns) == plainly(columns)


@pytest.mark.parametrize("edge", [1e-4, 1e16, 2.0**53, 1.0, 0.1])
def test_numbers_are_hashed_by_every_digit(edge: float) -> None:
    around = [edge, math.nextafter(edge, 0), math.nextafter(edge, math.inf), 3 * edge, edge / 3]
    assert columns_hash({"x": around}) == plainly({"x": around})
