from __future__ import annotations

import json
from math import inf, nan

import pytest

from pliant.schemas.event import Event
from pliant.schemas.metrics import JobFigures, PairedJcts, RunMetrics
from pliant.tools.report.metrics import OF_JOBS, OF_RUNS, OF_TESTS, impossible
from pliant.tools.report.read_run import fold
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.report import make_report
from tests.builders import job
from tests.tools.report.runs import begin, submit


@pytest.mark.parametrize(
    ("record", "ranges"), [(RunMetrics, OF_RUNS), (JobFigures, OF_JOBS), (PairedJcts, OF_TESTS)]
)
def test_every_number_of_a_report_has_the_range_of_what_it_can_be(record, ranges):
    fields = record.model_json_schema()["properties"]
    kinds = {
        name: [each.get("type") for each in field.get("anyOf", [field])] for name, field in fields.items()
    }
    assert set(ranges) == {name for name, types in kinds.items() if {"number", "integer"} & set(types)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sjs_efficiency", 1166.51),
        ("sjs_efficiency", 0.0),
        ("unfair_fraction", 1.5),
        ("utilization", -0.1),
        ("mean_ftf", 0.0),
        ("mean_ftf", inf),
        ("mean_jct_s", nan),
        ("mean_jct_s", 101.0),  # of a run that was over after 100 s
        ("worst_ftf", 0.5),  # with a mean of 0.8
        ("jobs_on_time", 4),  # of three that finished
    ],
)
def test_a_value_that_cannot_be_is_found(name, value):
    figures = {"makespan_s": 100.0, "mean_ftf": 0.8, "jobs_finished": 3, name: value}
    assert name in impossible(figures, OF_RUNS)


def test_usual_values_rounding_and_what_is_missing_are_possible():
    usual = {"sjs_efficiency": 1.05, "utilization": 1 + 1e-12, "mean_ftf": None, "worst_ftf": 0.2}
    assert impossible({**usual, "mean_jct_s": 60.0, "worst_gps_delay_s": -65_457.0}, OF_RUNS) == ()


@pytest.mark.parametrize(
    ("figures", "wrong"),
    [
        ({"makespan_s": 0.0, "mean_jct_s": 0.0, "utilization": 0.0, "jobs_finished": 0}, ()),
        ({"makespan_s": 1e6, "mean_jct_s": 1e6 * (1 + 1e-12)}, ()),
        ({"makespan_s": 1e6, "mean_jct_s": 1e6 * (1 + 1e-8)}, ("mean_jct_s",)),
        ({"makespan_s": 1e-6, "mean_jct_s": 1.5e-6, "utilization": -1e-12}, ("mean_jct_s",)),
        ({"makespan_s": -1e-6}, ("makespan_s",)),
    ],
)
def test_rounding_is_relative_to_large_values_and_absolute_to_small_ones(figures, wrong):
    assert impossible(figures, OF_RUNS) == wrong


def test_a_job_that_waited_longer_than_it_took_cannot_be():
    assert impossible({"queueing_delay_s": 5.0, "jct_s": 4.0, "ftf": 0.5}, OF_JOBS) == ("jct_s",)


def test_a_report_withholds_what_cannot_be_and_says_so():
    """100 samples at one a second, done in a second by two slots of a cluster of one."""
    events = [submit(job("a"), 100.0), Event(0, "start", "a", 5), Event(1, "finish", "a", 0)]
    report = make_report([fold([begin(), *events])])
    found = json.loads(render(report, "json", Extras()))["runs"][0]
    assert (found["sjs_efficiency"], found["utilization"], found["mean_jct_s"]) == (None, None, 1.0)
    told = "SJS efficiency not known: 20 is impossible, expected above 0 and at most 1.1"
    assert told in found["caveats"]
    for kind in ("table", "md", "html"):
        shown = render(report, kind, Extras())
        assert told in " ".join(shown.split())
        assert "2,000" not in shown
