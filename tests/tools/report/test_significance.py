"""Wilcoxon's test of two runs, by hand and on event files."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, ReportFormat, render
from pliant.tools.report.rendering.sections import p_text
from pliant.tools.report.rendering.summary import Shown
from pliant.tools.report.report import Report, compare_jcts, make_report, steady, wilcoxon
from tests.builders import job
from tests.tools.report.runs import story, submit

LONG = tuple(range(10, 18))


def run(jcts: dict[str, float], **info: object) -> RunRecord:
    """Jobs that arrive a second apart and take so many seconds."""
    arrivals = {name: float(number) for number, name in enumerate(jcts)}
    ends = (Event(arrivals[name] + jct_s, "finish", name, 0) for name, jct_s in jcts.items())
    return story(*(submit(job(name, at=at), 10.0) for name, at in arrivals.items()), *ends, **info)


def test_eight_pairs_of_one_sign_by_hand():
    """The least of 2⁸ equally likely sums of ranks: 1/256 on one side, 2/256 on both."""
    longer = [value + number + 1 for number, value in enumerate(LONG)]
    found = wilcoxon(LONG, longer)
    assert found.pairs == 8
    assert found.less == pytest.approx(1 / 256)
    assert found.two_sided == pytest.approx(2 / 256)
    assert found.greater == pytest.approx(1.0)
    turned = wilcoxon(longer, LONG)
    assert (turned.less, turned.greater) == pytest.approx((found.greater, found.less))


def test_equal_values_speak_against_nothing():
    found = wilcoxon(LONG, LONG)
    assert (found.pairs, found.two_sided, found.greater, found.less) == (8, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(("left", "right"), [((), ()), ((1.0,), (1.0, 2.0))])
def test_values_without_partners_are_refused(left, right):
    with pytest.raises(UsageError, match="in pairs"):
        wilcoxon(left, right)


def test_jobs_are_paired_by_their_names_and_those_unfinished_left_out():
    fast = {name: 100.0 + number for number, name in enumerate("abcdefgh")}
    slow = {name: 2 * jct_s + number for number, (name, jct_s) in enumerate(reversed(fast.items()))}
    first = run(fast)
    assert compare_jcts(first, run(slow)).less == pytest.approx(1 / 256)
    del slow["h"]
    assert compare_jcts(first, run(slow)).pairs == 7


def test_the_first_jobs_found_the_cluster_empty():
    found = run({f"j{number:02}": 50.0 for number in range(30)})
    assert [each.id for each in steady(found, 0.05)][:2] == ["j02", "j03"], (
        "two of 30 are five per cent, rounded up"
    )
    assert len(steady(found)) == 30
    assert compare_jcts(found, found, 0.05).pairs == 28


def test_runs_of_different_traces_are_not_compared():
    with pytest.raises(UsageError, match="different traces"):
        compare_jcts(run({"a": 1.0}), run({"a": 2.0}, trace_hash="cd" * 32))


JOBS = "abcdefgh"


def timed_run(policy: str, longer: float = 1.0, jobs: str = JOBS, **info: Any) -> RunRecord:
    """Jobs that take 100, 101, … seconds, times ``longer``; of eight only ``jobs`` finish."""
    ends = (Event(longer * (100.0 + n), "finish", name, 0) for n, name in enumerate(jobs))
    return story(*(submit(job(name), 10.0) for name in JOBS), *ends, policy=policy, **info)


def beside(*others: RunRecord) -> Report:
    return make_report([timed_run("fifo"), *others], baseline="fifo")


def shown(report: Report, kind: ReportFormat) -> str:
    return render(report, kind, Extras(shown=Shown(all_rows=True)))


def test_the_table_has_the_pairs_and_their_p_values() -> None:
    """Eight pairs of one sign: one of 256 sums of ranks, or two."""
    text = shown(beside(timed_run("ares", 0.5)), "table")
    assert "Against fifo: mean JCTs and Wilcoxon's signed-rank tests" in text
    (row,) = (line.split() for line in text.splitlines() if line.split()[:2] == ["ares", "8"])
    assert row == ["ares", "8", "jobs", "−50", "%", "0.00781", "1.00000", "0.00391"]


def test_the_document_has_them_beside_the_ratios() -> None:
    first, second = json.loads(shown(beside(timed_run("ares", 0.5)), "json"))["runs"]
    assert first["paired"] is None, "the baseline itself"
    assert second["paired"] == {
        "pairs": 8,
        "two_sided": pytest.approx(2 / 256),
        "greater": pytest.approx(1.0),
        "less": pytest.approx(1 / 256),
    }
    assert second["ratios"]["mean_jct_s"] == 0.5


def test_so_has_csv_one_column_each() -> None:
    fifo, ares = csv.DictReader(io.StringIO(shown(beside(timed_run("ares", 2.0)), "csv")))
    assert (fifo["paired_pairs"], ares["paired_pairs"]) == ("", "8")
    assert float(ares["paired_greater"]) == pytest.approx(1 / 256)


def test_jobs_count_that_finished_in_both() -> None:
    report = beside(timed_run("ares", 0.5, jobs="abcde"), timed_run("las", jobs=""))
    assert {label: found.pairs for label, found in report.paired.items()} == {"ares": 5}


def test_other_traces_are_not_tested_and_the_report_goes_on() -> None:
    report = beside(timed_run("ares", trace_hash="cd" * 32))
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "table")
    assert any("different traces" in warning for warning in report.warnings)


def test_without_a_baseline_nothing_is_tested() -> None:
    report = make_report([timed_run("fifo"), timed_run("ares")])
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "md")


def test_a_tiny_p_value_keeps_its_power_of_ten() -> None:
    found = [p_text(p) for p in (0.99974, 5.17e-4, 7.55e-10, 0.0)]
    assert found == ["0.99974", "0.00052", "7.5e-10", "0.00000"]
