from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.text import (
    Column,
    between_text,
    cut_to_width,
    iso_time,
    one_line,
    rate_text,
    span_text,
    text_table,
    when_text,
    width_of,
    wrapped,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
widths = st.integers(20, 200)


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,:]\d+)*", text)


@given(texts)
def test_one_line_acts_on_no_terminal(text: str) -> None:
    assert one_line(text).isprintable()


def test_text_is_cut_between_words() -> None:
    assert cut_to_width("waits for 2 GPUs; 3 jobs are ahead", 20) == "waits for 2 GPUs; 3…"
    assert cut_to_width("waits for 2 GPUs", 16) == "waits for 2 GPUs"
    assert cut_to_width("experiment-123456789", 13) == "experiment-…"


@given(texts.map(one_line), widths)
def test_cut_text_fits_and_its_numbers_are_those_of_the_text(text: str, width: int) -> None:
    cut = cut_to_width(text, width)
    assert width_of(cut) <= width
    assert numbers(text)[: len(numbers(cut))] == numbers(cut)


def test_lines_are_broken_between_words() -> None:
    assert wrapped("one two three", 8, indent="  ") == ["one two", "  three"]
    assert wrapped("trace-aaaaaaaaaaaaaa-12345678", 22) == ["trace-aaaaaaaaaaaaaa-", "12345678"]
    assert wrapped("", 8) == [""]


@given(texts.map(one_line), widths)
def test_lines_fit_and_hold_all_of_the_text(text: str, width: int) -> None:
    lines = wrapped(text, width, indent="  ")
    if max(map(len, numbers(text)), default=0) < width - 2:
        assert max(map(width_of, lines)) <= width
        assert numbers(" ".join(lines)) == numbers(text)
    assert "".join("".join(lines).split()) == "".join(text.split())


COLUMNS = (Column("job"), Column("GPUs", 2, right=True), Column("progress", 3), Column("why", 1, least=10))
ROWS = (("resnet", "16", "30 %", "waits for 2 GPUs; 3 jobs are ahead"), ("b", "4", "100 %", ""))


def test_a_table_without_a_width_leaves_nothing_out() -> None:
    assert text_table(COLUMNS, ROWS) == (
        "job     GPUs  progress  why\n"
        "resnet    16  30 %      waits for 2 GPUs; 3 jobs are ahead\n"
        "b          4  100 %\n"
    )


def test_text_is_cut_before_a_column_is_left_out() -> None:
    assert text_table(COLUMNS, ROWS, 44).splitlines()[1] == "resnet    16  30 %      waits for 2 GPUs; 3…"


def test_columns_are_left_out_by_rank() -> None:
    assert text_table(COLUMNS, ROWS, 30).splitlines()[1] == "resnet    16  waits for 2…"
    assert text_table(COLUMNS, ROWS, 20).splitlines()[1] == "resnet  waits for 2…"
    assert text_table(COLUMNS, ROWS, 12).splitlines() == ["job", "resnet", "b"]


@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=5), widths)
def test_no_line_of_a_table_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = text_table(COLUMNS, rows, width).splitlines()
    assert len(lines) == 1 + len(rows)
    assert max(map(width_of, lines)) <= width


NOON_S = 1_764_590_400.0  # 2025-12-01 12:00 UTC


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (7200, "2 h"), (7500, "2 h 5 min"), (360_000, "4 d 4 h")],
)
def test_a_length_of_time_has_one_unit_or_two(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_a_time_today_is_given_from_now_and_by_the_local_clock(zone: str) -> None:
    clock = {"UTC": "12:03", "Asia/Kolkata": "17:33"}[zone]
    assert when_text(NOON_S + 180, NOON_S) == f"in 3 min ({clock})"
    assert when_text(NOON_S + 180, NOON_S + 360) == f"3 min ago ({clock})"


def test_a_time_on_another_day_has_its_date(zone: str) -> None:
    clock = {"UTC": "2025-12-02 06:00", "Asia/Kolkata": "2025-12-02 11:30"}[zone]
    assert when_text(NOON_S + 18 * 3600, NOON_S) == f"in 18 h ({clock})"


def test_a_time_of_a_trace_is_in_its_seconds() -> None:
    assert when_text(5400.0, 3600.0) == "in 30 min (at 5,400 s)"


def test_times_that_no_calendar_has_are_not_invented() -> None:
    assert when_text(1e300, NOON_S).endswith("(far ahead)")
    assert iso_time(1e300) is None
    assert iso_time(NOON_S + 0.25) == "2025-12-01T12:00:00.250Z"


def test_a_range_of_times_names_its_unit_once() -> None:
    assert between_text(NOON_S + 24 * 60, NOON_S + 47 * 60, NOON_S) == "in 24 to 47 min"
    assert between_text(NOON_S + 50 * 60, NOON_S + 70 * 60, NOON_S) == "in 50 min to 1 h 10 min"
    assert between_text(NOON_S + 40, NOON_S + 90, NOON_S) == "in 40 s to 2 min"
    assert between_text(NOON_S + 300, NOON_S + 310, NOON_S) == "in 5 min"


@pytest.mark.parametrize(
    ("value", "text"),
    [(44_561.3, "44,600"), (999.6, "1,000"), (99.96, "100"), (12.345, "12.3"), (0.012345, "0.0123")],
)
def test_a_rate_has_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert rate_text(value) == text
