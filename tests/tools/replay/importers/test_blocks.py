"""Traces read in columns: what rows read one by one would give, whatever the size of a block."""

from __future__ import annotations

import gzip
import io as streams
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io import limits
from pliant.schemas.file_io.parquet import text_array
from pliant.tools.replay.importers import conversion, job_lines, reading, spool
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn
from pliant.tools.replay.importers.conversion import Conversion, ImportSummary
from pliant.tools.replay.importers.job_lines import check_rows, executed_jobs
from pliant.tools.replay.importers.reading import json_rows
from pliant.tools.replay.importers.run import import_trace
from pliant.tools.replay.recorded import plain_seconds
from tests.strategies import json_objects
from tests.tools.replay.importers.importing import TIRESIAS, problems, run, text

GOLDEN = Path(__file__).parents[1] / "golden" / "importers" / "csv"
"""Quotes, line breaks, ids that are there twice, other alphabets, values and rows of all forms."""
MAPPING = "id=jobid,submit=queued,start=started,end=ended,gpus=cards,user=who,zone=+08:00"
_ODD = (
    "None nUll n/a 0 7 7.5 1e5 1e999 -1 -0 +3 nan -nan inf 1_000 0x10 5. .5 \u0663 x 99999999999999999999999 "
    "2017-10-09T07:01:55Z 2017-10-09 20171009 1500000000.25"
)
_BLANKS = ("", " ", " 7", "\x1c7", "\u00a0", "2017-10-09 07:01:55", "2017-10-09 07:01:55+08:00", "0000-01-01")
_DATES = ("2017-02-30 00:00:00", "0001-01-01 00:00:00", "1969-12-31 23:59:59.5", "9999-12-31 23:59:59.999999")
FIELDS = st.text(max_size=5) | st.sampled_from([*_ODD.split(), *_BLANKS, *_DATES])
READERS = "optional_text text optional_number number count positive_count optional_timestamp"


def block_of(fields: list[str]) -> RowBlock:
    lines = np.arange(2, len(fields) + 2)
    return RowBlock(Conversion(ImportSummary("test")), "jobs.csv", lines, {"field": text_array(fields)})


def one_by_one(fields: list[str], reader: str) -> list[object]:
    """Values, or what is wrong with them."""
    found: list[object] = []
    for field in fields:
        try:
            found.append(getattr(conversion.InputRow("jobs.csv", 2, {"field": field}), reader)("field"))
        except conversion.MalformedRowError as error:
            found.append(error.message)
    return found


@pytest.mark.parametrize("reader", READERS.split())
@given(st.lists(FIELDS, min_size=1, max_size=12))
@example(["2017-02-30 00:00:00", "7"])
@example(["9" * 23, "1e999", "7"])
def test_a_column_is_read_as_its_rows_are(reader: str, fields: list[str]) -> None:
    block = block_of(fields)
    column = getattr(block, reader)("field")
    values = column.listed() if isinstance(column, WordColumn) else column.tolist()
    found = [
        value if live else block.problems[row][0].message
        for row, (value, live) in enumerate(zip(values, block.live.tolist(), strict=True))
    ]
    plain = [None if isinstance(value, float) and math.isnan(value) else value for value in found]
    assert plain == one_by_one(fields, reader)


@pytest.mark.parametrize("block", [1, 70, 1 << 20])
def test_odd_files_give_the_bytes_of_rows_read_one_by_one(block: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(reading, "_CSV_BLOCK", block)
    monkeypatch.setattr(reading, "_RECORDS", max(1, block // 70))
    monkeypatch.setattr(spool, "IN_MEMORY", 50 * block)
    monkeypatch.chdir(GOLDEN.parent)
    out = tmp_path / "jobs.jsonl"
    summary = import_trace("csv", ["csv.csv"], str(out), lenient=True, mapping=MAPPING)
    assert out.read_bytes() == GOLDEN.with_suffix(".jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in summary.lines()) == GOLDEN.with_suffix(".txt").read_text()
    with pytest.raises(BadInputError) as caught:
        import_trace("csv", ["csv.csv"], str(out), mapping=MAPPING)
    problems = "".join(f"{problem}\n" for problem in caught.value.problems)
    assert problems == GOLDEN.with_suffix(".errors.txt").read_text()


def test_one_job_of_each_shape_is_checked_against_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 jobs, of which some have users: two shapes."""
    checked: list[int] = []
    check: Callable[[Any, int], None] = job_lines._check_line
    monkeypatch.setattr(job_lines, "_check_line", lambda jobs, row: (checked.append(row), check(jobs, row)))
    block = block_of([f"j{number}" for number in range(1000)])
    ones = np.ones(1000)
    user = WordColumn(["", "ada", "eve"], np.array([0, 1, 2, 0] * 250))
    jobs = executed_jobs(
        block, RowIds(block).of("field"), ones, ones, ones, labels={"trace": "test"}, user=user
    )
    assert (len(jobs), len(checked)) == (1000, 2)


def test_what_columns_cannot_give_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lines, "_number_texts", lambda values: ["1"])
    block, one = block_of(["a"]), np.ones(1)
    with pytest.raises(AssertionError, match="which the schema writes as"):
        executed_jobs(block, RowIds(block).of("field"), one, one, one, labels={"trace": "test"})
    with pytest.raises(AssertionError, match=r"jobs.csv:2: the schema takes what columns do not"):
        check_rows(block_of(["a"]), np.zeros(1, dtype=bool), lambda _row: None)  # type: ignore[arg-type,return-value]


def test_only_blocks_of_a_long_file_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ten times as long takes no more memory at a time for its columns."""
    import pyarrow as pa

    monkeypatch.setattr(reading, "_CSV_BLOCK", 1 << 14)
    monkeypatch.setattr(spool, "IN_MEMORY", 1 << 14)
    peaks = []
    for rows in (2_000, 20_000):
        path = text(tmp_path, "jobs.csv", "id,t,d,g", *(f"{n},{n},9,1" for n in range(rows)))
        before, most = pa.total_allocated_bytes(), 0
        for block in reading.csv_blocks(path, Conversion(ImportSummary("test")), ("id",)):
            most = max(most, pa.total_allocated_bytes() - before, len(block))
        peaks.append(most)
    assert peaks[1] < 2 * peaks[0]


def rows_of(path: Path, block: int = reading.BLOCK) -> Iterator[conversion.InputRow]:
    return json_rows(path, Conversion(ImportSummary("test")), block=block)


@given(st.lists(json_objects, max_size=8), st.sampled_from([None, 1]), st.integers(1, 64))
def test_a_list_is_read_whatever_the_size_of_the_blocks(
    objects: list[dict[str, object]], indent: int | None, block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.json"
        path.write_text(json.dumps(objects, indent=indent) + "\n")
        assert [dict(record.values) for record in rows_of(path, block)] == objects


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_an_object_stands_on_the_line_on_which_it_begins(tmp_path: Path, block: int) -> None:
    path = tmp_path / "list.json"
    path.write_text('[\n{"a": 1},\n\n {"a":\n 2}\n, {"a": 3}]')
    assert [record.line for record in rows_of(path, block)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "list.json:1: found 'the end of the file', expected a JSON list"),
        ('{"a": 1}', "list.json:1: found '{', expected a JSON list"),
        ("[\n1]", "list.json:2: is not an object, expected the objects of one JSON list"),
        ('[{"a": 1}\n{"a": 2}]', "list.json:2: found '{', expected ',' or ']' after an object"),
        ('[{"a": 1},', "list.json:1: is not an object"),
        ('[{"a": 1},\n{"a": ]', "list.json:2: is not readable JSON: expecting value"),
        ('[{"a": 1}]\n[]', "list.json:2: there is text behind the list"),
    ],
)
def test_text_that_is_no_list_of_objects_is_named_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(BadInputError) as caught:
        list(rows_of(path))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)


def test_only_a_block_and_an_object_are_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "list.json"
    entry = json.dumps({"text": "x" * 500})
    path.write_text("[" + ",\n".join([entry] * 20_000) + "]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in rows_of(path)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert peak < 4_000_000


HEADER = f"{TIRESIAS}\n"
RAISED = "PLIANT_INPUT_LIMITS=10 in the environment makes all such limits ten times as large"


def packed(folder: Path, text: str) -> str:
    path = folder / "jobs.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return str(path)


@pytest.mark.parametrize("piped", [False, True])
def test_rows_without_end_in_a_small_file(tmp_path: Path, monkeypatch, piped: bool) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)
    path = packed(tmp_path, HEADER + "1,2,30,606,vgg19,164,30\n" * 200_000)
    stdin = streams.BufferedReader(streams.BytesIO(Path(path).read_bytes()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    (problem,) = problems(tmp_path, "tiresias", "-" if piped else path)
    assert re.search(r"expands too far: 1,[01]\d\d,\d{3} bytes", problem)  # it is read in blocks
    assert problem.endswith(f"; {RAISED}")


def test_a_packed_trace_of_usual_density_is_read_at_any_size(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    drawn = random.Random(0)
    rows = (f"{n},{drawn.choice((1, 2, 4))},{30 * n},6,vgg,{drawn.randrange(9999)},30\n" for n in range(3000))
    assert len(run(tmp_path, "tiresias", packed(tmp_path, HEADER + "".join(rows))).jobs) == 3000


def test_texts_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, HEADER + "1" * (limits.LONGEST_TEXT + 1))
    (problem,) = problems(tmp_path, "tiresias", path)
    assert problem == f"jobs.csv.gz: holds a text of more than 16,777,216 characters; {RAISED}"
    monkeypatch.setattr(limits, "LONGEST_TEXT", 1 << 20)
    (problem,) = problems(tmp_path, "philly", packed(tmp_path, '[{"jobid": "' + "j" * (1 << 22) + '"}]'))
    assert "1: holds a text of more than 1,048,576 characters" in problem


SECONDS = st.floats(0, 1e17) | st.floats(0, 1e5) | st.integers(0, 10**6).map(lambda ms: ms / 2000)


@given(st.lists(SECONDS | st.sampled_from([-0.0, 1e-4, 9e-5, 1e10, 1e15, 5e-324]), max_size=6))
def test_numbers_are_written_as_json_has_them(values: list[float]) -> None:
    texts = job_lines.lines_of([None, "\n"], np.array(values, dtype=float)).to_pylist()
    assert texts == [f"{value!r}\n" for value in values]


@given(st.lists(SECONDS, min_size=1, max_size=6))
@example([0.0005, 0.25, 2.0])
@example([0.0015, 1e9])
def test_seconds_are_rounded_as_those_of_single_jobs(values: list[float]) -> None:
    found = job_lines._seconds(np.array(values))
    assert [str(text) for text in found.to_pylist()] == list(map(plain_seconds, values))


@pytest.mark.parametrize("collide", [False, True])
@given(st.lists(st.lists(st.text("ab7._-", min_size=1, max_size=20), max_size=6), max_size=6))
def test_columns_of_ids_are_used_once(collide: bool, columns: list[list[str]]) -> None:
    """Texts whose hashes are alike are not taken for the same."""
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(conversion, "_MIXER", np.uint64(0))
        ids, used = conversion.JobIds(), set[str]()
        for column in columns:
            is_new = len(set(column)) == len(column) and used.isdisjoint(column)
            assert ids.take(text_array(column)) == is_new
            used |= set(column) if is_new else set()
    assert ids.new("a", lambda _: None) == ("a" if "a" not in used else "a-2")
