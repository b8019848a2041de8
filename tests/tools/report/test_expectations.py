from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from pliant.schemas.errors import BadInputError, JobsFailedError
from pliant.tools.report.expectations import (
    Expectation,
    Expectations,
    check_expectations,
    expectations_section,
    read_expectations,
    refuse_missed,
)
from pliant.tools.report.read_run import fold
from pliant.tools.report.report import make_report
from tests.tools.report.runs import first_come, shared


@pytest.fixture(scope="module")
def report():
    return make_report([fold(first_come()), fold(shared())])


def checked(report, **figure):
    figures = {"policy": "fifo", "metric": "mean_jct_s", "value": 175.0, **figure}
    return check_expectations(report, Expectations.model_validate_json(json.dumps({"figures": [figures]})))


# fifo: a takes 120, b 230; the mean is 175.
@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        ({"tolerance": 0}, True),
        ({"metric": "jobs_finished", "value": 2, "tolerance": 0}, True),
        ({"value": 200.0, "tolerance": 0.05}, False),
        ({"metric": "mean_decision_ms", "low": 0}, False),
    ],
)
def test_a_figure_out_of_its_range_fails(report, figure, holds):
    found = checked(report, **figure)
    assert found[0].holds is holds
    failure = pytest.raises(JobsFailedError, match="1 of 1 figures are out of range: fifo")
    with nullcontext() if holds else failure:
        refuse_missed(found)


@pytest.mark.parametrize(
    ("limits", "holds", "shown"),
    [
        ({"low": 170.0}, True, "at least 170"),
        ({"high": 170.0}, False, "at most 170"),
        ({"low": 100.0, "high": 200.0}, True, "100 to 200"),
    ],
)
def test_a_limit_may_stand_without_a_published_figure(report, limits, holds, shown):
    text = json.dumps({"figures": [{"policy": "fifo", "metric": "mean_jct_s", **limits}]})
    found = check_expectations(report, Expectations.model_validate_json(text))
    assert found[0].holds is holds
    row = expectations_section(found).rows[0]
    assert row[4:] == ("–", "175", "–", shown)


def test_a_figure_may_be_the_ratio_of_two_runs(report):
    # ares: a 214, b 186, c 62; the mean is 154.
    found = checked(report, policy="ares", over="fifo", value=0.9, tolerance=0.03)[0]
    assert (found.found, found.holds) == (pytest.approx(154 / 175), True)
    assert found.deviation == pytest.approx((154 / 175 - 0.9) / 0.9)


def test_both_figures_are_shown_with_the_deviation(report):
    row = expectations_section(checked(report, value=200.0, tolerance=0.05, source="table 2")).rows[0]
    expected = ("fifo", "mean_jct_s", "table 2", "OUT OF RANGE", "200", "175", "-12.5", "190 to 210")
    assert row == expected


def test_an_expected_run_that_is_not_there(report):
    with pytest.raises(BadInputError, match='/figures/0: "las" is not a run'):
        checked(report, policy="las", tolerance=0.1)


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ({"metric": "speed"}, '/figures/0/metric: "speed" is not a figure of a report'),
        ({"metric": "policy"}, '/figures/0/metric: "policy" is not a figure of a report'),
        ({}, "/figures/0/tolerance: expected either tolerance, or low and high (one of them is enough)"),
        ({"tolerance": 0.1, "low": 1}, "/figures/0/tolerance: expected either tolerance, or low and high"),
        ({"low": 2, "high": 1}, "/figures/0/high: 1 is below low 2"),
        ({"value": None, "tolerance": 0.1}, "/figures/0/value: is missing, expected the figure that tol"),
        ({"tolerance": -0.1}, "/figures/0/tolerance: -0.1 is below 0, expected 0 or more"),
        ({"tolerance": 0.1, "colour": 1}, "/figures/0/colour: is not a field that this version knows"),
    ],
)
def test_expectations_that_make_no_sense(tmp_path, figure, problem):
    path = tmp_path / "expect.json"
    if "metric" in figure:
        figure = {**figure, "tolerance": 0.1}
    path.write_text(json.dumps({"figures": [{"policy": "a", "metric": "mean_jct_s", "value": 1, **figure}]}))
    with pytest.raises(BadInputError) as caught:
        read_expectations(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("text", "problem"), [('{"figures": []}', r"/figures: .* at least 1 item"), ("{", r"expect\.json")]
)
def test_a_file_without_figures(tmp_path, text, problem):
    path = tmp_path / "expect.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=problem):
        read_expectations(path)


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
