import re
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.quantities import read_duration, read_size, read_time
from pliant.schemas.text import (
    Column,
    between_text,
    cut_to_width,
    did_you_mean,
    iso_time,
    one_line,
    rate_text,
    span_text,
    text_table,
    when_text,
    width_of,
    wrapped,
)


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        *(("30", 30), ("30s", 30), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), ("1w", 604800)),
        *(("1.5h", 5400), ("1h30m", 5400), ("250ms", 0.25), ("1e3", 1000), (" 2H ", 7200), ("0", 0)),
        *(("1:30:00", 5400), ("2-00:00:05", 172805)),
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
    [("64GB", 64 * 10**9), ("64GiB", 64 << 30), ("64Gi", 64 << 30), ("1.5 MiB", 3 << 19), ("7", 7)],
)
def test_a_size_counts_in_thousands_or_with_an_i_in_1024s(typed: str, result: int) -> None:
    assert read_size(typed) == result


@pytest.mark.parametrize("typed", ["", "GB", "64G", "64XB", "-1", "1.5", "64 GB x", "nan"])
def test_a_size_without_a_clear_unit_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="expected bytes, or a size like 64GB or 64GiB"):
        read_size(typed)


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("zone", ["CET-1"], indirect=True)
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


def test_similar_names_are_suggested_for_long_words() -> None:
    known = ["fifo", "fifo-demands", "gavel", "gavel-ftf", "gavel-makespan", "gavel-x", "ares"]
    assert did_you_mean("aers", known) == 'did you mean "ares"?'
    assert did_you_mean("ARES", known) == 'did you mean "ares"?'
    assert did_you_mean("gav", known).count('"') == 2 * 3
    assert did_you_mean("zzz", known) == ""
    assert did_you_mean("demnds", known) == 'did you mean "fifo-demands"?', "a word of it is enough"
    # Short names and numbers suggest no others.
    assert did_you_mean("gpu", ["ares-goodput"]) == did_you_mean("best", ["max-bs"]) == ""
    assert did_you_mean("11", ["a-1", "a-2"]) == ""


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


def test_text_and_columns_are_cut_to_a_width() -> None:
    assert text_table(COLUMNS, ROWS) == (
        "job     GPUs  progress  why\n"
        "resnet    16  30 %      waits for 2 GPUs; 3 jobs are ahead\n"
        "b          4  100 %\n"
    )
    # Text is cut first then columns are left out by rank.
    rows = {width: text_table(COLUMNS, ROWS, width).splitlines() for width in (44, 30, 20, 12)}
    assert rows[44][1] == "resnet    16  30 %      waits for 2 GPUs; 3…"
    assert rows[30][1] == "resnet    16  waits for 2…"
    assert rows[20][1] == "resnet  waits for 2…"
    assert rows[12] == ["job", "resnet", "b"]


@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=5), widths)
def test_no_line_of_a_table_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = text_table(COLUMNS, rows, width).splitlines()
    assert len(lines) == 1 + len(rows)
    assert max(map(width_of, lines)) <= width


NOON_S = 1_764_590_400.0  # 2025-12-01 12:00 UTC


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (7200, "2 h"), (7500, "2 h 5 min"), (360_000, "4 d 4 h")],
)
def test_a_length_of_time_has_one_unit_or_two(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"], indirect=True)
def test_a_time_is_given_from_now_and_by_the_local_clock(zone: str) -> None:
    today, tomorrow = {"UTC": ("12:03", "2025-12-02 06:00"), "Asia/Kolkata": ("17:33", "2025-12-02 11:30")}[
        zone
    ]
    assert when_text(NOON_S + 180, NOON_S) == f"in 3 min ({today})"
    assert when_text(NOON_S + 180, NOON_S + 360) == f"3 min ago ({today})"
    assert when_text(NOON_S + 18 * 3600, NOON_S) == f"in 18 h ({tomorrow})"
    assert when_text(5400.0, 3600.0) == "in 30 min (at 5,400 s)", "a time of a trace"


def test_odd_times_and_ranges_of_times() -> None:
    assert when_text(1e300, NOON_S).endswith("(far ahead)")
    assert iso_time(1e300) is None
    assert iso_time(NOON_S + 0.25) == "2025-12-01T12:00:00.250Z"
    # A range of times names its unit once.
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
