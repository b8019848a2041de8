"""Nasty traces of all formats give the same in small blocks, through files, as at once; texts of columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pliant.schemas.file_io.parquet import text_array
from pliant.tools.replay.importers import conversion, job_lines
from pliant.tools.replay.importers.conversion import JobIds
from pliant.tools.replay.recorded import plain_seconds
from tests.tools.replay.importers.nasty import outcomes, traces

SECONDS = st.floats(0, 1e17) | st.floats(0, 1e5) | st.integers(0, 10**6).map(lambda ms: ms / 2000)


@pytest.mark.parametrize("seed", range(22, 33))
def test_small_blocks_give_what_a_whole_file_gives(seed: int, tmp_path: Path) -> None:
    for trace in traces(tmp_path, [seed]):
        small = replace(trace, bytes_of_a_block=300, in_memory=100)
        whole = replace(trace, bytes_of_a_block=1 << 21, in_memory=1 << 25)
        assert outcomes(small) == outcomes(whole)


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
        ids, used = JobIds(), set[str]()
        for column in columns:
            is_new = len(set(column)) == len(column) and used.isdisjoint(column)
            assert ids.take(text_array(column)) == is_new
            used |= set(column) if is_new else set()
    assert ids.new("a", lambda _: None) == ("a" if "a" not in used else "a-2")
