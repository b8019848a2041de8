"""Traces read in columns: what rows read one by one would give, whatever the size of a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.parquet import text_array
from pliant.tools.replay.importers import job_lines, reading
from pliant.tools.replay.importers import run as importing
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn
from pliant.tools.replay.importers.conversion import Conversion, ImportSummary, InputRow, MalformedRowError
from pliant.tools.replay.importers.job_lines import check_rows, executed_jobs
from pliant.tools.replay.importers.run import import_trace
from tests.tools.replay.importers.importing import text

GOLDEN = Path(__file__).parents[1] / "golden" / "importers"
MAPPINGS = {"csv": "id=jobid,submit=queued,start=started,end=ended,gpus=cards,user=who,zone=+08:00"}
"""By format of the golden files; they hold quotes, line breaks, ids that are there twice, other alphabets,
values of all forms and rows of other lengths.
"""
_ODD = (
    "None nUll n/a 0 7 7.5 1e5 1e999 -1 -0 +3 nan -nan inf 1_000 0x10 5. .5 \u0663 x 99999999999999999999999 "
    "2017-10-09T07:01:55Z 2017-10-09 20171009 1500000000.25"
)
FIELDS = st.text(max_size=5) | st.sampled_from(
    [
        *_ODD.split(),
        *("", " ", " 7", "\x1c7", "\u00a0", "2017-10-09 07:01:55", "2017-10-09 07:01:55+08:00"),
        *("2017-02-30 00:00:00", "0000-01-01", "0001-01-01 00:00:00", "1969-12-31 23:59:59.5"),
        "9999-12-31 23:59:59.999999",
    ]
)
READERS = (
    "optional_text",
    "text",
    "optional_number",
    "number",
    "count",
    "positive_count",
    "optional_timestamp",
)


def block_of(fields: list[str]) -> RowBlock:
    lines = np.arange(2, len(fields) + 2)
    return RowBlock(Conversion(ImportSummary("test")), "jobs.csv", lines, {"field": text_array(fields)})


def one_by_one(fields: list[str], reader: str) -> list[object]:
    """Values, or what is wrong with them."""
    found: list[object] = []
    for field in fields:
        try:
            found.append(getattr(InputRow("jobs.csv", 2, {"field": field}), reader)("field"))
        except MalformedRowError as error:
            found.append(error.message)
    return found


@pytest.mark.parametrize("reader", READERS)
@given(st.lists(FIELDS, min_size=1, max_size=12))
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


@pytest.mark.parametrize("kind", ["helios", "csv"])
@pytest.mark.parametrize("bytes_of_a_block", [1, 70, 1 << 20])
def test_nasty_files_give_the_bytes_that_rows_one_by_one_gave(
    kind: str, bytes_of_a_block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CSV_BLOCK", bytes_of_a_block)
    monkeypatch.setattr(reading, "_RECORDS", max(1, bytes_of_a_block // 70))
    monkeypatch.setattr(importing, "_IN_MEMORY", 50 * bytes_of_a_block)
    monkeypatch.chdir(GOLDEN)
    out = tmp_path / "jobs.jsonl"
    summary = import_trace(kind, [f"{kind}.csv"], str(out), lenient=True, mapping=MAPPINGS.get(kind))
    assert out.read_bytes() == (GOLDEN / f"{kind}.jsonl").read_bytes()
    assert "".join(f"{line}\n" for line in summary.lines()) == (GOLDEN / f"{kind}.txt").read_text()
    with pytest.raises(BadInputError) as caught:
        import_trace(kind, [f"{kind}.csv"], str(out), mapping=MAPPINGS.get(kind))
    wrong = "".join(f"{problem}\n" for problem in caught.value.problems)
    assert wrong == (GOLDEN / f"{kind}.errors.txt").read_text()


def test_one_job_of_each_shape_is_checked_against_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 jobs, of which some have users: two shapes."""
    checked: list[int] = []
    check: Callable[[Any, int], None] = job_lines._check_line
    monkeypatch.setattr(job_lines, "_check_line", lambda jobs, row: (checked.append(row), check(jobs, row)))
    block = block_of([f"j{number}" for number in range(1000)])
    ones = np.ones(1000)
    user = WordColumn(["", "ada", "eve"], np.array([0, 1, 2, 0] * 250))
    jobs = executed_jobs(block, block.ids("field"), ones, ones, ones, labels={"trace": "test"}, user=user)
    assert (len(jobs), len(checked)) == (1000, 2)


def test_a_line_that_the_schema_writes_otherwise_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lines, "_number_texts", lambda values: ["1"])
    block = block_of(["a"])
    one = np.ones(1)
    with pytest.raises(AssertionError, match="which the schema writes as"):
        executed_jobs(block, block.ids("field"), one, one, one, labels={"trace": "test"})


def test_a_limit_of_columns_that_the_schema_does_not_have_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"jobs.csv:2: the schema takes what columns do not"):
        check_rows(block_of(["a"]), np.zeros(1, dtype=bool), lambda _row: None)  # type: ignore[arg-type,return-value]


def test_only_blocks_of_a_long_file_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ten times as long takes no more memory at a time for its columns."""
    import pyarrow as pa

    monkeypatch.setattr(reading, "_CSV_BLOCK", 1 << 14)
    monkeypatch.setattr(importing, "_IN_MEMORY", 1 << 14)
    peaks = []
    for rows in (2_000, 20_000):
        path = text(tmp_path, "jobs.csv", "id,t,d,g", *(f"{n},{n},9,1" for n in range(rows)))
        before, most = pa.total_allocated_bytes(), 0
        for block in reading.csv_blocks(path, Conversion(ImportSummary("test")), ("id",)):
            most = max(most, pa.total_allocated_bytes() - before, len(block))
        peaks.append(most)
    assert peaks[1] < 2 * peaks[0]
