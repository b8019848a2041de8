import json
from xml.etree import ElementTree as ET

import pytest

from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.metrics import RUN_METRICS
from pliant.tools.report import expectations
from pliant.tools.report.expectations import Expectation, Expectations, check_expectations, refuse_missed
from pliant.tools.report.read_run import fold
from pliant.tools.report.report import make_report
from tests.builders import job
from tests.tools.report.runs import begin, first_come, shared, submit


@pytest.fixture(scope="module")
def report():
    return make_report([fold(first_come()), fold(shared())])


RATIO = {"policy": "ares", "over": "fifo"}


def stated(*figures):
    """Expectations of these figures, by default of the mean JCT of fifo, which is 175."""
    rows = [{"policy": "fifo", "metric": "mean_jct_s", **figure} for figure in figures]
    return Expectations.model_validate_json(json.dumps({"figures": rows}))


def checked(report, **figure):
    return check_expectations(report, stated({"value": 175.0, **figure}))


def problem_of(tmp_path, text):
    path = tmp_path / "expect.json"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        expectations.read_expectations(path)
    (problem,) = caught.value.problems
    return str(problem).removeprefix(f"{path}: ")


# fifo: a takes 120, b 230; the mean is 175.
@pytest.mark.parametrize(
    ("limits", "holds", "shown"),
    [
        ({"low": 180.0}, False, "at least 180"),
        ({"min": 100.0, "high": 200.0}, True, "100 to 200"),
    ],
)
def test_a_limit_may_stand_without_a_published_figure(report, limits, holds, shown):
    found = check_expectations(report, stated(limits))
    assert found[0].holds is holds
    assert expectations.expectations_section(found).rows[0][-4:] == ("–", "175", "–", shown)


def test_the_table_shows_figure_deviation_and_source(report):
    section = expectations.expectations_section(checked(report, value=200.0, tolerance=0.05))
    assert section.headers == ("run", "figure", "", "expected", "found", "deviation, %", "range")
    row = ("fifo", "mean_jct_s", "OUT OF RANGE", "200", "175", "-12.5", "190 to 210")
    assert section.rows == (row,)
    assert section.headers[section.text_columns] == "expected"
    named = expectations.expectations_section(checked(report, value=200.0, tolerance=0.05, source="table 2"))
    assert named.rows == ((*row[:2], "table 2", *row[2:]),)
    refuse_missed(checked(report, tolerance=0))
    refuse_missed(checked(report, metric="jobs_finished", value=2, tolerance=0))
    # ares: a 214, b 186, c 62; the mean is 154.
    found = checked(report, policy="ares", over="fifo", value=0.9, tolerance=0.03)[0]
    assert (found.found, found.holds) == (pytest.approx(154 / 175), True)
    assert found.deviation == pytest.approx((154 / 175 - 0.9) / 0.9)
    with pytest.raises(BadInputError, match='/figures/0: "las" is not a run'):
        checked(report, policy="las", tolerance=0.1)
    # Only so many misses are listed.
    with pytest.raises(JobsFailedError) as caught:
        refuse_missed(check_expectations(report, stated(*({"max": each} for each in range(25)))))
    assert len(str(caught.value).splitlines()) == 22
    assert str(caught.value).endswith("max 19 (lower is better)\n… and 5 more")


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ({"metric": "speed"}, '/figures/0/metric: "speed" is not a figure of a report'),
        ({"metric": "policy"}, '/figures/0/metric: "policy" is not a figure of a report'),
        ({}, "/figures/0/tolerance: expected max, min or both, or else tolerance"),
        ({"tolerance": 0.1, "low": 1}, "/figures/0/tolerance: expected max, min or both, or else tolerance"),
        ({"low": 2, "high": 1}, "/figures/0/high: 1 is below low 2"),
        ({"min": 2, "max": 1}, "/figures/0/max: 1 is below min 2"),
        ({"max": 2, "high": 2}, "/figures/0/high: is the older name of max, expected one of them"),
        ({"value": None, "tolerance": 0.1}, "/figures/0/value: is missing, expected the figure that tol"),
        ({"tolerance": -0.1}, "/figures/0/tolerance: -0.1 is below 0, expected 0 or more"),
        ({"tolerance": 0.1, "colour": 1}, "/figures/0/colour: is not a field that this version knows"),
    ],
)
def test_expectations_that_make_no_sense(tmp_path, figure, problem):
    if "metric" in figure:
        figure = {**figure, "tolerance": 0.1}
    figure = {"policy": "a", "metric": "mean_jct_s", "value": 1, **figure}
    assert problem_of(tmp_path, json.dumps({"figures": [figure]})).startswith(problem)
    assert "at least 1 item" in problem_of(tmp_path, '{"figures": []}')
    assert problem_of(tmp_path, "{")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mean_jct", '; did you mean "mean_jct_s"?'),
        ("JCT, mean", '; did you mean "mean_jct_s"?'),
        ("Makespan", '; did you mean "makespan_s"?'),
        ("jct", '; did you mean "mean_jct_s" or "median_jct_s" or "p90_jct_s"?'),
        ("queueing", '; did you mean "mean_queueing_delay_s"?'),
        ("glamour", "; docs/schemas.md lists them (ReportedRun)"),
    ],
)
def test_an_unknown_figure_suggests_the_nearest(tmp_path, name, meant):
    text = json.dumps({"figures": [{"policy": "a", "metric": name, "max": 1}]})
    assert problem_of(tmp_path, text).endswith(f'"{name}" is not a figure of a report{meant}')


# The mean JCT of fifo is 175.
@pytest.mark.parametrize(
    ("figure", "line"),
    [
        ({"max": 170}, "fifo mean_jct_s is 175, above max 170 (lower is better)"),
        (
            {"value": 210.0, "tolerance": 0.1},
            "fifo mean_jct_s is 175, below min 189 (lower is better, to accept it give max alone)",
        ),
        ({"metric": "jobs_finished", "min": 3}, "fifo jobs_finished is 2, below min 3 (higher is better)"),
        ({"metric": "utilization", "min": 2}, "fifo utilization is 0.75, below min 2"),
        ({"metric": "mean_decision_ms", "max": 5}, "fifo mean_decision_ms has no value, expected at most 5"),
        ({"max": 174.99999999}, "fifo mean_jct_s is 175.0, above max 174.99999999 (lower is better)"),
        (RATIO | {"max": 0.8}, "ares / fifo mean_jct_s is 0.88, above max 0.8 (lower is better)"),
    ],
)
def test_a_miss_says_figure_value_limit_and_direction(report, figure, line):
    with pytest.raises(JobsFailedError) as caught:
        refuse_missed(check_expectations(report, stated(figure)))
    assert str(caught.value).splitlines() == ["1 of 1 figures are out of range", line]


def test_written_expectations_hold_and_forbid_what_is_worse(report, tmp_path):
    path = tmp_path / "expected.json"
    path.write_bytes(expectations.expectations_bytes(expectations.expectations_of(report)))
    expected = expectations.read_expectations(path)
    assert all(each.holds for each in check_expectations(report, expected))
    by_name = {(each.policy, each.metric): each for each in expected.figures}
    jct, finished = by_name["fifo", "mean_jct_s"], by_name["fifo", "jobs_finished"]
    assert (jct.value, jct.max, jct.min, jct.tolerance) == (175.0, 183.8, None, None)
    assert (finished.value, finished.max, finished.min) == (2.0, None, 2.0)
    for each in expected.figures:
        assert (each.max is None) == (RUN_METRICS[each.metric].better == "higher"), each.metric
    assert '{"policy": "fifo", "metric": "jobs_finished", "value": 2, "min": 2}' in path.read_text()
    assert "trace abababababab, seed 0" in expected.source


def test_what_is_expected_is_a_figure_with_a_direction() -> None:
    live = make_report([fold(first_come(simulated=False))])
    assert {each.metric: each.max for each in expectations.expectations_of(live).figures}[
        "mean_jct_s"
    ] == 210.0
    with pytest.raises(UsageError, match="no job finished"):
        expectations.expectations_of(make_report([fold([begin(), submit(job())])]))
    beside = make_report([fold(first_come()), fold(shared())], baseline="fifo")
    (found,) = (each for each in expectations.expectations_of(beside).figures if each.over)
    ratio = (found.policy, found.over, found.metric, found.value, found.max)
    assert ratio == ("ares", "fifo", "mean_jct_s", 0.88, 0.924)
    assert all(metric.better for metric in RUN_METRICS.values() if metric.is_expected)


def test_junit_has_a_case_a_figure_and_a_failure_a_miss(report):
    expected = stated({"max": 180}, {"max": 170, "source": "<table> 2"}, RATIO | {"max": 1})
    suite = ET.fromstring(expectations.junit_bytes(check_expectations(report, expected)))[0]  # noqa: S314 - our own
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    named = [(case.get("classname"), case.get("name")) for case in suite]
    assert named == [("fifo", "mean_jct_s"), ("fifo", "mean_jct_s (2)"), ("ares", "mean_jct_s over fifo")]
    assert [case.find("failure") is None for case in suite] == [True, False, True]
    failure = suite[1].find("failure")
    assert failure.get("message") == "fifo mean_jct_s is 175, above max 170 (lower is better)"
    assert failure.text.endswith("from <table> 2")
    assert suite[0].findtext("system-out") == "fifo mean_jct_s is 175, at most 180"


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


def test_the_deviation_is_relative_and_ranges_have_limits() -> None:
    assert Expectation(2.0).deviation(1.0) == -0.5
    assert Expectation(-2.0).deviation(-1.0) == 0.5
    assert Expectation(2.0).deviation(None) is None
    assert Expectation(5e-324).deviation(1.0) is None, "it is more than a number can be"
    assert Expectation(low=1.0).deviation(1.0) is None
    assert Expectation.within(1e308, 10.0) == Expectation(1e308)
    assert Expectation.near(1e308, 10.0) == Expectation(1e308, low=1e307)
