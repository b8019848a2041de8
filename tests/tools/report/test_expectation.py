"""What counts as the figure that was expected."""

from __future__ import annotations

import pytest

from pliant.tools.report.expectations import Expectation


@pytest.mark.parametrize(
    ("expected", "found", "holds"),
    [
        (Expectation(), 1.0, True),
        (Expectation(), None, False),
        (Expectation(low=1.0), 1.0, True),
        (Expectation(low=1.0), 0.9, False),
        (Expectation(high=1.0), 1.1, False),
        (Expectation.within(10.0, 0.1), 11.0, True),
        (Expectation.within(10.0, 0.1), 11.1, False),
        (Expectation.within(-10.0, 0.1), -10.5, True),
        (Expectation.near(2.0, 1.5), 3.0, True),
        (Expectation.near(2.0, 1.5), 1.3, False),
        (Expectation.near(0.9, 1.5), 1.0, True),
        (Expectation.near(0.9, 1.5, is_ratio=True), 1.0, False),
        (Expectation.near(1.1, 1.5, is_ratio=True), 1.0, False),
        (Expectation.near(1.0, 1.5, is_ratio=True), 1.2, True),
    ],
)
def test_a_figure_holds_within_its_range(expected: Expectation, found: float | None, holds: bool) -> None:
    assert expected.holds(found) is holds


def test_the_deviation_is_relative_to_the_value() -> None:
    assert Expectation(2.0).deviation(1.0) == -0.5
    assert Expectation(-2.0).deviation(-1.0) == 0.5
    assert Expectation(2.0).deviation(None) is None
    assert Expectation(5e-324).deviation(1.0) is None, "it is more than a number can be"
    assert Expectation(low=1.0).deviation(1.0) is None


def test_a_range_wider_than_numbers_are_has_no_bounds() -> None:
    assert Expectation.within(1e308, 10.0) == Expectation(1e308)
    assert Expectation.near(1e308, 10.0) == Expectation(1e308, low=1e307)
