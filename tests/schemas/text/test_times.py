from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pliant.schemas.text import between_text, iso_time, span_text, when_text

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
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60.0, "1 min"),
        (7200.0, "2 h"),
        (7500.0, "2 h 5 min"),
        (100 * 3600.0, "4 d 4 h"),
    ],
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


def test_a_time_that_is_not_known_exactly_names_its_unit_once_where_it_can() -> None:
    assert between_text(NOON_S + 24 * 60, NOON_S + 47 * 60, NOON_S) == "in 24 to 47 min"
    assert between_text(NOON_S + 50 * 60, NOON_S + 70 * 60, NOON_S) == "in 50 min to 1 h 10 min"
    assert between_text(NOON_S + 40, NOON_S + 90, NOON_S) == "in 40 s to 2 min"
    assert between_text(NOON_S + 300, NOON_S + 310, NOON_S) == "in 5 min"
