"""Times, sizes and dates as people type them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.quantities import read_duration, read_size, read_time
from pliant.schemas.text import did_you_mean


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        *(("30", 30), ("30s", 30), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), ("1w", 604800)),
        *(("1.5h", 5400), ("1h30m", 5400), ("250ms", 0.25), ("1e3", 1000), (" 2H ", 7200), ("0", 0)),
    ],
)
def test_a_time_has_units_and_a_plain_number_is_seconds(typed: str, seconds: float) -> None:
    assert read_duration(typed) == seconds


def test_a_plain_number_stays_in_hours_where_the_option_says_so() -> None:
    assert [read_duration(typed, "h") for typed in ("0.1", "90m", "2d")] == [0.1, 1.5, 48]


@pytest.mark.parametrize(
    "typed", ["", "x", "5x", "h", "-1", "-5m", "nan", "inf", "1e999", "5 m 3", "1,5h", "٣s"]
)
def test_anything_else_is_no_time(typed: str) -> None:
    with pytest.raises(ValueError, match="expected seconds, or a time like 30s, 5m, 2h or 1d"):
        read_duration(typed)


@given(st.text(max_size=20))
def test_no_text_is_read_as_a_negative_or_infinite_time(typed: str) -> None:
    with suppress(ValueError):
        assert 0 <= read_duration(typed) < inf


@pytest.mark.parametrize(
    ("typed", "result"),
    [("64GB", 64 * 10**9), ("64GiB", 64 << 30), ("1.5 MiB", 3 << 19), ("64kb", 64000), ("7", 7)],
)
def test_a_size_counts_in_thousands_or_with_an_i_in_1024s(typed: str, result: int) -> None:
    assert read_size(typed) == result


@pytest.mark.parametrize("typed", ["", "GB", "64G", "64XB", "-1", "1.5", "64 GB x", "nan"])
def test_a_size_without_a_clear_unit_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="expected bytes, or a size like 64GB or 64GiB"):
        read_size(typed)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_date_is_local_time_unless_it_has_an_offset() -> None:
    noon_utc = 1_772_366_400.0
    for typed in ("2026-03-01T13:00", "2026-03-01 13:00:00", "2026-03-01T12:00Z", "2026-03-01T07:00-05:00"):
        assert read_time(typed) == noon_utc
    assert read_time("2026-03-01") == noon_utc - 13 * 3600
    assert read_time("12.5") == 12.5


@pytest.mark.parametrize("typed", ["", "tomorrow", "2026-13-01", "-1", "nan", "inf", "0001-01-01"])
def test_anything_else_is_no_date(typed: str) -> None:
    with pytest.raises(ValueError, match="expected seconds, or a date like 2026-03-01"):
        read_time(typed)


def test_similar_names_are_suggested_and_never_more_than_three() -> None:
    known = ["fifo", "fifo-demands", "gavel", "gavel-ftf", "gavel-makespan", "gavel-x", "ares"]
    assert did_you_mean("aers", known) == 'did you mean "ares"?'
    assert did_you_mean("ARES", known) == 'did you mean "ares"?'
    assert did_you_mean("gav", known).count('"') == 2 * 3
    assert did_you_mean("zzz", known) == ""
    assert did_you_mean("demnds", known) == 'did you mean "fifo-demands"?', "a word of it is enough"


def test_short_names_and_numbers_suggest_no_others() -> None:
    assert did_you_mean("gpu", ["ares-goodput"]) == did_you_mean("best", ["max-bs"]) == ""
    assert did_you_mean("11", ["a-1", "a-2"]) == ""
