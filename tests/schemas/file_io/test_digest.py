"""The hash that logs keep of a profile stays what it was, however it is made."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.file_io.tables import columns_hash

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


@given(COLUMNS)
def test_it_is_that_of_the_columns_as_json(columns: dict[str, list[Any]]) -> None:
    assert columns_hash(columns) == plainly(columns)


@pytest.mark.parametrize("edge", [1e-4, 1e16, 2.0**53, 1.0, 0.1])
def test_numbers_around_those_that_are_written_in_another_way_count_by_every_digit(edge: float) -> None:
    around = [edge, math.nextafter(edge, 0), math.nextafter(edge, math.inf), 3 * edge, edge / 3]
    assert columns_hash({"x": around}) == plainly({"x": around})
